//! `--join`: a generator's place among others.

use std::io;
use std::time::{Duration, Instant};

use super::channel::{Ear, Instruction, MeetingPoint, Mouth, Part, Said, VERSION, connect};
use crate::error::Error;
use crate::http::Report;

const OPTION: &str = "--join";
/// Between two tries to join.
const AGAIN: Duration = Duration::from_millis(100);
/// A sleep ends this much late at times: the rest is waited for awake.
const AWAKE: Duration = Duration::from_millis(2);

/// A generator's place among others.
#[derive(Debug)]
pub(crate) struct Seat {
    ear: Ear,
    mouth: Mouth,
    /// What this generator's clock counts from.
    beginning: Instant,
    given: String,
}

impl Seat {
    /// Joins whoever gathers there. For so long nobody need be there, nor the name be known.
    pub(crate) fn take(given: &str, patience: Duration) -> Result<Seat, Error> {
        let place = MeetingPoint::parse(OPTION, given)?;
        let lost = |error: io::Error| {
            let why = format!("{error}; is `overfly load gather --listen {given}` running there?");
            Error::machine(format!("joining {given}"), why)
        };
        let end = Instant::now() + patience;
        let (ear, mut mouth) = loop {
            match connect(&place) {
                Err(_) if Instant::now() < end => std::thread::sleep(AGAIN),
                joined => break joined.map_err(lost)?,
            }
        };
        mouth.say(&Said::Hello { version: VERSION, name: name() }).map_err(lost)?;
        Ok(Seat { ear, mouth, beginning: Instant::now(), given: given.to_string() })
    }

    /// All is ready: waits for the others and for the moment at which all begin.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.say(&Said::Ready)?;
        loop {
            match self.ear.hear() {
                Ok(Some(Instruction::TellClock)) => {
                    let clock = self.clock_ns();
                    self.say(&Said::Clock(clock))?;
                }
                Ok(Some(Instruction::Start(at_ns))) => {
                    wait_until(self.beginning + Duration::from_nanos(at_ns));
                    return Ok(());
                }
                Ok(Some(Instruction::GiveUp(why))) => return Err(Error::machine("starting in step", why)),
                Ok(None) => return Err(self.gone("it went away before the start")),
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    /// One more interval is over. That nobody listens any more is said at the end.
    pub(super) fn interval(&mut self, part: Part) {
        let _ = self.mouth.say(&Said::Interval(Box::new(part)));
    }

    /// The run is over.
    pub(crate) fn leave(mut self, report: &Report) -> Result<(), Error> {
        self.say(&Said::Result(Box::new(report.clone())))
    }

    /// The run cannot be, or cannot go on.
    pub(crate) fn give_up(mut self, why: &Error) {
        let _ = self.mouth.say(&Said::Failed(why.to_string()));
    }

    fn clock_ns(&self) -> u64 {
        self.beginning.elapsed().as_nanos() as u64
    }

    fn say(&mut self, message: &Said) -> Result<(), Error> {
        self.mouth.say(message).map_err(|error| self.gone(error))
    }

    fn gone(&self, why: impl std::fmt::Display) -> Error {
        Error::machine(format!("in step with {}", self.given), why)
    }
}

/// Machine and process.
fn name() -> String {
    let machine = rustix::system::uname();
    format!("{}:{}", machine.nodename().to_string_lossy(), std::process::id())
}

/// Returns at this moment, not after it if it can be helped.
pub(crate) fn wait_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        match left.checked_sub(AWAKE) {
            _ if left.is_zero() => return,
            Some(asleep) if !asleep.is_zero() => std::thread::sleep(asleep),
            _ => std::hint::spin_loop(),
        }
    }
}
