//! The command line of `overfly load http`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use super::{Progress, Settings, Target, run};
use crate::arguments::{count, cpus, header, number, time};
use crate::error::Error;
use crate::link::Link;

/// Loads an HTTP server in a closed loop and reports requests/s, latency and failures.
#[derive(Debug, Clone, clap::Args)]
pub struct HttpArgs {
    /// What to request: http://HOST[:PORT][/PATH]
    #[arg(value_name = "URL")]
    pub url: String,
    /// Threads; with --link xdp each has a stack of its own
    #[arg(short = 't', long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub threads: String,
    /// Connections over all threads
    #[arg(short = 'c', long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub connections: String,
    /// How long to measure: 10s, 500ms, 2m [default: 10s, or as long as -n takes]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub duration: Option<String>,
    /// Stop after this many requests, failed ones counted too
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    pub requests: Option<String>,
    /// Run this long before anything is counted
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true)]
    pub warmup: String,
    /// A request that takes longer has failed
    #[arg(long, value_name = "TIME", default_value = "2s", allow_hyphen_values = true)]
    pub timeout: String,
    /// A new connection for each request
    #[arg(long)]
    pub close: bool,
    /// One more request header; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", allow_hyphen_values = true)]
    pub headers: Vec<String>,
    /// The status that is a success [default: any 2xx or 3xx]
    #[arg(long, value_name = "STATUS", allow_hyphen_values = true)]
    pub expect_status: Option<String>,
    /// The content size that is a success, in bytes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub expect_size: Option<String>,
    /// What carries the connections: xdp (user-level stack, needs root) or kernel (sockets)
    #[arg(long, value_name = "xdp|kernel", default_value = "kernel", allow_hyphen_values = true)]
    pub link: String,
    /// The interface for --link xdp [default: the one on the route to the server]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub interface: Option<String>,
    /// Pin thread after thread to these processors: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub cpus: Option<String>,
    /// The local ports that --link xdp takes for itself
    #[arg(long, value_name = "LOW-HIGH", default_value = "10000-32000", allow_hyphen_values = true)]
    pub ports: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl HttpArgs {
    /// The settings that these arguments ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first option that is wrong.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut settings = Settings::new(Target::parse(&self.url)?);
        settings.threads = number("-t", &self.threads)?;
        settings.connections = count("-c", &self.connections)? as usize;
        settings.requests = self.requests.as_deref().map(|given| count("-n", given)).transpose()?;
        let duration = self.duration.as_deref().map(|given| time("-d", given)).transpose()?;
        settings.duration = match (duration, settings.requests) {
            (None, Some(_)) => None,
            (None, None) => settings.duration,
            (given, _) => given,
        };
        settings.warmup = time("--warmup", &self.warmup)?;
        settings.timeout = time("--timeout", &self.timeout)?;
        settings.close = self.close;
        settings.headers = self.headers.iter().map(|given| header(given)).collect::<Result<_, _>>()?;
        settings.expect_status = self
            .expect_status
            .as_deref()
            .map(|given| match number("--expect-status", given)? {
                status @ 200..=999 => Ok(status),
                _ => Err(Error::usage("--expect-status", given, "a status from 200 to 999")),
            })
            .transpose()?;
        settings.expect_size =
            self.expect_size.as_deref().map(|given| count("--expect-size", given)).transpose()?;
        settings.link = match self.link.as_str() {
            "xdp" => Link::Xdp,
            "kernel" => Link::Kernel,
            other => return Err(Error::usage("--link", other, "xdp or kernel")),
        };
        settings.interface.clone_from(&self.interface);
        settings.cpus = self.cpus.as_deref().map(cpus).transpose()?.unwrap_or_default();
        settings.ports = self
            .ports
            .split_once('-')
            .and_then(|(low, high)| Some(low.parse().ok()?..=high.parse().ok()?))
            .filter(|ports| !ports.is_empty() && *ports.start() >= 1024)
            .ok_or_else(|| {
                Error::usage("--ports", &self.ports, "LOW-HIGH from 1024-65535, such as 10000-32000")
            })?;
        settings.check()?;
        Ok(settings)
    }
}

