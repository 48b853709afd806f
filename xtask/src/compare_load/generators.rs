//! The generators that are compared: how each is called and where it says what.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A load generator, over one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Generator {
    Wrk,
    Ab,
    Oha(PathBuf),
    H2load,
    Overfly { link: &'static str },
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Requests over connections that stay open.
    KeepAlive,
    /// A new connection for each request.
    Connections,
}

impl Work {
    pub(crate) const ALL: [Work; 2] = [Work::KeepAlive, Work::Connections];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::KeepAlive => "requests/s, keep-alive",
            Work::Connections => "new connections/s",
        }
    }
}

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) connections: u32,
    pub(crate) seconds: u32,
}

/// What a generator said of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Said {
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Requests that failed.
    pub(crate) failed: f64,
    /// Of the time, what the generator had something to do; generators that wait in the kernel do not say.
    pub(crate) busy_share: Option<f64>,
}

impl Generator {
    pub(crate) fn name(&self) -> String {
        match self {
            Generator::Wrk => "wrk".to_owned(),
            Generator::Ab => "ab".to_owned(),
            Generator::Oha(_) => "oha".to_owned(),
            Generator::H2load => "h2load".to_owned(),
            Generator::Overfly { link } => format!("overfly {link}"),
        }
    }

    /// What carries its frames: `kernel` for all but our own.
    pub(crate) fn link(&self) -> &'static str {
        match self {
            Generator::Overfly { link } => link,
            _ => "kernel",
        }
    }

    /// The command line for `work` at `url`; nothing where the generator cannot do it. `link_words` are what
    /// `overfly load` needs to use its link.
    pub(crate) fn command(
        &self,
        overfly: &Path,
        work: Work,
        amount: Amount,
        url: &str,
        link_words: &[String],
    ) -> Option<Vec<String>> {
        let Amount { connections: c, seconds: s } = amount;
        let close = work == Work::Connections;
        let line = match self {
            Generator::Wrk => format!("wrk -t1 -c{c} -d{s} --latency {url}"),
            Generator::Ab => {
                let keep = if close { "" } else { "-k " };
                format!("ab -q -r -c{c} -t{s} -n50000000 {keep}{url}")
            }
            Generator::Oha(path) => {
                let close = if close { "--disable-keepalive " } else { "" };
                format!("{} --no-tui --output-format json -c {c} -z {s}s {close}{url}", path.display())
            }
            Generator::H2load if close => return None,
            Generator::H2load => format!("h2load --h1 -t1 -c{c} -D{s} {url}"),
            Generator::Overfly { .. } => {
                let close = if close { "--close " } else { "" };
                format!("{} load http --json -c{c} -d{s}s {close}{url}", overfly.display())
            }
        };
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match self {
            // wrk overlooks a header without the space.
            Generator::Wrk if close => words.extend(["-H", "Connection: close"].map(str::to_owned)),
            Generator::Overfly { .. } => words.extend(link_words.iter().cloned()),
            _ => {}
        }
        Some(words)
    }

    /// Reads what it printed.
    pub(crate) fn read(&self, output: &str) -> Result<Said, String> {
        let said = match self {
            Generator::Wrk => read_wrk(output),
            Generator::Ab => read_ab(output),
            Generator::Oha(_) => read_oha(output),
            Generator::H2load => read_h2load(output),
            Generator::Overfly { .. } => read_overfly(output),
        };
        said.ok_or_else(|| format!("cannot find the result of {} in what it printed:\n{output}", self.name()))
    }
}

/// The word after `label` on the first line that begins with it.
fn after<'a>(output: &'a str, label: &str) -> Option<&'a str> {
    output.lines().find_map(|line| line.trim_start().strip_prefix(label))?.split_ascii_whitespace().next()
}

/// `1.50ms` in µs.
fn time_us(word: &str) -> Option<f64> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &word[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 6e7,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * scale)
}

fn read_wrk(output: &str) -> Option<Said> {
    let errors = output.lines().find_map(|line| line.trim_start().strip_prefix("Socket errors: "));
    let failed = errors.map_or(0.0, |kinds| {
        kinds.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<f64>().ok()).sum()
    });
    Some(Said {
        per_s: after(output, "Requests/sec:")?.parse().ok()?,
        p50_us: time_us(after(output, "50%")?)?,
        p99_us: time_us(after(output, "99%")?)?,
        failed,
        busy_share: None,
    })
}

fn read_ab(output: &str) -> Option<Said> {
    let ms = |label| Some(after(output, label)?.parse::<f64>().ok()? * 1e3);
    Some(Said {
        per_s: after(output, "Requests per second:")?.parse().ok()?,
        p50_us: ms("50%")?,
        p99_us: ms("99%")?,
        failed: after(output, "Failed requests:")?.parse().ok()?,
        busy_share: None,
    })
}

