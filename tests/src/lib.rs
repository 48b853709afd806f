//! Starts real programs in a lab, under `overfly run` or plainly, and sees that nothing is left of them.

#![forbid(unsafe_code)]

mod carried;
pub mod containers;
pub mod control;
pub mod measured;
pub mod pods;
pub mod programs;
pub mod service;
pub mod soak;
pub mod steady;
pub mod suites;
pub mod tap;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use overfly_bench::lab::{Lab, SERVER};
pub use overfly_testing::Random;
use overfly_testing::kernel::counter;
pub use overfly_testing::process::{alive, descendants, titled};
use rustix::process::{Pid, Signal, kill_process};

/// The `overfly` command under test: `OVERFLY_BIN`, or the release build beside this test's own build.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn overfly() -> PathBuf {
    let path = std::env::var_os("OVERFLY_BIN").map_or_else(
        || {
            let test = std::env::current_exe().expect("the path of the test");
            test.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("release/overfly")
        },
        PathBuf::from,
    );
    assert!(path.exists(), "{} is missing: type `make build`", path.display());
    path
}

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within ten seconds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Runs a command in a side of the lab to its end.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn output(lab: &Lab, side: &str, words: &[&str]) -> Output {
    lab.command(side, words[0]).args(&words[1..]).stdin(Stdio::null()).output().expect("start a command")
}

