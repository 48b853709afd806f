//! Whether those who play have come to rest: nobody has run for a while, and nobody is about to.
//!
//! Time alone does not say it: on a busy machine who is to answer waits for a processor. The kernel tells of each thread how often it
//! has run and for how long (`schedstat`), and whether it sleeps (`stat`).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How much time a sequence takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// What everything has its patience from; as long as this at most is waited after each step for those who sleep.
    pub(crate) unit: Duration,
    /// Who has slept for so long goes on sleeping until somebody does something. The library's own thread looks after 2 ms.
    pub(crate) quiet: Duration,
}

impl Pace {
    pub(crate) const fn new(unit_ms: u64, quiet_ms: u64) -> Pace {
        Pace { unit: Duration::from_millis(unit_ms), quiet: Duration::from_millis(quiet_ms) }
    }

    /// How long it is left to themselves at first: who has answered goes to sleep. A look that found it running would count.
    const FIRST_LOOK: Duration = Duration::from_micros(500);
}

/// How long something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// It is over when nobody has run for so long,
    pub(crate) quiet: Duration,
    /// or after so long, when nobody runs at that moment,
    pub(crate) rest: Duration,
    /// or after so long, if who runs had a processor meanwhile.
    pub(crate) end: Duration,
}

impl Patience {
    /// Of its end: who has run for less waited for a processor. A loop gets more also where twenty others run, on two of them.
    const RUNS: u32 = 50;
    /// So many times its end, whoever has run.
    const ENDS: u32 = 5;
}

/// When something began that is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    at: Instant,
    /// How long those who play had run.
    used: Duration,
}

/// What has become of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    GoesOn,
    /// All sleep: it will not come.
    AtRest,
    /// Somebody went on running for as long as was waited.
    Restless,
}

/// The longest time between two looks.
const LOOK_MAX: Duration = Duration::from_millis(6);

/// A process of somebody who plays.
struct Process {
    id: u32,
    side: char,
    /// Whether it has threads of the library's, which run when they like. Those of its own wait for orders, unless a call of theirs
    /// waits.
    accelerated: bool,
}

/// A thread of somebody who plays.
struct Thread {
    process: u32,
    schedstat: File,
    stat: File,
    /// What `schedstat` said.
    run: [u8; 64],
}

/// What a thread does.
#[derive(Clone, Copy)]
struct State {
    sleeps: bool,
    /// How many its process has.
    threads: usize,
}

/// The threads of those who play.
pub(crate) struct Watch {
    processes: Vec<Process>,
    threads: BTreeMap<u32, Thread>,
    /// When one of them was last found to have run.
    ran: Instant,
    /// How long all of them have run, as far as they were looked at.
    used: Duration,
    /// What the broker's threads do: they serve others, too, and are not to be at work.
    brokers: Vec<File>,
    /// The sides of which an actor's call waits.
    busy: String,
}

impl Watch {
    /// Of nobody yet. These threads are the broker's.
    pub(crate) fn new(brokers: &[u32]) -> Watch {
        let open = |id: &u32| File::open(format!("/proc/self/task/{id}/syscall")).ok();
        let brokers = brokers.iter().filter_map(open).collect();
        Watch {
            processes: Vec::new(),
            threads: BTreeMap::new(),
            ran: Instant::now(),
            used: Duration::ZERO,
            brokers,
            busy: String::new(),
        }
    }

    /// One more process of that side, or one that was there.
    pub(crate) fn add(&mut self, id: u32, side: char, accelerated: bool) {
        if !self.processes.iter().any(|process| process.id == id) {
            self.processes.push(Process { id, side, accelerated });
        }
    }

    /// Calls of these sides' actors wait.
    pub(crate) fn set_busy(&mut self, sides: impl Iterator<Item = char>) {
        self.busy.clear();
        self.busy.extend(sides);
    }

    /// Something begins now.
    pub(crate) fn begin(&self) -> Beginning {
        Beginning { at: Instant::now(), used: self.used }
    }

    /// When it is to be asked next whether what is waited for since then will not come.
    pub(crate) fn next_look(&self, began: Beginning, patience: Patience) -> Instant {
        let now = Instant::now();
        if now < began.at + Pace::FIRST_LOOK {
            return began.at + Pace::FIRST_LOOK;
        }
        // At the latest then it is over, if nobody runs.
        let quiet = self.ran.max(began.at) + patience.quiet;
        let rest = began.at + patience.rest;
        let over = quiet.min(if rest > now { rest } else { now + Duration::from_millis(1) });
        // Who runs for longer than a look is to be heard.
        over.clamp(now + Duration::from_micros(100), now + LOOK_MAX)
    }

    /// Whether what is waited for since then will not come.
    pub(crate) fn wait(&mut self, began: Beginning, patience: Patience) -> Wait {
        let now = Instant::now();
        let quiet = now - self.ran.max(began.at) >= patience.quiet;
        let sleep = (quiet || now - began.at >= patience.rest) && self.sleeps();
        // After the question: who had run before it, or since, would be taken for one who had slept all the time.
        self.look();
        if sleep && (!quiet || Instant::now() - self.ran.max(began.at) >= patience.quiet) {
            return Wait::AtRest;
        }
        let (long, used) = (now - began.at, self.used - began.used);
        let restless = long >= patience.end && used >= patience.end / Patience::RUNS;
        if restless || long >= patience.end * Patience::ENDS { Wait::Restless } else { Wait::GoesOn }
    }

