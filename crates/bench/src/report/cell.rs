//! One cell of the comparison: its figures, and what Overfly gained.

use serde::{Deserialize, Serialize};

use super::figure::{Figure, Limit};
use crate::plan::{Case, Cell, Connection, Described, Link, Mode, Plan};
use crate::schedule::Standing;
use crate::statistics::{self, Interval};
use crate::trial::Trial;

/// Above this share of what the null server gives, the generator may be the limit.
const NEAR_CEILING: f64 = 0.9;

/// One cell of the comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellReport {
    /// Size of the file.
    pub payload_bytes: u64,
    /// How connections were used.
    pub connection: Connection,
    /// What carried the generator's connections.
    pub link: Link,
    /// Connections that were kept busy.
    pub connections: u32,
    /// Requests that were due each second; none in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Of each server.
    pub workers: u32,
    /// Servers that ran at once.
    pub instances: u32,
    /// What Overfly ran with.
    pub profile: String,
    /// What sets this cell apart beyond payload, connection and link; empty where the plan goes through nothing else.
    pub varied: String,
    /// The kernel's figures are those of an earlier cell, which has another profile and the same kernel.
    pub shares_kernel: bool,
    /// The kernel figure to beat: the better of the two below, if there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Figure>,
    /// The kernel server under the cell's link, where kernel sockets were tried too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_xdp: Option<Figure>,
    /// The kernel server under a generator with kernel sockets, every offload on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_sockets: Option<Figure>,
    /// The kernel server with nothing tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_as_found: Option<Figure>,
    /// The kernel server and its generator, both polling their sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_busy_poll: Option<Figure>,
    /// The server that does nothing but answer: what the generator can do at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null_server: Option<Figure>,
    /// Overfly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overfly: Option<Figure>,
    /// How much better Overfly's median is than the kernel's, whichever way the figure goes; a rate over memif: the kernel's server
    /// CPU for each over Overfly's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// Where the gain lies ([`statistics::ratio_interval`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain_interval: Option<Interval>,
    /// Every point of one side, or of both, was measured while the machine was slow.
    pub gain_disturbed: bool,
}

