//! What a run found out: the table by client and server side, and JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::counter::{Counter, Counts, Tally};
use super::latency::Latency;
use super::plan::Plan;
use super::probe::ProbeTimes;
use super::rig::Snapshot;
use super::run::Home;
use super::settings::Settings;
use crate::output::{histogram, units};

const SIDES: [&str; 2] = ["client", "server"];

/// What a side has counted, of one group or of all.
#[derive(Debug, Clone, Serialize)]
pub struct Counted {
    /// Every counter by its name, those that stayed 0 too.
    pub counters: BTreeMap<&'static str, u64>,
    /// What is computed from them: `m_…` by its name.
    pub rates: BTreeMap<&'static str, f64>,
}

impl Counted {
    pub(crate) fn new(tally: &Tally, seconds: f64) -> Counted {
        let counts = &tally.counts;
        let mut counters: BTreeMap<_, _> =
            counts.iter().map(|(counter, count)| (counter.name(), count)).collect();
        counters.insert("m_active_flows", tally.active);
        counters.insert("m_est_flows", tally.established);
        Counted { counters, rates: rates(counts, seconds) }
    }
}

/// Payload of both transports, and what else the first lines of the table say, over so many seconds.
pub(crate) fn rates(counts: &Counts, seconds: f64) -> BTreeMap<&'static str, f64> {
    let at = |counter| counts.at(counter) as f64;
    let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let acked = at(Counter::tcps_rcvackbyte) + at(Counter::udps_sndbyte);
    let sent = at(Counter::tcps_sndbyte_ok) + at(Counter::tcps_sndrexmitbyte) + at(Counter::udps_sndbyte);
    let received = at(Counter::tcps_rcvbyte) + at(Counter::udps_rcvbyte);
    let sent_packets = at(Counter::tcps_sndtotal) + at(Counter::udps_sndpkt);
    let received_packets = at(Counter::tcps_rcvtotal) + at(Counter::udps_rcvpkt);
    let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    BTreeMap::from([
        ("m_tx_bw_l7_r", per_s(acked * 8.0)),
        ("m_tx_bw_l7_total_r", per_s(sent * 8.0)),
        ("m_rx_bw_l7_r", per_s(received * 8.0)),
        ("m_tx_pps_r", per_s(sent_packets)),
        ("m_rx_pps_r", per_s(received_packets)),
        ("m_avg_size", ratio(sent + received, sent_packets + received_packets)),
        ("m_tx_ratio", 100.0 * ratio(acked, sent)),
        ("m_traffic_duration", seconds),
    ])
}

/// How long something took, µs.
#[derive(Debug, Clone, Serialize)]
pub struct Times {
    /// How many there were.
    pub count: u64,
    /// Quantiles by name, and `min`, `mean`, `max`; empty without any.
    pub us: BTreeMap<&'static str, f64>,
    /// HdrHistogram's V2 encoding in base64, ns.
    pub hdr: String,
}

impl Times {
    fn new(times: &Histogram<u64>) -> Times {
        let mut us = BTreeMap::new();
        if !times.is_empty() {
            for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
                us.insert(name, times.value_at_quantile(quantile) as f64 / 1e3);
            }
            us.insert("min", times.min() as f64 / 1e3);
            us.insert("mean", times.mean() / 1e3);
            us.insert("max", times.max() as f64 / 1e3);
        }
        Times { count: times.len(), us, hdr: histogram::encode(times) }
    }
}

/// The times of one group's flows.
#[derive(Debug, Clone, Serialize)]
pub struct GroupTimes {
    /// SYN to established.
    pub connect: Times,
    /// First send to the first byte that came.
    pub first_byte: Times,
    /// Begun to the end of the client's program.
    pub flow: Times,
    /// RFC 3550's estimate over the times to the first byte, µs.
    pub jitter_us: f64,
}

