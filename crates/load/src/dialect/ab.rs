//! `overfly load ab`.

mod args;
mod counts;
mod distribution;
mod files;
mod html;
mod page;
mod request;
mod workload;

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

pub use self::args::AbArgs;
use self::page::Results;
use self::request::Request;
use self::workload::{AbWorkload, Tolerance};
use super::{remark, run, settings};
use overfly_terminal::tell;

use crate::arguments::{count, number};
use crate::error::Error;
use crate::http::{Progress, Report, Settings, Target};
use crate::output::print;

/// ab's `-n` where there is `-t` alone.
const TIMED_REQUESTS: u64 = 50_000;
/// ab speaks of its progress from so many requests on, ten times or every so many.
const QUIET_UP_TO: u64 = 150;
const HEARTBEAT: u64 = 100;

/// Runs what ab's flags ask for and prints ab's page. The exit status is that of `overfly load http`.
#[must_use]
pub fn main_ab(args: &AbArgs) -> ExitCode {
    if args.version {
        return Error::exit("overfly load ab", print(page::BANNER).map(|()| true));
    }
    Error::exit("overfly load ab", load(args))
}

/// Whether anything succeeded.
fn load(args: &AbArgs) -> Result<bool, Error> {
    args.refuse()?;
    let target = target(args)?;
    let mut settings = settings(words(args, &target)?).map_err(as_typed)?;
    let requests = settings.requests.unwrap_or(TIMED_REQUESTS);
    if settings.connections as u64 > requests {
        return Err(Error::usage(
            "-c",
            settings.connections,
            format!("no more than the {requests} requests (-n)"),
        ));
    }
    let request = Request::new(args, &target)?;
    let verbosity = number("-v", &args.verbosity)?;
    let length = args.expect_size.as_deref().map(|given| count("--expect-size", given)).transpose()?;
    // Made before the run: nobody wants to learn after an hour that a file cannot be written.
    let csv = args.csv.as_deref().map(|path| create("-e", path)).transpose()?;
    let gnuplot = args.gnuplot.as_deref().map(|path| create("-g", path)).transpose()?;
    let tolerance = Tolerance { receive: args.receive_errors_are_fine, all: args.keep_going };
    let workload = Arc::new(AbWorkload::new(
        request.clone(),
        tolerance,
        args.any_length,
        length,
        verbosity,
        gnuplot.is_some(),
    ));
    settings.workload = Some(workload.clone());

    let heartbeat = (!args.quiet && requests > QUIET_UP_TO).then(|| (requests / 10).max(HEARTBEAT));
    print(&opening(args, &target, heartbeat.is_some()))?;
    if verbosity >= 2 {
        let head = String::from_utf8_lossy(&request.bytes[..request.head]);
        print(&format!("INFO: {} header == \n---\n{head}\n---\n", request.method))?;
    }
    let began = SystemTime::now();
    let mut heart = Heart { every: heartbeat, told: 0 };
    let report = run(&mut settings, &args.own.step, |progress| heart.beat(progress))?;
    heart.stop(report.requests);
    if heartbeat.is_none() {
        print("..done\n")?;
    }

    let results = results(args, &target, &settings, &request, &workload, &report);
    match args.html() {
        Some(attributes) => print(&html::table(&results, &attributes))?,
        None => print(&page::page(&results, args.shown()))?,
    }
    remark("ab", &report);
    if let (Some(file), Some(path)) = (csv, &args.csv) {
        write(file, path, &files::percentages(&results.counts.total))?;
    }
    if let (Some(file), Some(path)) = (gnuplot, &args.gnuplot) {
        write(file, path, &files::requests(results.counts.rows.as_deref().unwrap_or_default(), began))?;
    }
    Ok(results.counts.good > 0)
}

/// What is asked for: the URL's resource, even where a proxy is asked for it.
fn target(args: &AbArgs) -> Result<Target, Error> {
    let url = args.url.as_deref().unwrap_or_default();
    if url.contains("://") { Target::parse(url) } else { Target::parse(&format!("http://{url}")) }
}

