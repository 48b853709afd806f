//! Generators that are not ours: how they are called, and what their output says.

use serde_json::{Value, json};

use crate::plan::{Connection, Tool};

/// What a generator found out, whichever it was.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ToolReport {
    /// What the plan's load comes to.
    pub(crate) value: f64,
    /// Of requests, flows, messages.
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    /// Share of its time that it had something to do; `None` of one that does not say so itself.
    pub(crate) generator_busy: Option<f64>,
    /// µs of its processor time for each success, likewise.
    pub(crate) client_cpu_us: Option<f64>,
    /// What went wrong though it ended.
    pub(crate) problems: Vec<String>,
    /// What a reader should know.
    pub(crate) remarks: Vec<String>,
    /// Its own report.
    pub(crate) raw: Value,
}

/// The arguments of a foreign generator: for `seconds`, of `connections` over `threads`.
pub(crate) fn arguments(
    tool: Tool,
    seconds: f64,
    threads: u32,
    connections: u32,
    how: Connection,
    url: &str,
) -> Vec<String> {
    let seconds = format!("{:.0}", seconds.max(1.0));
    let mut words: Vec<String> = Vec::new();
    let mut add = |given: &[&str]| words.extend(given.iter().map(|word| (*word).to_owned()));
    match tool {
        Tool::Wrk => {
            add(&["-t", &threads.to_string(), "-c", &connections.to_string()]);
            add(&["-d", &format!("{seconds}s"), "--latency"]);
            if how == Connection::Close {
                add(&["-H", "Connection: close"]);
            }
        }
        // ab has one thread, and does not come to 100,000 requests a second. -t sets -n to 50,000, so that -n has to follow; it
        // takes memory for all of -n. -r: a failure is no end.
        Tool::Ab => {
            let most = format!("{seconds}00000");
            add(&["-q", "-r", "-c", &connections.to_string(), "-t", &seconds, "-n", &most]);
            if how == Connection::Keepalive {
                add(&["-k"]);
            }
        }
        Tool::Overfly | Tool::Astf | Tool::Vod | Tool::Sockperf | Tool::Idle => {}
    }
    add(&[url]);
    words
}

/// What a foreign generator printed, and the same as JSON for the raw data.
pub(crate) fn told(tool: Tool, output: &str) -> Result<ToolReport, String> {
    let told = match tool {
        Tool::Wrk => of_wrk(output),
        Tool::Ab => of_ab(output),
        Tool::Sockperf => of_sockperf(output),
        Tool::Overfly | Tool::Astf | Tool::Vod | Tool::Idle => None,
    };
    let told = told.ok_or_else(|| {
        let said = output.trim().replace('\n', "; ");
        format!("what {} printed is not understood: {said}", tool.program().unwrap_or("the generator"))
    })?;
    let mut raw = json!({
        "value": told.value,
        "succeeded": told.succeeded,
        "failed_total": told.failed,
        "latency_us": {"p50": told.latency_p50_us, "p99": told.latency_p99_us},
        "printed": output,
    });
    if tool == Tool::Sockperf {
        for (name, label) in SOCKPERF_PERCENTILES {
            raw["latency_us"][name] = percentile_of_sockperf(output, label).into();
        }
    }
    Ok(ToolReport { raw, ..told })
}

/// As reports name them, and as sockperf prints them.
const SOCKPERF_PERCENTILES: [(&str, &str); 6] = [
    ("p50", "50.000"),
    ("p75", "75.000"),
    ("p90", "90.000"),
    ("p99", "99.000"),
    ("p99_9", "99.900"),
    ("p99_99", "99.990"),
];

/// sockperf 3.7, `ping-pong`: `[Valid Duration] RunTime=0.5 sec; SentMessages=94039; ReceivedMessages=94039`, and half round trips,
/// `---> percentile 99.900 =   19.337`, µs. What was dropped, doubled or came out of order is in one line.
fn of_sockperf(output: &str) -> Option<ToolReport> {
    let valid = output.lines().find(|line| line.contains("[Valid Duration]"))?;
    let count = |label: &str| -> Option<u64> {
        let digits = valid.split_once(label)?.1;
        digits.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
    };
    let (sent, received) = (count("SentMessages=")?, count("ReceivedMessages=")?);
    let dropped = output.lines().find_map(|line| {
        let rest = line.split_once("dropped messages = ")?.1;
        rest.split(';').next()?.trim().parse::<u64>().ok()
    })?;
    let p50 = percentile_of_sockperf(output, "50.000")?;
    Some(ToolReport {
        value: p50,
        succeeded: received,
        failed: dropped.max(sent.saturating_sub(received)),
        latency_p50_us: p50,
        latency_p99_us: percentile_of_sockperf(output, "99.000")?,
        ..ToolReport::default()
    })
}

fn percentile_of_sockperf(output: &str, label: &str) -> Option<f64> {
    let place = format!("percentile {label} =");
    output.lines().find_map(|line| line.split_once(&place)?.1.trim().parse().ok())
}

/// wrk 4: `123 requests in 1.00s, 1.2MB read`, `50%  640.00us`, `Socket errors: connect 0, read 1, write 0, timeout 0`,
/// `Non-2xx or 3xx responses: 3`, `Requests/sec:  123.4`.
fn of_wrk(output: &str) -> Option<ToolReport> {
    let mut told = ToolReport { value: after(output, "Requests/sec:")?, ..ToolReport::default() };
    let all =
        output.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse::<u64>().ok())?;
    let statuses = after(output, "Non-2xx or 3xx responses:").unwrap_or(0.0) as u64;
    let broken: u64 = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("Socket errors:"))
        .map_or(0, |line| line.split([' ', ',']).filter_map(|word| word.parse::<u64>().ok()).sum());
    (told.succeeded, told.failed) = (all.saturating_sub(statuses), statuses + broken);
    let percentile = |label: &str| {
        let line = output.lines().find_map(|line| line.trim().strip_prefix(label))?;
        microseconds(line.trim())
    };
    told.latency_p50_us = percentile("50%")?;
    told.latency_p99_us = percentile("99%")?;
    Some(told)
}

