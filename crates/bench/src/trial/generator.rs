//! The generator of a run: how it is called, and what its report says.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::child::Output;
use super::server::Server;
use crate::foreign::{self, ToolReport};
use crate::interruption::interrupted;
use crate::plan::{A_FILE, Astf, Case, Cell, Connection, Link, Mode, Over, Plan, Tool};
use crate::site::Site;

/// What sockets that poll are told to, µs: what the kernel's documentation of busy polling names.
const BUSY_POLL_US: &str = "50";

/// A profile that has not been read by then is none.
const PROFILE_DEADLINE: Duration = Duration::from_secs(30);

/// A run's generator, before it is started.
#[derive(Clone, Copy)]
pub(super) struct Generator<'a> {
    pub(super) plan: &'a Plan,
    pub(super) site: &'a Site,
    pub(super) case: Case,
    pub(super) cell: Cell,
    pub(super) servers: &'a [Server<'a>],
}

impl Generator<'_> {
    /// The plan's tool, but for a profile's second look: its flows as kernel sockets make them.
    fn tool(&self) -> Tool {
        match (self.plan.client.tool, self.case.generator) {
            (Tool::Astf, Link::Kernel) => Tool::Overfly,
            (tool, _) => tool,
        }
    }

    /// Whether its warm-up is a run of its own.
    pub(super) fn warms_up_apart(&self) -> bool {
        self.tool().is_foreign() && self.plan.warmup_s > 0.0
    }

    /// Whether it spends its warm-up itself, before it counts.
    pub(super) fn warms_up(&self) -> bool {
        !self.tool().is_foreign()
    }

    /// Waits until a profile has been read and its flows begin: that takes Python a moment, in which nothing happens.
    pub(super) fn await_start(&self, running: &mut Child) {
        let (path, began) = (self.site.control("client"), Instant::now());
        while self.tool() == Tool::Astf
            && !takes_orders(&path)
            && matches!(running.try_wait(), Ok(None))
            && began.elapsed() < PROFILE_DEADLINE
            && !interrupted()
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Program and arguments, for so many seconds and connections.
    pub(super) fn command(&self, seconds: f64, connections: u32) -> Vec<OsString> {
        let mut words = Words(Vec::new());
        match self.tool() {
            Tool::Overfly | Tool::Idle => self.http(&mut words, seconds, connections),
            Tool::Wrk | Tool::Ab => self.foreign(&mut words, seconds),
            Tool::Sockperf => self.sockperf(&mut words, seconds),
            Tool::Vod => self.vod(&mut words, seconds),
            Tool::Astf => self.astf(&mut words, seconds),
        }
        words.0
    }

    fn http(&self, words: &mut Words, seconds: f64, connections: u32) {
        let Generator { plan, case, cell, servers, .. } = *self;
        let client = &plan.client;
        let search = client.find_max.as_ref();
        let range = |of: Over, from: String| match search {
            Some(search) if search.of == of => format!("{from}:{}", search.up_to),
            _ => from,
        };
        words.add([self.site.client_overfly().as_os_str()]);
        words.add(["load", "http", "--json", "-t", &client.threads.to_string()]);
        words.add(["-c", &range(Over::Connections, connections.to_string())]);
        words.add(["--warmup", &format!("{}s", plan.warmup_s), "-d", &format!("{seconds}s")]);
        if self.tool() == Tool::Idle {
            // Each connection has its turn once, so that all are there.
            words.add(["-R", &(f64::from(connections) / seconds).ceil().to_string()]);
        } else if let Some(rate) = cell.rate_per_s.filter(|_| plan.client.tool == Tool::Overfly) {
            words.add(["-R", &range(Over::Rate, rate.to_string())]);
        }
        if let Some(search) = search {
            words.add(["--find-max", &search.holds, "--find-repeats", &search.repeats.to_string()]);
            words.add(["--find-precision", &format!("{}%", search.precision * 100.0)]);
        }
        words.add(["--cpus", &client.cpu.to_string()]);
        self.link(words);
        if cell.connection == Connection::Close {
            words.add(["--close"]);
        }
        if client.tool != Tool::Astf {
            words.add(&client.arguments);
        }
        words.add(expected(cell));
        words.add(servers.iter().map(|server| url_of(plan, cell, server, case.generator)));
    }

    /// What carries connections of a generator of ours.
    fn link(&self, words: &mut Words) {
        match self.case.generator {
            Link::Xdp => {
                words.add(["--link", "xdp", "--interface", self.site.client_device()]);
                let offload = self.plan.client.receive_offload;
                words.add(["--receive-offload", offload.word(self.cell.payload_bytes)]);
            }
            Link::Memif => words.add(["--link", &self.site.memif()]),
            Link::Kernel | Link::Host => words.add(["--link", "kernel"]),
            Link::Memory => {}
        }
    }

    fn foreign(&self, words: &mut Words, seconds: f64) {
        let Generator { plan, case, cell, servers, .. } = *self;
        let client = &plan.client;
        let url = url_of(plan, cell, &servers[0], case.generator);
        self.under_overfly(words);
        words.add(client.tool.program());
        let mut own =
            foreign::arguments(client.tool, seconds, client.threads, cell.connections, cell.connection, &url);
        let last = own.len() - 1;
        own.splice(last..last, client.arguments.iter().cloned());
        words.add(own);
    }

    /// A program that meets the server at user level does so on Overfly.
    fn under_overfly(&self, words: &mut Words) {
        if self.case.mode != Mode::Overfly || !matches!(self.cell.link, Link::Xdp | Link::Host) {
            return;
        }
        words.add([self.site.client_overfly().as_os_str()]);
        words.add(["run", "--profile", self.plan.profile_of(&self.cell)]);
        match self.cell.link {
            Link::Host => words.add(["--link", &self.site.own_memif("client")]),
            _ => words.add(["--interface", self.site.client_device()]),
        }
        words.add(["--"]);
    }

    fn sockperf(&self, words: &mut Words, seconds: f64) {
        let server = &self.servers[0];
        self.under_overfly(words);
        words.add(["sockperf", "ping-pong", "-i", &server.site.address(self.cell.link).to_string()]);
        words.add(["-p", &server.port.to_string(), "-m", &self.cell.payload_bytes.to_string()]);
        words.add(["-t", &format!("{:.0}", seconds.max(1.0))]);
        words.add(sockperf_words(self.cell, self.case.mode));
        words.add(&self.plan.client.arguments);
    }

    fn vod(&self, words: &mut Words, seconds: f64) {
        let Generator { plan, case, cell, servers, .. } = *self;
        words.add([self.site.client_overfly().as_os_str()]);
        words.add(["load", "vod", "--json", "-t", "1", "--cpus", &plan.client.cpu.to_string()]);
        words.add(["--initial", &cell.connections.to_string()]);
        words.add(["-d", &format!("{}s", plan.warmup_s + seconds)]);
        self.link(words);
        words.add(&plan.client.arguments);
        words.add([url_of(plan, cell, &servers[0], case.generator)]);
    }

    fn astf(&self, words: &mut Words, seconds: f64) {
        let Generator { plan, case, cell, .. } = *self;
        let Some(astf) = &plan.client.astf else { return };
        let client = &plan.client;
        words.add([self.site.client_overfly().as_os_str()]);
        words.add(profile_words(
            plan,
            astf,
            cell,
            &self.servers.first().map_or_else(Peer::in_memory, Server::as_peer),
        ));
        words.add(["--json", "--side", if case.generator == Link::Memory { "both" } else { "client" }]);
        words.add(["--cpus", &client.cpu.to_string(), "-d", &format!("{}s", plan.warmup_s + seconds)]);
        words.add(["--control".into(), self.site.control("client").into_os_string()]);
        if let Some(rate) = cell.rate_per_s {
            words.add(["-m", &rate.to_string()]);
        }
        self.link(words);
        words.add(&client.arguments);
    }

    /// What it found out.
    pub(super) fn told(&self, output: &Output) -> Result<ToolReport, String> {
        let tool = self.tool();
        if tool.is_foreign() {
            let said = if output.stdout.trim().is_empty() { &output.stderr } else { &output.stdout };
            return foreign::told(tool, said);
        }
        let raw: Value = serde_json::from_str(&output.stdout).map_err(|error| {
            let said = output.stderr.trim().replace('\n', "; ");
            if said.is_empty() { not_understood(&error) } else { said }
        })?;
        let told = match tool {
            Tool::Vod => of_vod(&raw),
            Tool::Astf => of_astf(&raw),
            _ if self.plan.client.find_max.is_some() => of_search(&raw),
            _ => of_http(&raw, self.cell),
        };
        told.map(|told| ToolReport { raw, ..told }).map_err(|error| not_understood(&error))
    }
}

