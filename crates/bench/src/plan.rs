//! Plans: what to measure. `cookbooks/README.md` documents the format.

mod words;

/// What is replaced where.
const ARGUMENT_PLACES: [&str; 4] = ["@ROOT@", "@CONFIG@", "@PORT@", "@BUILD@"];
const FILL_PLACES: [&str; 2] = ["@PORT@", "@BYTES@"];
const URL_PLACES: [&str; 3] = ["@ADDRESS@", "@PORT@", "@BYTES@"];
const CONFIG_PLACES: [&str; 3] = ["@ROOT@", "@PORT@", "@WORKERS@"];

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

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
    /// For `overfly run -p`.
    #[serde(default = "performance")]
    pub profile: String,
    /// Payloads above this are also measured with kernel sockets at both ends: about one segment.
    #[serde(default = "one_segment")]
    pub kernel_sockets_above_bytes: u64,
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
}

/// `[server]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Found through PATH.
    pub program: String,
    /// `@ROOT@`, `@CONFIG@`, `@PORT@` and `@BUILD@` are replaced.
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
    /// Replaces `@WORKERS@` in the template.
    #[serde(default = "one")]
    pub workers: u32,
    /// Where it listens; replaces `@PORT@` in the template. Without it, 80 in a lab and on this machine a port that is free.
    pub port: Option<u16>,
    /// The core that all of it runs on.
    pub cpu: usize,
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
}

/// `[client]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Connections that are kept busy.
    pub connections: u32,
    /// Threads, all on one core.
    #[serde(default = "one")]
    pub threads: u32,
    /// The core.
    pub cpu: usize,
}

/// What carries the server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The kernel's TCP.
    Kernel,
    /// `overfly run`.
    Overfly,
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
}

/// How connections are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// A new one for each request.
    Close,
    /// All stay open.
    Keepalive,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Kernel => "kernel",
            Mode::Overfly => "overfly",
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::Xdp => "xdp",
            Link::Memif => "memif",
            Link::Kernel => "kernel",
        })
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Connection::Close => "close",
            Connection::Keepalive => "keepalive",
        })
    }
}

fn only_xdp() -> Vec<Link> {
    vec![Link::Xdp]
}

fn performance() -> String {
    "performance".to_owned()
}

/// Payload of a full segment with timestamps on Ethernet.
fn one_segment() -> u64 {
    1448
}

fn a_file() -> String {
    "http://@ADDRESS@:@PORT@/@BYTES@".to_owned()
}

fn one() -> u32 {
    1
}

/// Where a metric is compared between modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Size of the file.
    pub payload_bytes: u64,
    /// How connections are used.
    pub connection: Connection,
    /// What carries the generator's connections.
    pub link: Link,
}

impl Cell {
    /// What carries the generator's connections to a server of this mode: no kernel has a memif.
    pub(crate) fn generator(&self, mode: Mode) -> Link {
        match (self.link, mode) {
            (Link::Memif, Mode::Kernel) => Link::Kernel,
            _ => self.link,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B {} over {}", self.payload_bytes, self.connection, self.link)
    }
}

/// One run of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let program = &self.server.program;
        if !is_there(program) {
            let message = format!(
                "server.program = \"{program}\": there is no such program on the PATH; install it, or write where it is"
            );
            return Err(self.fault("server.program", message));
        }
        let scripts = [
            ("server.build", self.server.build.clone()),
            ("server.fill", self.server.fill.first().map(PathBuf::from)),
        ];
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

    /// That every `@WORD@` is one that is replaced: a server that is given another fails in each run.
    fn check_places(&self) -> Result<(), Error> {
        let texts: [(&str, &[&str], Vec<&str>); 3] = [
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
        ] {
            if empty {
                return Err(format!("{key} = []: expected at least one"));
            }
        }
        no_twin("modes", &self.modes)?;
        no_twin("links", &self.links)?;
        no_twin("payload_bytes", &self.payload_bytes)?;
        no_twin("connections", &self.connections)?;
        for &bytes in &self.payload_bytes {
            within("payload_bytes", bytes, 0..=104_857_600)?;
        }
        within("repeats", self.repeats, 1..=100)?;
        within("warmup_s", self.warmup_s, 0.0..=60.0)?;
        within("duration_s", self.duration_s, 0.2..=600.0)?;
        within("patience_s", self.patience_s, 0.0..=3600.0)?;
        within("server.workers", self.server.workers, 1..=1024)?;
        within("server.port", self.server.port.unwrap_or(1), 1..=65_535)?;
        within("client.connections", self.client.connections, 1..=100_000)?;
        within("client.threads", self.client.threads, 1..=64)?;
        let last = crate::lab::queue_count() - 1;
        within("server.cpu", self.server.cpu, 0..=last)?;
        within("client.cpu", self.client.cpu, 0..=last)?;
        if self.client.connections < self.client.threads {
            return Err(format!(
                "client.connections = {}: expected at least one for each of {} threads",
                self.client.connections, self.client.threads
            ));
        }
        if self.server.program.is_empty() {
            return Err("server.program = \"\": expected the name of a program".to_owned());
        }
        Ok(())
    }

