//! Plans: what to measure. `cookbooks/README.md` documents the format, `cookbooks/plan.schema.json` is its JSON Schema.

mod axes;
mod hosts;
mod load;
mod measure;
mod rules;
#[cfg(test)]
mod tests;
mod words;

pub use axes::{Cell, Several};
pub use hosts::{Host, Hosts};
pub use load::{Astf, Client, FindMax, Over, ReceiveOffload, Tool};
pub use measure::{Described, Measure};
pub use rules::{Metric, Rule};

/// What is replaced where.
const ARGUMENT_PLACES: [&str; 6] = ["@ROOT@", "@CONFIG@", "@PORT@", "@BUILD@", "@PLAN@", "@TCP@"];
const FILL_PLACES: [&str; 2] = ["@PORT@", "@BYTES@"];
const URL_PLACES: [&str; 3] = ["@ADDRESS@", "@PORT@", "@BYTES@"];
const CONFIG_PLACES: [&str; 3] = ["@ROOT@", "@PORT@", "@WORKERS@"];
const TUNABLE_PLACES: [&str; 4] = ["@ADDRESS@", "@PORT@", "@BYTES@", "@CONNECTIONS@"];

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::shuffle::shuffle;

/// A plan that has been read and found to be right.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// What carries the server's connections, in the order of the report.
    pub modes: Vec<Mode>,
    /// What carries the generator's.
    #[serde(default = "only_xdp")]
    pub links: Vec<Link>,
    /// Sizes of the file that is asked for.
    pub payload_bytes: Vec<u64>,
    /// Ways to use connections.
    pub connections: Vec<Connection>,
    /// Runs of each mode in each cell.
    pub repeats: u32,
    /// Before requests are counted.
    pub warmup_s: f64,
    /// While they are.
    pub duration_s: f64,
    /// What the whole session may spend, beyond its runs, on waiting for a machine that is not
    /// steady and on making runs again that it disturbed.
    #[serde(default)]
    pub patience_s: f64,
    /// A generator that has not ended by then is ended, and its run has failed; `None`: its time and ten seconds.
    #[serde(default)]
    pub timeout_s: Option<f64>,
    /// Which run follows which.
    #[serde(default)]
    pub order: Order,
    /// Each host is as `overfly tune` would have it while it is measured, and put back, however the session ends.
    #[serde(default)]
    pub tune: bool,
    /// For `overfly run -p`: one, or several that are compared with the kernel each.
    #[serde(default = "performance")]
    pub profile: Several<String>,
    /// What must be so in every cell.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Payloads above this are also measured with kernel sockets at both ends: about one segment.
    #[serde(default = "one_segment")]
    pub kernel_sockets_above_bytes: u64,
    /// Machines that the two sides run on; empty: this one.
    #[serde(default)]
    pub hosts: Hosts,
    /// The server.
    pub server: Server,
    /// The generator.
    pub client: Client,
    /// The plan's own text, for the report.
    #[serde(skip)]
    pub source: Source,
}

/// Where a plan came from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Path, as it was given.
    pub file: PathBuf,
    /// The plan itself.
    pub text: String,
    /// What the server's configuration is made from, if it has one.
    pub config_template: Option<String>,
    /// It is only to be seen whether the plan works ([`Plan::smoke`]).
    pub smoke: bool,
    /// Some of the plan is left out ([`Plan::quick`]).
    pub quick: bool,
}

/// `[server]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Which of the plan's hosts it runs on.
    pub host: Option<String>,
    /// Found through PATH.
    pub program: String,
    /// `@ROOT@`, `@CONFIG@`, `@PORT@`, `@BUILD@` and `@PLAN@` (the plan's folder) are replaced; `@TCP@` becomes `--tcp`, and is left out where messages travel
    /// by UDP.
    pub arguments: Vec<String>,
    /// Path of the template, relative to the plan, for a server that wants a configuration.
    pub config: Option<PathBuf>,
    /// A program, relative to the plan, that makes what the server needs in the folder that it is given: `@BUILD@`. It is run
    /// once, before all runs.
    pub build: Option<PathBuf>,
    /// A program, relative to the plan, and its arguments: run beside each server that was started, it gives it what will be
    /// asked for. `@PORT@` and `@BYTES@` are replaced.
    #[serde(default)]
    pub fill: Vec<String>,
    /// What is asked for: `@ADDRESS@`, `@PORT@` and `@BYTES@` are replaced.
    #[serde(default = "a_file")]
    pub url: String,
    /// How it is told to end.
    #[serde(default)]
    pub stop: Stop,
    /// Replaces `@WORKERS@` in the template: one number, or several to go through.
    #[serde(default = "only_one")]
    pub workers: Several<u32>,
    /// How many run at once, each at a port of its own (`port`, `port` + 1, …): one number, or several to go through.
    #[serde(default = "only_one")]
    pub instances: Several<u32>,
    /// A server that does not answer by then does not work, seconds.
    #[serde(default = "ten")]
    pub start_s: f64,
    /// Where it listens; replaces `@PORT@` in the template. Without it, 80 in a lab and on this machine a port that is free.
    pub port: Option<u16>,
    /// The core that all of it runs on.
    pub cpu: usize,
    /// Cores in the order in which they are taken: by instance after instance where there are several, else by as many as there
    /// are workers. Empty: `cpu` for all.
    #[serde(default)]
    pub cpus: Vec<usize>,
}

