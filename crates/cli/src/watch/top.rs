//! `overfly top`: what programs over Overfly do, and what of them the kernel does, and why.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use overfly_load::Page;
use overfly_terminal::{columns, folded, print_json};
use serde_json::json;

use super::sample::{Sample, Sampler, is_drop};
use super::{Choice, Failure, Left, metrics, screen};
use crate::complain;
use crate::log::{Level, say};

/// Show what programs over Overfly do: connections, rates, retransmissions, drops, cores
///
/// A screen on a terminal, otherwise a table every second. Root sees all programs of this network
/// namespace, others their own.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// One JSON object a line for each look, with every counter
    #[arg(long)]
    json: bool,
    /// Look so many times, then end [default: until it is interrupted]
    #[arg(short = 'n', long, value_name = "TIMES")]
    count: Option<u64>,
    /// Look once more after the interval, print that, and end: the same as `-n 1`
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Show nothing here, but every counter to Prometheus, at http://ADDRESS/metrics, until it is interrupted
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["json", "count", "once", "interval"])]
    metrics: Option<String>,
}

pub(crate) fn top(arguments: &Arguments) -> ExitCode {
    if let Some(address) = &arguments.metrics {
        return match Page::serve(address, metrics::of(&arguments.choice)) {
            Ok(page) => {
                if let Ok(address) = page.address() {
                    say(Level::Info, format_args!("metrics are at http://{address}/metrics"));
                }
                loop {
                    std::thread::park();
                }
            }
            Err(error) => {
                let status = if error.is_usage() { 2 } else { 1 };
                complain(error);
                ExitCode::from(status)
            }
        };
    }
    let interval = Duration::try_from_secs_f64(arguments.interval).ok().filter(|its| !its.is_zero());
    let Some(interval) = interval else {
        complain(format_args!("--interval {}: expected seconds, more than 0", arguments.interval));
        return ExitCode::from(2);
    };
    let mut sampler = Sampler::new(&arguments.choice);
    let count = if arguments.once { Some(1) } else { arguments.count };
    let result = if !arguments.json && count.is_none() && std::io::stdout().is_terminal() {
        screen::run(&mut sampler, interval).map_err(Failure::Said)
    } else {
        print(&mut sampler, interval, count, arguments.json)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

/// Prints every look but the first, which there is nothing to compare with.
fn print(
    sampler: &mut Sampler,
    interval: Duration,
    count: Option<u64>,
    as_json: bool,
) -> Result<(), Failure> {
    sampler.look()?;
    let mut next = Instant::now();
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let (samples, left) = sampler.look()?;
        if as_json {
            print_json(&line(&samples, &left, interval))?;
        } else {
            overfly_terminal::print(&table(&samples, &left, overfly_load::room()))?;
        }
    }
    Ok(())
}

fn line(samples: &[Sample], left: &[Left], interval: Duration) -> String {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let stacks: Vec<_> = samples.iter().map(Sample::json).collect();
    let interfaces: Vec<_> = left
        .iter()
        .map(|Left { interface, frames }| {
            json!({
                "interface": interface.raw(),
                "counters": {
                    "passed_source": frames.passed_source,
                    "passed_firewall": frames.passed_firewall,
                    "dropped_firewall": frames.dropped_firewall,
                },
            })
        })
        .collect();
    let look = json!({
        "time_s": time.as_secs_f64(),
        "interval_s": interval.as_secs_f64(),
        "stacks": stacks,
        "interfaces": interfaces,
    });
    format!("{look}\n")
}

/// What stands where processes would.
pub(super) const NONE: &str = "no program runs over Overfly here";

/// The columns of one process.
pub(super) const COLUMNS: [&str; 13] = [
    "PID", "PROGRAM", "IFACE", "CPU%", "CONN", "ACC/s", "CONN/s", "RXf/s", "TXf/s", "Mb/s", "RETR/s",
    "DROP/s", "RING",
];

/// What stands in [`COLUMNS`].
pub(super) fn cells(sample: &Sample) -> [String; 13] {
    let bits = (sample.rate("link.received_bytes") + sample.rate("link.sent_bytes")) * 8.0 / 1e6;
    let ring = match sample.count("now.receive_ring_size") {
        0 => "-".to_owned(),
        size => format!("{:.0}%", 100.0 * sample.count("now.receive_ring") as f64 / size as f64),
    };
    [
        sample.process.to_string(),
        sample.program.to_string(),
        sample.interface.to_string(),
        sample.cpu_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}")),
        sample.count("now.flows").to_string(),
        per_second(sample.rate("sockets.accepts")),
        per_second(sample.rate("sockets.connects")),
        per_second(sample.rate("engine.rx_frames")),
        per_second(sample.rate("engine.tx_frames")),
        per_second(bits),
        per_second(sample.rate("engine.retransmits")),
        per_second(sample.rate_of(is_drop)),
        ring,
    ]
}

