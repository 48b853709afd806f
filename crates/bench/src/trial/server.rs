//! The server of a run, from its start to its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::child::{line, output_of};
use super::generator::{Peer, expected, server_side, sockperf_words, takes_orders, url_of};
use super::{LOAD_SLACK, Tools};
use crate::interruption::interrupted;
use crate::plan::{Cell, Connection, Link, Mode, Plan, Stop, Tool};
use crate::site::Site;

/// What gives a server its data has done so by then, or does not work.
const FILL_DEADLINE: Duration = Duration::from_secs(10);
/// A server that has not ended by then, after it was told to, does not work either.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// The server of one run, under its guardian.
pub(super) struct Server<'a> {
    pub(super) site: &'a Site,
    pub(super) port: u16,
    /// It is the null server, not the plan's.
    pub(super) null: bool,
    pub(super) guardian: Child,
    pub(super) line: String,
    /// Its folder, by which its warden is known.
    pub(super) root: PathBuf,
    log: File,
}

/// Where a server has its files, and where it listens.
#[derive(Clone, Copy)]
struct ServerFiles<'a> {
    root: &'a str,
    config: &'a str,
    port: u16,
}

/// The command line of a server.
fn words(
    plan: &Plan,
    site: &Site,
    tools: Tools<'_>,
    mode: Mode,
    cell: Cell,
    place: ServerFiles<'_>,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    match mode {
        Mode::Null => return null_words(plan, site, cell, place.port),
        Mode::Overfly => {
            let overfly = site.server_overfly().as_os_str().to_owned();
            words.extend([overfly, "run".into(), "--profile".into(), plan.profile_of(&cell).into()]);
            match cell.link {
                Link::Memif => words.extend(["--link".into(), site.memif().into()]),
                Link::Host => words.extend(["--link".into(), site.own_memif("server").into()]),
                _ => words.extend(["--interface".into(), site.server_device().into()]),
            }
            words.push("--".into());
        }
        Mode::Kernel | Mode::KernelAsFound | Mode::KernelBusyPoll => {}
    }
    words.push(plan.server.program.clone().into());
    let folder = plan.beside("");
    let folder = std::path::absolute(&folder).unwrap_or(folder).display().to_string();
    let build = site.build(tools.build).display().to_string();
    let filled_in = |word: &String| {
        word.replace("@ROOT@", place.root)
            .replace("@PLAN@", folder.trim_end_matches('/'))
            .replace("@CONFIG@", place.config)
            .replace("@PORT@", &place.port.to_string())
            .replace("@BUILD@", &build)
    };
    let by_udp = cell.connection == Connection::Udp;
    let arguments = plan.server.arguments.iter().filter(|word| !(by_udp && *word == "@TCP@"));
    words.extend(arguments.map(|word| if word == "@TCP@" { "--tcp".into() } else { filled_in(word).into() }));
    if mode == Mode::KernelBusyPoll {
        let own = sockperf_words(Cell { connection: Connection::Udp, ..cell }, mode);
        words.extend(own.into_iter().map(OsString::from));
    }
    words
}

/// The server that does nothing but answer.
fn null_words(plan: &Plan, site: &Site, cell: Cell, port: u16) -> Vec<OsString> {
    if let Some(words) = server_side(plan, site.server_overfly(), site, cell) {
        return words;
    }
    let mut words: Vec<OsString> = vec![site.server_overfly().as_os_str().to_owned()];
    words.extend(["load".into(), "serve".into(), "--port".into(), port.to_string().into(), "--link".into()]);
    match cell.link {
        Link::Xdp => words.extend(["xdp".into(), "--interface".into(), site.server_device().into()]),
        Link::Memif => words.push(site.memif().into()),
        Link::Kernel | Link::Host | Link::Memory => words.push("kernel".into()),
    }
    words
}