/// A signal that a server ends at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// SIGQUIT.
    #[default]
    Quit,
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
}

/// Which run follows which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As a seed determines: what drifts meanwhile is in all of them alike.
    #[default]
    Random,
    /// Cell after cell, its modes by turns: what is compared was measured close together.
    Interleaved,
    /// Cell after cell, all repeats of a mode before the next mode.
    Sequential,
}

/// What carries the server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The kernel's TCP, as an administrator of a busy server would set it.
    Kernel,
    /// The kernel's TCP with the settings that a network namespace begins with.
    KernelAsFound,
    /// The kernel's TCP or UDP, waited for by polling the device (SO_BUSY_POLL) at both ends.
    KernelBusyPoll,
    /// `overfly run`.
    Overfly,
    /// No server of the plan's: `overfly load serve` over the generator's own link, which does nothing but answer. What the
    /// generator reaches here is more than it needs for any other, or it is the limit.
    Null,
}

/// What carries the generator's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// A stack of its own over AF_XDP.
    Xdp,
    /// A stack of its own over memory shared with the server. A server on the kernel has the loopback instead.
    Memif,
    /// Kernel sockets.
    Kernel,
    /// None: both programs are on one host, and meet over the kernel's loopback, or over Overfly's where both run on Overfly.
    Host,
    /// None: both sides of a profile are one process, joined in memory.
    Memory,
}

/// How connections are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// A new one for each request.
    Close,
    /// All stay open.
    Keepalive,
    /// One TCP connection, a message at a time.
    Tcp,
    /// UDP datagrams, one at a time.
    Udp,
}

impl Mode {
    /// Whether the kernel carries the connections.
    #[must_use]
    pub fn is_kernel(self) -> bool {
        matches!(self, Mode::Kernel | Mode::KernelAsFound | Mode::KernelBusyPoll)
    }
}

impl Order {
    /// `random order, seed 7`
    pub(crate) fn in_words(self, seed: u64) -> String {
        match self {
            Order::Random => format!("random order, seed {seed}"),
            order => format!("{order} order"),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Random => "random",
            Order::Interleaved => "interleaved",
            Order::Sequential => "sequential",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Kernel => "kernel",
            Mode::KernelAsFound => "kernel-as-found",
            Mode::KernelBusyPoll => "kernel-busy-poll",
            Mode::Overfly => "overfly",
            Mode::Null => "null",
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::Xdp => "xdp",
            Link::Memif => "memif",
            Link::Kernel => "kernel",
            Link::Host => "host",
            Link::Memory => "memory",
        })
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Connection::Close => "close",
            Connection::Keepalive => "keepalive",
            Connection::Tcp => "tcp",
            Connection::Udp => "udp",
        })
    }
}

fn only_xdp() -> Vec<Link> {
    vec![Link::Xdp]
}

fn performance() -> Several<String> {
    Several::one("performance".to_owned())
}

fn only_one() -> Several<u32> {
    Several::one(1)
}

fn ten() -> f64 {
    10.0
}

/// Payload of a full segment with timestamps on Ethernet.
fn one_segment() -> u64 {
    1448
}

/// What the null server is asked for, and others if nothing else is said.
pub(crate) const A_FILE: &str = "http://@ADDRESS@:@PORT@/@BYTES@";

fn a_file() -> String {
    A_FILE.to_owned()
}

/// One run of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Case {
    /// Index into [`Plan::cells`].
    pub cell: usize,
    /// What carries the server's connections.
    pub mode: Mode,
    /// What carries the generator's: the cell's link, or kernel sockets for the second look at a
    /// kernel server and for any look at it where the link is memif.
    pub generator: Link,
    /// Counts from 1.
    pub repeat: u32,
}

