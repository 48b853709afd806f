//! `overfly run`: a program on the user-level stack, and everything that has to go again after it.
//!
//! Two processes watch over the program. `overfly run` itself is the one that people signal. Between
//! it and the program stands a warden, which survives a `kill -9` of `overfly run` and ends the
//! program then. If the warden is killed instead, its children come to `overfly run`, which ends them.
//! A third process, the broker, holds what needs privilege (the XDP program, the AF_XDP sockets), for
//! every program on the interface: see `broker.rs`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use overfly_bench::lab::die_with;
use overfly_link::memif::{Address, remove_abandoned};
use overfly_load::{Link, Network};
use overfly_profile::{InForce, Profile, routes, sysctls};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use crate::acceleration::Acceleration;
use crate::program::{self, Missing};
use crate::supervise::supervise;
use crate::{complain, interface};

/// Run a program, unchanged, on the user-level stack
///
/// Its TCP connections and UDP sockets on the interface bypass the kernel; everything else (other
/// interfaces, other programs) stays on the kernel's stack. What cannot be accelerated runs on the
/// kernel after a warning, or not at all with EF_NO_FAIL=0. The exit status is the program's, or
/// 128 + the signal that ended it.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The options to run with: `balanced`, `performance`, `load`, `latency`, another name that
    /// `overfly profile list` has, or the path of an .opf file; several with commas between them.
    /// EF_* variables of the environment win over it
    #[arg(short, long, default_value = "balanced")]
    profile: String,
    /// The profile wins over EF_* variables of the environment
    #[arg(long)]
    force_profiles: bool,
    /// The network interface to accelerate [default: that of the default route, else the only one]
    #[arg(short, long, value_name = "NAME")]
    interface: Option<String>,
    /// Accelerate something else than an interface of the kernel's, without root: shared memory, memif:PATH (@NAME is an
    /// abstract socket), where clients such as `overfly load http --link memif:PATH` connect; or a tap device, tap:NAME, at
    /// whose other end is this host's kernel
    #[arg(long, value_name = "memif:PATH|tap:NAME", conflicts_with = "interface")]
    link: Option<String>,
    /// The program's address over that link [default: 10.77.0.1/24]
    #[arg(long, value_name = "ADDRESS/LENGTH", requires = "link")]
    address: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let [program, program_arguments @ ..] = arguments.command.as_slice() else {
        complain("no program to run was given");
        return ExitCode::from(2);
    };
    let read = Profile::load(&arguments.profile, &overfly_profile::folders()).and_then(|profile| {
        profile.in_environment(&overfly_profile::environment(), arguments.force_profiles)
    });
    let in_force = match read {
        Ok(in_force) => in_force,
        Err(error) => {
            complain(error);
            return ExitCode::from(2);
        }
    };
    crate::log::to_system_log(in_force.options.log_via_ioctl != 0);
    let path = match program::find(program) {
        Ok(path) => path,
        Err(Missing::NotFound) => {
            complain(format_args!("{}: no such program", program.display()));
            return ExitCode::from(127);
        }
        Err(Missing::NotExecutable) => {
            complain(format_args!("{}: not executable", program.display()));
            return ExitCode::from(126);
        }
    };
    let carrier = match arguments.carrier() {
        Ok(carrier) => carrier,
        Err(error) => {
            complain(error);
            return ExitCode::from(2);
        }
    };
    let accelerated = program::obstacle(&path)
        .map_or(Ok(()), Err)
        .and_then(|()| library())
        .and_then(|library| Ok((library, carrier.start(&in_force)?)));
    match accelerated {
        Ok((library, acceleration)) => {
            for line in in_force.without_effect() {
                complain(line);
            }
            let mut settings = sysctls::not_obeyed();
            if matches!(acceleration, Acceleration::Xdp(_)) {
                settings.extend(routes::not_obeyed());
            }
            if !settings.is_empty() {
                complain(format_args!(
                    "accelerated connections do not follow {} (docs/tcp.md)",
                    settings.join(", ")
                ));
            }
            let command = warden_command(&library, &acceleration, &in_force, arguments);
            let status = supervise(command, || false, acceleration.process());
            drop(acceleration);
            finish(status)
        }
        Err(reason) if in_force.options.no_fail == 0 => {
            complain(format_args!("{} was not run, since EF_NO_FAIL is 0: {reason}", program.display()));
            ExitCode::FAILURE
        }
        Err(reason) => {
            complain(format_args!("{} runs on the kernel: {reason}", program.display()));
            let error = Command::new(&path).arg0(program).args(program_arguments).exec();
            complain(format_args!("{}: {error}", path.display()));
            ExitCode::from(126)
        }
    }
}

/// What the arguments ask for.
enum ChosenLink {
    /// An interface, or the one to be chosen.
    Xdp(Option<String>),
    Memif(Address, Network),
    Tap(String, Network),
}