/// What a latency probe found out: echo requests from a client's address to a server's.
#[derive(Debug, Clone, Serialize)]
pub struct Probed {
    /// From.
    pub client: String,
    /// To.
    pub server: String,
    /// Requests.
    pub sent: u64,
    /// Replies.
    pub received: u64,
    /// Requests without a reply within a second.
    pub lost: u64,
    /// The shortest round trip, µs; 0 without any.
    pub min_us: u64,
    /// The mean, µs.
    pub avg_us: f64,
    /// The longest, µs.
    pub max_us: u64,
    /// RFC 3550's estimate, µs.
    pub jitter_us: f64,
}

impl Probed {
    pub(crate) fn new(times: &ProbeTimes) -> Probed {
        Probed {
            client: times.client.to_string(),
            server: times.server.to_string(),
            sent: times.sent,
            received: times.received,
            lost: times.lost,
            min_us: times.min_us,
            avg_us: times.mean_us(),
            max_us: times.max_us,
            jitter_us: times.jitter_us,
        }
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |us: f64| units::time(us);
        write!(
            f,
            "probe {} to {}: min {}  avg {}  max {}  jitter {}  lost {} of {}",
            self.client,
            self.server,
            time(self.min_us as f64),
            time(self.avg_us),
            time(self.max_us as f64),
            time(self.jitter_us),
            self.lost,
            self.sent
        )
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The profiles.
    pub profile: String,
    /// `both`, `client` or `server`.
    pub side: &'static str,
    /// What carried the flows.
    pub link: String,
    /// As it was at the end.
    pub multiplier: f64,
    /// Threads.
    pub threads: usize,
    /// Start to end, s, without what it took flows to end.
    pub duration_s: f64,
    /// Start to the last flow's end, s.
    pub whole_s: f64,
    /// The threads' processor time, s.
    pub cpu_s: f64,
    /// Share of the threads' time with something to do.
    pub busy: f64,
    /// Flows begun a second by the client side, or accepted by the server side alone.
    pub flows_per_s: f64,
    /// The most flows that were there at a time, both sides together, as far as was looked.
    pub active_max: u64,
    /// Bytes of memory that their control blocks and tables took then.
    pub memory_max: usize,
    /// By side.
    pub totals: BTreeMap<&'static str, Counted>,
    /// By group, then by side.
    pub groups: BTreeMap<String, BTreeMap<&'static str, Counted>>,
    /// By group; of the client side.
    pub latency: BTreeMap<String, GroupTimes>,
    /// Of the client side, if there are any.
    pub probes: Vec<Probed>,
    /// What stacks and links counted.
    pub stack: BTreeMap<String, u64>,
    /// What a reader should know.
    pub remarks: Vec<String>,
}

/// What whoever watched has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Watched {
    pub(crate) active_max: u64,
    pub(crate) memory_max: usize,
    /// When the first side stopped to begin flows.
    pub(crate) ran: Duration,
}

/// All groups of a side together.
pub(crate) fn sum(tallies: &[Tally]) -> Tally {
    let mut sum = Tally::ZERO;
    tallies.iter().for_each(|tally| sum.merge(tally));
    sum
}

/// What was counted, of all and by group, by side.
type Sides = BTreeMap<&'static str, Counted>;

/// Everything that the threads have shown, by name.
pub(crate) fn counted(snapshot: &Snapshot, plan: &Plan, seconds: f64) -> (Sides, BTreeMap<String, Sides>) {
    let mut totals = Sides::new();
    let mut groups: BTreeMap<String, Sides> = BTreeMap::new();
    for (side, tallies) in SIDES.into_iter().zip(&snapshot.tallies).filter(|(_, tallies)| !tallies.is_empty())
    {
        totals.insert(side, Counted::new(&sum(tallies), seconds));
        for (name, tally) in plan.groups.iter().zip(tallies) {
            groups.entry(name.clone()).or_default().insert(side, Counted::new(tally, seconds));
        }
    }
    (totals, groups)
}

