//! One run: the server on its core, the generator on its, the clocks.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::foreign;
use crate::interruption::interrupted;
use crate::lab::DEVICE;
use crate::plan::{A_FILE, Case, Cell, Connection, Link, Mode, Plan, Stop, Tool};
use crate::process_time::{CoreTime, Process, processes, tree_among};
use crate::site::Site;
use crate::yardstick::{Conditions, Watch};

/// What gives a server its data has done so by then, or does not work.
const FILL_DEADLINE: Duration = Duration::from_secs(10);
/// A server that has not ended by then, after it was told to, does not work either.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// What a generator may take beyond its warm-up and duration.
const LOAD_SLACK: Duration = Duration::from_secs(10);

/// What one run found out.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Successes per second; 0 if the run failed.
    pub(crate) requests_per_s: f64,
    /// Requests that failed.
    pub(crate) failed_requests: u64,
    /// Start of a request to the end of its response, µs.
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    /// All processes of the server, user and system.
    pub(crate) server_cpu_us_per_request: f64,
    pub(crate) client_cpu_us_per_request: f64,
    /// Share of the time that the cores were not idle, and that they spent in softirqs, %.
    pub(crate) server_core_busy_percent: f64,
    pub(crate) server_core_softirq_percent: f64,
    pub(crate) client_core_busy_percent: f64,
    pub(crate) client_core_softirq_percent: f64,
    /// Share of the time that the generator had something to do, as it says itself, %. (Its core is busy all the time where
    /// it has a stack of its own: it polls.)
    pub(crate) generator_busy_percent: f64,
    /// Kept beside the trial.
    #[serde(skip)]
    pub(crate) conditions: Conditions,
    /// Why the run failed, or what else was not as it should be.
    pub(crate) problems: Vec<String>,
    /// Why a first try failed, after which this one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_try: Option<String>,
    /// The exact command lines, as they are typed where the run takes place.
    pub(crate) server_command: String,
    pub(crate) client_command: String,
    /// The generator's own report.
    pub(crate) load: Value,
    /// What the server wrote to standard error.
    pub(crate) server_log: String,
}

/// What is used of the generator's report; the whole of it is kept as it came.
#[derive(Debug, Deserialize)]
struct LoadReport {
    requests_per_s: f64,
    failed_total: u64,
    succeeded: u64,
    cpu_us_per_request: f64,
    latency_us: LoadLatency,
    connections_open_max: u64,
    connections: u64,
    duration_s: f64,
    threads: f64,
    record: LoadRecord,
}

#[derive(Debug, Deserialize)]
struct LoadRecord {
    busy_ns: f64,
}

#[derive(Debug, Deserialize)]
struct LoadLatency {
    p50: f64,
    p99: f64,
}

/// What runs are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) overfly: &'a Path,
    /// What the plan's `server.build` made.
    pub(crate) build: &'a Path,
}

/// Carries out one case of the plan; what fails is tried once more. A failure is part of what is returned.
pub(crate) fn carry_out(plan: &Plan, tools: Tools<'_>, case: Case) -> Trial {
    let first = carry_out_once(plan, tools, case);
    if first.requests_per_s > 0.0 || interrupted() {
        return first;
    }
    let mut second = carry_out_once(plan, tools, case);
    second.first_try = Some(first.problems.join("; "));
    second
}

fn carry_out_once(plan: &Plan, tools: Tools<'_>, case: Case) -> Trial {
    let cell = plan.cells()[case.cell];
    let mut trial = Trial::default();
    if let Err(problem) = attempt(plan, tools, case, cell, &mut trial) {
        trial.problems.push(problem);
    }
    trial
}

