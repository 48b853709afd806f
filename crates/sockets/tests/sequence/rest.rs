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

    /// How often it is looked whether somebody has run.
    pub(crate) fn look(self) -> Duration {
        (self.quiet / 2).clamp(Duration::from_micros(500), Duration::from_millis(5))
    }
}

/// How long something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// It is over when nobody has run for so long,
    pub(crate) quiet: Duration,
    /// or after so long, when nobody runs at that moment,
    pub(crate) rest: Duration,
    /// or after so long.
    pub(crate) end: Duration,
}

/// A thread of somebody who plays.
struct Thread {
    schedstat: File,
    stat: File,
    /// What `schedstat` said.
    run: [u8; 64],
}

/// The threads of those who play.
pub(crate) struct Watch {
    processes: Vec<u32>,
    threads: BTreeMap<u32, Thread>,
    /// When one of them was last found to have run.
    ran: Instant,
    /// What the broker's threads do: they serve others, too, and are not to be at work.
    brokers: Vec<File>,
}

impl Watch {
    /// Of nobody yet. These threads are the broker's.
    pub(crate) fn new(brokers: &[u32]) -> Watch {
        let open = |id: &u32| File::open(format!("/proc/self/task/{id}/syscall")).ok();
        let brokers = brokers.iter().filter_map(open).collect();
        Watch { processes: Vec::new(), threads: BTreeMap::new(), ran: Instant::now(), brokers }
    }

    /// One more process, or one that was there.
    pub(crate) fn add(&mut self, process: u32) {
        if !self.processes.contains(&process) {
            self.processes.push(process);
        }
    }

    /// Whether what is waited for since `began` will not come.
    pub(crate) fn is_over(&mut self, began: Instant, patience: Patience) -> bool {
        self.look();
        let now = Instant::now();
        let quiet = now - self.ran.max(began) >= patience.quiet;
        now - began >= patience.end
            || (quiet || now - began >= patience.rest)
                && self.sleeps()
                // Nor has anybody run, or begun, since.
                && (!quiet || Instant::now() - self.ran.max(began) >= patience.quiet)
    }

    /// Notes who has run.
    fn look(&mut self) {
        let mut ran = false;
        for thread in self.threads.values_mut() {
            let mut run = [0; 64];
            let _ = thread.schedstat.read_at(&mut run, 0);
            ran |= run != thread.run;
            thread.run = run;
        }
        if ran {
            self.ran = Instant::now();
        }
    }

    /// Whether all sleep, also those who are new.
    fn sleeps(&mut self) -> bool {
        let of_all = self.processes.iter().flat_map(|process| threads_of(&process.to_string()));
        let of_all: Vec<u32> = of_all.collect();
        self.threads.retain(|id, _| of_all.contains(id));
        for id in of_all {
            if !self.threads.contains_key(&id)
                && let Some(thread) = Thread::open(id)
            {
                self.threads.insert(id, thread);
            }
        }
        let sleep = self.threads.values().all(Thread::sleeps) && self.brokers.iter().all(waits_for_orders);
        // Who had run between a look and the question would be taken for one who had slept all the time.
        self.look();
        sleep
    }
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
    fn open(id: u32) -> Option<Thread> {
        let open = |name| File::open(format!("/proc/{id}/task/{id}/{name}")).ok();
        Some(Thread { schedstat: open("schedstat")?, stat: open("stat")?, run: [0; 64] })
    }

    /// One that has ended does.
    fn sleeps(&self) -> bool {
        let mut stat = [0; 128];
        let length = self.stat.read_at(&mut stat, 0).unwrap_or(0);
        // The name before the state may have any character.
        let name = stat[..length].iter().rposition(|byte| *byte == b')');
        let state = name.and_then(|name| stat.get(name + 2));
        state.is_none_or(|state| b"SZX".contains(state))
    }
}

#[test]
fn who_runs_is_not_at_rest() {
    let patience = Patience {
        quiet: Duration::from_millis(20),
        rest: Duration::from_secs(20),
        end: Duration::from_secs(30),
    };
    let rests = |program: &str| {
        let mut child =
            crate::bench::Helper(std::process::Command::new("sh").args(["-c", program]).spawn().unwrap());
        let mut watch = Watch::new(&[]);
        watch.add(child.0.id());
        let began = Instant::now();
        while !watch.is_over(began, patience) && began.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let rested = began.elapsed() < Duration::from_secs(1);
        child.0.kill().unwrap();
        rested
    };
    assert!(rests("exec sleep 10"));
    assert!(!rests("while :; do :; done"));
    assert!(!rests("exec /usr/bin/python3 -c 'while True: __import__(\"time\").sleep(0.005)'"));
}