impl Report {
    pub(crate) fn new(
        settings: &Settings,
        plan: &Plan,
        multiplier: f64,
        whole: Duration,
        seen: Watched,
        (snapshot, latencies, home): (&Snapshot, &[Latency], Home),
    ) -> Report {
        let seconds = seen.ran.as_secs_f64();
        let (totals, groups) = counted(snapshot, plan, seconds);
        let latency = plan.groups.iter().zip(latencies).map(|(name, latency)| {
            let times = GroupTimes {
                connect: Times::new(&latency.connect_ns),
                first_byte: Times::new(&latency.first_byte_ns),
                flow: Times::new(&latency.flow_ns),
                jitter_us: latency.jitter_us,
            };
            (name.clone(), times)
        });
        let begun: u64 = totals.values().map(|counted| counted.counters["flows_total"]).max().unwrap_or(0);
        let mut report = Report {
            profile: plan.name.clone(),
            side: settings.ends.name(),
            link: settings.link.as_ref().map_or("memory", crate::link::Link::name).to_string(),
            multiplier,
            threads: settings.threads,
            duration_s: seconds,
            whole_s: whole.as_secs_f64(),
            cpu_s: home.cpu.total_s(),
            busy: snapshot.busy_ns as f64 / 1e9 / (whole.as_secs_f64() * settings.threads as f64).max(1e-9),
            flows_per_s: if seconds > 0.0 { begun as f64 / seconds } else { 0.0 },
            active_max: seen.active_max,
            memory_max: seen.memory_max,
            totals,
            groups,
            latency: latency.collect(),
            probes: snapshot.probes.iter().map(Probed::new).collect(),
            stack: home.counters,
            remarks: Vec::new(),
        };
        report.remarks = report.remarks();
        report
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let of = |side: &str, name: &str| self.totals.get(side).map_or(0, |counted| counted.counters[name]);
        let late = of("client", "flows_late");
        if late > 0 {
            let begun = of("client", "flows_total");
            remarks.push(format!(
                "The rate was not reached: {} flows begun, {} more were due. Less -m, or more --threads.",
                units::grouped(begun),
                units::grouped(late)
            ));
        }
        for side in SIDES {
            let resets = of(side, "tcps_testdrops");
            if resets > 0 {
                remarks.push(format!(
                    "{} flows of the {side} side had not ended and were reset (--drain waits longer).",
                    units::grouped(resets)
                ));
            }
            if of(side, "err_flow_overflow") > 0 {
                remarks.push(format!("The {side} side had no room for more flows: --flows makes it."));
            }
        }
        for probed in self.probes.iter().filter(|probed| probed.sent > 0 && probed.received == 0) {
            remarks.push(format!("Nobody answered the probes to {}.", probed.server));
        }
        let full: u64 = self
            .stack
            .iter()
            .filter(|(name, _)| name.ends_with("drop_no_flows"))
            .map(|(_, count)| count)
            .sum();
        if full > 0 {
            remarks.push(format!("{} connections found no room: --flows makes it.", units::grouped(full)));
        }
        remarks
    }