/// Whether an end of a profile runs, and not only reads its profile or attaches to its link: then it answers.
pub(super) fn takes_orders(control: &Path) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(control)?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        // An order that changes nothing.
        stream.write_all(b"{\"pause\": false}\n")?;
        let mut answer = [0; 1];
        Ok(stream.read(&mut answer)? == 1)
    };
    ask().unwrap_or(false)
}

fn not_understood(error: &serde_json::Error) -> String {
    format!("the generator's report is not understood: {error}")
}

/// A command line that grows.
struct Words(Vec<OsString>);

impl Words {
    fn add<T: Into<OsString>>(&mut self, words: impl IntoIterator<Item = T>) {
        self.0.extend(words.into_iter().map(Into::into));
    }
}

/// Where a profile's server is.
pub(super) struct Peer {
    pub(super) address: String,
    pub(super) port: u16,
}

impl Peer {
    /// Nowhere but in the profile.
    pub(super) fn in_memory() -> Peer {
        Peer { address: crate::lab::SERVER.to_string(), port: 80 }
    }
}

/// `load astf PROFILE -t TUNABLES`.
pub(super) fn profile_words(plan: &Plan, astf: &Astf, cell: Cell, peer: &Peer) -> Vec<OsString> {
    let mut words = Words(Vec::new());
    words.add(["load", "astf"]);
    let path = plan.beside(&astf.profile);
    // Runs take place in other folders.
    words.add([std::path::absolute(&path).unwrap_or(path)]);
    if !astf.tunables.is_empty() {
        let tunables = astf
            .tunables
            .replace("@ADDRESS@", &peer.address)
            .replace("@PORT@", &peer.port.to_string())
            .replace("@BYTES@", &cell.payload_bytes.to_string())
            .replace("@CONNECTIONS@", &cell.connections.to_string());
        words.add(["-t", &tunables]);
    }
    words.0
}

