//! Where a node's agent listens, and who asks there: a process of a container, which has a network namespace of its own.
//!
//! A container's process says nothing of itself that is believed. The kernel says which process connected (SO_PEERPIDFD: that process, and
//! not whoever has its number by now), and in which network namespace that one is. Another process to which the connection is passed learns
//! the name of a broker that it cannot reach from its own namespace.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    socketpair,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::acceptor::raise_descriptor_limit;
use super::admission::Applicant;
use super::observers::Peer;
use super::ready::is_readable;
use crate::agent::no_address;
use crate::{Error, peer_process};

/// Connections that wait to be let in.
const BACKLOG: i32 = 256;
/// Anybody may ask; the policy says who is served.
const EVERYBODY: u32 = 0o666;

/// The place where containers ask. It goes with this value.
#[derive(Debug)]
pub struct Agent {
    listener: OwnedFd,
    path: PathBuf,
    /// What is at the path as long as nobody puts another thing there.
    inode: u64,
    /// Network namespaces that are the host's: this process's, and that of process 1.
    hosts: Vec<u64>,
    /// The user namespace in which a container's runtime makes network namespaces: this process's.
    users: u64,
}

/// A process of a container.
#[derive(Debug)]
pub struct Caller {
    /// What the kernel says of it.
    pub applicant: Applicant,
    /// Its network namespace.
    pub namespace: OwnedFd,
    /// The namespace's number.
    pub network: u64,
}