fn per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.1}M", rate / 1e6),
        rate if rate >= 1e5 => format!("{:.0}k", rate / 1e3),
        rate if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// What of a process the kernel does, and why; and what was dropped, by name.
pub(super) fn remarks(sample: &Sample) -> Vec<String> {
    let mut remarks = Vec::new();
    if sample.stack.is_none() {
        remarks.push("has no stack: nothing of it is accelerated".to_owned());
    }
    let mut kernel: Vec<String> = sample
        .reasons()
        .map(|(why, count)| format!("{} {count}", why.to_string().replace('_', " ")))
        .collect();
    for (name, words) in [
        ("sockets.kernel_accepts", "connections accepted from the kernel"),
        ("sockets.kernel_connects", "connections made by the kernel"),
        ("sockets.handovers_of_uploads", "large uploads handed over"),
    ] {
        if sample.count(name) > 0 {
            kernel.push(format!("{words} {}", sample.count(name)));
        }
    }
    if !kernel.is_empty() {
        remarks.push(format!("left to the kernel: {}", kernel.join(", ")));
    }
    let drops: Vec<String> = sample
        .counters
        .iter()
        .filter(|(name, value)| is_drop(name.raw()) && *value > 0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    if !drops.is_empty() {
        remarks.push(format!("dropped: {}", drops.join(", ")));
    }
    remarks
}

/// What of an interface's frames no stack was given, and why; `None` where there was nothing.
pub(super) fn left_line(left: &Left) -> Option<String> {
    let frames = &left.frames;
    let parts: Vec<String> = [
        (frames.passed_firewall, "passed to the kernel for the firewall's sake"),
        (frames.passed_source, "passed to the kernel to judge where they come from"),
        (frames.dropped_firewall, "dropped for the firewall's sake"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, words)| format!("{words} {count}"))
    .collect();
    (!parts.is_empty()).then(|| format!("{} frames: {}", left.interface, parts.join(", ")))
}

/// Columns, the most important first.
const IMPORTANCE: [usize; COLUMNS.len()] = [0, 1, 4, 9, 3, 11, 7, 8, 5, 6, 10, 2, 12];
/// Columns that hold names.
pub(super) const NAMES: [usize; 2] = [1, 2];

/// The columns that fit, and how wide each of all is: as what stands in it.
pub(super) fn fitting(rows: &[[String; COLUMNS.len()]], room: usize) -> (Vec<usize>, [usize; COLUMNS.len()]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(COLUMNS[column].chars().count())
    };
    let widths = std::array::from_fn(width);
    (columns(&widths, &IMPORTANCE, room), widths)
}

