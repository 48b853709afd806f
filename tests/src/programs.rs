//! Real programs, each a folder of `workloads/programs` with scripts that start it and use it.
//!
//! | script | where | what |
//! |---|---|---|
//! | `packages` | – | not a script: names of Debian's packages that `cargo xtask apps` installs; the program is in no test |
//! | `build` | outside of the lab | what has to be fetched or compiled |
//! | `prepare` | server side, on the kernel | what must be there before, such as a database cluster |
//! | `peer` | client side, on the kernel | the other end that the program needs, such as an upstream |
//! | `serve` | server side, under test | the program, until it is told to end |
//! | `work` | server side, under test | in place of `serve`: a client, which ends by itself and fails if something was wrong |
//! | `ready` | client side | succeeds when everything answers; asked until it does |
//! | `check` | client side | uses the program and fails if something was wrong |
//! | `measure` | client side | prints how much the program did, its second line says of what |
//! | `datagrams` | – | not a script: its datagrams are counted as its connections are |
//! | `handed-over` | – | not a script: why the kernel goes on with what Overfly accepted |
//!
//! They run in their folder. `STATE` is a folder of their side that goes with the lab, `SERVER_STATE` the server side's as the
//! client side sees it, `SERVER` and `CLIENT` are addresses, `BUILD` a folder that stays, `SECONDS_TO_RUN` the length of a
//! measurement.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_bench::lab::{CLIENT, Lab, SERVER};
use overfly_testing::{kernel, process};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;

use crate::{carried, overfly, send, succeed};

const STATE: &str = "/dev/shm/state";
/// Longest time that a program may take to answer: a JVM on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longest time of a `check` or `work`, s.
const CHECK_WITHIN_S: u32 = 120;

/// What carries the program's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel.
    Kernel,
    /// `overfly run` with this profile.
    Overfly(&'static str),
}

/// A program of `workloads/programs`.
#[derive(Clone, Debug)]
pub struct Program {
    folder: PathBuf,
}

/// How a program went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What went wrong, if something did.
    pub fault: Option<String>,
    /// Connections between the two sides during the check.
    pub connections: u64,
    /// How many of them the server side's kernel made or accepted.
    pub kernel_connections: u64,
    /// How many others were the kernel's later on.
    pub handed_over: u64,
    /// What `measure` printed.
    pub measured: Option<f64>,
}

impl Outcome {
    /// The part of the connections that Overfly made or accepted. 0 to 1.
    #[must_use]
    pub fn accelerated(&self) -> f64 {
        if self.connections == 0 {
            return 0.0;
        }
        1.0 - (self.kernel_connections as f64 / self.connections as f64).min(1.0)
    }

    /// Whether more than a tenth of them went to the kernel later on.
    #[must_use]
    pub const fn is_handed_over(&self) -> bool {
        self.handed_over * 10 > self.connections
    }
}

impl Program {
    /// Every program that there is, by name.
    ///
    /// # Panics
    /// If the folder cannot be read.
    #[must_use]
    pub fn all() -> Vec<Program> {
        let entries = std::fs::read_dir(folder()).expect("workloads/programs");
        let mut all: Vec<Program> = entries
            .flatten()
            .map(|entry| Program { folder: entry.path() })
            .filter(|p| p.folder.is_dir())
            .collect();
        all.sort_by(|one, other| one.folder.cmp(&other.folder));
        all
    }

