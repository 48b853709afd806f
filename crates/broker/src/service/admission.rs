//! Whom a broker that stands by itself serves: who asks, and what a policy says.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use super::observers::Peer;

/// A program that wants to be served, as the kernel describes the process that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant {
    /// Its number.
    pub process: u32,
    /// What it is to run, as far as its command line says so; else its own name. It chooses both.
    pub name: String,
    /// The user as whom it connected.
    pub user: u32,
    /// The groups with which it connected, the supplementary ones too.
    pub groups: Vec<u32>,
    /// Its control group, as the broker sees it; nothing if there is no unified hierarchy.
    pub cgroup: Option<String>,
    /// It could do itself what the broker does: root with CAP_NET_ADMIN.
    pub is_privileged: bool,
    /// The number of its network namespace.
    pub network: Option<u64>,
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
    /// It was told to stop: it takes no more programs, and ends when these have handed their connections over.
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
    /// The process that connected by `socket`. Nothing if it has ended: its number may be another's. `alive` says that it is still its own.
    pub(crate) fn of(socket: &OwnedFd, peer: Peer, alive: impl Fn() -> bool) -> Option<Applicant> {
        let mut applicant = Applicant::unnamed(socket, peer, &alive)?;
        let line = std::fs::read(format!("/proc/{}/cmdline", applicant.process)).ok()?;
        if let Some(name) = command(&String::from_utf8_lossy(&line)) {
            applicant.name = name.to_owned();
        }
        alive().then_some(applicant)
    }

    /// The process that connected by `socket`, by its own name. Nothing is read that is in the process's memory, which can be made to keep the reader waiting.
    pub(crate) fn unnamed(socket: &OwnedFd, peer: Peer, alive: impl Fn() -> bool) -> Option<Applicant> {
        let process = peer.number();
        let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}"));
        let cgroup = String::from_utf8_lossy(&read("cgroup").ok()?).into_owned();
        let applicant = Applicant {
            process,
            name: String::from_utf8_lossy(&read("comm").ok()?).trim_end().to_owned(),
            user: peer.user,
            groups: Peer::groups(socket)?,
            cgroup: cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned),
            is_privileged: peer.may_do_all(&alive),
            network: std::fs::metadata(format!("/proc/{process}/ns/net")).ok().map(|its| its.ino()),
        };
        alive().then_some(applicant)
    }
}

/// The program in a command line such as `overfly run -- nginx`, without the folder.
fn command(line: &str) -> Option<&str> {
    let program = line.split('\0').skip_while(|word| *word != "--").nth(1)?;
    program.rsplit('/').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use rustix::process::Gid;

    use super::{Peer, command};

    #[test]
    fn the_program_is_what_is_to_be_run() {
        assert_eq!(command("overfly\0run\0-i\0eth0\0--\0/usr/sbin/nginx\0-g\0--\0x\0"), Some("nginx"));
        for line in ["overfly\0run\0nginx\0", "overfly\0--\0", "", "a\0--\0/bin/\0"] {
            assert_eq!(command(line), None, "{line}");
        }
    }

    /// Its own process's groups are what /proc says; those of a thread that connects are what count.
    #[test]
    fn the_groups_are_those_with_which_it_connected() {
        const GROUP: u32 = 54_321;
        let (ours, theirs) = std::thread::spawn(|| {
            rustix::thread::set_thread_groups(&[Gid::from_raw(GROUP)]).expect("root");
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair")
        })
        .join()
        .expect("no panic");
        assert_eq!(Peer::groups(&ours), Some(vec![GROUP, rustix::process::getegid().as_raw()]));
        drop(theirs);
    }
}