    /// Whether it can run before it is told something.
    fn may_run(&self, process: u32) -> bool {
        let process = self.processes.iter().find(|known| known.id == process);
        process.is_none_or(|process| process.accelerated || self.busy.contains(process.side))
    }

    /// Notes who has run.
    fn look(&mut self) {
        let mut ran = false;
        for id in self.those_who_may_run() {
            let Some(thread) = self.threads.get_mut(&id) else { continue };
            let mut run = [0; 64];
            let _ = thread.schedstat.read_at(&mut run, 0);
            ran |= run != thread.run;
            if let (Some(before), Some(now)) = (run_time(&thread.run), run_time(&run)) {
                self.used += now.saturating_sub(before);
            }
            thread.run = run;
        }
        if ran {
            self.ran = Instant::now();
        }
    }

    fn those_who_may_run(&self) -> Vec<u32> {
        let ids = self.threads.iter().filter(|(_, thread)| self.may_run(thread.process));
        ids.map(|(id, _)| *id).collect()
    }

    /// Whether all sleep, also those who are new.
    fn sleeps(&mut self) -> bool {
        let processes: Vec<u32> =
            self.processes.iter().map(|process| process.id).filter(|id| self.may_run(*id)).collect();
        processes.into_iter().all(|process| self.process_sleeps(process))
            && self.brokers.iter().all(waits_for_orders)
    }

    /// Its threads are only counted, and listed when there are more or fewer than before, or others.
    fn process_sleeps(&mut self, process: u32) -> bool {
        let known = |watch: &Watch| watch.threads.values().filter(|thread| thread.process == process).count();
        let states = |watch: &Watch| {
            let threads = watch.threads.values().filter(|thread| thread.process == process);
            threads.map(Thread::state).collect::<Vec<_>>()
        };
        let mut found = states(self);
        let are_all = |found: &[Option<State>], count: usize| {
            count > 0 && found.iter().all(|state| state.is_some_and(|state| state.threads == count))
        };
        if !are_all(&found, known(self)) {
            self.list(process);
            found = states(self);
        }
        found.into_iter().flatten().all(|state| state.sleeps)
    }

    fn list(&mut self, process: u32) {
        let all: Vec<u32> = threads_of(&process.to_string()).collect();
        self.threads.retain(|id, thread| thread.process != process || all.contains(id));
        for id in all {
            if !self.threads.contains_key(&id)
                && let Some(thread) = Thread::open(process, id)
            {
                self.threads.insert(id, thread);
            }
        }
    }
}

/// What `schedstat` says first; `None` if it has not been asked yet.
fn run_time(schedstat: &[u8]) -> Option<Duration> {
    let first = schedstat.split(|byte| *byte == b' ').next()?;
    let nanoseconds = std::str::from_utf8(first).ok()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Not for a thread that does something for it.
fn waits_for_orders(broker: &File) -> bool {
    let mut call = [0; 128];
    let length = broker.read_at(&mut call, 0).unwrap_or(0);
    // "running", or the number of a call and its arguments.
    let number = call[..length].split(|byte| *byte == b' ').next().unwrap_or_default();
    number == libc::SYS_ppoll.to_string().as_bytes()
}

/// The broker's threads, which are this process's.
pub(crate) fn brokers() -> Vec<u32> {
    let is_brokers = |id: &u32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
        name.is_ok_and(|name| name.trim_end() == "overfly-broker")
    };
    threads_of("self").filter(is_brokers).collect()
}

/// The threads of a process, or of none if it has ended.
fn threads_of(process: &str) -> impl Iterator<Item = u32> + use<> {
    let folder = std::fs::read_dir(format!("/proc/{process}/task"));
    let entries = folder.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Thread {
    /// `None` if it has ended.
    fn open(process: u32, id: u32) -> Option<Thread> {
        let open = |name| File::open(format!("/proc/{id}/task/{id}/{name}")).ok();
        Some(Thread { process, schedstat: open("schedstat")?, stat: open("stat")?, run: [0; 64] })
    }

    /// `None` if it has ended.
    fn state(&self) -> Option<State> {
        let mut stat = [0; 512];
        let length = self.stat.read_at(&mut stat, 0).unwrap_or(0);
        // The name before the state may have any character.
        let name = stat[..length].iter().rposition(|byte| *byte == b')')?;
        let fields = std::str::from_utf8(&stat[name + 1..length]).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        let sleeps = ["S", "Z", "X"].contains(&fields.next()?);
        // The twentieth of all.
        Some(State { sleeps, threads: fields.nth(16)?.parse().ok()? })
    }
}

#[test]
fn who_runs_is_not_at_rest() {
    let patience = Patience {
        quiet: Duration::from_millis(20),
        rest: Duration::from_secs(20),
        end: Duration::from_millis(300),
    };
    let comes_to = |program: &str| {
        let mut child =
            crate::bench::Helper(std::process::Command::new("sh").args(["-c", program]).spawn().unwrap());
        let mut watch = Watch::new(&[]);
        watch.add(child.0.id(), 'L', true);
        let began = watch.begin();
        let waited = loop {
            match watch.wait(began, patience) {
                Wait::GoesOn => std::thread::sleep(Duration::from_millis(2)),
                waited => break waited,
            }
        };
        child.0.kill().unwrap();
        waited
    };
    assert_eq!(comes_to("exec sleep 10"), Wait::AtRest);
    assert_eq!(comes_to("while :; do :; done"), Wait::Restless);
    let often = "exec /usr/bin/python3 -c 'while True: __import__(\"time\").sleep(0.005)'";
    assert_eq!(comes_to(often), Wait::Restless);
}
