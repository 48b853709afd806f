//! Network namespaces joined by veth pairs.
//!
//! A [`Lab`] is anonymous: its namespaces have no name and no bind mount, only file descriptors of
//! this process (and the processes inside) hold them. When the owner ends, however it ends, the
//! processes started through [`Lab::command`] are killed by the kernel and the namespaces, the
//! veth pair and whatever was attached to it are gone.
//!
//! [`named`] keeps the two namespaces of `overfly lab up`.

mod entry;
pub mod named;

pub use entry::{Entry, die_with};

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::Error;

/// The name that every lab gives to a side's only network device. The router of
/// [`Lab::routed`] has `eth0` toward the server and `eth1` toward the client.
pub const DEVICE: &str = "eth0";
/// The server's address in [`Lab::new`] and in `overfly lab up`.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The client's address in [`Lab::new`] and in `overfly lab up`.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The server's IPv6 address in [`Lab::new`] and in `overfly lab up`.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The client's IPv6 address in [`Lab::new`] and in `overfly lab up`.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// The server's address in [`Lab::routed`]; its router is 10.77.1.254.
pub const ROUTED_SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
/// The client's address in [`Lab::routed`]; its router is 10.77.2.254.
pub const ROUTED_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
/// An empty tmpfs of the side's own, in each side of an anonymous lab (the machine's own
/// `/dev/shm` is hidden there).
pub const SCRATCH: &str = "/dev/shm";

/// One network namespace of a lab, with a mount namespace in which `/sys` shows its devices.
#[derive(Debug)]
struct Side {
    name: &'static str,
    net: OwnedFd,
    mounts: OwnedFd,
}

/// Namespaces joined by veth pairs, which vanish with this value's process.
#[derive(Debug)]
pub struct Lab {
    sides: Vec<Side>,
    overfly: PathBuf,
    /// Settings that the kernel refused, and why.
    refused: Vec<String>,
}

impl Lab {
    /// `server` (10.77.0.1/16, fd77::1/64) and `client` (10.77.0.2/16, fd77::2/64), joined by a veth
    /// pair with as many queues as this machine has cores. `overfly` is the path of the `overfly` command, through
    /// which commands enter.
    ///
    /// # Errors
    /// [`Error::Machine`] without root or iproute2; [`Error::Tool`], [`Error::Kernel`] otherwise.
    pub fn new(overfly: impl Into<PathBuf>) -> Result<Lab, Error> {
        Lab::direct(overfly.into(), true)
    }

    /// As [`Lab::new`], with the settings that a network namespace begins with: nothing is tuned.
    ///
    /// # Errors
    /// As [`Lab::new`].
    pub fn as_found(overfly: impl Into<PathBuf>) -> Result<Lab, Error> {
        Lab::direct(overfly.into(), false)
    }

    fn direct(overfly: PathBuf, tuned: bool) -> Result<Lab, Error> {
        require_root("making network namespaces")?;
        let sides = vec![Side::new("server")?, Side::new("client")?];
        let mut refused = Vec::new();
        for side in sides.iter().filter(|side| tuned || side.name == "client") {
            // The generator is no part of the comparison.
            refused = side.within(tune_kernel_stack)?;
        }
        let lab = Lab { sides, overfly, refused };
        lab.join(("server", DEVICE, SERVER, 16), ("client", DEVICE, CLIENT, 16))?;
        for (side, address) in [("server", SERVER_V6), ("client", CLIENT_V6)] {
            // Nobody else is on the link: an address need not wait until nobody has objected (RFC 4862 section 5.4).
            lab.within(side, || {
                tool("ip", ["addr", "add", &format!("{address}/64"), "dev", DEVICE, "nodad"])
            })??;
        }
        for side in ["server", "client"] {
            lab.within(side, wait_for_ipv6)?;
        }
        Ok(lab)
    }