    /// As one JSON object on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// `1.50 Mbps`, in powers of 1000.
fn scaled(value: f64, unit: &str) -> String {
    let (scaled, prefix) = match value {
        _ if value >= 1e9 => (value / 1e9, "G"),
        _ if value >= 1e6 => (value / 1e6, "M"),
        _ if value >= 1e3 => (value / 1e3, "K"),
        _ => (value, ""),
    };
    format!("{scaled:.2} {prefix}{unit}")
}

/// The first lines of the table: names, units, and what they say.
const RATES: [(&str, &str, &str); 8] = [
    ("m_tx_bw_l7_r", "bps", "tx L7 bw acked"),
    ("m_tx_bw_l7_total_r", "bps", "tx L7 bw total"),
    ("m_rx_bw_l7_r", "bps", "rx L7 bw acked"),
    ("m_tx_pps_r", "pps", "tx pps"),
    ("m_rx_pps_r", "pps", "rx pps"),
    ("m_avg_size", "B", "average pkt size"),
    ("m_tx_ratio", "%", "Tx acked/sent ratio"),
    ("m_traffic_duration", "sec", "measured traffic duration"),
];

/// The table of one group, or of all.
pub(crate) struct Table<'a>(pub(crate) &'a BTreeMap<&'static str, Counted>);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, cells: [String; 2], help: &str| {
            writeln!(f, "{name:>22}  | {:>18}  | {:>18}  | {help}", cells[0], cells[1])
        };
        let part = |f: &mut fmt::Formatter<'_>, name: &str| {
            let dashes = || ["---".to_string(), "---".to_string()];
            row(f, "-", dashes(), "")?;
            row(f, name, dashes(), "")?;
            row(f, "-", dashes(), "")
        };
        let count =
            |name: &str| SIDES.map(|side| self.0.get(side).map_or(0, |counted| counted.counters[name]));
        row(f, "", SIDES.map(String::from), "")?;
        writeln!(f, "{}", "-".repeat(89))?;
        for (name, help) in [("m_active_flows", "active open flows"), ("m_est_flows", "active est flows")] {
            row(f, name, count(name).map(|count| count.to_string()), help)?;
        }
        for (name, unit, help) in RATES {
            let cells =
                SIDES.map(|side| scaled(self.0.get(side).map_or(0.0, |counted| counted.rates[name]), unit));
            row(f, name, cells, help)?;
        }
        let mut shown = "";
        for counter in Counter::ALL {
            let cells = count(counter.name());
            if cells == [0, 0] {
                continue;
            }
            if shown != counter.kind().part() {
                shown = counter.kind().part();
                part(f, shown)?;
            }
            let star = if counter.kind().is_error() { "*" } else { "" };
            row(
                f,
                &format!("{}{star}", counter.name()),
                cells.map(|count| count.to_string()),
                counter.help(),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} side{} over {}, {} thread{}, -m {}",
            self.profile,
            self.side,
            if self.side == "both" { "s" } else { "" },
            self.link,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.multiplier
        )?;
        for (name, sides) in self.groups.iter().filter(|_| self.groups.len() > 1) {
            writeln!(f, "\nTemplate group: {name}\n{}", Table(sides))?;
        }
        writeln!(f, "\n{}", Table(&self.totals))?;
        for (group, times) in &self.latency {
            for (what, times) in
                [("connect", &times.connect), ("first byte", &times.first_byte), ("flow", &times.flow)]
            {
                if times.count > 0 {
                    let at = |name: &str| units::time(times.us[name]);
                    writeln!(
                        f,
                        "  {group}: {what:<10} p50 {:>9}  p90 {:>9}  p99 {:>9}  max {:>9}  of {}",
                        at("p50"),
                        at("p90"),
                        at("p99"),
                        at("max"),
                        units::grouped(times.count)
                    )?;
                }
            }
            if times.first_byte.count > 1 {
                writeln!(f, "  {group}: jitter     {:>13}", units::time(times.jitter_us))?;
            }
        }
        for probed in &self.probes {
            writeln!(f, "  {probed}")?;
        }
        writeln!(
            f,
            "  {} flows/s in {:.2} s; CPU {:.2} s, busy {} of the time",
            units::grouped(self.flows_per_s.round() as u64),
            self.duration_s,
            self.cpu_s,
            units::percent(self.busy)
        )?;
        if self.active_max > 0 {
            writeln!(
                f,
                "  at most {} flows of both sides at a time; {} for control blocks and tables then, {} bytes a flow and side",
                units::grouped(self.active_max),
                units::size(self.memory_max as f64),
                self.memory_max as u64 / self.active_max
            )?;
        }
        for remark in &self.remarks {
            writeln!(f, "  {remark}")?;
        }
        Ok(())
    }
}