impl Plan {
    /// Reads and checks the plan in `file`, and the template that it names.
    ///
    /// # Errors
    /// [`Error::Plan`], naming the key and what was expected.
    pub fn read(file: &Path) -> Result<Plan, Error> {
        let text = fs::read_to_string(file).map_err(|error| wrong(file, None, error.to_string()))?;
        let mut plan = Plan::parse(file, &text)?;
        if let Some(config) = &plan.server.config {
            let template = fs::read_to_string(plan.beside(config)).map_err(|error| {
                let given = config.display();
                let message =
                    format!("server.config = \"{given}\": {error}; expected a file, relative to the plan");
                plan.fault("server.config", message)
            })?;
            plan.source.config_template = Some(template);
        }
        plan.check_programs()?;
        plan.check_places()?;
        Ok(plan)
    }

    /// A plan for tests of what is made of its figures.
    #[cfg(test)]
    pub(crate) fn any() -> Plan {
        Plan::parse(Path::new("p.toml"), tests::RIGHT).unwrap()
    }

    fn parse(file: &Path, text: &str) -> Result<Plan, Error> {
        let mut plan: Plan = toml::from_str(text).map_err(|error| {
            let (number, line) = error.span().map_or((None, ""), |span| {
                let (number, line) = line_at(text, span.start);
                (Some(number), line)
            });
            let message = words::plain(error.message());
            // Of a key that is missing the line is its table's, or the first: it says nothing.
            if line.is_empty() || message.ends_with("is missing") {
                wrong(file, number, message)
            } else {
                wrong(file, number, format!("`{line}`: {message}"))
            }
        })?;
        plan.source.file = file.to_owned();
        plan.source.text = text.to_owned();
        plan.check().map_err(|message| {
            let key = message.split([' ', ':']).next().unwrap_or_default();
            plan.fault(key, message.clone())
        })?;
        Ok(plan)
    }

    /// What is wrong with a key of the plan (`server.cpu`), which was read.
    #[must_use]
    pub fn fault(&self, key: &str, message: String) -> Error {
        wrong(&self.source.file, words::line_of(&self.source.text, key), message)
    }

    /// That what is to be started is there, before anything runs.
    fn check_programs(&self) -> Result<(), Error> {
        // Of hosts that is known once they answer.
        if self.hosts.is_empty() {
            self.check_server_program("", is_there(&self.server.program))?;
            self.check_tool("", self.client.tool.program().is_none_or(is_there))?;
        }
        let scripts = [
            ("server.build", self.server.build.clone()),
            ("server.fill", self.server.fill.first().map(PathBuf::from)),
        ];
        if let Some(astf) = self.client.astf.as_ref().filter(|astf| !self.beside(&astf.profile).is_file()) {
            let given = astf.profile.display();
            let message = format!("client.astf.profile = \"{given}\": expected a file, relative to the plan");
            return Err(self.fault("client.astf.profile", message));
        }
        for (key, script) in scripts {
            let Some(script) = script else { continue };
            let path = self.beside(&script);
            if !is_executable(&path) {
                let given = script.display();
                let message = format!("{key} = \"{given}\": expected a program, relative to the plan");
                return Err(self.fault(key, message));
            }
        }
        Ok(())
    }

    /// That there is a server `place` (` on HOST`, or here).
    pub(crate) fn check_server_program(&self, place: &str, is_there: bool) -> Result<(), Error> {
        if is_there {
            return Ok(());
        }
        let program = &self.server.program;
        let message = format!(
            "server.program = \"{program}\": there is no such program on the PATH{place}; install it, or write where it is"
        );
        Err(self.fault("server.program", message))
    }

    /// That there is a generator, if it is not ours.
    pub(crate) fn check_tool(&self, place: &str, is_there: bool) -> Result<(), Error> {
        if is_there {
            return Ok(());
        }
        let tool = self.client.tool;
        let message =
            format!("client.tool = \"{tool}\": there is no such program on the PATH{place}; install it");
        Err(self.fault("client.tool", message))
    }

