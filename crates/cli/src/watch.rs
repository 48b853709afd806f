//! Looking at programs that run over Overfly: `overfly top`, `overfly sockets` and `overfly dump`.

pub(crate) mod dump;
mod filter;
mod pcapng;
mod sample;
mod screen;
pub(crate) mod sockets;
pub(crate) mod top;

use overfly_link::broker::observer::{self, Watched};

/// A process that is looked at, and where it runs.
pub(crate) struct Subject {
    /// The interface.
    pub(crate) interface: String,
    /// The program's name, as the kernel has it.
    pub(crate) program: String,
    pub(crate) watched: Watched,
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
    /// The processes of this network namespace that are meant and may be seen, in the order of their numbers.
    ///
    /// # Errors
    /// Says in words why nothing can be looked at.
    pub(crate) fn subjects(&self) -> Result<Vec<Subject>, String> {
        let interfaces = match &self.interface {
            Some(interface) => vec![interface.clone()],
            None => observer::interfaces().map_err(|error| error.to_string())?,
        };
        let mut subjects = Vec::new();
        for interface in interfaces {
            // A run may have ended since it was listed.
            let Ok(processes) = observer::processes(&interface) else { continue };
            for watched in processes.into_iter().filter(|its| self.pid.is_none_or(|pid| pid == its.process)) {
                let program = std::fs::read_to_string(format!("/proc/{}/comm", watched.process));
                let program = program.map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned());
                subjects.push(Subject { interface: interface.clone(), program, watched });
            }
        }
        subjects.sort_by_key(|subject| subject.watched.process);
        Ok(subjects)
    }

    /// As [`Choice::subjects`], where it makes no sense to look at none.
    pub(crate) fn some_subjects(&self) -> Result<Vec<Subject>, String> {
        let subjects = self.subjects()?;
        if subjects.is_empty() {
            let whose = if rustix::process::geteuid().is_root() { "" } else { " of yours (root sees all)" };
            return Err(format!(
                "no program{whose} runs over Overfly here: start one with `overfly run`, in this network namespace"
            ));
        }
        Ok(subjects)
    }
}

/// Microseconds of the monotonic clock, which all processes of this machine share.
fn monotonic_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