    /// The program of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn named(name: &str) -> Program {
        let folder = folder().join(name);
        assert!(folder.is_dir(), "{} is missing", folder.display());
        Program { folder }
    }

    /// The folder's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Debian's packages that it needs and that not everybody has who runs the tests. Without any, the program has a test.
    #[must_use]
    pub fn packages(&self) -> Vec<String> {
        let names = std::fs::read_to_string(self.folder.join("packages")).unwrap_or_default();
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// Whether its folder says that its connections are handed over to the kernel.
    #[must_use]
    pub fn says_handed_over(&self) -> bool {
        self.has("handed-over")
    }

    /// Installs the packages that are not there.
    ///
    /// # Errors
    /// What dpkg or apt-get said.
    pub fn install(&self) -> Result<(), String> {
        install(&self.packages())
    }

    /// A link that leads nowhere counts: to run it fails, and says so.
    fn has(&self, script: &str) -> bool {
        self.folder.join(script).symlink_metadata().is_ok()
    }

    /// Starts the program in a lab of its own, uses it, measures it for so many seconds (0: not), and ends it.
    ///
    /// # Panics
    /// If the lab cannot be made.
    #[must_use]
    pub fn run(&self, way: Way, measure_s: u32) -> Outcome {
        let lab = Lab::new(overfly()).expect("a lab");
        Run { program: self, lab: &lab, way, measure_s }.run()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Installs those of Debian's packages that are not there.
///
/// # Errors
/// What dpkg or apt-get said.
pub(crate) fn install(packages: &[String]) -> Result<(), String> {
    let is_there = |package: &String| {
        let asked = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
        asked.is_ok_and(|output| output.stdout == b"installed")
    };
    let missing: Vec<&String> = packages.iter().filter(|package| !is_there(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install.sh");
    match Command::new(script).arg("named").args(&missing).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{missing:?}: {status}")),
        Err(error) => Err(format!("{missing:?}: {error}")),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/programs")
}

/// What programs are built into, once for all runs: beside the command under test.
fn build_folder() -> PathBuf {
    overfly().parent().expect("a folder").join("../programs")
}

/// Something that was started and ends with its owner, and all that lives in its side of the lab with it: daemons have no
/// parent that leads back here.
struct Started {
    child: Child,
    /// The side's network namespace, as `/proc` names it.
    namespace: PathBuf,
    /// What it says on standard error.
    log: File,
}

impl Started {
    fn new(mut command: Command, namespace: PathBuf) -> std::io::Result<Started> {
        let log = File::from(memfd_create("log", MemfdFlags::CLOEXEC)?);
        // Apache tells its whole process group to end.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone()?).spawn()?;
        Ok(Started { child, namespace, log })
    }

    /// The end of what it said.
    fn said(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.log.rewind().and_then(|()| self.log.read_to_end(&mut text));
        if read.is_err() {
            return String::new();
        }
        String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned()
    }

    fn end(&mut self) -> Result<(), String> {
        send(self.child.id(), Signal::TERM);
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("does not end within 20 s of SIGTERM".to_owned())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A master whose worker dies first makes another one, before it is its turn.
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let left = process::inhabitants(&self.namespace);
            if left.is_empty() || Instant::now() > end {
                break;
            }
            left.into_iter().for_each(|id| send(id, Signal::KILL));
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.wait();
    }
}

struct Run<'a> {
    program: &'a Program,
    lab: &'a Lab,
    way: Way,
    measure_s: u32,
}

impl Run<'_> {
    fn run(&self) -> Outcome {
        let mut outcome =
            Outcome { fault: None, connections: 0, kernel_connections: 0, handed_over: 0, measured: None };
        outcome.fault = self.try_run(&mut outcome).err();
        outcome
    }

    fn try_run(&self, outcome: &mut Outcome) -> Result<(), String> {
        for side in ["server", "client"] {
            succeed(self.lab, side, &["mkdir", "-p", STATE]);
        }
        if self.program.has("build") {
            self.finish(self.limited(Command::new("timeout"), "build", None, 600))?;
        }
        if self.program.has("prepare") {
            self.finish(self.script("server", "prepare", None, 600))?;
        }
        let _peer = self
            .program
            .has("peer")
            .then(|| self.spawn("client", self.script("client", "peer", None, 0)))
            .transpose()?;
        if self.program.has("work") {
            self.wait_until_ready(None)?;
            return self.counted(outcome, || self.finish(self.under_test("work")));
        }
        let mut server = self.spawn("server", self.under_test("serve"))?;
        self.use_server(&mut server, outcome).map_err(|fault| format!("{fault}; it said: {}", server.said()))
    }

    fn use_server(&self, server: &mut Started, outcome: &mut Outcome) -> Result<(), String> {
        self.wait_until_ready(Some(server))?;
        let id = server.child.id();
        self.counted(outcome, || self.finish(self.script("client", "check", Some(id), CHECK_WITHIN_S)))?;
        if self.measure_s > 0 && self.program.has("measure") {
            outcome.measured = Some(self.measure(id)?);
        }
        server.end()
    }

    /// Counts the connections that `work` makes, and the datagrams where the program has a file of that name.
    fn counted(
        &self,
        outcome: &mut Outcome,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let datagrams = |side, name| {
            if self.program.has("datagrams") { self.kernel_count(side, "Udp", &[name]) } else { 0 }
        };
        let counts = || {
            let (client, server) = (self.kernel_opens("client"), self.kernel_opens("server"));
            (client + datagrams("client", "OutDatagrams"), server + datagrams("server", "InDatagrams"))
        };
        let before = counts();
        let (result, handed_over) = carried::handed_over(self.lab, work);
        let after = counts();
        outcome.handed_over = handed_over;
        outcome.connections = after.0 - before.0;
        outcome.kernel_connections = after.1 - before.1;
        result
    }

    /// Connections that a side's kernel made or accepted (RFC 4022: tcpActiveOpens, tcpPassiveOpens).
    fn kernel_opens(&self, side: &str) -> u64 {
        self.kernel_count(side, "Tcp", &["ActiveOpens", "PassiveOpens"])
    }

    /// The sum of some of a side's kernel's counters (`/proc/net/snmp`).
    fn kernel_count(&self, side: &str, protocol: &str, wanted: &[&str]) -> u64 {
        let text = succeed(self.lab, side, &["cat", "/proc/net/snmp"]);
        wanted.iter().map(|name| kernel::counter(&text, protocol, name)).sum()
    }

    fn wait_until_ready(&self, mut server: Option<&mut Started>) -> Result<(), String> {
        let end = Instant::now() + READY_WITHIN;
        loop {
            if self.finish(self.script("client", "ready", None, 5)).is_ok() {
                return Ok(());
            }
            if let Some(Ok(Some(status))) = server.as_mut().map(|server| server.child.try_wait()) {
                return Err(format!("serve ended before it answered: {status}"));
            }
            if Instant::now() >= end {
                return Err(format!("does not answer within {} s", READY_WITHIN.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn measure(&self, server: u32) -> Result<f64, String> {
        let mut command = self.script("client", "measure", Some(server), 60 + self.measure_s);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(|_| {
            format!("measure: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))
        })
    }

    /// The script of the program itself, on whatever carries it.
    fn under_test(&self, script: &str) -> Command {
        let mut command = match self.way {
            Way::Kernel => self.lab.command("server", self.program.folder.join(script)),
            Way::Overfly(profile) => {
                let mut command = self.lab.command("server", overfly());
                command.args(["run", "-p", profile, "--"]).arg(self.program.folder.join(script));
                command
            }
        };
        command.env("EF_NO_FAIL", "0");
        self.surround(command, None)
    }

    /// A script on the kernel. After so many seconds, if not 0, it is ended.
    fn script(&self, side: &str, script: &str, server: Option<u32>, within_s: u32) -> Command {
        self.limited(self.lab.command(side, "timeout"), script, server, within_s)
    }

    fn limited(&self, mut timeout: Command, script: &str, server: Option<u32>, within_s: u32) -> Command {
        timeout.args(["--kill-after=5", &within_s.to_string()]).arg(self.program.folder.join(script));
        self.surround(timeout, server)
    }

    fn surround(&self, mut command: Command, server: Option<u32>) -> Command {
        command
            .current_dir(&self.program.folder)
            .env("STATE", STATE)
            .env("SERVER", SERVER.to_string())
            .env("CLIENT", CLIENT.to_string())
            .env("BUILD", build_folder())
            .env("SECONDS_TO_RUN", self.measure_s.to_string());
        if let Some(server) = server {
            command.env("SERVER_STATE", format!("/proc/{server}/root{STATE}"));
        }
        command
    }

    fn spawn(&self, side: &str, command: Command) -> Result<Started, String> {
        let namespace = self.lab.within(side, || std::fs::read_link("/proc/thread-self/ns/net"));
        let namespace = namespace.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Started::new(command, namespace).map_err(|error| error.to_string())
    }

    fn finish(&self, mut command: Command) -> Result<(), String> {
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "{}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout).chars().take(400).collect::<String>(),
            String::from_utf8_lossy(&output.stderr).chars().take(2000).collect::<String>()
        ))
    }
}