/// What both ends of sockperf are told: by what messages travel, and how they are waited for.
pub(super) fn sockperf_words(cell: Cell, mode: Mode) -> Vec<&'static str> {
    let tcp = (cell.connection == Connection::Tcp).then_some("--tcp");
    let polling = [("--lls"), BUSY_POLL_US];
    tcp.into_iter().chain(polling.into_iter().filter(|_| mode == Mode::KernelBusyPoll)).collect()
}

/// What makes an answer a success.
pub(super) fn expected(cell: Cell) -> [OsString; 4] {
    ["--expect-status", "200", "--expect-size", &cell.payload_bytes.to_string()].map(OsString::from)
}

/// What is asked for.
pub(super) fn url_of(plan: &Plan, cell: Cell, server: &Server<'_>, generator: Link) -> String {
    let url = if server.null { A_FILE } else { &plan.server.url };
    url.replace("@ADDRESS@", &server.site.address(generator).to_string())
        .replace("@PORT@", &server.port.to_string())
        .replace("@BYTES@", &cell.payload_bytes.to_string())
}

/// What the null server of a profile is called with: the profile's own server side, over the generator's link.
pub(super) fn server_side(plan: &Plan, overfly: &Path, site: &Site, cell: Cell) -> Option<Vec<OsString>> {
    let astf = plan.client.astf.as_ref()?;
    let mut words = Words(Vec::new());
    words.add([overfly.as_os_str()]);
    words.add(profile_words(plan, astf, cell, &Peer::in_memory()));
    words.add(["--side", "server", "--cpus", &plan.server.cpu.to_string()]);
    words.add(["--control".into(), site.control("server").into_os_string()]);
    words.add(["--link", &site.memif()]);
    Some(words.0)
}

/// What is used of the report of `overfly load http`.
#[derive(Debug, Deserialize)]
struct HttpReport {
    requests_per_s: f64,
    failed_total: u64,
    succeeded: u64,
    cpu_us_per_request: f64,
    latency_us: Latency,
    connections_open_max: u64,
    connections: u64,
    duration_s: f64,
    threads: f64,
    #[serde(default)]
    record: Option<Record>,
}

