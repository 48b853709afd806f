//! What makes a plan's load, and what each kind of load can be asked for.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Connection, Link, Measure, Mode, Plan, Several, within};

/// What makes a plan's load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// `overfly load http`.
    #[default]
    Overfly,
    /// wrk, with kernel sockets.
    Wrk,
    /// ApacheBench, with kernel sockets.
    Ab,
    /// `overfly load astf`: application flows of `[client.astf]`'s profile.
    Astf,
    /// `overfly load vod`: video streams.
    Vod,
    /// `sockperf ping-pong`: one message at a time, there and back.
    Sockperf,
    /// `overfly load http`, for what connections that stay open take of the machine's memory.
    Idle,
}

/// `[client]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Which of the plan's hosts it runs on.
    pub host: Option<String>,
    /// Connections that are kept busy: one number, or several to go through.
    pub connections: Several<u32>,
    /// Requests that are due each second, whatever the server does, to go through. Empty: a closed loop.
    #[serde(default)]
    pub rates_per_s: Vec<f64>,
    /// What makes the requests.
    #[serde(default)]
    pub tool: Tool,
    /// More options for it, as one would type them.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// What may arrive at it over xdp.
    #[serde(default)]
    pub receive_offload: ReceiveOffload,
    /// What `overfly load astf` runs.
    #[serde(default)]
    pub astf: Option<Astf>,
    /// The largest load that holds a condition is looked for.
    #[serde(default)]
    pub find_max: Option<FindMax>,
    /// Threads, all on one core.
    #[serde(default = "one")]
    pub threads: u32,
    /// The core.
    pub cpu: usize,
}

/// What may arrive at a generator of ours over xdp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveOffload {
    /// Packets; its own core receives them.
    #[default]
    Packets,
    /// What a server sends as one frame of several segments, too; the core of the server receives.
    Segments,
    /// Segments where an answer has more than one packet.
    Auto,
}

impl ReceiveOffload {
    /// What `--receive-offload` is for answers of so many bytes.
    #[must_use]
    pub fn word(self, payload_bytes: u64) -> &'static str {
        match self {
            ReceiveOffload::Segments => "segments",
            ReceiveOffload::Auto if payload_bytes > A_PACKET => "segments",
            ReceiveOffload::Packets | ReceiveOffload::Auto => "packets",
        }
    }
}

/// Bytes of an answer that have room in a packet of 1,500, behind its headers and HTTP's.
const A_PACKET: u64 = 1200;

/// `[client.astf]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Astf {
    /// The profile, relative to the plan.
    pub profile: PathBuf,
    /// What the profile is called with, as `-t` of `overfly load astf` has it. `@ADDRESS@`, `@PORT@`, `@BYTES@` and
    /// `@CONNECTIONS@` are replaced.
    #[serde(default)]
    pub tunables: String,
}

/// `[client.find_max]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FindMax {
    /// What is made larger, beginning with what the plan has of it.
    pub of: Over,
    /// How large it may become.
    pub up_to: u32,
    /// `p99<1000ms`, as `--find-max` of `overfly load http` has it.
    pub holds: String,
    /// Runs at the answer, and at the load next to it that fails.
    #[serde(default = "one")]
    pub repeats: u32,
    /// How close the two are, as a share of the answer.
    #[serde(default = "a_twentieth")]
    pub precision: f64,
}

/// What a search makes larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// Connections that are kept busy.
    Connections,
    /// Requests that are due each second.
    Rate,
}

fn one() -> u32 {
    1
}

fn a_twentieth() -> f64 {
    0.05
}