/// How wide columns are where there is room for all: so that those of the next look stand below them.
const USUAL: [usize; COLUMNS.len()] = [7, 15, 10, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

/// `room`: cells of a line on the terminal; none where it is not one.
fn table(samples: &[Sample], left: &[Left], room: Option<usize>) -> String {
    let rows: Vec<_> = samples.iter().map(cells).collect();
    let usual: usize = USUAL.iter().map(|width| width + 1).sum();
    let (shown, widths) = match room {
        Some(room) if room < usual => fitting(&rows, room),
        _ => ((0..COLUMNS.len()).collect(), USUAL),
    };
    let mut text = String::new();
    for row in std::iter::once(&COLUMNS.map(str::to_owned)).chain(&rows) {
        let cells = shown.iter().map(|&column| {
            let (cell, width) = (&row[column], widths[column]);
            if NAMES.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join(" ").trim_end());
        text.push('\n');
    }
    let mut said = String::new();
    if samples.is_empty() {
        let _ = writeln!(said, "  {NONE}");
    }
    for sample in samples {
        for remark in remarks(sample) {
            let _ = writeln!(said, "  {} {remark}", sample.process);
        }
    }
    for line in left.iter().filter_map(left_line) {
        let _ = writeln!(said, "  {line}");
    }
    if shown.len() < COLUMNS.len() {
        let _ = writeln!(said, "  {} columns more on a wider screen", COLUMNS.len() - shown.len());
    }
    text.push_str(&room.map_or_else(|| said.clone(), |room| folded(&said, room, 4)));
    text.push('\n');
    text
}

#[cfg(test)]
pub(super) mod tests {
    use overfly_broker::LeftFrames;

    use super::*;

    pub(in crate::watch) fn sample() -> Sample {
        let counters = [
            ("now.flows", 3, 0.0),
            ("now.receive_ring", 256, 0.0),
            ("now.receive_ring_size", 1024, 0.0),
            ("sockets.accepts", 10, 250_000.0),
            ("kernel.rule", 2, 0.0),
            ("kernel.loopback", 0, 0.0),
            ("engine.drop_checksum", 4, 1.5),
            ("link.received_bytes", 9, 1e6),
        ];
        Sample {
            process: 7,
            program: "nginx".into(),
            user: 0,
            interface: "eth0".into(),
            stack: Some(1),
            age_ms: 0,
            cpu_percent: Some(42.4),
            counters: counters.iter().map(|(name, value, _)| ((*name).into(), *value)).collect(),
            rates: counters.iter().map(|(_, _, rate)| *rate).collect(),
        }
    }

    #[test]
    fn every_column_has_its_place_in_the_order() {
        let mut order = IMPORTANCE;
        order.sort_unstable();
        assert_eq!(order, std::array::from_fn(|column| column));
        assert!(NAMES.iter().all(|column| ["PROGRAM", "IFACE"].contains(&COLUMNS[*column])));
    }

    #[test]
    fn a_table_on_a_terminal_has_no_line_that_the_terminal_would_cut() {
        let busy = screen::tests::busy();
        let all = cells(&busy);
        for room in [60, 80, 100, 120, 200] {
            let text = table(&[busy.clone(), sample()], &[], Some(room));
            assert!(text.lines().all(|line| line.chars().count() <= room), "{room}:\n{text}");
            let mut lines = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
            let (heads, values) = (lines.next().unwrap(), lines.next().unwrap());
            assert!(heads.len() == values.len() && heads.len() >= 6, "{room}:\n{text}");
            for (head, value) in heads.iter().zip(values) {
                let column = COLUMNS.iter().position(|name| name == head).unwrap();
                assert_eq!(value, all[column], "{head} at {room}:\n{text}");
            }
            assert_eq!(heads.len() < COLUMNS.len(), text.contains("more on a wider screen"), "{text}");
        }
        // Where it is no terminal, all of them.
        assert!(table(&[busy], &[], None).lines().next().unwrap().split_ascii_whitespace().eq(COLUMNS));
    }

    #[test]
    fn a_process_is_one_line_and_what_is_to_be_said_of_it() {
        let left = |dropped_firewall| Left {
            interface: "eth\x1b0".into(),
            frames: LeftFrames { passed_firewall: 12, dropped_firewall, ..LeftFrames::default() },
        };
        let text = table(&[sample()], &[left(3)], None);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_ascii_whitespace().collect();
        assert_eq!(line, ["7", "nginx", "eth0", "42", "3", "250k", "0", "0", "0", "8.0", "0", "1.5", "25%"]);
        assert!(text.contains("  7 left to the kernel: rule 2\n"), "{text}");
        let mut moved = sample();
        moved.counters.push(("sockets.handovers_of_uploads".into(), 5));
        moved.rates.push(0.0);
        let moved = table(&[moved], &[], None);
        assert!(moved.contains("  7 left to the kernel: rule 2, large uploads handed over 5\n"), "{moved}");
        assert!(text.contains("  7 dropped: engine.drop_checksum 4\n"), "{text}");
        let frames = "passed to the kernel for the firewall's sake 12, dropped for the firewall's sake 3";
        assert!(text.contains(&format!("  eth\\x1b0 frames: {frames}\n")), "{text}");
        assert!(!table(&[sample()], &[left(0)], None).contains("dropped for"));
        assert!(!text.contains("no program runs"), "{text}");
        assert!(table(&[], &[], None).contains("\n  no program runs over Overfly here\n"));
    }

    #[test]
    fn json_has_every_counter_and_rates_of_what_grows() {
        let frames = LeftFrames { passed_source: 1, passed_firewall: 2, dropped_firewall: 3 };
        let left = Left { interface: "eth0".into(), frames };
        let value: serde_json::Value =
            serde_json::from_str(&line(&[sample()], &[left], Duration::from_secs(1))).unwrap();
        let counters = json!({ "passed_source": 1, "passed_firewall": 2, "dropped_firewall": 3 });
        assert_eq!(value["interfaces"], json!([{ "interface": "eth0", "counters": counters }]));
        let stack = &value["stacks"][0];
        assert_eq!(stack["counters"]["sockets.accepts"], 10);
        assert_eq!(stack["rates_per_s"]["engine.drop_checksum"], 1.5);
        assert_eq!(stack["left_to_kernel"], json!({ "rule": 2 }));
        assert!(stack["rates_per_s"].get("now.flows").is_none());
    }
}