    /// That every `@WORD@` is one that is replaced: a server that is given another fails in each run.
    fn check_places(&self) -> Result<(), Error> {
        let tunables = self.client.astf.iter().map(|astf| astf.tunables.as_str());
        let texts: [(&str, &[&str], Vec<&str>); 4] = [
            ("client.astf.tunables", &TUNABLE_PLACES, tunables.collect()),
            (
                "server.arguments",
                &ARGUMENT_PLACES,
                self.server.arguments.iter().map(String::as_str).collect(),
            ),
            ("server.fill", &FILL_PLACES, self.server.fill.iter().map(String::as_str).collect()),
            ("server.url", &URL_PLACES, vec![&self.server.url]),
        ];
        for (key, known, texts) in texts {
            if let Some(place) = texts.into_iter().find_map(|text| words::unknown_place(text, known)) {
                let message = format!("{key}: nothing replaces {place}; expected {}", known.join(", "));
                return Err(self.fault(key, message));
            }
        }
        let (Some(config), Some(template)) = (&self.server.config, &self.source.config_template) else {
            return Ok(());
        };
        for (number, line) in (1..).zip(template.lines()) {
            if let Some(place) = words::unknown_place(line, &CONFIG_PLACES) {
                let message = format!("nothing replaces {place}; expected {}", CONFIG_PLACES.join(", "));
                return Err(wrong(&self.beside(config), Some(number), message));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for (key, empty) in [
            ("modes", self.modes.is_empty()),
            ("links", self.links.is_empty()),
            ("payload_bytes", self.payload_bytes.is_empty()),
            ("connections", self.connections.is_empty()),
            ("profile", self.profile.0.is_empty()),
            ("server.workers", self.server.workers.0.is_empty()),
            ("server.instances", self.server.instances.0.is_empty()),
            ("client.connections", self.client.connections.0.is_empty()),
        ] {
            if empty {
                return Err(format!("{key} = []: expected at least one"));
            }
        }
        no_twin("modes", &self.modes)?;
        no_twin("links", &self.links)?;
        no_twin("payload_bytes", &self.payload_bytes)?;
        no_twin("connections", &self.connections)?;
        no_twin("profile", &self.profile.0)?;
        no_twin("server.workers", &self.server.workers.0)?;
        no_twin("server.instances", &self.server.instances.0)?;
        no_twin("client.connections", &self.client.connections.0)?;
        no_twin("client.rates_per_s", &self.client.rates_per_s)?;
        for &bytes in &self.payload_bytes {
            within("payload_bytes", bytes, 0..=104_857_600)?;
        }
        within("repeats", self.repeats, 1..=100)?;
        within("warmup_s", self.warmup_s, 0.0..=60.0)?;
        within("duration_s", self.duration_s, 0.2..=600.0)?;
        within("patience_s", self.patience_s, 0.0..=3600.0)?;
        if let Some(timeout_s) = self.timeout_s {
            within("timeout_s", timeout_s, 1.0..=86_400.0)?;
        }
        for &workers in &self.server.workers.0 {
            within("server.workers", workers, 1..=1024)?;
        }
        for &instances in &self.server.instances.0 {
            within("server.instances", instances, 1..=256)?;
        }
        within("server.start_s", self.server.start_s, 0.1..=600.0)?;
        within("server.port", self.server.port.unwrap_or(1), 1..=65_535)?;
        for &connections in &self.client.connections.0 {
            within("client.connections", connections, 1..=100_000)?;
        }
        for &rate in &self.client.rates_per_s {
            within("client.rates_per_s", rate, 0.1..=100_000_000.0)?;
        }
        within("client.threads", self.client.threads, 1..=64)?;
        let last = self.last_core();
        within("server.cpu", self.server.cpu, 0..=last)?;
        within("client.cpu", self.client.cpu, 0..=last)?;
        for &cpu in &self.server.cpus {
            within("server.cpus", cpu, 0..=last)?;
        }
        no_twin("server.cpus", &self.server.cpus)?;
        if let Some(few) = self.client.connections.0.iter().find(|&&few| few < self.client.threads) {
            return Err(format!(
                "client.connections = {few}: expected at least one for each of {} threads",
                self.client.threads
            ));
        }
        self.check_hosts()?;
        self.check_combinations()?;
        if self.server.program.is_empty() {
            return Err("server.program = \"\": expected the name of a program".to_owned());
        }
        Ok(())
    }

    /// Keys that exclude each other.
    fn check_combinations(&self) -> Result<(), String> {
        let memif = self.links.contains(&Link::Memif);
        if self.links.iter().any(|link| matches!(link, Link::Host | Link::Memory))
            && self.modes.contains(&Mode::KernelAsFound)
        {
            return Err(
                "modes: kernel-as-found needs a network namespace; expected links xdp or kernel".to_owned()
            );
        }
        if memif && self.server.instances.0.iter().any(|&instances| instances > 1) {
            return Err("server.instances: several servers cannot share one memif; expected 1 with links = [\"memif\"]".to_owned());
        }
        if memif && self.modes.contains(&Mode::KernelAsFound) {
            return Err("modes: kernel-as-found needs a network namespace, which a memif has not; expected links xdp or kernel".to_owned());
        }
        let last = u32::from(self.server.port.unwrap_or(80))
            + self.server.instances.0.iter().max().unwrap_or(&1)
            - 1;
        if last > 65_535 {
            return Err(format!(
                "server.port: the last instance would have port {last}; expected at most 65535"
            ));
        }
        self.check_load()
    }

    /// Every run, in the order of the report.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (index, cell) in self.cells().into_iter().enumerate() {
            for repeat in 1..=self.repeats {
                for &mode in &self.modes {
                    if !self.is_run(mode, &cell) {
                        continue;
                    }
                    if mode != Mode::Overfly && cell.profile > 0 {
                        // The kernel was measured for the first profile.
                        continue;
                    }
                    cases.push(Case { cell: index, mode, generator: cell.generator(mode), repeat });
                    let second_look = mode == Mode::Kernel
                        && cell.link == Link::Xdp
                        && cell.payload_bytes > self.kernel_sockets_above_bytes
                        && matches!(self.client.tool, Tool::Overfly | Tool::Astf)
                        && cell.connection != Connection::Udp;
                    if second_look {
                        cases.push(Case { cell: index, mode, generator: Link::Kernel, repeat });
                    }
                }
            }
        }
        cases
    }