impl Server<'_> {
    pub(super) fn start<'a>(
        plan: &Plan,
        site: &'a Site,
        tools: Tools<'_>,
        mode: Mode,
        cell: Cell,
        instance: u32,
    ) -> Result<Server<'a>, String> {
        // A warden takes its server's folder away: each has one of its own.
        let root = match cell.instances {
            1 => site.root().to_owned(),
            _ => site.root().join(format!("instance-{instance}")),
        };
        let folder = root.clone();
        let root = root.display().to_string();
        let config = format!("{root}/server.conf");
        let first = plan.server.port.map_or_else(|| site.port(), Ok).map_err(|error| error.to_string())?;
        let port = first + u16::try_from(instance).unwrap_or(u16::MAX);
        if let Some(template) = &plan.source.config_template {
            let text = template
                .replace("@ROOT@", &root)
                .replace("@PORT@", &port.to_string())
                .replace("@WORKERS@", &cell.workers.to_string());
            site.write(&config, text.as_bytes()).map_err(|error| error.to_string())?;
        }
        let payload: Vec<u8> = (0..cell.payload_bytes).map(|index| b'a' + (index % 26) as u8).collect();
        site.write(format!("{root}/www/{}", cell.payload_bytes), &payload)
            .map_err(|error| error.to_string())?;

        let place = ServerFiles { root: &root, config: &config, port };
        let words = words(plan, site, tools, mode, cell, place);
        // Not a pipe, which would have to be emptied while the server runs.
        let log = rustix::fs::memfd_create("server-log", rustix::fs::MemfdFlags::CLOEXEC)
            .map(File::from)
            .map_err(|error| format!("no memory for the server's messages: {error}"))?;
        let copy = || log.try_clone().map_err(|error| error.to_string());
        let guardian = site
            .server(&words, &folder, &plan.cores_of(&cell, instance as usize))
            // A comparison with the kernel under Overfly's name would be worse than none.
            .env("EF_NO_FAIL", "0")
            .stdin(site.leash())
            .stdout(copy()?)
            .stderr(copy()?)
            .spawn()
            .map_err(|error| format!("the server could not be started: {error}"))?;
        Ok(Server { site, port, null: mode == Mode::Null, guardian, line: line(&words), log, root: folder })
    }

    /// Runs what gives the server what will be asked for.
    pub(super) fn fill(&mut self, plan: &Plan, cell: Cell) -> Result<(), String> {
        let [program, arguments @ ..] = plan.server.fill.as_slice() else { return Ok(()) };
        if self.null {
            return Ok(());
        }
        let port = self.port.to_string();
        let bytes = cell.payload_bytes.to_string();
        let child = self
            .site
            .beside_server(plan.beside(program))
            .args(arguments.iter().map(|word| word.replace("@PORT@", &port).replace("@BYTES@", &bytes)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program} could not be started: {error}"))?;
        let output = output_of(child, Instant::now() + FILL_DEADLINE)?;
        match output.success {
            true => Ok(()),
            false => Err(format!("{program} failed: {}", output.stderr.trim())),
        }
    }

    /// Where it is, for a profile.
    pub(super) fn as_peer(&self) -> Peer {
        if self.null {
            return Peer::in_memory();
        }
        Peer { address: self.site.address(Link::Xdp).to_string(), port: self.port }
    }

    /// That it has not ended before it was told to.
    pub(super) fn is_alive(&mut self) -> Result<(), String> {
        match self.guardian.try_wait() {
            Ok(Some(status)) => Err(format!("the server ended while it was measured: {status}")),
            _ => Ok(()),
        }
    }

    /// Asks until the server answers.
    pub(super) fn await_answer(&mut self, plan: &Plan, mode: Mode, cell: Cell) -> Result<(), String> {
        match plan.client.tool {
            Tool::Sockperf => self.await_socket(plan, cell),
            // The server side of a profile answers nothing but flows.
            Tool::Astf if mode == Mode::Null => {
                self.wait(plan, |server| takes_orders(&server.site.control("server")))
            }
            Tool::Astf if cell.connection == Connection::Udp => self.await_socket(plan, cell),
            _ => self.await_page(plan, cell),
        }
    }

    /// Waits until a server of no protocol of its own has its socket: its port is in the kernel's table either way.
    fn await_socket(&mut self, plan: &Plan, cell: Cell) -> Result<(), String> {
        let table = if cell.connection == Connection::Udp { "udp" } else { "tcp" };
        let port = format!(":{:04X} ", self.port);
        self.wait(plan, |server| {
            server.site.sockets(table).lines().any(|line| {
                line.split_once(&port).is_some_and(|(before, _)| before.matches(':').count() == 1)
            })
        })
    }

    fn wait(&mut self, plan: &Plan, is_there: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs_f64(plan.server.start_s);
        loop {
            if let Ok(Some(status)) = self.guardian.try_wait() {
                return Err(format!("the server ended at once: {status}"));
            }
            if is_there(self) {
                return Ok(());
            }
            if Instant::now() > deadline || interrupted() {
                return Err(format!("the server was not there within {} s", plan.server.start_s));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_page(&mut self, plan: &Plan, cell: Cell) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs_f64(plan.server.start_s);
        // In shared memory there is no kernel that would ask for us.
        let memif = (self.null && cell.link == Link::Memif).then(|| self.site.memif());
        let by = if memif.is_some() { Link::Memif } else { Link::Kernel };
        let link = memif.unwrap_or_else(|| "kernel".to_owned());
        let mut words: Vec<OsString> = vec![self.site.client_overfly().into()];
        words.extend(
            ["load", "http", "-n", "1", "-c", "1", "--timeout", "500ms", "--link"].map(OsString::from),
        );
        words.push(link.into());
        words.extend(expected(cell));
        words.push(url_of(plan, cell, self, by).into());
        loop {
            if let Ok(Some(status)) = self.guardian.try_wait() {
                return Err(format!("the server ended at once: {status}"));
            }
            let child = self
                .site
                .generator(&words, plan.client.cpu)
                .stdin(self.site.leash())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|error| format!("the generator could not be started: {error}"))?;
            let output = output_of(child, deadline + LOAD_SLACK)?;
            if output.success {
                return Ok(());
            }
            if Instant::now() > deadline || interrupted() {
                return Err(format!(
                    "the server did not answer within {} s: {}",
                    plan.server.start_s,
                    format!("{} {}", output.stdout.trim(), output.stderr.trim()).replace('\n', "; ").trim()
                ));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ending(&self, stop: Stop) -> Signal {
        match stop {
            Stop::Quit if !self.null => Signal::QUIT,
            Stop::Int if !self.null => Signal::INT,
            Stop::Quit | Stop::Term | Stop::Int => Signal::TERM,
        }
    }

    /// Tells the server to end in its own way.
    pub(super) fn tell(&self, stop: Stop) {
        self.site.tell(&self.guardian, self.ending(stop));
    }

    /// Waits for the end of a server that was told to.
    pub(super) fn await_end(&mut self, stop: Stop) -> Result<(), String> {
        let signal = self.ending(stop);
        let deadline = Instant::now() + STOP_DEADLINE;
        loop {
            match self.guardian.try_wait() {
                // A program may end by the signal, or say so as shells do.
                Ok(Some(status)) if status.success() || status.code() == Some(128 + signal.as_raw()) => {
                    return Ok(());
                }
                Ok(Some(status)) => return Err(format!("the server ended with {status}")),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                _ => break,
            }
        }
        self.kill();
        Err(format!("the server did not end within {} s of being told to", STOP_DEADLINE.as_secs()))
    }

    fn kill(&mut self) {
        self.site.kill(&mut self.guardian);
    }

    pub(super) fn log(&mut self) -> String {
        use std::io::{Seek, SeekFrom};
        let mut bytes = Vec::new();
        let _ = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}
