//! What a reader should know before believing a run's figures, in words.

use super::units;
use crate::http::{OpenLoop, Report};

/// A rate that is missed by less than this is kept.
const RATE_TOLERANCE: f64 = 0.001;
/// A rate that is missed by more than this leaves a queue behind that grows as long as the run goes on.
const SATURATED: f64 = 0.01;
/// A generator whose threads are busier than this is the limit.
const BUSY: f64 = 0.95;
/// Send lag matters when its 99th percentile is more than this share of the median latency.
const LAG_SHARE: f64 = 0.5;
/// A closed loop's connections are each busy nearly all the time; with this many requests for each, the two ends of the run
/// do not count.
const REQUESTS_FOR_EACH: u64 = 20;
const LITTLE_TOLERANCE: f64 = 0.1;
/// A server that closes more than one connection in so many requests is no server of kept connections.
const CLOSED_OFTEN: u64 = 100;

/// Sentences, the gravest first. Empty where there is nothing to say. `steady`: each connection has exactly one request under
/// way, from the beginning to the end.
pub(crate) fn remarks(report: &Report, steady: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    if report.requests == 0 {
        remarks.push("No request ended: the run was too short, or the server never answered.".to_string());
        remarks.extend(never_made(report));
        return remarks;
    }
    if report.succeeded == 0 {
        remarks.push("Nothing succeeded: there is no latency to report.".to_string());
        remarks.extend(never_made(report));
        remarks.extend(not_expected(report));
        return remarks;
    }
    remarks.extend(never_made(report));
    remarks.extend(not_expected(report));
    let limited = generator_was_the_limit(report);
    if let Some(open_loop) = &report.open_loop {
        remarks.extend(rate_missed(report, open_loop, limited));
        remarks.extend(sent_late(report, open_loop));
    } else if limited {
        remarks.push(format!(
            "The generator was the limit: its threads were busy {} of the time. The server may be able to do more.",
            units::percent(busy(report))
        ));
    }
    remarks.extend(never_all_open(report));
    remarks.extend(closed_by_server(report, steady));
    if steady {
        remarks.extend(little(report));
    }
    remarks
}

/// Why connections were not made, the most frequent reason first.
fn never_made(report: &Report) -> Vec<String> {
    let mut reasons: Vec<(&str, u64)> = report.record.reasons().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let say = |(reason, count)| format!("Connections not made, {}: {reason}.", units::grouped(count));
    reasons.into_iter().map(say).collect()
}

/// What came instead of what was expected.
fn not_expected(report: &Report) -> Vec<String> {
    let said = |value: String, count| format!("{value} ({} times)", units::grouped(count));
    let statuses = report.record.wrong_statuses().map(|(status, count)| said(status.to_string(), count));
    let sizes = report.record.wrong_sizes().map(|(size, count)| said(units::grouped(size), count));
    let (statuses, sizes): (Vec<String>, Vec<String>) = (statuses.collect(), sizes.collect());
    let mut remarks = Vec::new();
    if !statuses.is_empty() {
        remarks.push(format!(
            "Statuses that came and were not expected: {}. --expect-status says which is.",
            statuses.join(", ")
        ));
    }
    if !sizes.is_empty() {
        remarks.push(format!(
            "Sizes that came and were not expected, in bytes of content: {}. --expect-size says which is.",
            sizes.join(", ")
        ));
    }
    remarks
}

/// Why the run was not the load that was asked for; `None` if it was.
pub(crate) fn short_of_load(report: &Report) -> Option<String> {
    let missed = report.open_loop.as_ref().map(|open_loop| missed_share(report, open_loop));
    let missed = missed.filter(|missed| *missed > SATURATED);
    let missed = missed.map(|missed| format!("rate missed by {}", units::percent(missed)));
    missed.or_else(|| {
        (!report.close
            && report.open_loop.is_none()
            && report.connections_open_max < report.connections as u64)
            .then(|| format!("{} connections open at most", report.connections_open_max))
    })
}

/// What was due in the measured part: it succeeded, failed, or was never sent. Not the rate times the length, since Poisson
/// arrivals are as many as chance has it.
fn due(report: &Report, open_loop: &OpenLoop) -> u64 {
    report.requests + open_loop.unsent
}

fn missed_share(report: &Report, open_loop: &OpenLoop) -> f64 {
    open_loop.unsent as f64 / due(report, open_loop).max(1) as f64
}