    /// `server` (10.77.1.1/24) — `middle` — `client` (10.77.2.2/24): `middle` forwards packets
    /// one by one as they would be on a wire (no segmentation or checksum offload on any device),
    /// so rules there see and may lose what the ends send.
    ///
    /// # Errors
    /// As [`Lab::new`]; ethtool is needed too.
    pub fn routed(overfly: impl Into<PathBuf>) -> Result<Lab, Error> {
        require_root("making network namespaces")?;
        let mut lab = Lab {
            sides: vec![Side::new("server")?, Side::new("middle")?, Side::new("client")?],
            overfly: overfly.into(),
            refused: Vec::new(),
        };
        for side in &lab.sides {
            lab.refused = side.within(tune_kernel_stack)?;
        }
        let [server_router, client_router] = [Ipv4Addr::new(10, 77, 1, 254), Ipv4Addr::new(10, 77, 2, 254)];
        lab.join(("server", "eth0", ROUTED_SERVER, 24), ("middle", "eth0", server_router, 24))?;
        lab.join(("client", "eth0", ROUTED_CLIENT, 24), ("middle", "eth1", client_router, 24))?;
        lab.within("middle", || write_sysctl("net/ipv4/ip_forward", "1"))??;
        for (side, router) in [("server", server_router), ("client", client_router)] {
            lab.within(side, || {
                tool("ip", ["route", "add", "default", "via", &router.to_string(), "dev", DEVICE])
            })??;
        }
        for (side, device) in [("server", "eth0"), ("middle", "eth0"), ("middle", "eth1"), ("client", "eth0")]
        {
            lab.within(side, || {
                tool("ethtool", ["-K", device, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])
            })??;
        }
        Ok(lab)
    }

    /// Settings of a busy server that the kernel refused to make here, each with the reason.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// A command that runs `program` inside `side`. The child's process id is the program's own;
    /// the kernel kills it when the *thread* that spawned it ends. Processes that the program
    /// itself starts are on their own: use [`Lab::contained`] where they must not survive either.
    ///
    /// # Panics
    /// If the lab has no such side: that is a mistake in the caller's code.
    pub fn command(&self, side: &str, program: impl AsRef<OsStr>) -> Command {
        self.entry_command(side, program.as_ref(), &[], false)
    }

    /// As [`Lab::command`], on the core `cpu`.
    ///
    /// # Panics
    /// If the lab has no such side.
    pub fn pinned(&self, side: &str, program: impl AsRef<OsStr>, cpu: usize) -> Command {
        self.entry_command(side, program.as_ref(), &[cpu], false)
    }

    /// A command that runs `program` as process 1 of a process namespace of its own, pinned to the
    /// core `cpu` if one is given: when it ends, or the thread that spawned it does, every process
    /// under it is killed by the kernel. The child's process id is the guardian's, not the
    /// program's: find that with [`Lab::inner_process`].
    ///
    /// # Panics
    /// If the lab has no such side.
    pub fn contained(&self, side: &str, program: impl AsRef<OsStr>, cpu: Option<usize>) -> Command {
        self.contained_on(side, program, cpu.as_slice())
    }

    /// As [`Lab::contained`], on several cores.
    ///
    /// # Panics
    /// If the lab has no such side.
    pub fn contained_on(&self, side: &str, program: impl AsRef<OsStr>, cpus: &[usize]) -> Command {
        self.entry_command(side, program.as_ref(), cpus, true)
    }

    fn entry_command(&self, side: &str, program: &OsStr, cpus: &[usize], contained: bool) -> Command {
        let side = self.side(side);
        let owner = std::process::id();
        let mut command = Command::new(&self.overfly);
        command
            .arg("__enter")
            .arg("--net")
            .arg(descriptor_path(&side.net))
            .arg("--mounts")
            .arg(descriptor_path(&side.mounts))
            .arg("--die-with")
            .arg(owner.to_string());
        if !cpus.is_empty() {
            command.arg("--cpu").arg(list(cpus));
        }
        if contained {
            command.arg("--contained");
        }
        command.arg("--").arg(program);
        command
    }