fn attempt(plan: &Plan, tools: Tools<'_>, case: Case, cell: Cell, trial: &mut Trial) -> Result<(), String> {
    let overfly = tools.overfly;
    let site = match cell.link {
        Link::Memif => Site::machine(overfly),
        Link::Xdp | Link::Kernel if case.mode == Mode::KernelAsFound => Site::lab_as_found(overfly),
        Link::Xdp | Link::Kernel => Site::lab(overfly),
    };
    let site = site.map_err(|error| error.to_string())?;
    let site = if cell.instances > 1 { site.for_several() } else { site };
    let mut servers: Vec<Server<'_>> = Vec::new();
    // One after the other: the first one's broker serves the next ones, once it is there.
    let mut result = Ok(());
    for instance in 0..cell.instances {
        let mut server = Server::start(plan, &site, tools, case.mode, cell, instance)?;
        result = server.fill(plan, cell).and_then(|()| server.await_answer(plan, overfly, cell));
        servers.push(server);
        if result.is_err() {
            break;
        }
    }
    let lines: Vec<&str> = servers.iter().map(|server| server.line.as_str()).collect();
    trial.server_command = lines.join(" & ");
    let result = result.and_then(|()| measure(plan, overfly, case, cell, &servers, trial));
    // All are told before any is waited for: one that has the others' broker ends with the last of them.
    for server in &servers {
        server.tell(plan.server.stop);
    }
    let stopped =
        servers.iter_mut().map(|server| server.await_end(plan.server.stop)).fold(Ok(()), Result::and);
    let logs: Vec<String> = servers.iter_mut().map(Server::log).filter(|log| !log.is_empty()).collect();
    trial.server_log = logs.join("\n");
    // The first thing that went wrong is the one to tell; what the server said may explain it.
    match result.and(stopped) {
        Err(problem) if !trial.server_log.is_empty() => {
            let last = trial.server_log.lines().last().unwrap_or("");
            Err(format!("{problem} (the server's last words: {last})"))
        }
        other => other,
    }
}

fn measure(
    plan: &Plan,
    overfly: &Path,
    case: Case,
    cell: Cell,
    servers: &[Server<'_>],
    trial: &mut Trial,
) -> Result<(), String> {
    let tool = plan.client.tool;
    let program = tool.program().map_or_else(|| overfly.as_os_str().to_owned(), OsString::from);
    let start = |arguments: &[OsString]| {
        let mut command = servers[0].site.generator(&program, plan.client.cpu);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| format!("the generator could not be started: {error}"))
    };
    if tool.is_foreign() && plan.warmup_s > 0.0 {
        let warm = start(&load_arguments(plan, plan.warmup_s, case, cell, servers))?;
        output_of(warm, Instant::now() + Duration::from_secs_f64(plan.warmup_s) + LOAD_SLACK)?;
    }
    let arguments = load_arguments(plan, plan.duration_s, case, cell, servers);
    trial.client_command = line(program.clone(), &arguments);
    let mut generator = start(&arguments)?;
    let generator_id = generator.id();
    let started = Instant::now();
    let (warmup, duration) =
        (Duration::from_secs_f64(plan.warmup_s), Duration::from_secs_f64(plan.duration_s));
    // A foreign generator has been warmed up for already.
    let warmup = if tool.is_foreign() { Duration::ZERO } else { warmup };

    let counting = (started + warmup, started + warmup + duration);
    let watch = Watch::start(plan.server.cpu, plan.client.cpu, counting.0, counting.1);

    // The middle of the measured time, so that nothing of the generator's start and end is in it.
    // It may itself take a moment to start: its own clock says when it was measuring.
    let before = wait_until(&mut generator, counting.0 + duration.mul_f64(0.2), || {
        Clocks::read(plan, cell, servers, generator_id)
    });
    let after = wait_until(&mut generator, counting.0 + duration.mul_f64(0.9), || {
        Clocks::read(plan, cell, servers, generator_id)
    });
    let output = output_of(generator, counting.1 + LOAD_SLACK);
    trial.conditions.speeds = watch.end();
    let output = output?;
    if tool.is_foreign() {
        return trial.take_foreign(tool, &output, before.zip(after));
    }
    let report: LoadReport = serde_json::from_str(&output.stdout).map_err(|error| {
        let said = output.stderr.trim().replace('\n', "; ");
        if said.is_empty() { format!("the generator's report is not understood: {error}") } else { said }
    })?;
    trial.load = serde_json::from_str(&output.stdout).unwrap_or(Value::Null);

    trial.requests_per_s = report.requests_per_s;
    trial.failed_requests = report.failed_total;
    trial.latency_p50_us = report.latency_us.p50;
    trial.latency_p99_us = report.latency_us.p99;
    trial.client_cpu_us_per_request = report.cpu_us_per_request;
    let thread_s = report.duration_s * report.threads;
    if thread_s > 0.0 {
        trial.generator_busy_percent = (report.record.busy_ns * 1e-9 / thread_s).min(1.0) * 100.0;
    }
    if let (Some(before), Some(after)) = (before, after) {
        trial.add_clocks(before, after);
    }
    if report.succeeded == 0 {
        return Err("not one request succeeded".to_owned());
    }
    if report.connections_open_max < report.connections && cell.connection == Connection::Keepalive {
        trial.problems.push(format!(
            "only {} of {} connections were ever open at once",
            report.connections_open_max, report.connections
        ));
    }
    Ok(())
}