#[derive(Debug, Deserialize)]
struct Record {
    busy_ns: f64,
}

#[derive(Debug, Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

fn of_http(raw: &Value, cell: Cell) -> Result<ToolReport, serde_json::Error> {
    let report = HttpReport::deserialize(raw)?;
    let thread_s = report.duration_s * report.threads;
    let busy = report.record.filter(|_| thread_s > 0.0).map(|record| record.busy_ns * 1e-9 / thread_s);
    let mut problems = Vec::new();
    if report.connections_open_max < report.connections && cell.connection == Connection::Keepalive {
        problems.push(format!(
            "only {} of {} connections were ever open at once",
            report.connections_open_max, report.connections
        ));
    }
    Ok(ToolReport {
        value: report.requests_per_s,
        succeeded: report.succeeded,
        failed: report.failed_total,
        latency_p50_us: report.latency_us.p50,
        latency_p99_us: report.latency_us.p99,
        generator_busy: busy,
        client_cpu_us: Some(report.cpu_us_per_request),
        problems,
        ..ToolReport::default()
    })
}

/// What is used of the report of a search.
#[derive(Debug, Deserialize)]
struct SearchReport {
    holds: Option<Found>,
    fails: Option<Found>,
    remarks: Vec<String>,
    probes: Vec<Probe>,
}

#[derive(Debug, Deserialize)]
struct Found {
    load: u64,
}

#[derive(Debug, Deserialize)]
struct Probe {
    load: u64,
    holds: bool,
    why: Option<String>,
    report: Option<Value>,
}

fn of_search(raw: &Value) -> Result<ToolReport, serde_json::Error> {
    let report = SearchReport::deserialize(raw)?;
    let mut told = ToolReport { remarks: report.remarks, ..ToolReport::default() };
    let Some(found) = report.holds else {
        let why = report.probes.into_iter().find_map(|probe| probe.why).unwrap_or_default();
        told.problems.push(format!("not even the smallest load holds: {why}"));
        return Ok(told);
    };
    if report.fails.is_none() {
        told.remarks.push("the largest load that was to be tried holds: the server may hold more".to_owned());
    }
    told.value = found.load as f64;
    told.succeeded = found.load;
    let at = report.probes.iter().rev().find(|probe| probe.holds && probe.load == found.load);
    if let Some(latency) =
        at.and_then(|probe| Latency::deserialize(probe.report.as_ref()?.get("latency_us")?).ok())
    {
        (told.latency_p50_us, told.latency_p99_us) = (latency.p50, latency.p99);
    }
    Ok(told)
}

/// What is used of the report of `overfly load vod`.
#[derive(Debug, Deserialize)]
struct VodReport {
    sustained: u64,
    ended: String,
    why: String,
    failed: u64,
    tick_late_ms_max: f64,
    cpu_s: f64,
    duration_s: f64,
    threads: f64,
}

/// A generator whose ticks come later than that drains its buffers in jerks.
const LATE_MS: f64 = 100.0;

fn of_vod(raw: &Value) -> Result<ToolReport, serde_json::Error> {
    let report = VodReport::deserialize(raw)?;
    let mut remarks = Vec::new();
    if report.ended == "time_over" || report.ended == "streams_reached" {
        remarks.push(format!("{}: more streams may be sustained", report.why));
    }
    if report.tick_late_ms_max > LATE_MS {
        remarks.push(format!(
            "the generator was late by up to {:.0} ms: it may be the limit",
            report.tick_late_ms_max
        ));
    }
    let thread_s = report.duration_s * report.threads;
    Ok(ToolReport {
        value: report.sustained as f64,
        succeeded: report.sustained,
        failed: report.failed,
        generator_busy: (thread_s > 0.0).then(|| report.cpu_s / thread_s),
        problems: (report.sustained == 0)
            .then(|| format!("no stream was sustained: {}", report.why))
            .into_iter()
            .collect(),
        remarks,
        ..ToolReport::default()
    })
}