    /// Every cell, in the order of the report.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &link in &self.links {
            for &payload_bytes in &self.payload_bytes {
                for &connection in &self.connections {
                    cells.push(Cell { payload_bytes, connection, link });
                }
            }
        }
        cells
    }

    /// Every run, in the order of the report.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (index, cell) in self.cells().into_iter().enumerate() {
            for repeat in 1..=self.repeats {
                for &mode in &self.modes {
                    cases.push(Case { cell: index, mode, generator: cell.generator(mode), repeat });
                    let second_look = mode == Mode::Kernel
                        && cell.link == Link::Xdp
                        && cell.payload_bytes > self.kernel_sockets_above_bytes;
                    if second_look {
                        cases.push(Case { cell: index, mode, generator: Link::Kernel, repeat });
                    }
                }
            }
        }
        cases
    }

    /// Whether any run needs network namespaces, and so root.
    pub fn needs_lab(&self) -> bool {
        self.links.iter().any(|&link| link != Link::Memif)
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
fn is_there(program: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = r#"
title = "t"
modes = ["kernel", "overfly"]
payload_bytes = [0, 10000]
connections = ["close", "keepalive"]
repeats = 3
warmup_s = 0.5
duration_s = 2
[server]
program = "nginx"
arguments = []
config = "nginx.conf"
cpu = 0
[client]
connections = 64
cpu = 0
"#;

    fn complaint(from: &str, to: &str) -> String {
        assert!(RIGHT.contains(from), "{from}");
        let text = RIGHT.replacen(from, to, 1);
        let line = Plan::parse(Path::new("p.toml"), &text).unwrap_err().to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.starts_with("p.toml:"), "{line}");
        line
    }

    #[test]
    fn large_payloads_are_measured_with_kernel_sockets_too() {
        let plan = Plan::parse(Path::new("p.toml"), RIGHT).unwrap();
        assert_eq!(plan.name(), "p");
        assert_eq!(plan.patience_s, 0.0);
        assert_eq!(plan.cells().len(), 4);
        let cases = plan.cases();
        assert_eq!(cases.len(), 4 * 2 * 3 + 2 * 3);
        let second: Vec<_> = cases.iter().filter(|case| case.generator == Link::Kernel).collect();
        assert_eq!(second.len(), 6);
        assert!(
            second
                .iter()
                .all(|case| case.mode == Mode::Kernel && plan.cells()[case.cell].payload_bytes == 10_000)
        );
    }

    #[test]
    fn over_memif_the_kernel_has_its_loopback() {
        let text = RIGHT.replacen("repeats = 3", "links = [\"memif\"]\nrepeats = 1", 1);
        let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
        assert!(!plan.needs_lab());
        let cases = plan.cases();
        assert_eq!(cases.len(), 4 * 2, "there is no second look");
        assert!(cases.iter().all(|case| match case.mode {
            Mode::Kernel => case.generator == Link::Kernel,
            Mode::Overfly => case.generator == Link::Memif,
        }));
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_ones() {
        let line = complaint("repeats = 3", "repeat = 3");
        assert!(line.contains("`repeat`") && line.contains("`repeats`"), "{line}");
        let line = complaint("[client]", "[client]\ncolour = 1");
        assert!(line.contains("there is no key `colour`") && line.contains("`threads`"), "{line}");
    }

    #[test]
    fn a_value_that_is_not_as_expected_is_named_with_what_is() {
        for (from, to, named) in [
            ("repeats = 3", "repeats = 0", "p.toml:6: repeats = 0: expected a number from 1 to 100"),
            (
                "repeats = 3",
                "repeats = \"x\"",
                "p.toml:6: `repeats = \"x\"`: expected a whole number, 0 or more, not the text \"x\"",
            ),
            ("repeats = 3", "repeats = -3", "expected a whole number, 0 or more, not -3"),
            (
                "duration_s = 2",
                "duration_s = true",
                "p.toml:8: `duration_s = true`: expected a number, not true",
            ),
            ("title = \"t\"", "title = 3", "p.toml:2: `title = 3`: expected text in quotes, not 3"),
            ("[0, 10000]", "5", "expected a list in brackets, [ ], not 5"),
            ("repeats = 3", "", "the key `repeats` is missing"),
            ("program = \"nginx\"", "", "the key `program` is missing"),
            ("duration_s = 2", "duration_s = 0", "duration_s = 0: expected a number from 0.2 to 600"),
            ("duration_s = 2", "duration_s = nan", "duration_s = NaN: expected"),
            (
                "\"close\", \"keepalive\"",
                "\"maybe\"",
                "`maybe` is not known; expected `close` or `keepalive`",
            ),
            (
                "duration_s = 2",
                "duration_s = 2\npatience_s = -1",
                "patience_s = -1: expected a number from 0 to 3600",
            ),
            ("[0, 10000]", "[]", "payload_bytes = []: expected at least one"),
            ("[0, 10000]", "[7, 7]", "payload_bytes: 7 is there twice"),
            ("[0, 10000]", "[-1]", "payload_bytes = [-1]"),
            ("cpu = 0", "cpu = 4096", "p.toml:13: server.cpu = 4096: expected a number from 0 to"),
            ("connections = 64", "connections = 64\nthreads = 0", "client.threads = 0: expected"),
            ("connections = 64", "connections = 2\nthreads = 3", "client.connections = 2: expected"),
            ("title = \"t\"", "title = ", "p.toml:2: "),
        ] {
            let line = complaint(from, to);
            assert!(line.contains(named), "{to} -> {line}");
        }
    }

    #[test]
    fn a_missing_plan_or_template_is_named() {
        let line = Plan::read(Path::new("/nowhere/p.toml")).unwrap_err();
        assert_eq!(line.exit_status(), 2);
        assert!(line.to_string().starts_with("/nowhere/p.toml: "), "{line}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        fs::write(&path, RIGHT).unwrap();
        let line = Plan::read(&path).unwrap_err().to_string();
        assert!(line.contains("p.toml:12: server.config = \"nginx.conf\""), "{line}");
    }

    #[test]
    fn what_could_only_fail_while_it_runs_is_found_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        let complaint = |from: &str, to: &str, template: &str| {
            let right = RIGHT.replace("\"nginx\"", "\"true\"");
            assert!(right.contains(from), "{from}");
            fs::write(&path, right.replacen(from, to, 1)).unwrap();
            fs::write(folder.path().join("nginx.conf"), template).unwrap();
            Plan::read(&path).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(complaint("t", "t", "listen @PORT@;"), Ok(()));
        for (from, to, template, named) in [
            ("\"true\"", "\"ngin\"", "", "p.toml:10: server.program = \"ngin\": there is no such program"),
            ("\"true\"", "\"/etc/passwd\"", "", "p.toml:10: server.program = \"/etc/passwd\": there is no"),
            (
                "arguments = []",
                "arguments = [\"@RAIZ@\"]",
                "",
                "p.toml:11: server.arguments: nothing replaces @RAIZ@",
            ),
            (
                "arguments = []",
                "arguments = []\nbuild = \"no\"",
                "",
                "p.toml:12: server.build = \"no\": expected a program",
            ),
            (
                "arguments = []",
                "arguments = []\nfill = [\"no\"]",
                "",
                "p.toml:12: server.fill = \"no\": expected a program",
            ),
            (
                "arguments = []",
                "arguments = []\nurl = \"http://@HOST@/\"",
                "",
                "p.toml:12: server.url: nothing replaces @HOST@",
            ),
            (
                "t",
                "t",
                "user x;\nlisten @PROT@;\n",
                "nginx.conf:2: nothing replaces @PROT@; expected @ROOT@, @PORT@",
            ),
        ] {
            let line = complaint(from, to, template).unwrap_err();
            assert!(line.contains(named), "{named} is not in {line}");
        }
    }
}
