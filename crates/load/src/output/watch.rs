//! All that follows a run while it goes on: the files, the metrics, the live line or the screen, and the keys and signals that
//! end it early.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use overfly_terminal::{redraw, tell};

use super::args::OutputArgs;
use super::board::Board;
use super::csv::Series;
use super::hdr::HdrLog;
use super::interrupt::Interrupt;
use super::metrics::Metrics;
use super::tui::Tui;
use crate::error::Error;
use crate::record::Record;

/// How often an interval ends.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// Where to.
    pub(crate) url: String,
    /// Over what.
    pub(crate) link: &'static str,
    /// Nothing is counted before.
    pub(crate) warmup: Duration,
    /// Of the measured part; `None`: until the requests are done.
    pub(crate) duration: Option<Duration>,
}

/// How a run stands at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// Since the start, warm-up included.
    pub(crate) elapsed: Duration,
    pub(crate) warming_up: bool,
    /// Connections that are open.
    pub(crate) open: u64,
    /// Requests ended.
    pub(crate) requests: u64,
    /// The interval that has just ended.
    pub(crate) interval: Option<Span<'a>>,
}

/// A part of the measured time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'a> {
    /// After the measured part began.
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) record: &'a Record,
}

/// A file with what is written to it.
#[derive(Debug)]
struct Written<T> {
    path: PathBuf,
    to: T,
}

/// What shows a run to a person.
#[derive(Debug)]
enum Live {
    Nothing,
    Line {
        shown: bool,
    },
    /// Not before the run begins: until then, messages belong on the terminal.
    ScreenToCome,
    Screen(Tui),
}

/// Follows a run.
#[derive(Debug)]
pub(crate) struct Watch {
    board: Board,
    subject: Subject,
    series: Option<Written<Series<BufWriter<File>>>>,
    /// Its head is written when the run begins.
    log_to_come: Option<Written<BufWriter<File>>>,
    log: Option<Written<HdrLog<BufWriter<File>>>>,
    metrics: Option<Metrics>,
    live: Live,
    interrupt: Option<Interrupt>,
    begun: bool,
    ended_by: Option<&'static str>,
    broken: Option<Error>,
}

impl Watch {
    /// Makes the files and listens, so that what cannot be is said before the run.
    pub(crate) fn new(args: &OutputArgs, subject: Subject) -> Result<Watch, Error> {
        let series = args.csv.as_deref().map(|path| {
            let to = create("--csv", path)?;
            let to = Series::new(to).map_err(|error| unwritten(path, &error))?;
            Ok(Written { path: path.to_path_buf(), to })
        });
        let log_to_come = args.hdr.as_deref().map(|path| {
            let to = create("--hdr", path)?;
            Ok(Written { path: path.to_path_buf(), to })
        });
        let serve = |address: &String| Metrics::serve(address, &subject.url, subject.link);
        let metrics = args.metrics.as_ref().map(serve).transpose()?;
        if let Some(address) = metrics.as_ref().and_then(|metrics| metrics.address().ok()) {
            tell(format_args!("Metrics at http://{address}/metrics"));
        }
        let live = match (args.tui, args.json) {
            (true, _) => {
                Tui::check()?;
                Live::ScreenToCome
            }
            (false, false) if io::stderr().is_terminal() => Live::Line { shown: false },
            (false, _) => Live::Nothing,
        };
        Ok(Watch {
            board: board(&subject),
            series: series.transpose()?,
            log_to_come: log_to_come.transpose()?,
            log: None,
            metrics,
            subject,
            live,
            interrupt: None,
            begun: false,
            ended_by: None,
            broken: None,
        })
    }

    /// Whether anybody wants to know of each interval.
    pub(crate) fn wants_intervals(&self) -> bool {
        self.series.is_some()
            || self.log_to_come.is_some()
            || self.metrics.is_some()
            || !matches!(self.live, Live::Nothing)
    }

    /// Shows how the run stands. True: it should end now.
    pub(crate) fn show(&mut self, moment: &Moment<'_>) -> bool {
        if !self.begun {
            self.begun = true;
            let begun = self.begin(moment);
            self.note(begun);
        }
        self.board.elapsed = moment.elapsed;
        self.board.warming_up = moment.warming_up;
        self.board.open = moment.open;
        self.board.requests = moment.requests;
        if let Some(metrics) = &self.metrics {
            metrics.set(moment.open, moment.warming_up);
        }
        if let Some(span) = moment.interval {
            let written = self.interval(span, moment.open);
            self.note(written);
        }
        let asked = self.draw();
        if self.interrupt.as_ref().is_some_and(Interrupt::came) {
            self.ended_by.get_or_insert("a signal");
        }
        asked || self.ended_by.is_some() || self.broken.is_some()
    }