    /// As [`Lab::command`], on several cores.
    ///
    /// # Panics
    /// If the lab has no such side.
    pub(crate) fn pinned_on(&self, side: &str, program: impl AsRef<OsStr>, cpus: &[usize]) -> Command {
        self.entry_command(side, program.as_ref(), cpus, false)
    }

    /// The program under a [`Lab::contained`] guardian, once it has been started.
    pub fn inner_process(guardian: u32) -> Option<u32> {
        crate::process_time::children(guardian).into_iter().next()
    }

    /// Runs `work` on a thread that is inside `side`: its network and its files, so that
    /// `/proc/sys/net`, `/sys` and `/dev/shm` are the side's, and so are those of commands started
    /// by `work` (with [`Command`], to their end).
    ///
    /// # Errors
    /// [`Error::Kernel`] if the namespaces cannot be entered.
    ///
    /// # Panics
    /// If the lab has no such side, or if `work` panics.
    pub fn within<T: Send>(&self, side: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.side(side).within(work)
    }

    /// Writes a file inside `side`, making its folders; meant for [`SCRATCH`].
    ///
    /// # Errors
    /// [`Error::Kernel`] if it cannot be written.
    pub fn write(&self, side: &str, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        let path = path.as_ref();
        self.within(side, || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(path, contents)
        })?
        .map_err(Error::kernel(format!("write {} in {side}", path.display())))
    }

    fn side(&self, name: &str) -> &Side {
        self.sides
            .iter()
            .find(|side| side.name == name)
            .unwrap_or_else(|| panic!("this lab has no side named {name}"))
    }

    fn join(&self, one: (&str, &str, Ipv4Addr, u8), other: (&str, &str, Ipv4Addr, u8)) -> Result<(), Error> {
        let queues = queue_count().to_string();
        let far = descriptor_path(&self.side(other.0).net);
        self.within(one.0, || {
            let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
            let mut line = vec!["link", "add", "name", one.1];
            line.extend(queues);
            line.extend(["type", "veth", "peer", "name", other.1]);
            line.extend(queues);
            line.extend(["netns", &far]);
            tool("ip", line)
        })??;
        for (side, device, address, prefix_len) in [one, other] {
            self.within(side, || -> Result<(), Error> {
                tool("ip", ["addr", "add", &format!("{address}/{prefix_len}"), "dev", device])?;
                tool("ip", ["link", "set", device, "up"])?;
                // A network card makes a sender wait when its ring is full; veth without a queueing discipline, its
                // default, drops instead.
                tool("tc", ["qdisc", "replace", "dev", device, "root", "pfifo_fast"])
            })??;
        }
        Ok(())
    }
}

impl Side {
    fn new(name: &'static str) -> Result<Side, Error> {
        on_thread(|| {
            // Not for the files of a process namespace: `--contained` mounts its own /proc.
            unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)
                .map_err(Error::kernel("make a network namespace"))?;
            entry::show_own_devices()?;
            entry::mount_scratch()?;
            let open = |kind: &str| {
                File::open(format!("/proc/thread-self/ns/{kind}"))
                    .map(OwnedFd::from)
                    .map_err(Error::kernel(format!("open the new {kind} namespace")))
            };
            let side = Side { name, net: open("net")?, mounts: open("mnt")? };
            tool("ip", ["link", "set", "lo", "up"])?;
            Ok(side)
        })
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        on_thread(|| {
            // Another mount namespace can be entered only by a thread whose root and working
            // folder are its own.
            unshare(UnshareFlags::FS).map_err(Error::kernel("give a thread its own root folder"))?;
            move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))
                .and_then(|()| move_into_link_name_space(self.mounts.as_fd(), None))
                .map_err(|errno| Error::Kernel {
                    action: format!("enter the namespaces of {}", self.name),
                    source: errno.into(),
                })?;
            Ok(work())
        })
    }
}

/// Namespaces belong to threads: a fresh one is changed and then thrown away.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[expect(deprecated, reason = "its unsafe successor is about CLONE_FILES, which is never asked for here")]
fn unshare(flags: UnshareFlags) -> std::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    rustix::thread::unshare(flags).map_err(Into::into)
}

