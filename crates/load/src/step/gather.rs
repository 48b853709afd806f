//! `overfly load gather`: starts generators together and makes one report of theirs.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{Ear, Instruction, Listener, MeetingPoint, Mouth, Part, Said, VERSION};
use super::timeline::Timeline;
use overfly_terminal::tell;

use crate::arguments::{number, time};
use crate::error::Error;
use crate::http::Report;
use crate::output::interrupt::Interrupt;
use crate::output::watch::{Moment, Subject, Watch};
use crate::output::{OutputArgs, print, print_json, units};

const GENERATORS_MAX: usize = 1000;
/// How often the clock of each generator is read; the quickest answer counts.
const CLOCK_READINGS: usize = 8;
/// Telling the time is all that a generator does then.
const CLOCK_PATIENCE: Duration = Duration::from_secs(5);
/// From the first word of the start to the start: time for all to hear of it.
const LEAD: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Starts several generators at one moment, and merges their results exactly into one report.
///
/// Each generator is an `overfly load http … --join` of its own, here or on another machine.
#[derive(Debug, Clone, clap::Args)]
pub struct GatherArgs {
    /// How many generators there will be
    #[arg(short = 'g', long, value_name = "N", allow_hyphen_values = true)]
    pub generators: String,
    /// Where they join: HOST:PORT, or the path of a Unix socket
    #[arg(short = 'l', long, value_name = "ADDR|PATH")]
    pub listen: String,
    /// Give up unless all have joined by then
    #[arg(long, value_name = "TIME", default_value = "60s", allow_hyphen_values = true)]
    pub patience: String,
    /// Where the merged results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Gathers as the arguments say: 0 all reported and something succeeded, 1 not, 2 a wrong option.
#[must_use]
pub fn main_gather(args: &GatherArgs) -> ExitCode {
    Error::exit("overfly load gather", Gathering::open(args).and_then(Gathering::run))
}

/// A gatherer whom generators may join.
#[derive(Debug)]
pub(super) struct Gathering {
    circle: Circle,
    watch: Watch,
    patience: Duration,
    json: bool,
}

impl Gathering {
    /// Listens.
    pub(super) fn open(args: &GatherArgs) -> Result<Gathering, Error> {
        let wanted = number::<usize>("--generators", &args.generators)?;
        if !(1..=GENERATORS_MAX).contains(&wanted) {
            return Err(Error::usage("--generators", wanted, format!("1 to {GENERATORS_MAX} generators")));
        }
        let patience = time("--patience", &args.patience)?;
        let place = MeetingPoint::parse("--listen", &args.listen)?;
        let subject = Subject {
            url: format!("{wanted} generators in step"),
            link: "their links",
            warmup: Duration::ZERO,
            duration: None,
        };
        let watch = Watch::new(&args.output, subject)?;
        let listener = Listener::open(&place).map_err(|error| {
            Error::usage("--listen", &args.listen, format!("an address or a path that is free ({error})"))
        })?;
        let circle = Circle::open(listener, wanted)?;
        Ok(Gathering { circle, watch, patience, json: args.output.json })
    }

