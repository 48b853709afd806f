//! `overfly sockets`: the sockets that stacks carry, as `ss -tin` shows the kernel's.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use overfly_broker::watch::{Kind, Row, Timer};
use overfly_terminal::{Unwritten, folded, print, print_json};
use serde_json::json;

use super::{Choice, Failure, Subject};
use crate::complain;

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Show the sockets that programs over Overfly have in their stacks, as `ss -tin` shows the kernel's
///
/// A program answers at its next call that waits; one that computes, or is stopped, does not.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// One JSON object for each socket, one a line
    #[arg(long)]
    json: bool,
    /// Listeners too
    #[arg(short = 'a', long)]
    all: bool,
}

pub(crate) fn sockets(arguments: &Arguments) -> ExitCode {
    match show(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => failure.exit(),
    }
}

/// Whether every process answered.
fn show(arguments: &Arguments) -> Result<bool, Failure> {
    let subjects = arguments.choice.some_subjects()?;
    if !arguments.json {
        print_fitted(&format!(
            "{:<11} {:>6} {:>6} {:>28} {:>28}  Process\n",
            "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"
        ))?;
    }
    let mut all = true;
    for subject in subjects.iter().filter(|subject| subject.watched.stack.is_some()) {
        let Some(table) = subject.watched.view.table(PATIENCE) else {
            complain(format_args!(
                "process {} ({}) does not answer: it is busy, or stopped",
                subject.watched.process, subject.program
            ));
            all = false;
            continue;
        };
        if arguments.json {
            let text: String = table.rows.iter().map(|row| json_line(subject, row)).collect();
            print_json(&text)?;
        } else {
            let meant = table.rows.iter().filter(|row| row.kind() != Some(Kind::Listener) || arguments.all);
            print_fitted(&meant.map(|row| lines(subject, row)).collect::<String>())?;
        }
        if table.rows.len() < table.sockets {
            complain(format_args!(
                "process {}: {} of {} sockets are shown",
                subject.watched.process,
                table.rows.len(),
                table.sockets
            ));
        }
    }
    Ok(all)
}

/// Below what stands behind the state, where a terminal has too little room. Its tabulators are eight columns.
fn print_fitted(text: &str) -> Result<(), Unwritten> {
    print(
        &overfly_load::room()
            .map_or_else(|| text.to_owned(), |room| folded(&text.replace('\t', "        "), room, 12)),
    )
}

/// Linux's numbers for TCP's states (include/net/tcp_states.h), by ss's names.
const STATES: [&str; 13] = [
    "UNKNOWN",
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "UNCONN",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECV",
];

fn state(row: &Row) -> &'static str {
    STATES.get(usize::from(row.state)).copied().unwrap_or(STATES[0])
}

fn timer(row: &Row) -> Option<(&'static str, Duration)> {
    let (timer, left) = row.timer()?;
    let name = match timer {
        Timer::Retransmission => "on",
        Timer::Persist => "persist",
        Timer::Linger => "keepalive",
        Timer::DelayedAck => "delack",
    };
    Some((name, left))
}

/// Two lines for a connection, one for others.
fn lines(subject: &Subject, row: &Row) -> String {
    let remote = row.remote().map_or_else(|| "*:*".to_owned(), |remote| remote.to_string());
    let mut text = format!(
        "{:<11} {:>6} {:>6} {:>28} {:>28}  users:((\"{}\",pid={},fd={}))",
        state(row),
        row.receive_queue,
        row.send_queue,
        row.local().to_string(),
        remote,
        subject.program,
        subject.watched.process,
        row.descriptor,
    );
    if let Some((name, left)) = timer(row) {
        let _ = write!(text, " timer:({name},{}ms,{})", left.as_millis(), row.retries);
    }
    text.push('\n');
    if row.kind() == Some(Kind::Connection) {
        let _ = writeln!(text, "\t {}", details(row));
    }
    text
}

/// What `ss -i` says of a connection, in its words.
fn details(row: &Row) -> String {
    let mut words = Vec::new();
    for (on, name) in [(row.timestamps, "ts"), (row.sack, "sack"), (row.ecn, "ecn")] {
        if on != 0 {
            words.push(name.to_owned());
        }
    }
    words.push(format!("wscale:{},{}", row.send_shift, row.receive_shift));
    words.push(format!("rto:{}", f64::from(row.rto_us) / 1000.0));
    if row.rtt_us > 0 {
        let milliseconds = |us: u32| f64::from(us) / 1000.0;
        words.push(format!("rtt:{}/{}", milliseconds(row.rtt_us), milliseconds(row.rtt_variation_us)));
        words.push(format!("minrtt:{}", milliseconds(row.min_rtt_us)));
    }
    let mss = u32::from(row.mss).max(1);
    words.push(format!("mss:{} cwnd:{}", row.mss, row.congestion_window / mss));
    if row.slow_start_threshold < u32::MAX / 2 {
        words.push(format!("ssthresh:{}", row.slow_start_threshold / mss));
    }
    words.push(format!("bytes_acked:{} bytes_received:{}", row.acknowledged, row.received));
    for (count, name) in [
        (row.flight.div_ceil(mss), "unacked"),
        (row.sacked.div_ceil(mss), "sacked"),
        (row.lost.div_ceil(mss), "lost"),
        (u32::from(row.retries), "retrans"),
        (u32::from(row.backoff), "backoff"),
    ] {
        if count > 0 {
            words.push(format!("{name}:{count}"));
        }
    }
    words.push(format!("snd_wnd:{} rcv_wnd:{}", row.send_window, row.receive_window));
    words.join(" ")
}

fn json_line(subject: &Subject, row: &Row) -> String {
    let kind = match row.kind() {
        Some(Kind::Listener) => "listener",
        Some(Kind::Connection) => "connection",
        Some(Kind::Datagram) => "udp",
        None => "unknown",
    };
    let value = json!({
        "process": subject.watched.process,
        "program": subject.program.raw(),
        "interface": subject.interface.raw(),
        "kind": kind,
        "state": state(row),
        "descriptor": row.descriptor,
        "local": row.local().to_string(),
        "remote": row.remote().map(|remote| remote.to_string()),
        "receive_queue": row.receive_queue,
        "send_queue": row.send_queue,
        "timer": timer(row).map(|(name, left)| json!({ "name": name, "left_ms": left.as_millis() as u64 })),
        "congestion_window_bytes": row.congestion_window,
        "slow_start_threshold_bytes": row.slow_start_threshold,
        "rtt_us": row.rtt_us,
        "rtt_variation_us": row.rtt_variation_us,
        "min_rtt_us": row.min_rtt_us,
        "rto_us": row.rto_us,
        "mss": row.mss,
        "send_window_bytes": row.send_window,
        "receive_window_bytes": row.receive_window,
        "flight_bytes": row.flight,
        "sacked_bytes": row.sacked,
        "lost_bytes": row.lost,
        "retries": row.retries,
        "bytes_acknowledged": row.acknowledged,
        "bytes_received": row.received,
        "passive": row.passive != 0,
    });
    format!("{value}\n")
}