impl Arguments {
    fn carrier(&self) -> Result<ChosenLink, String> {
        let Some(link) = &self.link else { return Ok(ChosenLink::Xdp(self.interface.clone())) };
        let network = self.address.as_deref().map_or(Ok(Network::SERVER), str::parse);
        let network = network.map_err(|error| error.to_string())?;
        match Link::parse(link) {
            Ok(Link::Memif(place)) => Ok(ChosenLink::Memif(place, network)),
            Ok(Link::Tap(name)) => Ok(ChosenLink::Tap(name, network)),
            Err(error) if link.starts_with("memif:") => Err(error.to_string()),
            // Not what Link::parse expects: a generator has links that a program has not.
            _ => Err(format!(
                "--link {link}: expected memif:PATH or tap:NAME; interfaces are named with --interface"
            )),
        }
    }
}

impl ChosenLink {
    fn start(self, in_force: &InForce) -> Result<Acceleration, String> {
        match self {
            ChosenLink::Memif(place, network) => Acceleration::start_memif(&place, network),
            ChosenLink::Tap(name, network) => Acceleration::start_tap(&name, network),
            ChosenLink::Xdp(interface) => {
                Acceleration::start(&interface.map_or_else(interface::choose, Ok)?, in_force)
            }
        }
    }
}

fn finish(status: std::io::Result<u8>) -> ExitCode {
    match status {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain(format_args!("the program could not be started: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn executable_folder() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// A file of the installation that this command may be part of: `bin`'s neighbour.
pub(crate) fn installed(place: impl AsRef<Path>) -> Option<PathBuf> {
    Some(executable_folder()?.parent()?.join(place))
}

/// The library to preload: beside this command, or where an installation puts it.
pub(crate) fn library() -> Result<PathBuf, String> {
    let folder = executable_folder().ok_or("the path of this command is not known")?;
    [Some(folder.join("liboverfly.so")), installed("lib/overfly/liboverfly.so")]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
        .ok_or_else(|| format!("liboverfly.so is not in {} (build it with `make build`)", folder.display()))
}

fn warden_command(
    library: &Path,
    acceleration: &Acceleration,
    in_force: &InForce,
    arguments: &Arguments,
) -> Command {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = ourselves();
    command
        .args(["__warden", "--parent"])
        .arg(std::process::id().to_string())
        .arg("--preload")
        .arg(preload)
        .args(arguments.link.as_deref().map(|link| format!("--abandoned={link}")))
        .arg("--")
        .args(&arguments.command)
        .env_remove("LD_PRELOAD")
        .envs(acceleration.environment());
    for (name, value) in in_force.environment() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Signals to this process what comes by its standard input, and that it has come to its end.
fn heed_leash(released: Arc<AtomicBool>) {
    thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { break };
            if let Some(signal) = line.trim().parse().ok().and_then(Signal::from_named_raw) {
                let _ = kill_process(getpid(), signal);
            }
        }
        released.store(true, Ordering::Relaxed);
        // Until it is heard: the handler may not be there yet.
        loop {
            let _ = kill_process(getpid(), Signal::TERM);
            thread::sleep(Duration::from_millis(100));
        }
    });
}

fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("overfly");
    command
}

/// `overfly __warden`: stands between whoever started a program and the program. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct WardenArguments {
    /// Whose end is the program's
    #[arg(long, required_unless_present = "leash")]
    parent: Option<u32>,
    /// The end of standard input is the program's; a line with a number on it is a signal for it
    #[arg(long, conflicts_with = "parent")]
    leash: bool,
    #[arg(long)]
    preload: Option<OsString>,
    /// A link whose socket is to go if nobody listens there in the end
    #[arg(long)]
    abandoned: Option<String>,
    /// A folder that is to go in the end, with all that is in it
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn warden(arguments: &WardenArguments) -> ExitCode {
    // Started through /proc/self/exe, it would be called `exe` in ps.
    let _ = rustix::thread::set_name(c"overfly-warden");
    // SIGTERM wakes us, and our parent's number, which is another one then, says why.
    if let Some(parent) = arguments.parent
        && let Err(error) = die_with(parent, Signal::TERM)
    {
        complain(error);
        return ExitCode::FAILURE;
    }
    let parent = getppid().or(Pid::from_raw(1));
    let released = Arc::new(AtomicBool::new(false));
    let mut command = ourselves();
    command
        .args(["__enter", "--die-with"])
        .arg(std::process::id().to_string())
        // Most servers end their children when they are told to end: the last line of defence, for
        // when both of us are killed at once.
        .arg("--death-signal")
        .arg(Signal::TERM.as_raw().to_string());
    if let Some(preload) = &arguments.preload {
        command.arg("--preload").arg(preload);
    }
    command.arg("--").args(&arguments.command);
    if arguments.leash {
        command.stdin(Stdio::null());
        heed_leash(released.clone());
    }
    let is_orphaned = || {
        // Whoever is at the other end of a leash is no process of this machine.
        if arguments.leash { released.load(Ordering::Relaxed) } else { getppid() != parent }
    };
    let status = supervise(command, is_orphaned, None);
    if let Some(Ok(Link::Memif(place))) = arguments.abandoned.as_deref().map(Link::parse) {
        let _ = remove_abandoned(&place);
    }
    if let Some(folder) = &arguments.folder {
        let _ = std::fs::remove_dir_all(folder);
    }
    finish(status)
}
