//! Whom a broker that stands by itself serves: who asks, and what a policy says.

use crate::observers::Peer;

/// A program that wants to be served, as the kernel describes the process that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant {
    /// Its number.
    pub process: u32,
    /// What it is to run, as far as its command line says so; else its own name. It chooses both.
    pub name: String,
    /// The user as whom it connected.
    pub user: u32,
    /// Its groups, the supplementary ones too.
    pub groups: Vec<u32>,
    /// Its control group, as the broker sees it; nothing if there is no unified hierarchy.
    pub cgroup: Option<String>,
    /// It could do itself what the broker does: root with CAP_NET_ADMIN.
    pub is_privileged: bool,
}

/// What a program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Of which rule it is. Programs of one user and one rule share.
    pub rule: usize,
    /// Stacks that they have at most, together.
    pub stacks: u16,
}

/// What happens at a broker, for its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program is served from now on.
    Begun(Applicant),
    /// It is not, and was told why.
    Refused(Applicant, String),
    /// A program's lease is over.
    Ended {
        /// The process that asked for it.
        process: u32,
    },
    /// A process was given no stack.
    NoStack {
        /// Which.
        process: u32,
        /// Its user.
        user: u32,
        /// Why.
        reason: String,
    },
    /// It was told to stop: it takes no more programs, and ends when these have.
    Ending {
        /// Programs that are served.
        programs: usize,
    },
    /// The interface, the firewall or the like: one line.
    News(String),
}

/// A broker's policy and log.
pub trait Admission: Send {
    /// What a program gets. `None`: as much as there is.
    ///
    /// # Errors
    /// Says in words why it is not to be served.
    fn judge(&mut self, applicant: &Applicant) -> Result<Option<Share>, String>;

    /// Something has happened.
    fn note(&mut self, event: Event);
}

impl Applicant {
    /// The process that connected. Nothing if it has ended: its number may be another's. `alive` says that it is still its own.
    pub(crate) fn of(peer: Peer, alive: impl Fn() -> bool) -> Option<Applicant> {
        let process = peer.number();
        let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}"));
        let status = String::from_utf8_lossy(&read("status").ok()?).into_owned();
        let cgroup = String::from_utf8_lossy(&read("cgroup").ok()?).into_owned();
        let line = String::from_utf8_lossy(&read("cmdline").ok()?).into_owned();
        let own = String::from_utf8_lossy(&read("comm").ok()?).trim_end().to_owned();
        let applicant = Applicant {
            process,
            name: command(&line).map_or(own, str::to_owned),
            user: peer.user,
            groups: groups(&status),
            cgroup: cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned),
            is_privileged: peer.may_do_all(&alive),
        };
        alive().then_some(applicant)
    }
}

/// The program in a command line such as `overfly run -- nginx`, without the folder.
fn command(line: &str) -> Option<&str> {
    let program = line.split('\0').skip_while(|word| *word != "--").nth(1)?;
    program.rsplit('/').next().filter(|name| !name.is_empty())
}

/// The effective group and the supplementary ones, of a /proc/PID/status.
fn groups(status: &str) -> Vec<u32> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let effective = line("Gid:").split_ascii_whitespace().nth(1).into_iter();
    effective
        .chain(line("Groups:").split_ascii_whitespace())
        .filter_map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{command, groups};

    #[test]
    fn the_program_is_what_is_to_be_run() {
        assert_eq!(command("overfly\0run\0-i\0eth0\0--\0/usr/sbin/nginx\0-g\0--\0x\0"), Some("nginx"));
        for line in ["overfly\0run\0nginx\0", "overfly\0--\0", "", "a\0--\0/bin/\0"] {
            assert_eq!(command(line), None, "{line}");
        }
    }

    #[test]
    fn the_effective_group_and_the_supplementary_ones_count() {
        let status = "Name:\tx Gid: 7\nUid:\t1\t2\t3\t4\nGid:\t10\t11\t12\t13\nGroups:\t20 30 \n";
        assert_eq!(groups(status), [11, 20, 30]);
        assert!(groups("").is_empty());
    }
}