impl Trial {
    fn take_foreign(
        &mut self,
        tool: Tool,
        output: &Output,
        clocks: Option<(Clocks, Clocks)>,
    ) -> Result<(), String> {
        let said = if output.stdout.trim().is_empty() { &output.stderr } else { &output.stdout };
        let (told, raw) = foreign::told(tool, said)?;
        self.load = raw;
        self.requests_per_s = told.requests_per_s;
        self.failed_requests = told.failed;
        self.latency_p50_us = told.latency_p50_us;
        self.latency_p99_us = told.latency_p99_us;
        if let Some((before, after)) = clocks {
            self.add_clocks(before, after);
            // It has no clock of its own: what it waits it sleeps.
            let wall_s = (after.when - before.when).as_secs_f64();
            let spent_s = after.generator.saturating_sub(before.generator).as_secs_f64();
            self.generator_busy_percent = (spent_s / wall_s).min(1.0) * 100.0;
            self.client_cpu_us_per_request = spent_s * 1e6 / (told.requests_per_s * wall_s).max(1.0);
        }
        if told.succeeded == 0 {
            return Err("not one request succeeded".to_owned());
        }
        Ok(())
    }

    fn add_clocks(&mut self, before: Clocks, after: Clocks) {
        let wall_s = (after.when - before.when).as_secs_f64();
        let requests = self.requests_per_s * wall_s;
        if wall_s <= 0.0 || requests <= 0.0 {
            return;
        }
        let percent = |before: Duration, after: Duration| {
            let share = after.saturating_sub(before).as_secs_f64() / wall_s;
            (share * 1000.0).round() / 10.0
        };
        let server_s = after.server.saturating_sub(before.server).as_secs_f64();
        let generator_s = after.generator.saturating_sub(before.generator).as_secs_f64();
        let busy = |clocks: &Clocks| match clocks.cores_differ {
            true => clocks.server_core.busy + clocks.client_core.busy,
            false => clocks.server_core.busy,
        };
        let busy_s = busy(&after).saturating_sub(busy(&before)).as_secs_f64();
        if busy_s > 0.0 {
            let receiving_s = after.receiving.saturating_sub(before.receiving).as_secs_f64();
            self.conditions.taken_by_others =
                (1.0 - (server_s + generator_s + receiving_s) / busy_s).max(0.0);
        }
        self.server_cpu_us_per_request = server_s * 1e6 / requests;
        let each = |time: Duration| time / after.server_cores.max(1);
        let (earlier, later) = (before.server_core, after.server_core);
        self.server_core_busy_percent = percent(each(earlier.busy), each(later.busy));
        self.server_core_softirq_percent = percent(each(earlier.softirq), each(later.softirq));
        self.client_core_busy_percent = percent(before.client_core.busy, after.client_core.busy);
        self.client_core_softirq_percent = percent(before.client_core.softirq, after.client_core.softirq);
    }
}

#[derive(Debug, Clone, Copy)]
struct Clocks {
    when: Instant,
    server: Duration,
    generator: Duration,
    /// Of the kernel's threads that receive for the generator.
    receiving: Duration,
    cores_differ: bool,
    server_cores: u32,
    /// Of all of them together.
    server_core: CoreTime,
    client_core: CoreTime,
}

