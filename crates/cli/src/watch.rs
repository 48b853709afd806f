//! Looking at programs that run over Overfly: `overfly top`, `overfly sockets` and `overfly dump`.

pub(crate) mod dump;
mod filter;
pub(crate) mod metrics;
mod pcapng;
mod sample;
mod screen;
pub(crate) mod sockets;
pub(crate) mod top;

use std::path::Path;
use std::process::ExitCode;

use overfly_broker::LeftFrames;
use overfly_broker::observer::{self, Look, Watched};
use overfly_terminal::{Foreign, Unwritten};

/// Brokers that are asked at most, unless one is named with --interface.
const INTERFACES_MAX: usize = 128;

/// Why there is nothing to show, or no way to show it.
pub(crate) enum Failure {
    /// In words.
    Said(String),
    /// Standard output cannot be written.
    Output(Unwritten),
}

impl From<String> for Failure {
    fn from(words: String) -> Failure {
        Failure::Said(words)
    }
}

impl From<Unwritten> for Failure {
    fn from(unwritten: Unwritten) -> Failure {
        Failure::Output(unwritten)
    }
}

impl Failure {
    /// Says it, unless there is nobody to hear it.
    fn exit(self) -> ExitCode {
        match self {
            Failure::Said(words) => {
                crate::complain(words);
                ExitCode::FAILURE
            }
            Failure::Output(unwritten) => crate::written(Err(unwritten)),
        }
    }
}

/// A process that is looked at, and where it runs.
pub(crate) struct Subject {
    /// The interface, as its broker's name says it, which anybody can choose.
    pub(crate) interface: Foreign,
    /// The program's name, as the kernel has it: the program chooses it.
    pub(crate) program: Foreign,
    pub(crate) watched: Watched,
}

/// An interface that is looked at, and what of its frames no stack was given.
pub(crate) struct Left {
    /// As its broker's name says it.
    pub(crate) interface: Foreign,
    pub(crate) frames: LeftFrames,
}

/// Which processes are meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Choice {
    /// Only programs on this interface
    #[arg(short, long, value_name = "NAME")]
    interface: Option<String>,
    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

impl Choice {
    /// The processes of this network namespace that are meant and may be seen, in the order of their numbers, and the interfaces
    /// whose brokers count.
    ///
    /// # Errors
    /// Says in words why nothing can be looked at.
    pub(crate) fn subjects(&self) -> Result<(Vec<Subject>, Vec<Left>), String> {
        let interfaces = match &self.interface {
            Some(interface) => vec![interface.clone()],
            None => observer::interfaces().map_err(|error| error.to_string())?,
        };
        let (mut subjects, mut left) = (Vec::new(), Vec::new());
        for (interface, look) in asked_together(interfaces) {
            left.extend(look.left.map(|frames| Left { interface: interface.as_str().into(), frames }));
            for watched in
                look.processes.into_iter().filter(|its| self.pid.is_none_or(|pid| pid == its.process))
            {
                let program = std::fs::read(format!("/proc/{}/comm", watched.process));
                let program = program
                    .map_or("?".into(), |name| Foreign::new(name.strip_suffix(b"\n").unwrap_or(&name)));
                subjects.push(Subject { interface: interface.as_str().into(), program, watched });
            }
        }
        subjects.sort_by_key(|subject| subject.watched.process);
        left.sort_by(|a, b| a.interface.raw().cmp(b.interface.raw()));
        Ok((subjects, left))
    }

    /// The processes of [`Choice::subjects`], where it makes no sense to look at none.
    pub(crate) fn some_subjects(&self) -> Result<Vec<Subject>, String> {
        let (subjects, _) = self.subjects()?;
        if subjects.is_empty() {
            let whose = if rustix::process::geteuid().is_root() { "" } else { " of yours (root sees all)" };
            return Err(format!(
                "no program{whose} runs over Overfly here: start one with `overfly run`, in this network namespace"
            ));
        }
        Ok(subjects)
    }
}

/// Asks the brokers of these interfaces, all at once: one that says nothing, which may be a stranger at such a name, takes none of
/// the others' time. A run may have ended since it was listed.
fn asked_together(mut interfaces: Vec<String>) -> Vec<(String, Look)> {
    // Anybody can take any number of names; those of interfaces that there are come first.
    let is_there = |name: &String| !name.contains('/') && Path::new("/sys/class/net").join(name).exists();
    interfaces.sort_by_key(|name| !is_there(name));
    interfaces.truncate(INTERFACES_MAX);
    std::thread::scope(|scope| {
        let asking: Vec<_> = interfaces
            .into_iter()
            .filter_map(|interface| {
                let ask = move || {
                    let look = observer::look(&interface).ok()?;
                    Some((interface, look))
                };
                std::thread::Builder::new().spawn_scoped(scope, ask).ok()
            })
            .collect();
        asking.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
    })
}

/// Microseconds of the monotonic clock, which all processes of this machine share.
fn monotonic_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
