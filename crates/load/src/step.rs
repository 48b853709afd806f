//! Several generators in step: all begin at one moment, and their results merge exactly.
//!
//! Each joins a gatherer ([`gather`], `overfly load gather`), which starts them all at one moment, whatever their clocks say,
//! adds up their intervals while they run, and makes one report of theirs in the end. Without one they begin at a time of day
//! ([`Start`]), and [`merge`] adds their reports up later.

mod channel;
mod gather;
mod instant;
mod merge;
mod seat;
mod shards;
mod timeline;

use std::time::{Duration, Instant};

pub use gather::{GatherArgs, main_gather};
pub use merge::{MergeArgs, main_merge};
pub(crate) use shards::Gatherer;
pub use shards::ShardArgs;

use crate::error::Error;
use crate::http::{Interval, Report};
use channel::Part;
use seat::{Seat, wait_until};

/// Whoever begins so late is not in step any more.
const LATE: Duration = Duration::from_millis(10);

/// When a run begins, on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Several generators in step")]
pub struct StepArgs {
    /// Begin together with others, when `overfly load gather` there says so
    #[arg(long, value_name = "ADDR|PATH", conflicts_with = "start_at")]
    pub join: Option<String>,
    /// Begin at this time: 2030-01-31T09:30:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub start_at: Option<String>,
}

/// When a run begins, and who is told of it.
#[derive(Debug)]
pub(crate) enum Start {
    Now,
    At(Instant),
    InStep(Seat),
}

impl Start {
    /// `patience`: how long who gathers may take to be there.
    pub(crate) fn new(args: &StepArgs, patience: Duration) -> Result<Start, Error> {
        if let Some(given) = &args.join {
            return Seat::take(given, patience).map(Start::InStep);
        }
        let Some(given) = &args.start_at else {
            return Ok(Start::Now);
        };
        let wait = instant::until(given, instant::parse(given)?)?;
        Ok(Start::At(Instant::now() + wait))
    }

    /// Whether anybody wants to know of each interval.
    pub(crate) fn wants_intervals(&self) -> bool {
        matches!(self, Start::InStep(_))
    }

    /// All is ready: returns when the run is to begin.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        match self {
            Start::Now => Ok(()),
            Start::At(moment) => {
                let late = Instant::now().saturating_duration_since(*moment);
                if late > LATE {
                    let why = format!(
                        "all was ready only {:.2} s after it: choose a later one",
                        late.as_secs_f64()
                    );
                    return Err(Error::machine("beginning at the time of --start-at", why));
                }
                wait_until(*moment);
                Ok(())
            }
            Start::InStep(seat) => seat.wait(),
        }
    }

    pub(crate) fn interval(&mut self, interval: &Interval, open: u64) {
        if let Start::InStep(seat) = self {
            seat.interval(Part {
                index: interval.index,
                until_s: interval.until.as_secs_f64(),
                open,
                record: interval.record.clone(),
            });
        }
    }

    /// There is no report.
    pub(crate) fn give_up(self, why: &Error) {
        if let Start::InStep(seat) = self {
            seat.give_up(why);
        }
    }

    pub(crate) fn leave(self, report: &Report) -> Result<(), Error> {
        match self {
            Start::InStep(seat) => seat.leave(report),
            Start::Now | Start::At(_) => Ok(()),
        }
    }
}
