//! The way in: what a child does to itself before it becomes the program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, sched_setaffinity};

use super::{SCRATCH, unshare};
use crate::Error;

/// How to enter a network namespace and what to run there. Carried out by the hidden
/// subcommand `overfly __enter`, since only a process of one thread can do all of it.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// A file that stands for the network namespace, such as `/run/netns/server`.
    pub net: Option<PathBuf>,
    /// A file that stands for a mount namespace to enter. Without it the process gets a new one
    /// in which `/sys` shows the devices of `net`.
    pub mounts: Option<PathBuf>,
    /// Cores to run on; empty: any.
    pub cpus: Vec<usize>,
    /// The process that is our parent: when it dies, we get [`Entry::death_signal`].
    pub die_with: Option<u32>,
    /// SIGKILL unless something else is said.
    pub death_signal: Option<Signal>,
    /// Libraries to preload into the command.
    pub preload: Option<OsString>,
    /// Run the command as process 1 of a process namespace of its own.
    pub contained: bool,
    /// The second half of `contained`, inside the new process namespace.
    pub innermost: bool,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

impl Entry {
    /// Enters and becomes the command; with `contained`, starts it and waits for its end, whose
    /// status is returned.
    ///
    /// # Errors
    /// Whatever stood in the way.
    pub fn enter(&self) -> Result<ExitCode, Error> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Error::Machine("no command to run was given".to_owned()));
        };
        if let Some(parent) = self.die_with {
            die_with(parent, self.death_signal.unwrap_or(Signal::KILL))?;
        }
        let folder = std::env::current_dir().ok();
        if let Some(net) = &self.net {
            let net = File::open(net).map_err(Error::kernel(format!("open {}", net.display())))?;
            move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|errno| Error::kernel("enter the network namespace")(errno.into()))?;
        }
        if let Some(mounts) = &self.mounts {
            let mounts = File::open(mounts).map_err(Error::kernel(format!("open {}", mounts.display())))?;
            move_into_link_name_space(mounts.as_fd(), None)
                .map_err(|errno| Error::kernel("enter the mount namespace")(errno.into()))?;
        } else if self.net.is_some() {
            unshare(UnshareFlags::NEWNS).map_err(Error::kernel("make a mount namespace"))?;
            show_own_devices()?;
        }
        if let Some(folder) = folder {
            // Entering a mount namespace moves us to its root.
            let _ = std::env::set_current_dir(folder);
        }
        if !self.cpus.is_empty() {
            pin(&self.cpus)?;
        }
        if self.innermost {
            unshare(UnshareFlags::NEWNS).map_err(Error::kernel("make a mount namespace"))?;
            mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV, None)
                .map_err(|errno| Error::kernel("mount /proc")(errno.into()))?;
        }
        if self.contained {
            unshare(UnshareFlags::NEWPID).map_err(Error::kernel("make a process namespace"))?;
            return self.contain();
        }
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(preload) = &self.preload {
            command.env("LD_PRELOAD", preload);
        }
        let error = command.exec();
        Err(Error::kernel(format!("run {}", program.display()))(error))
    }

    /// Starts the innermost half, and stays as its guardian: a process can't be moved into a new
    /// process namespace, only its children can.
    fn contain(&self) -> Result<ExitCode, Error> {
        // The new process looks for its parent in /proc, which is still that of our namespace.
        let status = Command::new("/proc/self/exe")
            .arg0("overfly")
            .args(["__enter", "--innermost", "--die-with"])
            .arg(std::process::id().to_string())
            .arg("--")
            .args(&self.command)
            .status()
            .map_err(Error::kernel("start a process in the new process namespace"))?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

/// Asks the kernel for `signal` when our parent's thread ends, and makes sure that this parent is
/// still the one that asked for it.
///
/// # Errors
/// [`Error::Machine`] if that parent has ended already.
pub fn die_with(parent: u32, signal: Signal) -> Result<(), Error> {
    set_parent_process_death_signal(Some(signal))
        .map_err(|errno| Error::kernel("bind this process to its parent")(errno.into()))?;
    // Not getppid(): from within a new process namespace the parent would be 0. /proc is still
    // the outer one here and names it.
    let status = fs::read_to_string("/proc/self/status").map_err(Error::kernel("read /proc/self/status"))?;
    let actual = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
    if actual == Some(parent) {
        return Ok(());
    }
    Err(Error::Machine("the process that asked for this one has ended".to_owned()))
}

fn pin(cpus: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Error::Machine(format!("there is no core {cpu}")));
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
        .map_err(|errno| Error::kernel(format!("run on cores {cpus:?}"))(errno.into()))
}

/// In a new mount namespace: keep our mounts to ourselves, and let `/sys` show the devices of
/// the network namespace we are in (sysfs shows those of the namespace it was mounted from).
pub(super) fn show_own_devices() -> Result<(), Error> {
    let kernel = |errno: Errno| Error::kernel("mount /sys")(io::Error::from(errno));
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(kernel)?;
    match mount("sysfs", "/sys", "sysfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None) {
        // What is mounted there is the very sysfs that we want.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(kernel(errno)),
    }
}

/// In a new mount namespace: an empty tmpfs that goes when the namespace does.
pub(super) fn mount_scratch() -> Result<(), Error> {
    mount("tmpfs", SCRATCH, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)
        .map_err(|errno| Error::kernel(format!("mount a tmpfs on {SCRATCH}"))(errno.into()))
}
