//! `overfly load http`: one run, alone or in step with others, or a search for the largest load.

use std::cell::RefCell;
use std::process::ExitCode;

use super::find_max::find_max;
use super::{HttpArgs, Progress, Report, Settings, run_from};
use crate::error::Error;
use crate::output::watch::{INTERVAL, Moment, Span, Subject, Watch};
use crate::output::{OutputArgs, print, print_report};
use crate::step::{Gatherer, Start};

/// Runs what the arguments ask for, prints the report, and says how it went:
/// 0 something succeeded, 1 nothing did or the machine cannot do it, 2 a wrong option.
#[must_use]
pub fn main_http(args: &HttpArgs) -> ExitCode {
    let done = if args.search.find_max.is_some() { find_max(args) } else { one_run(args) };
    Error::exit("overfly load http", done)
}

/// Whether anything succeeded.
fn one_run(args: &HttpArgs) -> Result<bool, Error> {
    for (option, given) in [("-c", Some(&args.connections)), ("-R", args.rate.as_ref())] {
        if let Some(given) = given.filter(|given| given.contains(':')) {
            return Err(Error::usage(option, given, "one number, or --find-max with a range"));
        }
    }
    let mut settings = args.settings()?;
    let gatherer = Gatherer::begin(&args.shards, &args.step, &args.output)?;
    // The first shard's own results are in those of all, which are what is printed then.
    let output = if gatherer.is_some() { &OutputArgs::default() } else { &args.output };
    let mut watch = Watch::new(output, subject(&settings))?;
    let start = RefCell::new(Start::new(&args.step, args.shards.patience()?)?);
    if watch.wants_intervals() || start.borrow().wants_intervals() {
        settings.interval = Some(INTERVAL);
    }
    if !args.output.json && gatherer.is_none() {
        print(&format!("Running {} @ {}\n", length(&settings), settings.targets[0].url()))?;
    }
    let result = run_from(
        &settings,
        || start.borrow_mut().wait(),
        |progress| {
            if let Some(interval) = progress.interval {
                start.borrow_mut().interval(interval, progress.open);
            }
            show(&mut watch, progress);
        },
    );
    let ended_by = watch.end();
    let result = result.map(|report| ended_early(report, ended_by));
    let start = start.into_inner();
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            start.give_up(&error);
            // The others' results, before this one's fault.
            return gatherer.map_or(Ok(false), Gatherer::end).and(Err(error));
        }
    };
    if let Some(gatherer) = gatherer {
        start.leave(&report)?;
        return gatherer.end();
    }
    let printed = print_report(args.output.json, || report.to_json(), &report);
    start.leave(&report)?;
    printed?;
    watch.finish()?;
    Ok(report.succeeded > 0)
}

pub(super) fn subject(settings: &Settings) -> Subject {
    Subject {
        url: settings.targets[0].url().to_string(),
        link: settings.link.name(),
        warmup: settings.warmup,
        duration: settings.duration,
    }
}

pub(super) fn length(settings: &Settings) -> String {
    match (settings.duration, settings.requests) {
        (Some(duration), None) => format!("{}s", duration.as_secs_f64()),
        (None, requests) => format!("{} requests", requests.unwrap_or_default()),
        (Some(duration), Some(requests)) => format!("{}s or {requests} requests", duration.as_secs_f64()),
    }
}

pub(super) fn show(watch: &mut Watch, progress: &Progress<'_>) {
    let interval = progress.interval.map(|interval| Span {
        from: interval.from,
        until: interval.until,
        record: &interval.record,
    });
    let end = watch.show(&Moment {
        elapsed: progress.elapsed,
        warming_up: progress.warming_up,
        open: progress.open,
        requests: progress.requests,
        interval,
    });
    if end {
        progress.end_run();
    }
}

fn ended_early(mut report: Report, by: Option<&str>) -> Report {
    report.remarks.extend(by.map(|by| format!("The run was ended early, by {by}.")));
    report
}