/// An error that names an option of `overfly load http` names ab's.
fn as_typed(error: Error) -> Error {
    match error {
        Error::Usage { option: "-d", given, expected } => Error::Usage { option: "-t", given, expected },
        Error::Usage { option: "-t", given, expected } => {
            Error::Usage { option: "--threads", given, expected }
        }
        Error::Usage { option: "--timeout", given, expected } => {
            Error::Usage { option: "-s", given, expected }
        }
        other => other,
    }
}

/// The command line of `overfly load http` that does the same.
fn words(args: &AbArgs, target: &Target) -> Result<Vec<String>, Error> {
    let mut words = args.own.words();
    let mut word = |option: &str, given: &str| words.extend([option.to_string(), given.to_string()]);
    word("-t", &args.threads);
    word("-c", &args.concurrency);
    word("--timeout", &args.timeout);
    match (&args.requests, &args.time_limit) {
        (Some(requests), _) => word("-n", requests),
        (None, Some(_)) => word("-n", &TIMED_REQUESTS.to_string()),
        (None, None) => word("-n", "1"),
    }
    if let Some(limit) = &args.time_limit {
        word("-d", limit);
    }
    if let Some(given) = &args.bind {
        let address: IpAddr =
            given.parse().map_err(|_| Error::usage("-B", given, "an address of this machine"))?;
        word("--sources", &format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }));
    }
    if !args.keep_alive {
        words.push("--close".to_string());
    }
    if target.is_secure() {
        words.push("--insecure".to_string());
    }
    words.push(match &args.proxy {
        None => target.url().to_string(),
        Some(proxy) if proxy.contains(['/', '@', '?', '#']) => {
            return Err(Error::usage("-X", proxy, "PROXY[:PORT]"));
        }
        Some(proxy) => format!("http://{proxy}/"),
    });
    Ok(words)
}

fn opening(args: &AbArgs, target: &Target, heartbeat: bool) -> String {
    if args.html().is_some() {
        return html::BANNER.to_string();
    }
    let through = args.proxy.as_ref().map(|proxy| format!("[through {proxy}] ")).unwrap_or_default();
    let end = if heartbeat { "\n" } else { "..." };
    format!("{}Benchmarking {} {through}(be patient){end}", page::BANNER, target.host())
}

fn results(
    args: &AbArgs,
    target: &Target,
    settings: &Settings,
    request: &Request,
    workload: &AbWorkload,
    report: &Report,
) -> Results {
    Results {
        software: workload.software(),
        host: target.host().to_string(),
        port: target.port(),
        path: target.path().to_string(),
        length: workload.length(),
        concurrency: settings.connections,
        keep_alive: args.keep_alive,
        sends_content: request.bytes.len() > request.head,
        seconds: report.duration_s,
        received: report.bytes_in,
        sent: report.bytes_out,
        counts: workload.counts(),
    }
}

/// `Completed 1000 requests`, on standard error.
struct Heart {
    every: Option<u64>,
    told: u64,
}

impl Heart {
    fn beat(&mut self, progress: &Progress<'_>) {
        self.tell(progress.requests);
    }

    fn tell(&mut self, requests: u64) {
        while let Some(every) = self.every
            && requests >= self.told + every
        {
            self.told += every;
            tell(format_args!("Completed {} requests", self.told));
        }
    }

    fn stop(&mut self, requests: u64) {
        self.tell(requests);
        if self.every.is_some() {
            tell(format_args!("Finished {requests} requests"));
        }
    }
}

fn create(flag: &'static str, path: &Path) -> Result<File, Error> {
    File::create(path)
        .map_err(|error| Error::usage(flag, path.display(), format!("a file that can be written ({error})")))
}

fn write(mut file: File, path: &Path, text: &str) -> Result<(), Error> {
    file.write_all(text.as_bytes())
        .map_err(|error| Error::machine(format!("writing {}", path.display()), error))
}
