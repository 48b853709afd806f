//! `overfly dump`: the frames of running stacks, which no other program sees: the kernel's own taps are not on their way.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use overfly_broker::watch::Capture;

use super::filter::Filter;
use super::pcapng::Writer;
use super::{Choice, Failure, Subject, monotonic_us};
use crate::complain;

/// Between two looks at what stacks have written.
const PAUSE: Duration = Duration::from_millis(10);

/// Write the frames of programs over Overfly as pcapng, for tcpdump, tshark and Wireshark
///
/// A stack copies its frames only while somebody dumps them. Processes that begin later are not
/// dumped. It ends with Ctrl-C, after --count frames or --seconds, or when its processes have ended.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// Keep frames of which all this is true: `host ADDRESS`, `port NUMBER`, `tcp`, `udp`, with
    /// `and` between them
    #[arg(short, long, default_value = "")]
    filter: Filter,
    /// End after so many frames
    #[arg(short, long, value_name = "FRAMES")]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Bytes of each frame to keep
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(14..=131_072))]
    snaplen: u32,
}

pub(crate) fn dump(arguments: &Arguments) -> ExitCode {
    match write(arguments) {
        Ok((kept, dropped)) => {
            overfly_terminal::tell(format_args!(
                "overfly: {kept} frames captured, {dropped} dropped because they came too fast"
            ));
            ExitCode::SUCCESS
        }
        Err(failure) => failure.exit(),
    }
}

impl Arguments {
    fn to_standard_output(&self) -> bool {
        self.write == Path::new("-")
    }

    /// Frames could not be written.
    fn failed(&self, error: io::Error) -> Failure {
        if self.to_standard_output() {
            return Failure::Output(error.into());
        }
        Failure::Said(format!("{}: {error}", self.write.display()))
    }
}

fn write(arguments: &Arguments) -> Result<(u64, u64), Failure> {
    let subjects = arguments.choice.some_subjects()?;
    let failed = |error| arguments.failed(error);
    let out: Box<dyn Write> = if arguments.to_standard_output() {
        if io::stdout().is_terminal() {
            let words = "pcapng is not for a terminal: name a file with --write, or `| tshark -r -`";
            return Err(words.to_owned().into());
        }
        Box::new(io::stdout())
    } else {
        Box::new(File::create(&arguments.write).map_err(failed)?)
    };
    let mut dumper = Dumper::new(arguments, &subjects, out)?;
    dumper.run(arguments).map_err(failed)?;
    Ok(dumper.sums())
}

/// One process that is dumped.
struct Source<'a> {
    subject: &'a Subject,
    capture: Capture<'a>,
    kept: u64,
}

struct Dumper<'a> {
    writer: Writer<BufWriter<Box<dyn Write>>>,
    sources: Vec<Source<'a>>,
    /// What turns the monotonic clock into the time of day, in microseconds.
    epoch_us: u64,
}

impl<'a> Dumper<'a> {
    fn new(
        arguments: &Arguments,
        subjects: &'a [Subject],
        out: Box<dyn Write>,
    ) -> Result<Dumper<'a>, Failure> {
        let failed = |error| arguments.failed(error);
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let mut writer = Writer::new(BufWriter::new(out)).map_err(failed)?;
        let mut sources = Vec::new();
        for subject in subjects.iter().filter(|subject| subject.watched.stack.is_some()) {
            let capture = match subject.watched.view.capture(arguments.snaplen as usize) {
                Ok(capture) => capture,
                // What a process says of who takes its frames is no reason to miss the others'.
                Err(error) => {
                    complain(format_args!("process {}: {error}", subject.watched.process));
                    continue;
                }
            };
            let description = format!("process {} ({})", subject.watched.process, subject.program);
            writer
                .interface(&subject.interface.to_string(), &description, arguments.snaplen)
                .map_err(failed)?;
            sources.push(Source { subject, capture, kept: 0 });
        }
        if sources.is_empty() {
            let words =
                "there are no frames to write: no process that was found has a stack to take them from";
            return Err(words.to_owned().into());
        }
        writer.flush().map_err(failed)?;
        Ok(Dumper { writer, sources, epoch_us: now_us.wrapping_sub(monotonic_us()) })
    }

    fn run(&mut self, arguments: &Arguments) -> io::Result<()> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let end = arguments
            .seconds
            .and_then(|seconds| Instant::now().checked_add(Duration::try_from_secs_f64(seconds).ok()?));
        let mut left = arguments.count.unwrap_or(u64::MAX);
        loop {
            let over = interrupted.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
            // What a process wrote before it ended is still there.
            let alive = self.sources.iter().any(Source::is_alive);
            let came = self.take(&arguments.filter, &mut left)?;
            if left == 0 || over || !alive {
                break;
            }
            if !came {
                self.writer.flush()?;
                std::thread::sleep(PAUSE);
            }
        }
        let now_us = self.epoch_us.wrapping_add(monotonic_us());
        for (interface, source) in (0..).zip(&self.sources) {
            let dropped = source.capture.dropped();
            self.writer.statistics(interface, now_us, source.kept.saturating_add(dropped), dropped)?;
        }
        self.writer.flush()
    }

    /// Writes what has come. Returns whether there was anything.
    fn take(&mut self, filter: &Filter, left: &mut u64) -> io::Result<bool> {
        let Dumper { writer, sources, epoch_us } = self;
        let mut result = Ok(());
        let mut came = false;
        for (interface, Source { capture, kept, .. }) in (0..).zip(sources) {
            came |= capture.take(|frame| {
                if *left == 0 || result.is_err() || !filter.keeps(frame.bytes) {
                    return;
                }
                *left -= 1;
                *kept += 1;
                let time_us = epoch_us.wrapping_add(frame.time_us);
                result = writer.frame(interface, time_us, frame.outbound, frame.length as u32, frame.bytes);
            }) > 0;
        }
        result.map(|()| came)
    }

    /// Frames that were kept, and frames that came too fast.
    fn sums(&self) -> (u64, u64) {
        self.sources.iter().fold((0, 0), |(kept, dropped), source| {
            (kept + source.kept, dropped.saturating_add(source.capture.dropped()))
        })
    }
}

impl Source<'_> {
    fn is_alive(&self) -> bool {
        Path::new("/proc").join(self.subject.watched.process.to_string()).exists()
    }
}