fn read_oha(output: &str) -> Option<Said> {
    let json: Value = serde_json::from_str(output).ok()?;
    let us = |percentile: &str| Some(json["latencyPercentiles"][percentile].as_f64()? * 1e6);
    let errors = json["errorDistribution"].as_object()?;
    // Requests that the end cut off are no failures.
    let failed = errors.iter().filter(|(kind, _)| !kind.contains("deadline"));
    Some(Said {
        per_s: json["summary"]["requestsPerSec"].as_f64()?,
        p50_us: us("p50")?,
        p99_us: us("p99")?,
        failed: failed.filter_map(|(_, count)| count.as_f64()).sum(),
        busy_share: None,
    })
}

/// h2load says mean and largest only; the mean stands where others have the median, and nothing for the 99th percentile.
fn read_h2load(output: &str) -> Option<Said> {
    let rate = output.lines().find_map(|line| line.strip_prefix("finished in "))?;
    let rate = rate.split(", ").find_map(|part| part.strip_suffix(" req/s"))?;
    let times = output.lines().find_map(|line| line.strip_prefix("time for request:"))?;
    let requests = output.lines().find_map(|line| line.strip_prefix("requests: "))?;
    let failed = requests.split(", ").find_map(|part| part.strip_suffix(" failed"))?;
    Some(Said {
        per_s: rate.parse().ok()?,
        p50_us: time_us(times.split_ascii_whitespace().nth(2)?)?,
        p99_us: f64::NAN,
        failed: failed.parse().ok()?,
        busy_share: None,
    })
}

fn read_overfly(output: &str) -> Option<Said> {
    let json: Value = serde_json::from_str(output.lines().last()?).ok()?;
    Some(Said {
        per_s: json["requests_per_s"].as_f64()?,
        p50_us: json["latency_us"]["p50"].as_f64()?,
        p99_us: json["latency_us"]["p99"].as_f64()?,
        failed: json["failed_total"].as_f64()?,
        busy_share: Some(json["record"]["busy_ns"].as_f64()? / (json["duration_s"].as_f64()? * 1e9)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_is_read() {
        let wrk = "  Latency Distribution\n     50%   92.00us\n     99%    4.70ms\n  Socket errors: connect 1, read 2, write 0, timeout 3\nRequests/sec:  62053.12\n";
        let said = Generator::Wrk.read(wrk).unwrap();
        assert_eq!((said.per_s, said.p50_us, said.p99_us, said.failed), (62053.12, 92.0, 4700.0, 6.0));
        let ab = "Failed requests:        4\nRequests per second:    19130.21 [#/sec] (mean)\n  50%      1\n  99%      3\n";
        let said = Generator::Ab.read(ab).unwrap();
        assert_eq!((said.per_s, said.p50_us, said.p99_us, said.failed), (19130.21, 1e3, 3e3, 4.0));
        let oha = r#"{"summary":{"requestsPerSec":5.5},"latencyPercentiles":{"p50":0.001,"p99":0.002},"errorDistribution":{"aborted due to deadline":64}}"#;
        let said = Generator::Oha("oha".into()).read(oha).unwrap();
        assert_eq!((said.per_s, said.p50_us, said.p99_us, said.failed), (5.5, 1e3, 2e3, 0.0));
        let h2load = "finished in 2.00s, 12345.60 req/s, 1.77MB/s\nrequests: 9 total, 9 started, 9 done, 9 succeeded, 1 failed, 0 errored, 0 timeout\ntime for request:       50us    210.04ms       417us       1.93ms    98.10%\n";
        let said = Generator::H2load.read(h2load).unwrap();
        assert_eq!((said.per_s, said.p50_us, said.failed), (12345.6, 417.0, 1.0));
        let overfly = r#"{"requests_per_s":7,"latency_us":{"p50":1,"p99":2},"failed_total":0,"duration_s":2,"record":{"busy_ns":1e9}}"#;
        let said = Generator::Overfly { link: "xdp" }.read(overfly).unwrap();
        assert_eq!((said.per_s, said.busy_share), (7.0, Some(0.5)));
        assert!(Generator::Wrk.read("unable to connect").unwrap_err().contains("unable to connect"));
    }

    #[test]
    fn what_a_generator_cannot_do_is_left_out() {
        let amount = Amount { connections: 10, seconds: 1 };
        let command = |generator: Generator, work| {
            generator.command(Path::new("overfly"), work, amount, "http://a/", &[])
        };
        assert_eq!(command(Generator::H2load, Work::Connections), None);
        assert_eq!(command(Generator::Wrk, Work::Connections).unwrap().last().unwrap(), "Connection: close");
        let words = command(Generator::Overfly { link: "xdp" }, Work::Connections).unwrap();
        assert_eq!(words.join(" "), "overfly load http --json -c10 -d1s --close http://a/");
    }
}