/// `0,2`
pub(crate) fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Where other processes find one of our descriptors.
fn descriptor_path(descriptor: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}

/// Transmit and receive queues of a lab's devices: one for each core.
pub fn queue_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from).max(online_cores())
}

/// Cores of the machine, even where this process may run on some only.
fn online_cores() -> usize {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .map_or(1, |list| {
            list.trim()
                .split(',')
                .map(|range| {
                    let (low, high) = range.split_once('-').unwrap_or((range, range));
                    match (low.parse::<usize>(), high.parse::<usize>()) {
                        (Ok(low), Ok(high)) if high >= low => high - low + 1,
                        _ => 0,
                    }
                })
                .sum()
        })
        .max(1)
}

/// What an administrator of a busy server would set, in the calling thread's network namespace,
/// so that the kernel is compared at its best: long accept and SYN queues, all ports for active
/// opens, reuse of ports in TIME-WAIT, and the congestion control that Linux comes with (one that
/// paces, such as BBR, has nothing to win on a cable of memory). What an older kernel does not have is passed over; what this
/// one refuses is returned, with the reason.
fn tune_kernel_stack() -> Vec<String> {
    let mut refused = Vec::new();
    for (name, values) in [
        ("net/core/somaxconn", &["65535"][..]),
        ("net/ipv4/tcp_max_syn_backlog", &["65535"]),
        ("net/ipv4/tcp_tw_reuse", &["1"]),
        ("net/ipv4/tcp_max_tw_buckets", &["1000000"]),
        ("net/ipv4/ip_local_port_range", &["1024 65535"]),
        // A namespace may have what the machine allows everybody only (tcp_set_default_congestion_control() in net/ipv4/tcp_cong.c):
        // where the machine's own is BBR, that is not CUBIC. Reno is allowed everywhere.
        ("net/ipv4/tcp_congestion_control", &["cubic", "reno"]),
    ] {
        for value in values {
            match fs::write(format!("/proc/sys/{name}"), value) {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !name.ends_with("control") => {}
                Err(error) => refused.push(format!("{} = {value}: {error}", name.replace('/', "."))),
            }
        }
    }
    refused
}

/// Waits until IPv6 has noticed that the device is up, which the kernel tells it within a second: without that neighbour
/// discovery goes unanswered. Its link-local address is the sign. A kernel without IPv6 is not waited for.
fn wait_for_ipv6() {
    let end = Instant::now() + Duration::from_secs(2);
    while let Ok(addresses) = fs::read_to_string("/proc/thread-self/net/if_inet6")
        && !addresses.lines().any(|line| line.starts_with("fe80") && line.ends_with(DEVICE))
        && Instant::now() < end
    {
        thread::sleep(Duration::from_millis(5));
    }
}

fn write_sysctl(name: &str, value: &str) -> Result<(), Error> {
    fs::write(format!("/proc/sys/{name}"), value)
        .map_err(Error::kernel(format!("set {} to {value}", name.replace('/', "."))))
}

/// Where system tools are that `su` and Debian's users have not on their path.
pub const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

fn with_system_folders(path: Option<OsString>) -> OsString {
    let mut path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    for folder in SYSTEM_FOLDERS {
        path.push(":");
        path.push(folder);
    }
    path
}

/// Runs a system tool to its end.
pub(crate) fn tool<I: IntoIterator<Item: AsRef<OsStr>>>(program: &str, arguments: I) -> Result<(), Error> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).env("PATH", with_system_folders(env::var_os("PATH")));
    let output = command.output().map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let package = if ["ip", "tc"].contains(&program) { "iproute2" } else { program };
            Error::Machine(format!("`{program}` is not installed: type `apt-get install {package}`"))
        } else {
            Error::Kernel { action: format!("start `{program}`"), source: error }
        }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Err(Error::Tool {
        command: words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" "),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Says in one sentence why `what` cannot be done, unless we are root.
pub(crate) fn require_root(what: &str) -> Result<(), Error> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Machine(format!("{what} needs root: try again with sudo")))
}