/// Runs what the arguments ask for, prints the report, and says how it went:
/// 0 something succeeded, 1 nothing did or the machine cannot do it, 2 a wrong option.
#[must_use]
pub fn main_http(args: &HttpArgs) -> ExitCode {
    match load(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("overfly load http: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

/// Whether anything succeeded.
fn load(args: &HttpArgs) -> Result<bool, Error> {
    let settings = args.settings()?;
    if !args.json {
        let length = match (settings.duration, settings.requests) {
            (Some(duration), None) => format!("{}s", duration.as_secs_f64()),
            (None, requests) => format!("{} requests", requests.unwrap_or_default()),
            (Some(duration), Some(requests)) => {
                format!("{}s or {requests} requests", duration.as_secs_f64())
            }
        };
        print(&format!("Running {length} @ {}\n", settings.target.url()));
    }
    let mut progress_line = ProgressLine::new(!args.json);
    let report = run(&settings, |progress| progress_line.show(progress))?;
    progress_line.clear();
    let text = if args.json { report.to_json() + "\n" } else { report.to_string() };
    print(&text);
    Ok(report.succeeded > 0)
}

/// A reader that has gone away does not change how the run goes.
fn print(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// A line that rewrites itself, for people at a terminal only.
struct ProgressLine {
    wanted: bool,
    shown: bool,
}

impl ProgressLine {
    fn new(wanted: bool) -> ProgressLine {
        ProgressLine { wanted: wanted && std::io::stderr().is_terminal(), shown: false }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        if !self.wanted {
            return;
        }
        self.shown = true;
        let phase = if progress.warming_up { "warm-up" } else { "running" };
        eprint!(
            "\r\x1b[K{phase} {:.0} s: {} requests, {} connections open",
            progress.elapsed.as_secs_f64(),
            progress.requests,
            progress.open
        );
    }

    fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        http: HttpArgs,
    }

    fn settings(line: &str) -> Result<Settings, String> {
        let words = std::iter::once("http").chain(line.split(' '));
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        command.http.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_that_people_know() {
        let s = settings("-t2 -c 1k -d 1.5s -n 1M --warmup 500ms --timeout 3 --close --cpus 0,2-3 --expect-status 204 --expect-size 10k http://127.0.0.1:81/x").unwrap();
        assert_eq!((s.threads, s.connections, s.requests), (2, 1000, Some(1_000_000)));
        assert_eq!(s.duration, Some(Duration::from_millis(1500)));
        assert_eq!(s.warmup, Duration::from_millis(500));
        assert_eq!(s.timeout, Duration::from_secs(3));
        assert!(s.close);
        assert_eq!(s.cpus, [0, 2, 3]);
        assert_eq!((s.expect_status, s.expect_size), (Some(204), Some(10_000)));
        assert_eq!(s.link, Link::Kernel);
        let s = settings("http://a --link xdp --interface eth0 --ports 20000-30000").unwrap();
        assert_eq!((s.link, s.interface.as_deref()), (Link::Xdp, Some("eth0")));
        assert_eq!(s.ports, 20_000..=30_000);
        assert_eq!(settings("-n 5 http://a").unwrap().duration, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (line, start) in [
            ("-t x http://a", "-t x: expected "),
            ("-t -1 http://a", "-t -1: expected "),
            ("-c 1x http://a", "-c 1x: expected "),
            ("-c 99999999999999999999 http://a", "-c 99999999999999999999: expected "),
            ("-d 1y http://a", "-d 1y: expected "),
            ("-d -1s http://a", "-d -1s: expected "),
            ("-d inf http://a", "-d inf: expected "),
            ("-n 0 http://a", "-n 0: expected "),
            ("--link dpdk http://a", "--link dpdk: expected "),
            ("--cpus 3-1 http://a", "--cpus 3-1: expected "),
            ("--ports 5-1 http://a", "--ports 5-1: expected "),
            ("--expect-status 100 http://a", "--expect-status 100: expected "),
            ("-H nocolon http://a", "-H nocolon: expected "),
            ("https://a", "URL https://a: expected "),
        ] {
            let text = settings(line).unwrap_err();
            assert!(text.starts_with(start) && !text.contains('\n'), "{line}: {text}");
        }
        assert!(header("a: b\r\nc: d").is_err());
    }
}