impl Clocks {
    fn read(plan: &Plan, cell: Cell, servers: &[Server<'_>], generator: u32) -> Clocks {
        let cores = plan.server_cores(&cell);
        let processes = processes();
        let spent = |processes: &[Process]| processes.iter().map(|process| process.time).sum();
        let receiver = format!("napi/{DEVICE}-");
        let receiving = processes.iter().filter(|process| process.name.starts_with(&receiver));
        Clocks {
            when: Instant::now(),
            receiving: receiving.map(|process| process.time).sum(),
            server: servers
                .iter()
                .map(|server| spent(&tree_among(&processes, server.guardian.id())))
                .sum::<Duration>(),
            generator: spent(&tree_among(&processes, generator)),
            cores_differ: !cores.contains(&plan.client.cpu),
            server_cores: cores.len() as u32,
            server_core: CoreTime::of_all(&cores),
            client_core: CoreTime::of(plan.client.cpu),
        }
    }
}

/// What `look` sees at `when`, or None if the child has ended by then.
fn wait_until<T>(child: &mut Child, when: Instant, look: impl FnOnce() -> T) -> Option<T> {
    loop {
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(look());
        }
        if !matches!(child.try_wait(), Ok(None)) || interrupted() {
            return None;
        }
        thread::sleep(left.min(Duration::from_millis(100)));
    }
}

fn load_arguments(
    plan: &Plan,
    duration_s: f64,
    case: Case,
    cell: Cell,
    servers: &[Server<'_>],
) -> Vec<OsString> {
    let client = &plan.client;
    if client.tool.is_foreign() {
        let url = url_of(plan, cell, &servers[0], case.generator);
        let (threads, connections) = (client.threads, cell.connections);
        let mut words =
            foreign::arguments(client.tool, duration_s, threads, connections, cell.connection, &url);
        let last = words.len() - 1;
        words.splice(last..last, client.arguments.iter().cloned());
        return words.into_iter().map(OsString::from).collect();
    }
    let mut arguments: Vec<OsString> = ["load", "http", "--json", "-t"].map(OsString::from).into();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(&[&plan.client.threads.to_string(), "-c", &cell.connections.to_string()]);
    add(&["--warmup", &format!("{}s", plan.warmup_s), "-d", &format!("{duration_s}s")]);
    if let Some(rate) = cell.rate_per_s {
        add(&["-R", &rate.to_string()]);
    }
    add(&["--cpus", &plan.client.cpu.to_string(), "--link"]);
    match case.generator {
        Link::Xdp => add(&["xdp", "--interface", DEVICE]),
        Link::Memif => add(&[&servers[0].site.memif()]),
        Link::Kernel => add(&["kernel"]),
    }
    if cell.connection == Connection::Close {
        add(&["--close"]);
    }
    arguments.extend(client.arguments.iter().map(OsString::from));
    arguments.extend(expected(cell));
    arguments.extend(servers.iter().map(|server| url_of(plan, cell, server, case.generator).into()));
    arguments
}

/// What makes an answer a success.
fn expected(cell: Cell) -> [OsString; 4] {
    ["--expect-status", "200", "--expect-size", &cell.payload_bytes.to_string()].map(OsString::from)
}

/// What is asked for.
fn url_of(plan: &Plan, cell: Cell, server: &Server<'_>, generator: Link) -> String {
    let url = if server.null { A_FILE } else { &plan.server.url };
    url.replace("@ADDRESS@", &server.site.address(generator).to_string())
        .replace("@PORT@", &server.port.to_string())
        .replace("@BYTES@", &cell.payload_bytes.to_string())
}

/// The server of one run, under its guardian.
struct Server<'a> {
    site: &'a Site,
    port: u16,
    /// It is the null server, not the plan's.
    null: bool,
    guardian: Child,
    line: String,
    log: File,
}