    /// Whether all reported and something succeeded.
    pub(super) fn run(self) -> Result<bool, Error> {
        let Gathering { mut circle, watch, patience, json } = self;
        let result = circle.run(patience, watch);
        if let Err(error) = &result {
            circle.give_up(error);
        }
        conclude(result?, json)
    }
}

/// What the generators brought home.
#[derive(Debug, Default)]
struct Gathered {
    /// By the generator's name.
    reports: Vec<(String, Report)>,
    /// Which generators have none, and why.
    missing: Vec<String>,
}

/// One report of several.
fn conclude(gathered: Gathered, json: bool) -> Result<bool, Error> {
    let Gathered { reports, missing } = gathered;
    let lines: String = reports
        .iter()
        .map(|(name, report)| {
            let p99 = units::time(report.latency_us.p99);
            format!("  {name:<30}{:>12.2}/s{p99:>12} p99\n", report.requests_per_s)
        })
        .collect();
    let count = reports.len();
    let reports = reports.into_iter().map(|(_, report)| report).collect();
    let Some(mut merged) = Report::merge(reports) else {
        return Err(Error::machine("no generator reported", missing.join("; ")));
    };
    merged.remarks.extend(missing.iter().map(|name| format!("{name}: its requests are missing here.")));
    if json {
        print_json(&merged.to_json())?;
    } else {
        let word = if count == 1 { "generator" } else { "generators in step" };
        print(&format!("{count} {word} @ {}\n{lines}{merged}", merged.url))?;
    }
    Ok(missing.is_empty() && merged.succeeded > 0)
}

/// What comes in.
#[derive(Debug)]
enum Event {
    Came(Mouth, Ear),
    Said(usize, Said),
    Gone(usize, String),
}

/// A generator, as far as it is known.
#[derive(Debug)]
struct Generator {
    name: String,
    mouth: Mouth,
    ready: bool,
    report: Option<Report>,
    /// Why there is no report and will be none.
    lost: Option<String>,
}

impl Generator {
    fn is_done(&self) -> bool {
        self.report.is_some() || self.lost.is_some()
    }
}

/// All generators, and who listens for them.
#[derive(Debug)]
struct Circle {
    wanted: usize,
    listener: Arc<Listener>,
    doorkeeper: Option<JoinHandle<()>>,
    generators: Vec<Generator>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    interrupt: Interrupt,
}

impl Circle {
    fn open(listener: Listener, wanted: usize) -> Result<Circle, Error> {
        let interrupt =
            Interrupt::new(false).map_err(|error| Error::machine("watching for signals", error))?;
        tell(format_args!(
            "Waiting for {wanted} generators: overfly load http … --join {}",
            listener.place()
        ));
        let listener = Arc::new(listener);
        let (sender, events) = channel();
        let (theirs, to_us) = (listener.clone(), sender.clone());
        let doorkeeper = std::thread::Builder::new().name("listener".to_string()).spawn(move || {
            while let Some((ear, mouth)) = theirs.accept() {
                if to_us.send(Event::Came(mouth, ear)).is_err() {
                    return;
                }
            }
        });
        let doorkeeper = doorkeeper.map_err(|error| Error::machine("starting a thread", error))?;
        let generators = Vec::new();
        Ok(Circle { wanted, listener, doorkeeper: Some(doorkeeper), generators, events, sender, interrupt })
    }

    fn run(&mut self, patience: Duration, mut watch: Watch) -> Result<Gathered, Error> {
        self.wait_for_all(Instant::now() + patience)?;
        let clocks = self.read_clocks()?;
        self.start(&clocks)?;
        let ended_by = self.follow(&mut watch);
        watch.end();
        watch.finish()?;
        if let Some(by) = ended_by {
            self.lose_the_rest(&format!("gathering was ended by {by}"));
        }
        let mut gathered = Gathered::default();
        for generator in &mut self.generators {
            match (generator.report.take(), &generator.lost) {
                (Some(report), _) => gathered.reports.push((generator.name.clone(), report)),
                (None, why) => {
                    let why = why.as_deref().unwrap_or("has no report");
                    gathered.missing.push(format!("{} {why}", generator.name));
                }
            }
        }
        Ok(gathered)
    }

    fn next_event(&self, until: Instant) -> Result<Option<Event>, Error> {
        let wait = until.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
        match self.events.recv_timeout(wait) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if self.interrupt.came() => {
                Err(Error::machine("gathering was ended", "by a signal"))
            }
            // Disconnected never: there is a sender of our own.
            Err(_) => Ok(None),
        }
    }

    fn wait_for_all(&mut self, deadline: Instant) -> Result<(), Error> {
        while self.generators.len() < self.wanted || !self.generators.iter().all(|generator| generator.ready)
        {
            if Instant::now() >= deadline {
                let ready = self.generators.iter().filter(|generator| generator.ready).count();
                let why = format!("{ready} of {} are there and ready (--patience)", self.wanted);
                return Err(Error::machine("waiting for generators", why));
            }
            if let Some(event) = self.next_event(deadline)? {
                self.before_the_start(event)?;
            }
        }
        Ok(())
    }