/// ab 2.3: `Complete requests:`, `Failed requests:`, `Non-2xx responses:`, `Requests per second:    123.45 [#/sec] (mean)`, and a
/// table of percentiles in whole milliseconds.
fn of_ab(output: &str) -> Option<ToolReport> {
    let count = |label: &str| after(output, label).map(|value| value as u64);
    let failed = count("Failed requests:")? + count("Non-2xx responses:").unwrap_or(0);
    let percentile = |label: &str| after(output, label).map(|ms| ms * 1000.0);
    Some(ToolReport {
        value: after(output, "Requests per second:")?,
        succeeded: count("Complete requests:")?.saturating_sub(failed),
        failed,
        latency_p50_us: percentile("50%")?,
        latency_p99_us: percentile("99%")?,
        ..ToolReport::default()
    })
}

/// The number that follows a label at the beginning of a line.
fn after(output: &str, label: &str) -> Option<f64> {
    let line = output.lines().find_map(|line| line.trim().strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `1.23ms`
fn microseconds(text: &str) -> Option<f64> {
    let unit = text.find(|character: char| character.is_ascii_alphabetic())?;
    let value: f64 = text[..unit].parse().ok()?;
    let factor = match &text[unit..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wrk 4.1.0, with errors of each kind.
    const WRK: &str = "Running 1s test @ http://127.0.0.1:8080/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   110.21us   95.71us   2.31ms   96.19%
    Req/Sec    35.68k     3.04k   40.05k    72.73%
  Latency Distribution
     50%   96.00us
     75%  120.00us
     90%  150.00us
     99%    1.25ms
  39024 requests in 1.10s, 31.63MB read
  Socket errors: connect 1, read 2, write 0, timeout 3
  Non-2xx or 3xx responses: 24
Requests/sec:  35478.03
Transfer/sec:     28.76MB
";

    const AB: &str = "Concurrency Level:      4
Time taken for tests:   1.000 seconds
Complete requests:      17040
Failed requests:        5
   (Connect: 0, Receive: 0, Length: 5, Exceptions: 0)
Non-2xx responses:      2
Requests per second:    17039.11 [#/sec] (mean)
Time per request:       0.235 [ms] (mean)

Percentage of the requests served within a certain time (ms)
  50%      1
  66%      1
  99%      3
 100%      9 (longest request)
";

    /// sockperf 3.7, shortened; its colours too.
    const SOCKPERF: &str = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=119086; ReceivedMessages=119085
sockperf: [Valid Duration] RunTime=0.545 sec; SentMessages=94039; ReceivedMessages=94038
sockperf: \x1b[2;35m====> avg-latency=2.883 (std-dev=25.258)\x1b[0m
sockperf: # dropped messages = 1; # duplicated messages = 0; # out-of-order messages = 0
sockperf: Summary: Latency is 2.883 usec
sockperf: ---> percentile 99.990 = 1406.140
sockperf: ---> percentile 99.900 =   19.337
sockperf: ---> percentile 99.000 =    3.015
sockperf: ---> percentile 90.000 =    2.640
sockperf: ---> percentile 75.000 =    2.576
sockperf: ---> percentile 50.000 =    2.487
";

    #[test]
    fn their_output_is_read() {
        // What it printed, as: value, succeeded, failed, median and 99th percentile.
        for (tool, output, value, succeeded, failed, latency_p50_us, latency_p99_us) in [
            (Tool::Wrk, WRK, 35_478.03, 39_000, 30, 96.0, 1250.0),
            (Tool::Ab, AB, 17_039.11, 17_033, 7, 1000.0, 3000.0),
            (Tool::Sockperf, SOCKPERF, 2.487, 94_038, 1, 2.487, 3.015),
        ] {
            let told = ToolReport { raw: Value::Null, ..told(tool, output).unwrap() };
            let wanted = ToolReport {
                value,
                succeeded,
                failed,
                latency_p50_us,
                latency_p99_us,
                ..ToolReport::default()
            };
            assert_eq!(told, wanted, "{tool}");
        }
        assert_eq!(told(Tool::Sockperf, SOCKPERF).unwrap().raw["latency_us"]["p99_9"], 19.337);
        assert_eq!(told(Tool::Wrk, WRK).unwrap().raw["printed"], WRK);
        for (tool, name) in [(Tool::Wrk, "wrk"), (Tool::Ab, "ab"), (Tool::Sockperf, "sockperf")] {
            let error = told(tool, "unable to\nconnect").unwrap_err();
            assert!(error.contains(name) && error.contains("unable to; connect"), "{error}");
        }
    }

    #[test]
    fn they_are_called_as_they_want() {
        let line = |tool, how| arguments(tool, 2.0, 1, 8, how, "http://h/").join(" ");
        assert_eq!(
            line(Tool::Wrk, Connection::Close),
            "-t 1 -c 8 -d 2s --latency -H Connection: close http://h/"
        );
        assert_eq!(line(Tool::Ab, Connection::Keepalive), "-q -r -c 8 -t 2 -n 200000 -k http://h/");
    }
}