impl Server<'_> {
    fn start<'a>(
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

        let mut words: Vec<OsString> = Vec::new();
        if mode == Mode::Overfly {
            words.extend([
                tools.overfly.as_os_str().to_owned(),
                "run".into(),
                "--profile".into(),
                plan.profile_of(&cell).into(),
            ]);
            if cell.link == Link::Memif {
                words.extend(["--link".into(), site.memif().into()]);
            } else {
                words.extend(["--interface".into(), DEVICE.into()]);
            }
            words.push("--".into());
        }
        if mode == Mode::Null {
            words.extend([tools.overfly.as_os_str().to_owned(), "load".into(), "serve".into()]);
            words.extend(["--port".into(), port.to_string().into(), "--link".into()]);
            match cell.link {
                Link::Xdp => words.extend(["xdp".into(), "--interface".into(), DEVICE.into()]),
                Link::Memif => words.push(site.memif().into()),
                Link::Kernel => words.push("kernel".into()),
            }
        } else {
            words.push(plan.server.program.clone().into());
        }
        let filled_in = |word: &String| {
            word.replace("@ROOT@", &root)
                .replace("@CONFIG@", &config)
                .replace("@PORT@", &port.to_string())
                .replace("@BUILD@", &tools.build.display().to_string())
        };
        if mode != Mode::Null {
            words.extend(plan.server.arguments.iter().map(|word| filled_in(word).into()));
        }
        let program = words.remove(0);
        // Not a pipe, which would have to be emptied while the server runs.
        let log = rustix::fs::memfd_create("server-log", rustix::fs::MemfdFlags::CLOEXEC)
            .map(File::from)
            .map_err(|error| format!("no memory for the server's messages: {error}"))?;
        let copy = || log.try_clone().map_err(|error| error.to_string());
        let guardian = site
            .server(&program, &folder, &plan.cores_of(&cell, instance as usize))
            .args(&words)
            // A comparison with the kernel under Overfly's name would be worse than none.
            .env("EF_NO_FAIL", "0")
            .stdin(Stdio::null())
            .stdout(copy()?)
            .stderr(copy()?)
            .spawn()
            .map_err(|error| format!("the server could not be started: {error}"))?;
        Ok(Server { site, port, null: mode == Mode::Null, guardian, line: line(program, &words), log })
    }

    /// Runs what gives the server what will be asked for.
    fn fill(&mut self, plan: &Plan, cell: Cell) -> Result<(), String> {
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

    /// Asks from the client's side until the answer comes.
    fn await_answer(&mut self, plan: &Plan, overfly: &Path, cell: Cell) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs_f64(plan.server.start_s);
        // In shared memory there is no kernel that would ask for us.
        let memif = (self.null && cell.link == Link::Memif).then(|| self.site.memif());
        let by = if memif.is_some() { Link::Memif } else { Link::Kernel };
        let link = memif.unwrap_or_else(|| "kernel".to_owned());
        loop {
            if let Ok(Some(status)) = self.guardian.try_wait() {
                return Err(format!("the server ended at once: {status}"));
            }
            let child = self
                .site
                .generator(overfly, plan.client.cpu)
                .args(["load", "http", "-n", "1", "-c", "1", "--timeout", "500ms", "--link", &link])
                .args(expected(cell))
                .arg(url_of(plan, cell, self, by))
                .stdin(Stdio::null())
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
            Stop::Quit | Stop::Term => Signal::TERM,
        }
    }

    /// Tells the server to end in its own way.
    fn tell(&self, stop: Stop) {
        let told = self.site.listens_to_signals(self.guardian.id());
        if let Some(told) = told.and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(told, self.ending(stop));
        }
    }

    /// Waits for the end of a server that was told to.
    fn await_end(&mut self, stop: Stop) -> Result<(), String> {
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

    fn log(&mut self) -> String {
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

struct Output {
    success: bool,
    stdout: String,
    stderr: String,
}

/// What a child with two pipes wrote, once it has ended; it is killed at the deadline.
fn output_of(mut child: Child, deadline: Instant) -> Result<Output, String> {
    fn read_all(pipe: Option<impl Read>) -> String {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let status = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < deadline && !interrupted() => {
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(Some(status)) => break Some(status),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        match status {
            Some(status) => Ok(Output { success: status.success(), stdout, stderr }),
            None => Err("it did not end in time and was killed".to_owned()),
        }
    })
}

/// A command line as one could type it.
fn line(program: OsString, arguments: &[OsString]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