impl CellReport {
    pub(super) fn new(
        plan: &Plan,
        index: usize,
        cell: Cell,
        trials: &[(Case, Trial)],
        standings: &[Standing],
    ) -> CellReport {
        // The kernel was measured once for all profiles.
        let of = |mode: Mode| if mode == Mode::Overfly { index } else { index - cell.profile };
        let attempts = |mode: Mode, generator: Link| {
            let mut chosen: Vec<(&Case, &Trial, Standing)> = trials
                .iter()
                .zip(standings)
                .map(|((case, trial), &standing)| (case, trial, standing))
                .filter(|(case, ..)| {
                    case.cell == of(mode) && case.mode == mode && case.generator == generator
                })
                .collect();
            chosen.sort_by_key(|(case, ..)| case.repeat);
            let trials: Vec<(&Trial, Standing)> =
                chosen.into_iter().map(|(_, trial, standing)| (trial, standing)).collect();
            trials
        };
        let generator = cell.generator(Mode::Kernel);
        let direct = attempts(Mode::Kernel, generator);
        let sockets =
            if generator == Link::Kernel { Vec::new() } else { attempts(Mode::Kernel, Link::Kernel) };
        let overfly = attempts(Mode::Overfly, cell.link);
        // Like is compared with like: steady points with steady ones, or all with all.
        let is_steady = |attempts: &[(&Trial, Standing)]| {
            attempts.iter().any(|&(_, standing)| standing == Standing::Stands)
        };
        let steady = [&direct, &overfly].iter().all(|attempts| attempts.is_empty() || is_steady(attempts));
        let figure = |generator: Link, attempts: &[(&Trial, Standing)], steady: bool| {
            (!attempts.is_empty()).then(|| Figure::new(generator, attempts, steady))
        };
        let direct = figure(generator, &direct, steady);
        // The second look at the kernel must not take the first two's points from them.
        let sockets = figure(Link::Kernel, &sockets, is_steady(&sockets));
        let overfly = figure(cell.link, &overfly, steady);
        let as_found = attempts(Mode::KernelAsFound, cell.link);
        let kernel_as_found = figure(cell.link, &as_found, is_steady(&as_found));
        let null = attempts(Mode::Null, cell.link);
        let null_server = figure(cell.link, &null, is_steady(&null));
        let (kernel, kernel_xdp) = match (&direct, &sockets) {
            (Some(direct), Some(sockets)) => {
                let measure = plan.measure().described();
                let better = if measure.gain(sockets.median, direct.median) > 1.0 { sockets } else { direct };
                (Some(better.clone()), Some(direct.clone()))
            }
            _ => (direct, None),
        };
        let busy_poll = attempts(Mode::KernelBusyPoll, generator);
        let kernel_busy_poll = figure(generator, &busy_poll, is_steady(&busy_poll));
        let both = kernel.as_ref().zip(overfly.as_ref());
        let gain = both.and_then(|(kernel, overfly)| gain(plan, cell.link, kernel, overfly));
        let gain_interval = both
            .filter(|_| gain.is_some())
            .and_then(|(kernel, overfly)| gain_interval(plan, cell.link, kernel, overfly));
        let is_disturbed = |figure: &Figure| figure.disturbed.len() == figure.points.len();
        let gain_disturbed =
            both.is_some_and(|(kernel, overfly)| is_disturbed(kernel) || is_disturbed(overfly));
        CellReport {
            payload_bytes: cell.payload_bytes,
            connection: cell.connection,
            link: cell.link,
            connections: cell.connections,
            rate_per_s: cell.rate_per_s,
            workers: cell.workers,
            instances: cell.instances,
            profile: plan.profile_of(&cell).to_owned(),
            varied: plan.varied(&cell),
            shares_kernel: cell.profile > 0,
            kernel,
            kernel_xdp,
            kernel_sockets: sockets,
            kernel_as_found,
            kernel_busy_poll,
            null_server,
            overfly,
            gain,
            gain_interval,
            gain_disturbed,
        }
    }

    /// Every figure once, with the name it has in tables.
    pub(super) fn named_figures(&self) -> Vec<(&'static str, &Figure)> {
        let direct = if self.kernel_sockets.is_some() { &self.kernel_xdp } else { &self.kernel };
        let (kernel, overfly) = match self.link {
            Link::Memif => ("kernel, loopback", "overfly, memif"),
            Link::Host => ("kernel, loopback", "overfly, loopback"),
            Link::Xdp | Link::Kernel | Link::Memory => ("kernel", "overfly"),
        };
        [
            (kernel, direct),
            ("kernel (sockets)", &self.kernel_sockets),
            ("kernel, as found", &self.kernel_as_found),
            ("kernel, busy polling", &self.kernel_busy_poll),
            ("null server", &self.null_server),
            (overfly, &self.overfly),
        ]
        .into_iter()
        .filter(|(name, _)| !self.shares_kernel || name.starts_with("overfly"))
        .filter_map(|(name, figure)| Some((name, figure.as_ref()?)))
        .collect()
    }

