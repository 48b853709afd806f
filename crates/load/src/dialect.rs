//! `overfly load wrk`, `wrk2` and `ab`: the flags and the pages of those tools, so that scripts and plotters that know them
//! go on working.
//!
//! A dialect is a translation. Its flags become words of `overfly load http`'s command line, its requests a
//! [`Workload`](crate::http::Workload), its counts are taken from the exchanges that the workload is shown, and a page is
//! printed from them: line by line as the tool prints it, with numbers that are true here.

mod ab;
mod own;
#[cfg(feature = "lua")]
mod script;
mod spectrum;
mod units;
mod wrk;

use std::cell::RefCell;
use std::time::Duration;

use clap::{Args, FromArgMatches};

pub use self::ab::{AbArgs, main_ab};
pub use self::wrk::{Wrk2Args, WrkArgs, main_wrk, main_wrk2};
use overfly_terminal::tell;

use crate::error::Error;
use crate::http::{HttpArgs, Progress, Report, Settings, run_from};
use crate::output::interrupt::Interrupt;
use crate::output::watch::INTERVAL;
use crate::step::{Start, StepArgs};

/// The settings of `overfly load http WORDS`.
fn settings(words: Vec<String>) -> Result<Settings, Error> {
    let command = HttpArgs::augment_args(clap::Command::new("http").no_binary_name(true));
    let arguments =
        command.try_get_matches_from(words).and_then(|matches| HttpArgs::from_arg_matches(&matches));
    // What people typed is in the values, and those are checked one by one in `settings`.
    arguments.map_err(|error| Error::usage("options", "", error.to_string()))?.settings()
}

/// Runs it: in step with others where that is asked for, and until Ctrl-C, which ends it early with its page.
fn run(
    settings: &mut Settings,
    step: &StepArgs,
    mut progress: impl FnMut(&Progress<'_>),
) -> Result<Report, Error> {
    let start = RefCell::new(Start::new(step, Duration::ZERO)?);
    if start.borrow().wants_intervals() {
        settings.interval = Some(INTERVAL);
    }
    let interrupt = Interrupt::new(false).map_err(|error| Error::machine("watching for signals", error))?;
    let result = run_from(
        settings,
        || start.borrow_mut().wait(),
        |moment| {
            if let Some(interval) = moment.interval {
                start.borrow_mut().interval(interval, moment.open);
            }
            if interrupt.came() {
                moment.end_run();
            }
            progress(moment);
        },
    );
    let start = start.into_inner();
    match result {
        Ok(report) => start.leave(&report).map(|()| report),
        Err(error) => {
            start.give_up(&error);
            Err(error)
        }
    }
}

/// What a reader should know, on standard error. Where nothing succeeded the page has said it all.
fn remark(dialect: &str, report: &Report) {
    for remark in report.remarks.iter().filter(|_| report.succeeded > 0) {
        tell(format_args!("overfly load {dialect}: {remark}"));
    }
}