/// What a command in a side of the lab prints.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn succeed(lab: &Lab, side: &str, words: &[&str]) -> String {
    let output = output(lab, side, words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{words:?}: {}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// How nginx is configured for a test.
#[derive(Clone, Copy, Debug)]
pub struct Nginx {
    /// Worker processes.
    pub workers: usize,
    /// `listen … reuseport`: a listener for each worker, instead of one for all.
    pub reuseport: bool,
    /// Files go out with sendfile().
    pub sendfile: bool,
    /// Goes into the background, as Debian's service does.
    pub daemon: bool,
    /// How long a client may take for a request, and before it reads on, s; nginx's 60 otherwise.
    pub patience_s: Option<u32>,
}

impl Default for Nginx {
    fn default() -> Self {
        Self { workers: 1, reuseport: true, sendfile: false, daemon: false, patience_s: None }
    }
}

/// Where the server side finds its configuration and files.
pub const ROOT: &str = "/dev/shm/nginx";

impl Nginx {
    /// Writes the configuration, and the files under `www`, into the server side.
    ///
    /// # Panics
    /// If that fails.
    pub fn install(self, lab: &Lab, files: &[(&str, &[u8])]) {
        let mut config = format!("worker_processes {};\npid {ROOT}/nginx.pid;\nuser root;\n", self.workers);
        let on = |on: bool| if on { "on" } else { "off" };
        let _ = writeln!(config, "daemon {};\nerror_log {ROOT}/error.log;", on(self.daemon));
        config.push_str("events { worker_connections 4096; }\nhttp {\n    access_log off;\n");
        let _ = writeln!(config, "    sendfile {};", on(self.sendfile));
        if let Some(patience_s) = self.patience_s {
            for what in ["client_header", "client_body", "send"] {
                let _ = writeln!(config, "    {what}_timeout {patience_s}s;");
            }
        }
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            let _ = writeln!(config, "    {kind}_temp_path {ROOT}/{kind};");
        }
        let reuseport = if self.reuseport { "reuseport" } else { "" };
        let _ = writeln!(
            config,
            "    server {{\n        listen 80 {reuseport};\n        root {ROOT}/www;\n        add_header X-Worker $pid;"
        );
        config.push_str("        location = /ok { return 200 ok; }\n    }\n}\n");
        lab.write("server", format!("{ROOT}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
        lab.write("server", format!("{ROOT}/www/index.html"), b"hello from nginx\n").expect("write a file");
        for (name, contents) in files {
            lab.write("server", format!("{ROOT}/www/{name}"), contents).expect("write a file");
        }
    }
}

/// A connection from the client side that stays open until it is dropped.
#[derive(Debug)]
pub struct Held(Child);

impl Held {
    /// Connects to the server's `port`.
    ///
    /// # Panics
    /// If nobody accepts there.
    #[must_use]
    pub fn open(lab: &Lab, port: u16) -> Self {
        let mut shell = lab.command("client", "bash");
        shell.args(["-c", &format!("exec 3<>/dev/tcp/{SERVER}/{port}; echo open; read")]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a client");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "open\n");
        Self(child)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server under test.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// What was started waits for its own child and passes no signal on, as nsenter does: it is that child that is asked to end.
    is_behind: bool,
}

impl Server {
    /// Starts `words` in the server side: under `overfly run` with `options`, or on the kernel.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(lab: &Lab, options: Option<&[&str]>, words: &[&str]) -> Self {
        let command: Command = match options {
            Some(options) => {
                let mut command = lab.command("server", overfly());
                command.arg("run").args(options).arg("--").args(words);
                command
            }
            None => {
                let mut command = lab.command("server", words[0]);
                command.args(&words[1..]);
                command
            }
        };
        Self::spawn(command)
    }

    /// Starts a command that is `overfly run`, or a server on the kernel. It is to fail where it is not accelerated, unless it says
    /// otherwise itself.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(command: Command) -> Self {
        Self { child: begin(command), is_behind: false }
    }

    /// The same where the command is one that enters namespaces, and its child is `overfly run`.
    ///
    /// # Panics
    /// As above.
    #[must_use]
    pub fn spawn_behind(command: Command) -> Self {
        Self { child: begin(command), is_behind: true }
    }

    /// nginx under `overfly run`, once it answers.
    #[must_use]
    pub fn nginx(lab: &Lab) -> Self {
        let server = Self::start(
            lab,
            Some(&["-p", "balanced"]),
            &["nginx", "-c", &format!("{ROOT}/nginx.conf"), "-e", "stderr"],
        );
        eventually("nginx answers on its own loopback", || {
            output(lab, "server", &["curl", "-s", "--max-time", "1", "http://127.0.0.1/ok"]).stdout == b"ok"
        });
        server
    }

    /// The process id of what was started.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        let behind = if self.is_behind { descendants(self.id()).first().copied() } else { None };
        send(behind.unwrap_or(self.id()), signal);
    }

    /// Asks it to end, and waits.
    ///
    /// # Panics
    /// If it does not within ten seconds, or leaves processes behind.
    pub fn stop(mut self) {
        let family = descendants(self.id());
        self.signal(Signal::TERM);
        eventually("the server ends", || matches!(self.child.try_wait(), Ok(Some(_))));
        eventually("its processes end", || family.iter().all(|&id| !alive(id)));
    }

    /// Whether it has ended by itself.
    #[must_use]
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

/// Starts a server's command.
fn begin(mut command: Command) -> Child {
    if !command.get_envs().any(|(name, _)| name == "EF_NO_FAIL") {
        command.env("EF_NO_FAIL", "0");
    }
    command.env("OVERFLY_STATS", "1").stdin(Stdio::null()).spawn().expect("start the server")
}

impl Drop for Server {
    fn drop(&mut self) {
        let family = descendants(self.id());
        let _ = self.child.kill();
        for id in family {
            send(id, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, which may be gone.
pub fn send(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Connections that the server side's kernel has accepted.
///
/// # Panics
/// If the kernel does not say.
#[must_use]
pub fn kernel_accepted(lab: &Lab) -> u64 {
    counter(&succeed(lab, "server", &["cat", "/proc/net/snmp"]), "Tcp", "PassiveOpens")
}

/// Whether an XDP program is attached to the server's device.
///
/// # Panics
/// If the device cannot be seen.
#[must_use]
pub fn is_steered(lab: &Lab) -> bool {
    succeed(lab, "server", &["ip", "-d", "link", "show", "dev", "eth0"]).contains("prog/xdp")
}