    pub(super) fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.named_figures().into_iter().map(|(_, figure)| figure)
    }

    /// The gain, and where it lies; no more of it than is known.
    pub(super) fn gain_in_words(&self) -> String {
        let Some(gain) = self.gain else { return String::new() };
        match self.gain_interval {
            _ if self.gain_disturbed => format!("~{gain:.1}"),
            Some(interval) if interval.holds(1.0) => "no difference seen".to_owned(),
            Some(interval) => {
                let sure = if interval.is_sure() {
                    String::new()
                } else {
                    format!(", {:.0} %", interval.confidence * 100.0)
                };
                format!("{gain:.2} ({:.2} to {:.2}{sure})", interval.low, interval.high)
            }
            // Nobody knows how far another run would be from these.
            None => format!("{gain:.1}, of a run each: no interval"),
        }
    }

    /// How connections are used, and what else sets this cell apart.
    pub(super) fn use_of_connections(&self) -> String {
        match self.varied.as_str() {
            "" => self.connection.to_string(),
            varied => format!("{}, {varied}", self.connection),
        }
    }

    /// Which share of what the generator reached against the null server it reached against this one, over the same link.
    fn of_ceiling(&self, figure: &Figure) -> Option<f64> {
        let null = self.null_server.as_ref().filter(|null| null.link == figure.link && null.median > 0.0)?;
        Some(figure.median / null.median)
    }

    /// One line on a figure that the generator may have limited, by the null server's.
    pub(super) fn near_ceiling(&self) -> Vec<String> {
        // Where the null server itself had no time left, the generator's ceiling is higher than what was seen.
        if self.null_server.as_ref().is_none_or(|null| null.limit != Limit::Generator) {
            return Vec::new();
        }
        let figures = self.named_figures().into_iter().filter(|(name, _)| *name != "null server");
        let near = figures.filter_map(|(name, figure)| {
            let share = self.of_ceiling(figure).filter(|&share| share > NEAR_CEILING)?;
            Some(format!(
                "{} B {}, {name}: {:.0} % of what the generator reached against a server that only answers; the generator may be \
                 the limit",
                self.payload_bytes,
                self.use_of_connections(),
                share * 100.0
            ))
        });
        // At a constant rate all reach the same.
        if self.rate_per_s.is_some() { Vec::new() } else { near.collect() }
    }

    pub(super) fn rows(&self, measure: &Described) -> Vec<Vec<String>> {
        let rows = self.named_figures().into_iter().map(|(name, figure)| {
            let gain = if name.starts_with("overfly") { self.gain_in_words() } else { String::new() };
            vec![
                format!("{} B", self.payload_bytes),
                self.use_of_connections(),
                name.to_owned(),
                measure.shown(figure.median),
                gain,
                known(figure.server_cpu_us_per_request, 2),
                known(figure.latency_p99_us, if figure.latency_p99_us < 100.0 { 1 } else { 0 }),
                match figure.limit {
                    Limit::Unknown => "-".to_owned(),
                    _ => {
                        format!("{:.0}/{:.0}", figure.server_core_busy_percent, figure.generator_busy_percent)
                    }
                },
                figure.limit.to_string(),
                figure.errors.to_string(),
                figure.points_in_words(measure),
            ]
        });
        rows.collect()
    }
}

/// How much better Overfly is: by the figure, or by what a core of the server does.
fn gain(plan: &Plan, link: Link, kernel: &Figure, overfly: &Figure) -> Option<f64> {
    let measure = plan.measure();
    if measure.gain_is_of_a_core(link) {
        return core_gain(kernel, overfly);
    }
    (kernel.median > 0.0 && overfly.median > 0.0)
        .then(|| measure.described().gain(overfly.median, kernel.median))
}

fn gain_interval(plan: &Plan, link: Link, kernel: &Figure, overfly: &Figure) -> Option<Interval> {
    let measure = plan.measure();
    if measure.gain_is_of_a_core(link) {
        core_gain_interval(kernel, overfly)
    } else if measure.smaller_is_better() {
        statistics::ratio_interval(kernel.values(), overfly.values())
    } else {
        statistics::ratio_interval(overfly.values(), kernel.values())
    }
}

/// How much more a second of the server's processor time does. It does not depend on the generators, as a rate does where they were the
/// limit.
pub(super) fn core_gain(kernel: &Figure, overfly: &Figure) -> Option<f64> {
    let (theirs, ours) = (kernel.server_cpu_us_per_request, overfly.server_cpu_us_per_request);
    (theirs > 0.0 && ours > 0.0).then(|| theirs / ours)
}

pub(super) fn core_gain_interval(kernel: &Figure, overfly: &Figure) -> Option<Interval> {
    statistics::ratio_interval(kernel.server_us(), overfly.server_us())
}

/// What was measured, or a dash.
fn known(value: f64, places: usize) -> String {
    if value > 0.0 { format!("{value:.places$}") } else { "-".to_owned() }
}