    /// Before the start each generator counts: without one there is no run.
    fn before_the_start(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Came(mouth, ear) => self.welcome(mouth, ear),
            Event::Gone(index, why) => Err(self.lost(index, &why)),
            Event::Said(index, Said::Failed(why)) => Err(self.lost(index, &why)),
            Event::Said(_, Said::Hello { version, name }) if version != VERSION => {
                let why = format!("it speaks version {version}, this is {VERSION}: use the same overfly");
                Err(Error::machine(format!("generator {name}"), why))
            }
            Event::Said(index, Said::Hello { name, .. }) => {
                tell(format_args!("{} of {}: {name}", index + 1, self.wanted));
                self.generators[index].name = name;
                Ok(())
            }
            Event::Said(index, Said::Ready) => {
                self.generators[index].ready = true;
                Ok(())
            }
            Event::Said(index, Said::Clock(_) | Said::Interval(_) | Said::Result(_)) => {
                Err(self.lost(index, "it spoke out of turn"))
            }
        }
    }

    fn lost(&self, index: usize, why: &str) -> Error {
        Error::machine(format!("generator {} was lost before the start", self.generators[index].name), why)
    }

    fn welcome(&mut self, mut mouth: Mouth, mut ear: Ear) -> Result<(), Error> {
        let index = self.generators.len();
        if index == self.wanted {
            let _ =
                mouth.say(&Instruction::GiveUp(format!("all {} generators are there already", self.wanted)));
            mouth.hang_up();
            return Ok(());
        }
        let events = self.sender.clone();
        let listen = move || {
            loop {
                let event = match ear.hear() {
                    Ok(Some(said)) => Event::Said(index, said),
                    Ok(None) => Event::Gone(index, "it died, or went away".to_string()),
                    Err(error) => Event::Gone(index, format!("what it said was not understood: {error}")),
                };
                let over = matches!(event, Event::Gone(..));
                if events.send(event).is_err() || over {
                    return;
                }
            }
        };
        let name = format!("generator {}", index + 1);
        let thread = std::thread::Builder::new().name(name.clone()).spawn(listen);
        thread.map_err(|error| Error::machine("starting a thread", error))?;
        self.generators.push(Generator { name, mouth, ready: false, report: None, lost: None });
        Ok(())
    }

    /// What each generator's clock says at one moment of ours, and how long asking takes.
    fn read_clocks(&mut self) -> Result<Vec<Clock>, Error> {
        (0..self.generators.len()).map(|index| self.read_clock(index)).collect()
    }

    fn read_clock(&mut self, index: usize) -> Result<Clock, Error> {
        let mut best: Option<Clock> = None;
        for _ in 0..CLOCK_READINGS {
            let asked = Instant::now();
            if let Err(error) = self.generators[index].mouth.say(&Instruction::TellClock) {
                return Err(self.lost(index, &error.to_string()));
            }
            let reading_ns = loop {
                if asked.elapsed() > CLOCK_PATIENCE {
                    return Err(self.lost(index, "it does not tell its clock"));
                }
                match self.next_event(asked + CLOCK_PATIENCE)? {
                    Some(Event::Said(speaker, Said::Clock(reading_ns))) if speaker == index => {
                        break reading_ns;
                    }
                    Some(event) => self.before_the_start(event)?,
                    None => {}
                }
            };
            let round_trip = asked.elapsed();
            if best.as_ref().is_none_or(|best| round_trip < best.round_trip) {
                best = Some(Clock { at: asked + round_trip / 2, reading_ns, round_trip });
            }
        }
        best.ok_or_else(|| self.lost(index, "it does not tell its clock"))
    }

    fn start(&mut self, clocks: &[Clock]) -> Result<(), Error> {
        let slowest = clocks.iter().map(|clock| clock.round_trip).max().unwrap_or_default();
        let start = Instant::now() + LEAD + 4 * slowest;
        for (index, clock) in clocks.iter().enumerate() {
            if let Err(error) =
                self.generators[index].mouth.say(&Instruction::Start(clock.reading_ns_at(start)))
            {
                return Err(self.lost(index, &error.to_string()));
            }
        }
        let within = slowest.as_secs_f64() * 1e6 / 2.0;
        tell(format_args!("Started: each one's clock is known to within {}", units::time(within)));
        Ok(())
    }

    /// Until the last one is done, or a person has seen enough. What a generator says after it died counts no more.
    fn follow(&mut self, watch: &mut Watch) -> Option<&'static str> {
        let began = Instant::now();
        let mut timeline = Timeline::new(self.wanted);
        let mut requests = 0;
        while !self.generators.iter().all(Generator::is_done) {
            match self.next_event(Instant::now() + LOOK_EVERY) {
                Ok(Some(Event::Came(mut mouth, _))) => {
                    let _ = mouth.say(&Instruction::GiveUp("the run has begun without it".to_string()));
                    mouth.hang_up();
                }
                Ok(Some(Event::Gone(index, why))) => self.lose(index, why, &mut timeline),
                Ok(Some(Event::Said(index, said))) => self.hear(index, said, &mut timeline),
                Ok(None) => {}
                Err(_) => return Some("a signal"),
            }
            let now = Moment {
                elapsed: began.elapsed(),
                warming_up: false,
                open: timeline.open(),
                requests,
                interval: None,
            };
            let mut end = false;
            timeline.show(|span| {
                requests += span.record.requests();
                end |= watch.show(&Moment { requests, interval: Some(span), ..now });
            });
            end |= watch.show(&Moment { requests, ..now });
            if end {
                return Some("a key or a signal");
            }
        }
        None
    }

    fn hear(&mut self, index: usize, said: Said, timeline: &mut Timeline) {
        match said {
            Said::Interval(part) => self.interval(index, &part, timeline),
            Said::Result(report) => {
                timeline.end(index);
                let generator = &mut self.generators[index];
                if generator.lost.is_none() {
                    generator.report = Some(*report);
                }
            }
            Said::Failed(why) => self.lose(index, format!("failed: {why}"), timeline),
            Said::Hello { .. } | Said::Ready | Said::Clock(_) => {}
        }
    }

    fn interval(&mut self, index: usize, part: &Part, timeline: &mut Timeline) {
        if !self.generators[index].is_done() {
            timeline.add(index, part);
        }
    }

    fn lose(&mut self, index: usize, why: String, timeline: &mut Timeline) {
        timeline.end(index);
        let generator = &mut self.generators[index];
        if !generator.is_done() {
            tell(format_args!("{}: {why}", generator.name));
            generator.lost = Some(why);
        }
    }

    fn lose_the_rest(&mut self, why: &str) {
        for generator in self.generators.iter_mut().filter(|generator| !generator.is_done()) {
            generator.lost = Some(why.to_string());
        }
    }

    /// Tells all that nothing will come of it.
    fn give_up(&mut self, why: &Error) {
        for generator in &mut self.generators {
            let _ = generator.mouth.say(&Instruction::GiveUp(why.to_string()));
        }
    }
}

impl Drop for Circle {
    fn drop(&mut self) {
        self.listener.close();
        for generator in &self.generators {
            generator.mouth.hang_up();
        }
        if let Some(doorkeeper) = self.doorkeeper.take() {
            let _ = doorkeeper.join();
        }
    }
}

/// One reading of a generator's clock.
#[derive(Debug)]
struct Clock {
    at: Instant,
    reading_ns: u64,
    round_trip: Duration,
}

impl Clock {
    /// What it will say at this moment of ours.
    fn reading_ns_at(&self, moment: Instant) -> u64 {
        let ahead = moment.saturating_duration_since(self.at);
        self.reading_ns.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX))
    }
}