impl Tool {
    /// As plans name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tool::Overfly => "overfly",
            Tool::Wrk => "wrk",
            Tool::Ab => "ab",
            Tool::Astf => "astf",
            Tool::Vod => "vod",
            Tool::Sockperf => "sockperf",
            Tool::Idle => "idle",
        }
    }

    /// The program, for one that is not ours: it has a program's sockets only, no warm-up of its own, and knows whole seconds.
    #[must_use]
    pub fn program(self) -> Option<&'static str> {
        match self {
            Tool::Wrk => Some("wrk"),
            Tool::Ab => Some("ab"),
            Tool::Sockperf => Some("sockperf"),
            Tool::Overfly | Tool::Astf | Tool::Vod | Tool::Idle => None,
        }
    }

    /// Whether it is somebody else's.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self.program().is_some()
    }

    /// Links that it can be used over.
    fn links(self) -> &'static [Link] {
        match self {
            Tool::Overfly => &[Link::Xdp, Link::Memif, Link::Kernel, Link::Host],
            Tool::Wrk => &[Link::Kernel, Link::Host],
            Tool::Ab => &[Link::Kernel],
            Tool::Astf => &[Link::Xdp, Link::Memif, Link::Memory],
            Tool::Vod | Tool::Idle => &[Link::Xdp, Link::Memif, Link::Kernel],
            Tool::Sockperf => &[Link::Xdp, Link::Host],
        }
    }

    /// Ways to use connections that it knows.
    fn connections(self) -> &'static [Connection] {
        match self {
            Tool::Overfly | Tool::Wrk | Tool::Ab => &[Connection::Close, Connection::Keepalive],
            Tool::Astf => &[Connection::Close, Connection::Udp],
            Tool::Vod | Tool::Idle => &[Connection::Keepalive],
            Tool::Sockperf => &[Connection::Tcp, Connection::Udp],
        }
    }

    /// Whether a constant rate can be asked of it.
    fn has_rates(self) -> bool {
        matches!(self, Tool::Overfly | Tool::Astf)
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Client {
    /// The figure that this load comes to.
    #[must_use]
    pub fn measure(&self) -> Measure {
        match (self.tool, &self.find_max) {
            (_, Some(FindMax { of: Over::Connections, .. })) => Measure::MostConnections,
            (_, Some(FindMax { of: Over::Rate, .. })) => Measure::MostRequestsPerS,
            (Tool::Astf, None) => Measure::FlowsPerS,
            (Tool::Vod, None) => Measure::Streams,
            (Tool::Sockperf, None) => Measure::HalfRoundTripUs,
            (Tool::Idle, None) => Measure::BytesPerConnection,
            (Tool::Overfly | Tool::Wrk | Tool::Ab, None) => Measure::RequestsPerS,
        }
    }
}

impl Plan {
    /// What a point of this plan is.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.client.measure()
    }

    /// What the load cannot be asked for.
    pub(super) fn check_load(&self) -> Result<(), String> {
        let tool = self.client.tool;
        if let Some(link) = self.links.iter().find(|link| !tool.links().contains(link)) {
            let known = list(tool.links());
            return Err(match tool {
                Tool::Wrk | Tool::Ab => {
                    format!(
                        "client.tool = \"{tool}\": it has kernel sockets only; expected links = [{known}]"
                    )
                }
                _ => format!(
                    "client.tool = \"{tool}\": it has nothing to do with links = [\"{link}\"]; expected {known}"
                ),
            });
        }
        if let Some(way) = self.connections.iter().find(|way| !tool.connections().contains(way)) {
            let known = list(tool.connections());
            return Err(format!(
                "connections: \"{way}\" is nothing to client.tool = \"{tool}\"; expected {known}"
            ));
        }
        if !self.client.rates_per_s.is_empty() && !tool.has_rates() {
            return Err(format!(
                "client.rates_per_s: {tool} has no constant rate; expected client.tool = \"overfly\" or \"astf\""
            ));
        }
        if self.server.instances.0 != [1] && tool != Tool::Overfly {
            return Err(format!("server.instances: {tool} asks one server; expected 1"));
        }
        if self.client.threads != 1 && matches!(tool, Tool::Astf | Tool::Vod | Tool::Sockperf | Tool::Idle) {
            return Err(format!("client.threads: {tool} has one core; expected 1"));
        }
        if matches!(tool, Tool::Wrk | Tool::Ab | Tool::Sockperf) {
            for (key, value) in [("warmup_s", self.warmup_s), ("duration_s", self.duration_s)] {
                if value.fract() != 0.0 {
                    return Err(format!("{key} = {value}: {tool} knows whole seconds only; expected such"));
                }
            }
        }
        if self.modes.contains(&Mode::KernelBusyPoll) && tool != Tool::Sockperf {
            return Err(format!(
                "modes: kernel-busy-poll is an option of sockperf's sockets, not of {tool}'s server; expected client.tool = \"sockperf\""
            ));
        }
        if self.client.receive_offload != ReceiveOffload::default() && !self.has_own_generator_over_xdp() {
            return Err(format!(
                "client.receive_offload: {tool} over {} does not know it; expected a generator of Overfly's, and xdp among links",
                list(&self.links)
            ));
        }
        self.check_null(tool)?;
        self.check_tables(tool)?;
        self.check_rules()
    }

    /// Whether any run has Overfly's own stack in its generator over an interface.
    fn has_own_generator_over_xdp(&self) -> bool {
        !self.client.tool.is_foreign() && self.links.contains(&Link::Xdp)
    }

    /// The null server answers HTTP, and the flows of a profile.
    fn check_null(&self, tool: Tool) -> Result<(), String> {
        if !self.modes.contains(&Mode::Null) {
            return if self.links.contains(&Link::Memory) {
                Err("links: in memory only both sides of a profile meet; expected \"null\" among modes too"
                    .to_owned())
            } else {
                Ok(())
            };
        }
        if self.server.url.starts_with("redis:") || tool == Tool::Sockperf {
            return Err(
                "modes: the null server speaks HTTP; expected another mode, or a URL with http".to_owned()
            );
        }
        if tool == Tool::Astf && self.links == [Link::Xdp] {
            return Err(
                "modes: a profile's own server side is measured over memif and in memory; expected such links too"
                    .to_owned(),
            );
        }
        if self.links.contains(&Link::Host) {
            return Err(
                "modes: there is no null server within a host; expected another mode, or another link"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The tables of single kinds of load.
    fn check_tables(&self, tool: Tool) -> Result<(), String> {
        match (tool, &self.client.astf) {
            (Tool::Astf, None) => {
                return Err(
                    "client.tool = \"astf\": it runs a profile; expected a table [client.astf]".to_owned()
                );
            }
            (Tool::Astf, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return Err(format!("client.astf: nothing to client.tool = \"{tool}\"; expected \"astf\""));
            }
        }
        if tool == Tool::Sockperf && self.payload_bytes.iter().any(|bytes| !(14..=65_000).contains(bytes)) {
            return Err("payload_bytes: sockperf's messages have 14 to 65000 bytes; expected such".to_owned());
        }
        if tool == Tool::Idle && self.client.connections.0.contains(&1) {
            return Err(
                "client.connections: one connection is what idle ones are compared with; expected more"
                    .to_owned(),
            );
        }
        let Some(search) = &self.client.find_max else { return Ok(()) };
        if tool != Tool::Overfly {
            return Err(format!("client.find_max: {tool} cannot search; expected client.tool = \"overfly\""));
        }
        within("client.find_max.up_to", search.up_to, 1..=100_000_000)?;
        within("client.find_max.repeats", search.repeats, 1..=100)?;
        within("client.find_max.precision", search.precision, 0.001..=1.0)?;
        let from = match search.of {
            Over::Connections => {
                self.client.connections.0.iter().map(|&from| f64::from(from)).fold(0.0, f64::max)
            }
            Over::Rate if self.client.rates_per_s.is_empty() => {
                return Err(
                    "client.find_max.of = \"rate\": expected client.rates_per_s, where it begins".to_owned()
                );
            }
            Over::Rate => self.client.rates_per_s.iter().copied().fold(0.0, f64::max),
        };
        if f64::from(search.up_to) <= from {
            let up_to = search.up_to;
            return Err(format!(
                "client.find_max.up_to = {up_to}: expected more than the {from} where it begins"
            ));
        }
        Ok(())
    }

    /// Rules about the figure name the load's own.
    fn check_rules(&self) -> Result<(), String> {
        let own = self.measure();
        for rule in &self.rules {
            if let Some(other) = rule.metric.measure().filter(|&other| other != own) {
                return Err(format!("rules: {other} is not what this load comes to; expected {own}"));
            }
        }
        Ok(())
    }
}

/// `"xdp", "memif"`
fn list<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(|value| format!("\"{value}\"")).collect::<Vec<_>>().join(", ")
}