    fn begin(&mut self, moment: &Moment<'_>) -> Result<(), Error> {
        let start = SystemTime::now() - moment.elapsed + self.subject.warmup;
        if let Some(Written { path, to }) = self.log_to_come.take() {
            let to = HdrLog::new(to, start).map_err(|error| unwritten(&path, &error))?;
            self.log = Some(Written { path, to });
        }
        let patient = matches!(self.live, Live::ScreenToCome);
        if self.interrupt.is_none() {
            let interrupt =
                Interrupt::new(patient).map_err(|error| Error::machine("watching for signals", error))?;
            self.interrupt = Some(interrupt);
        }
        if patient {
            self.live = Live::Screen(Tui::open()?);
        }
        Ok(())
    }

    fn interval(&mut self, span: Span<'_>, open: u64) -> Result<(), Error> {
        let length = span.until.saturating_sub(span.from);
        self.board.add(span.record, length);
        if let Some(metrics) = &self.metrics {
            metrics.add(span.record);
        }
        if let Some(Written { path, to }) = &mut self.series {
            to.interval(span.until, length, span.record, open).map_err(|error| unwritten(path, &error))?;
        }
        if let Some(Written { path, to }) = &mut self.log {
            to.interval(span.from, length, span.record).map_err(|error| unwritten(path, &error))?;
        }
        Ok(())
    }

    /// True: somebody at the terminal has asked for the end.
    fn draw(&mut self) -> bool {
        match &mut self.live {
            Live::Nothing | Live::ScreenToCome => {}
            Live::Line { shown } => {
                *shown = true;
                super::redraw_fitted(&self.board.line());
            }
            Live::Screen(tui) => match tui.show(&self.board) {
                Ok(true) => _ = self.ended_by.get_or_insert("a key"),
                Ok(false) => {}
                // The terminal has gone: the run need not.
                Err(_) => self.live = Live::Nothing,
            },
        }
        self.ended_by.is_some()
    }

    /// Only the first thing that went wrong is said.
    fn note(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.broken.get_or_insert(error);
        }
    }

    /// The run is over: the terminal is for messages again. Says what ended the run early, if anything did. A signal is the
    /// process's own matter from now on.
    pub(crate) fn end(&mut self) -> Option<&'static str> {
        self.interrupt = None;
        self.end_before_another()
    }

    /// As [`Watch::end`], but another run follows: a signal that comes before it ends it.
    pub(crate) fn end_before_another(&mut self) -> Option<&'static str> {
        match std::mem::replace(&mut self.live, Live::Nothing) {
            Live::Line { shown } => {
                if shown {
                    redraw("");
                }
                self.live = Live::Line { shown: false };
            }
            Live::Screen(tui) => {
                drop(tui);
                self.live = Live::ScreenToCome;
            }
            other => self.live = other,
        }
        self.begun = false;
        self.board = board(&self.subject);
        self.ended_by.take()
    }

    /// Writes out what is left, and says what went wrong with the files or the terminal.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        if let Some(Written { path, to }) = &mut self.series {
            let flushed = to.flush().map_err(|error| unwritten(path, &error));
            self.broken = self.broken.take().or(flushed.err());
        }
        if let Some(Written { path, to }) = &mut self.log {
            let flushed = to.flush().map_err(|error| unwritten(path, &error));
            self.broken = self.broken.take().or(flushed.err());
        }
        self.broken.take().map_or(Ok(()), Err)
    }
}

fn board(subject: &Subject) -> Board {
    let title = format!("{} over {}", subject.url, subject.link);
    Board::new(title, subject.duration.map(|duration| subject.warmup + duration))
}

fn create(option: &'static str, path: &Path) -> Result<BufWriter<File>, Error> {
    let file = File::create(path);
    file.map(BufWriter::new).map_err(|error| {
        Error::usage(option, path.display(), format!("a file that can be written ({error})"))
    })
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    Error::machine(format!("writing {}", path.display()), error)
}