    /// The numbers of [`Plan::cases`] in the order in which they are carried out. A seed determines a random one.
    pub(crate) fn order_of_runs(&self, seed: u64) -> Vec<usize> {
        let cases = self.cases();
        let mut order: Vec<usize> = (0..cases.len()).collect();
        match self.order {
            Order::Random => shuffle(&mut order, seed),
            Order::Interleaved => {}
            Order::Sequential => {
                let mode = |mode: Mode| self.modes.iter().position(|&its| its == mode);
                // Stable: repeats stay one after another.
                order.sort_by_key(|&run| {
                    let case = cases[run];
                    (
                        case.cell,
                        mode(case.mode),
                        case.generator != self.cells()[case.cell].generator(case.mode),
                    )
                });
            }
        }
        order
    }

    /// Whether there is such a run. In memory both sides are the generator's own. Over an interface a profile's server side is not
    /// what its client side is compared with: there are memif, with a core each, and memory for that.
    fn is_run(&self, mode: Mode, cell: &Cell) -> bool {
        let profile = self.client.tool == Tool::Astf;
        match cell.link {
            Link::Memory => mode == Mode::Null,
            Link::Xdp => mode != Mode::Null || !profile,
            // Kernel sockets stand beside memif, and `load http`, which makes a profile's flows there, has no datagrams.
            Link::Memif if profile && cell.connection == Connection::Udp => {
                matches!(mode, Mode::Overfly | Mode::Null)
            }
            _ => true,
        }
    }

    /// Whether any run needs network namespaces, and so root.
    pub fn needs_lab(&self) -> bool {
        self.hosts.is_empty() && self.links.iter().any(|&link| matches!(link, Link::Xdp | Link::Kernel))
    }

    /// A path that is relative to the plan, as one from here.
    pub(crate) fn beside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.source.file.parent().unwrap_or(Path::new(".")).join(path)
    }

    /// The plan's name: that of its file, without the extension.
    pub fn name(&self) -> String {
        self.source
            .file
            .file_stem()
            .map_or_else(|| "plan".to_owned(), |stem| stem.to_string_lossy().into_owned())
    }
}

fn wrong(file: &Path, line: Option<usize>, message: String) -> Error {
    Error::Plan { file: file.display().to_string(), line, message }
}

/// Whether execvp(3) would find it.
pub(crate) fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return is_executable(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path).any(|folder| is_executable(&folder.join(program)))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|its| its.is_file() && its.permissions().mode() & 0o111 != 0)
}

fn within<T: PartialOrd + fmt::Display + Copy>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{key} = {value}: expected a number from {} to {}", range.start(), range.end()))
}

fn no_twin<T: PartialEq + fmt::Display>(key: &str, values: &[T]) -> Result<(), String> {
    match values.iter().enumerate().find(|(index, value)| values[..*index].contains(value)) {
        Some((_, twin)) => Err(format!("{key}: {twin} is there twice; expected each once")),
        None => Ok(()),
    }
}

/// Number (from 1) and text of the line at a byte offset.
fn line_at(text: &str, offset: usize) -> (usize, &str) {
    let offset = offset.min(text.len());
    let before = &text.as_bytes()[..offset];
    let number = before.iter().filter(|&&byte| byte == b'\n').count();
    (number + 1, text.lines().nth(number).unwrap_or("").trim())
}