/// What is used of the report of `overfly load astf`.
#[derive(Debug, Deserialize)]
struct AstfReport {
    flows_per_s: f64,
    duration_s: f64,
    cpu_s: f64,
    busy: f64,
    totals: Sides,
    latency: std::collections::BTreeMap<String, GroupTimes>,
    remarks: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Sides {
    client: Side,
}

#[derive(Debug, Deserialize)]
struct Side {
    counters: std::collections::BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct GroupTimes {
    flow: Times,
}

#[derive(Debug, Deserialize)]
struct Times {
    us: std::collections::BTreeMap<String, f64>,
}

/// Counters of the client side that say that a flow did not end as it should.
const FLOW_FAILURES: [&str; 5] =
    ["tcps_drops", "tcps_conndrops", "tcps_timeoutdrop", "udps_keepdrops", "program_cut_short"];

fn of_astf(raw: &Value) -> Result<ToolReport, serde_json::Error> {
    let report = AstfReport::deserialize(raw)?;
    let count = |name: &str| report.totals.client.counters.get(name).copied().unwrap_or(0);
    let begun = count("flows_total");
    let failed: u64 = FLOW_FAILURES.into_iter().map(count).sum::<u64>().min(begun);
    let well = begun - failed;
    // Of one group; a profile with several has no latency in one number.
    let times = report.latency.values().next().filter(|_| report.latency.len() == 1);
    let time = |name: &str| times.and_then(|times| times.flow.us.get(name).copied()).unwrap_or(0.0);
    Ok(ToolReport {
        value: if begun > 0 { report.flows_per_s * well as f64 / begun as f64 } else { 0.0 },
        succeeded: well,
        failed,
        latency_p50_us: time("p50"),
        latency_p99_us: time("p99"),
        generator_busy: Some(report.busy),
        client_cpu_us: (well > 0 && report.duration_s > 0.0).then(|| report.cpu_s * 1e6 / well as f64),
        remarks: report.remarks,
        ..ToolReport::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_search_is_worth_the_load_that_holds() {
        let probe = |load: u64, holds: bool, p99: f64| json!({"load": load, "holds": holds, "why": if holds { Value::Null } else { "p99 is 2 s".into() }, "report": {"latency_us": {"p50": 10.0, "p99": p99}}});
        let raw = json!({
            "holds": {"load": 128, "runs": 1}, "fails": {"load": 160}, "remarks": ["r"],
            "probes": [probe(64, true, 20.0), probe(128, true, 30.0), probe(256, false, 2e6), probe(160, false, 2e6)],
        });
        let told = of_search(&raw).unwrap();
        assert_eq!((told.value, told.latency_p99_us, told.remarks.len()), (128.0, 30.0, 1));
        let none =
            json!({"holds": null, "fails": {"load": 64}, "remarks": [], "probes": [probe(64, false, 2e6)]});
        let told = of_search(&none).unwrap();
        assert_eq!(
            (told.value, &told.problems[..]),
            (0.0, &["not even the smallest load holds: p99 is 2 s".to_owned()][..])
        );
        let all =
            json!({"holds": {"load": 64}, "fails": null, "remarks": [], "probes": [probe(64, true, 1.0)]});
        assert!(of_search(&all).unwrap().remarks[0].contains("may hold more"));
    }

    #[test]
    fn flows_that_failed_are_no_figure() {
        let raw = json!({
            "flows_per_s": 1000.0, "duration_s": 2.0, "cpu_s": 1.0, "busy": 0.5, "remarks": [],
            "totals": {"client": {"counters": {"flows_total": 2000, "tcps_drops": 100, "tcps_conndrops": 400}}},
            "latency": {"g": {"flow": {"us": {"p50": 7.0, "p99": 9.0}}}},
        });
        let told = of_astf(&raw).unwrap();
        assert_eq!((told.value, told.failed, told.latency_p99_us), (750.0, 500, 9.0));
    }

    #[test]
    fn streams_that_ended_with_the_time_may_be_more() {
        let of = |ended: &str, sustained: u64, late: f64| {
            of_vod(&json!({
                "sustained": sustained, "ended": ended, "why": "w", "failed": 0, "tick_late_ms_max": late, "cpu_s": 1.0,
                "duration_s": 2.0, "threads": 1,
            }))
            .unwrap()
        };
        assert!(of("dropped", 9, 0.0).remarks.is_empty());
        assert_eq!(of("dropped", 9, 0.0).generator_busy, Some(0.5));
        assert_eq!(of("time_over", 9, 200.0).remarks.len(), 2);
        assert!(of("dropped", 0, 0.0).problems[0].contains("no stream"));
    }
}