fn rate_missed(report: &Report, open_loop: &OpenLoop, limited: bool) -> Option<String> {
    let missed = missed_share(report, open_loop);
    // One request more or less is within any rate.
    if missed <= RATE_TOLERANCE || open_loop.unsent <= 1 {
        return None;
    }
    let why = if limited {
        format!(
            "the generator was the limit, its threads were busy {} of the time",
            units::percent(busy(report))
        )
    } else {
        format!(
            "{} connections were not enough for a server this slow (-c), or the server was the limit",
            units::grouped(report.connections as u64)
        )
    };
    let saturated = if missed > SATURATED {
        " The queue grew as long as the run lasted: latency is how long that was, and its percentiles say nothing of the server."
    } else {
        ""
    };
    Some(format!(
        "The rate was missed by {}: {} of {} requests that were due were never sent; {why}.{saturated}",
        units::percent(missed),
        units::grouped(open_loop.unsent),
        units::grouped(due(report, open_loop))
    ))
}

fn sent_late(report: &Report, open_loop: &OpenLoop) -> Option<String> {
    let (lag_us, median_us) = (open_loop.send_lag_us.p99, report.latency_us.p50);
    (lag_us > LAG_SHARE * median_us).then(|| {
        format!(
            "The generator itself sent late: 1 request in 100 by {} or more, against a median latency of {}. Give it processors of its own (--cpus), more threads (-t) or a lower rate.",
            units::time(lag_us),
            units::time(median_us)
        )
    })
}

fn never_all_open(report: &Report) -> Option<String> {
    (!report.close && report.connections_open_max < report.connections as u64).then(|| {
        format!(
            "Fewer connections were ever open than -c asked for: {} of {} at most.",
            units::grouped(report.connections_open_max),
            units::grouped(report.connections as u64)
        )
    })
}

/// A server that does not keep connections open is measured with a new one for many requests, whatever was asked for. Said
/// where it is so often, or where it is why rate and latency do not add up: latency begins when a connection is open.
fn closed_by_server(report: &Report, steady: bool) -> Option<String> {
    let closed = report.connections_closed_by_server;
    let matters = closed * CLOSED_OFTEN > report.requests || steady && is_off(report);
    (!report.close && closed > 0 && matters).then(|| {
        let each = match report.requests / closed {
            0 | 1 => "one for each request".to_string(),
            many => format!("one for every {} requests", units::grouped(many)),
        };
        let latency = match report.open_loop {
            Some(_) => "requests that waited for new ones were served later",
            None => "the time to make new ones is not in the latencies",
        };
        format!(
            "The server closed {} connections, {each}, that the generator would have kept: {latency}. Measure it with --close, or let the server keep connections open.",
            units::grouped(closed)
        )
    })
}

/// Rate × mean time should be the number of connections.
fn little(report: &Report) -> Option<String> {
    // Connections that the server closes have nothing under way until others take their place, and that is said.
    (report.connections_closed_by_server == 0 && is_off(report)).then(|| {
        format!(
            "Rate and latency do not add up: by Little's law {:.1} requests were under way, with {} connections that have one each. The generator was too busy to send, or its clock is wrong.",
            report.under_way(),
            report.connections
        )
    })
}

/// Whether Little's law says other than that each connection had a request under way. Not asked of runs in which much failed,
/// nor of short ones.
fn is_off(report: &Report) -> bool {
    let clean = report.failed_total * 100 < report.requests
        && report.requests >= REQUESTS_FOR_EACH * report.connections as u64
        && report.connections_open_max == report.connections as u64;
    let off = report.under_way() / report.connections as f64 - 1.0;
    clean && off.abs() > LITTLE_TOLERANCE
}

/// How much of the run the generator's threads had something to do; over kernel sockets their processor time says so too.
pub(crate) fn busy(report: &Report) -> f64 {
    let thread_s = report.duration_s * report.threads as f64;
    if thread_s <= 0.0 {
        return 0.0;
    }
    let busy_s = match report.record.busy_ns {
        0 if report.link == "kernel" => report.cpu_s,
        busy_ns => busy_ns as f64 * 1e-9,
    };
    (busy_s / thread_s).min(1.0)
}

/// Whether the generator had no time left for more.
pub(crate) fn generator_was_the_limit(report: &Report) -> bool {
    busy(report) > BUSY
}