impl Agent {
    /// Listens at `path`. Control groups are from now on named as the host names them, if this process may look at them so.
    ///
    /// # Errors
    /// [`Error::Agent`] if somebody listens there, or the kernel is older than 6.5; else what the kernel said.
    pub fn listen(path: &Path) -> Result<Agent, Error> {
        let refuse = |words: String| Err(Error::Agent(words));
        let asking = |errno| Error::system("a socket for containers", errno);
        let placing = |errno| {
            Error::Agent(format!("no socket for containers can be made at {}: {errno}", path.display()))
        };
        let (one, _other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(asking)?;
        if peer_process(&one).is_err_and(|errno| errno == Errno::NOPROTOOPT) {
            return refuse("an agent needs Linux 6.5, which says which process asks".to_owned());
        }
        raise_descriptor_limit();
        let address = |path: &Path| SocketAddrUnix::new(path).map_err(|_| no_address(path));
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return refuse(format!("{} is there and no socket", path.display()));
            }
            Ok(_) if connect(seqpacket().map_err(asking)?, &address(path)?).is_ok() => {
                return refuse(format!("another agent listens at {}", path.display()));
            }
            Ok(_) => {}
            Err(_) => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                std::fs::create_dir_all(folder).map_err(|error| placing(errno_of(&error)))?;
            }
        }
        // It takes the place of an earlier one at once: nobody finds nothing there.
        let own = path.with_extension(format!("{}", std::process::id()));
        let _ = std::fs::remove_file(&own);
        let listener = seqpacket().map_err(asking)?;
        bind(&listener, &address(&own)?).map_err(placing)?;
        let placed = listen(&listener, BACKLOG).and_then(|()| {
            std::fs::set_permissions(&own, PermissionsExt::from_mode(EVERYBODY))
                .and_then(|()| std::fs::rename(&own, path))
                .map_err(|error| errno_of(&error))
        });
        if let Err(errno) = placed {
            let _ = std::fs::remove_file(&own);
            return Err(placing(errno));
        }
        let number = |name: &str| std::fs::metadata(name).map(|its| its.ino());
        let own = |name: &str| number(name).map_err(|error| Error::system("reading /proc", errno_of(&error)));
        let mut hosts = vec![own("/proc/self/ns/net")?];
        hosts.extend(number("/proc/1/ns/net"));
        let inode = std::fs::symlink_metadata(path).map_err(|error| asking(errno_of(&error)))?.ino();
        Ok(Agent { listener, path: path.to_owned(), inode, hosts, users: own("/proc/self/ns/user")? })
    }

    /// Has the calling thread, and what it starts, see control groups as the host names them, and not from a container's own group on.
    ///
    /// # Errors
    /// What the kernel said: rules that name control groups mean others than the host's then.
    pub fn see_hosts_control_groups() -> Result<(), Error> {
        let host = File::open("/proc/1/ns/cgroup").map_err(|error| errno_of(&error));
        host.and_then(|host| move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::ControlGroup)))
            .map_err(|errno| Error::system("entering the host's control groups", errno))
    }

    /// Who waits to be let in, if anybody does.
    ///
    /// # Errors
    /// What the kernel said, most likely that there is no descriptor.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Who connected.
    ///
    /// # Errors
    /// Says in words why that one cannot be served.
    pub fn caller(&self, socket: &OwnedFd) -> Result<Caller, String> {
        const OUT_OF_SIGHT: &str = "the process that asks has ended, or is out of the agent's sight (the agent must be in the host's process namespace)";
        let peer = Peer::of(socket).ok_or(OUT_OF_SIGHT)?;
        let process = peer_process(socket).map_err(|_| OUT_OF_SIGHT)?;
        let alive = || !is_readable(&process);
        let namespace = File::open(format!("/proc/{}/ns/net", peer.number())).map_err(|_| OUT_OF_SIGHT)?;
        let applicant = Applicant::unnamed(socket, peer, alive).ok_or(OUT_OF_SIGHT)?;
        let namespace = OwnedFd::from(namespace);
        let network = fstat(&namespace).map_err(|errno| errno.to_string())?.st_ino;
        if self.hosts.contains(&network) {
            return Err("the process that asks is on the host's network, which an agent does not serve: `overfly broker --interface` does"
                .to_owned());
        }
        // One that a user has made, in a user namespace of its own, has what devices that user likes.
        if owner(namespace.as_fd()) != Ok(self.users) {
            return Err("the network namespace of the process that asks belongs to a user namespace, and an agent serves those of the host's containers"
                .to_owned());
        }
        Ok(Caller { applicant, namespace, network })
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The number of the user namespace that a network namespace belongs to (ioctl_ns(2)).
fn owner(namespace: BorrowedFd<'_>) -> Result<u64, Errno> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701; // include/uapi/linux/nsfs.h
    // SAFETY: this request takes no argument, and gives a new descriptor.
    let users = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if users < 0 {
        return Err(errno_of(&std::io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    let users = unsafe { OwnedFd::from_raw_fd(users) };
    fstat(users).map(|its| its.st_ino)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use overfly_testing::Folder;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn where_no_socket_can_be_made_is_named() {
        let folder =
            Folder::new(std::env::temp_dir().join(format!("overfly-agent-place-{}", std::process::id())));
        let file = PathBuf::from(folder.path("file"));
        std::fs::write(&file, "").unwrap();
        let long = PathBuf::from(folder.path(&"x".repeat(109)));
        let limit = "108 bytes at most";
        for (path, why) in
            [(file.clone(), "no socket"), (file.join("agent.sock"), "can be made at"), (long, limit)]
        {
            let said = Agent::listen(&path).expect_err("nothing can be there").to_string();
            assert!(said.contains(why) && said.contains(path.to_str().unwrap()), "{said}");
        }
    }

    /// Starts a process that connects from namespaces of its own and stays; its end of the connection and what it is.
    fn caller_from(agent: &Agent, unshared: &[&str]) -> Result<Caller, String> {
        let script = format!(
            "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
             s.connect({:?})\nsys.stdin.read()",
            agent.path.display().to_string()
        );
        let mut child = Command::new("unshare")
            .args(unshared)
            .args(["python3", "-c", &script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("start unshare");
        let mut set = [PollFd::new(agent, PollFlags::IN)];
        assert_eq!(poll(&mut set, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })), Ok(1), "it connects");
        let socket = agent.accept().expect("accept").expect("a connection");
        let caller = agent.caller(&socket);
        drop(child.stdin.take());
        let _ = child.wait();
        let later = agent.caller(&socket);
        assert!(
            later.as_ref().is_err_and(|reason| reason.contains("has ended")),
            "its number is nobody's: {later:?}"
        );
        caller
    }

    #[test]
    fn only_namespaces_of_the_hosts_containers_are_served() {
        let name = format!("overfly-agent-{}", std::process::id());
        let folder = Folder::new(std::env::temp_dir().join(name));
        let path = PathBuf::from(folder.path("its own/agent.sock"));
        let agent = Agent::listen(&path).unwrap();
        assert!(Agent::listen(&path).is_err_and(|error| error.to_string().contains("another agent")));
        // That one has asked whether somebody is here: it is the first in the queue, and none of a container's.
        let other = agent.accept().expect("accept").expect("the other agent's question");
        let said = agent.caller(&other).unwrap_err();
        assert!(said.contains("host's network"), "{said}");

        let pod = caller_from(&agent, &["--net", "--pid", "--fork", "--kill-child"]).unwrap();
        assert!(!agent.hosts.contains(&pod.network) && pod.applicant.network == Some(pod.network));
        let said = caller_from(&agent, &["--mount"]).unwrap_err();
        assert!(said.contains("host's network"), "{said}");
        let said = caller_from(&agent, &["--user", "--map-root-user", "--net"]).unwrap_err();
        assert!(said.contains("belongs to a user namespace"), "{said}");

        // What another one puts in its place stays.
        drop(agent);
        assert!(!path.exists());
        let agent = Agent::listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        drop(agent);
        assert!(path.exists());
        assert!(Agent::listen(&path).is_err_and(|error| error.to_string().contains("no socket")));
    }
}
