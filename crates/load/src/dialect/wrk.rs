//! `overfly load wrk` and `overfly load wrk2`.

mod args;
mod counts;
mod page;
mod workload;

use std::process::ExitCode;
use std::sync::Arc;

use self::args::Both;
pub use self::args::{Wrk2Args, WrkArgs};
use self::counts::{Collection, LatencyFrom};
use self::page::{Results, Shown, closing, opening};
use self::workload::{Requests, WrkWorkload};
use super::{remark, run, settings};
use crate::error::Error;
use crate::http::Settings;
use crate::output::print;

/// Runs what wrk's flags ask for and prints wrk's page. The exit status is that of `overfly load http`.
#[must_use]
pub fn main_wrk(args: &WrkArgs) -> ExitCode {
    if args.both.version {
        return version("wrk");
    }
    let shown = if args.latency { Shown::Percentiles } else { Shown::Summary };
    let plan = Plan { dialect: "wrk", from: LatencyFrom::Sent, batch_latency: false, shown };
    Error::exit("overfly load wrk", plan.load(&args.both, args.both.words()))
}

/// Runs what wrk2's flags ask for and prints wrk2's page. The exit status is that of `overfly load http`.
#[must_use]
pub fn main_wrk2(args: &Wrk2Args) -> ExitCode {
    if args.both.version {
        return version("wrk2");
    }
    let shown = match (args.latency, args.u_latency) {
        (false, false) => Shown::Summary,
        (recorded, uncorrected) => Shown::Spectrum { recorded, uncorrected },
    };
    let mut words = args.both.words();
    words.extend(args.rate.iter().flat_map(|rate| ["-R".to_string(), rate.clone()]));
    let plan = Plan { dialect: "wrk2", from: LatencyFrom::Due, batch_latency: args.batch_latency, shown };
    Error::exit("overfly load wrk2", plan.load(&args.both, words))
}

fn version(dialect: &str) -> ExitCode {
    let said =
        print(&format!("{dialect}'s flags, scripts and page, by overfly {}\n", env!("CARGO_PKG_VERSION")));
    Error::exit(&format!("overfly load {dialect}"), said.map(|()| true))
}

/// What tells the two apart.
struct Plan {
    dialect: &'static str,
    from: LatencyFrom,
    batch_latency: bool,
    shown: Shown,
}

impl Plan {
    /// Whether anything succeeded.
    fn load(&self, args: &Both, words: Vec<String>) -> Result<bool, Error> {
        let mut settings = settings(words)?;
        let workload = Arc::new(WrkWorkload {
            requests: requests(args, &settings)?,
            from: self.from,
            batch_latency: self.batch_latency,
            collection: Collection::default(),
        });
        settings.workload = Some(workload.clone());
        let length_s = settings.duration.unwrap_or_default().as_secs_f64();
        print(&opening(settings.targets[0].url(), length_s, settings.threads, settings.connections))?;
        let report = run(&mut settings, &args.own.step, |_| {})?;
        let results = workload.collection.results(report.duration_s, report.bytes_in);
        print(&closing(&results, self.shown))?;
        if args.script.is_none() || report.open_loop.is_some() {
            // In a closed loop only a script knows how many of its requests should have been under way.
            remark(self.dialect, &report);
        }
        let succeeded = results.completed > results.errors.status;
        done(&workload.requests, results)?;
        Ok(succeeded)
    }
}

#[cfg(feature = "lua")]
fn requests(args: &Both, settings: &Settings) -> Result<Requests, Error> {
    let target = &settings.targets[0];
    let Some(file) = &args.script else {
        return Ok(Requests::Template(settings.request(target, false).into()));
    };
    let plan = super::script::Plan {
        file,
        target,
        server: target.resolve()?,
        headers: &settings.headers,
        arguments: &args.script_arguments,
        threads: settings.threads,
    };
    super::script::Script::start(&plan).map(Requests::Script)
}

#[cfg(not(feature = "lua"))]
fn requests(args: &Both, settings: &Settings) -> Result<Requests, Error> {
    match &args.script {
        None => Ok(Requests::Template(settings.request(&settings.targets[0], false).into())),
        Some(file) => Err(Error::usage(
            "-s",
            file.display(),
            "no script: this overfly was built without the feature lua",
        )),
    }
}

/// The script's last word.
#[cfg(feature = "lua")]
fn done(requests: &Requests, results: Results) -> Result<(), Error> {
    let Requests::Script(script) = requests else {
        return Ok(());
    };
    let errors = results.errors;
    script.done(super::script::Summary {
        duration_s: results.runtime_s,
        requests: results.completed,
        bytes: results.bytes,
        errors: [
            ("connect", errors.connect),
            ("read", errors.read),
            ("write", errors.write),
            ("status", errors.status),
            ("timeout", errors.timeout),
        ],
        latency_ns: results.latency_ns,
        rates: results.rates,
    })
}

#[cfg(not(feature = "lua"))]
fn done(_: &Requests, _: Results) -> Result<(), Error> {
    Ok(())
}
