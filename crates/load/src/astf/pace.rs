//! When flows are due: each template's rate, its ramp, and its limits.

use super::counter::Counter;
use super::plan::Plan;
use super::side::Side;

/// Flows of one template that are begun before others have their turn.
const BURST: u32 = 32;
/// A thread that is so far behind begins no flow later than that: it counts what it left out.
const LATE_S: f64 = 0.1;

/// One template's share of a thread.
#[derive(Debug)]
struct Due {
    /// Flows a second at a multiplier of 1.
    rate: f64,
    ramp_ns: Option<f64>,
    /// Flows in all, or with `keep_open` at a time.
    limit: Option<u64>,
    keep_open: bool,
    /// Flows that are due and not begun.
    owed: f64,
    begun: u64,
}

/// One thread's schedule.
#[derive(Debug)]
pub(crate) struct Pace {
    templates: Vec<Due>,
    last_ns: u64,
    /// Time for the ramps: it stands still while the run is paused.
    ran_ns: f64,
}

impl Pace {
    /// The share of thread `index` of `threads`. The first flows of all threads together come as those of one would.
    pub(crate) fn new(plan: &Plan, index: usize, threads: usize) -> Pace {
        let due = |template: &super::plan::Template| Due {
            rate: template.cps / threads as f64,
            ramp_ns: template.ramp_s.map(|seconds| f64::from(seconds) * 1e9),
            limit: template.limit.map(|limit| {
                let (limit, threads) = (u64::from(limit), threads as u64);
                let place = (index as u64 + threads - u64::from(template.first_core) % threads) % threads;
                limit / threads + u64::from(place < limit % threads)
            }),
            keep_open: template.keep_open,
            // The first is due at once; the one that would be due as the time ends is not.
            owed: 1.0 - index as f64 / threads as f64 - 1e-6,
            begun: 0,
        };
        Pace { templates: plan.templates.iter().map(due).collect(), last_ns: 0, ran_ns: 0.0 }
    }

    /// Time goes on to `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: u64, multiplier: f64, paused: bool) {
        let passed_ns = now_ns.saturating_sub(self.last_ns) as f64;
        self.last_ns = now_ns;
        if paused {
            return;
        }
        let (from_ns, to_ns) = (self.ran_ns, self.ran_ns + passed_ns);
        self.ran_ns = to_ns;
        for due in &mut self.templates {
            let at_full_ns = match due.ramp_ns {
                // The ramp's height, integrated.
                Some(ramp_ns) if from_ns < ramp_ns => {
                    let until_ns = to_ns.min(ramp_ns);
                    (until_ns * until_ns - from_ns * from_ns) / (2.0 * ramp_ns) + (to_ns - until_ns)
                }
                _ => passed_ns,
            };
            due.owed += due.rate * multiplier * at_full_ns / 1e9;
        }
    }

    /// Begins what is due, by `open`, and counts what is so late that it will not be begun. True if more is due. `open` is told
    /// about how many flows of the template are begun in a row, that one first.
    pub(crate) fn begin(
        &mut self,
        side: &mut Side,
        multiplier: f64,
        mut open: impl FnMut(&mut Side, u16, u32) -> bool,
    ) -> bool {
        let mut more = false;
        for (index, due) in self.templates.iter_mut().enumerate() {
            let mut burst = BURST;
            loop {
                let replaces = due.keep_open && due.limit.is_some_and(|limit| due.begun >= limit);
                let allowed = match due.limit {
                    Some(limit) if due.keep_open => u64::from(side.active[index]) < limit,
                    Some(limit) => due.begun < limit,
                    None => true,
                };
                if !allowed {
                    due.owed = due.owed.min(1.0);
                    break;
                }
                if due.owed < 1.0 && !replaces {
                    break;
                }
                if burst == 0 {
                    more = true;
                    break;
                }
                let row = (due.owed as u32).clamp(1, burst);
                burst -= 1;
                due.owed = (due.owed - 1.0).max(0.0);
                due.begun += 1;
                if !open(side, index as u16, row) {
                    break;
                }
            }
        }
        self.fall_behind(side, multiplier);
        more
    }

    /// Counts what is so late that it will not be begun.
    pub(crate) fn fall_behind(&mut self, side: &mut Side, multiplier: f64) {
        for (index, due) in self.templates.iter_mut().enumerate() {
            let most = (due.rate * multiplier * LATE_S).max(f64::from(BURST));
            if due.owed > most && !due.keep_open {
                let late = (due.owed - most).floor();
                due.owed -= late;
                side.count(index as u16, Counter::flows_late, late as u64);
            }
        }
    }

    /// How long until a flow is due, ns.
    pub(crate) fn wait_ns(&self, multiplier: f64) -> u64 {
        // A limit that was reached waits for the end of a flow, not for a time.
        let waits = self.templates.iter().filter(|due| due.limit.is_none_or(|limit| due.begun < limit));
        let wait = |due: &Due| ((1.0 - due.owed).max(0.0) / (due.rate * multiplier) * 1e9) as u64;
        waits.map(wait).min().unwrap_or(u64::MAX)
    }

    /// The time is over: what is due and was not begun is late.
    pub(crate) fn end(&mut self, side: &mut Side) {
        for (index, due) in self.templates.iter_mut().enumerate() {
            let allowed = match due.limit {
                Some(_) if due.keep_open => 0,
                Some(limit) => limit.saturating_sub(due.begun),
                None => u64::MAX,
            };
            side.count(index as u16, Counter::flows_late, (due.owed.max(0.0) as u64).min(allowed));
            due.owed = 0.0;
        }
    }

    /// Whether there is nothing more to begin, ever.
    pub(crate) fn is_done(&self) -> bool {
        self.templates.iter().all(|due| !due.keep_open && due.limit.is_some_and(|limit| due.begun >= limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::astf::tests::plan_of;

    #[test]
    fn threads_share_a_limit_from_the_first_core_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.py");
        let text = "from trex.astf.api import *
class P():
    def get_profile(self, **kwargs):
        c = ASTFProgram(); c.send('a')
        s = ASTFProgram(); s.recv(1)
        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.9']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.1']))
        return ASTFProfile(default_ip_gen=ip, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=c, ip_gen=ip, limit=6, core_base=3),
            server_template=ASTFTCPServerTemplate(program=s)))
def register(): return P()
";
        std::fs::write(&path, text).unwrap();
        let plan = plan_of(&[path], None);
        let limits = [0, 1, 2, 3].map(|index| Pace::new(&plan, index, 4).templates[0].limit.unwrap());
        assert_eq!(limits, [2, 1, 1, 2]);
    }
}
