//! All runs of a plan, in their order, with a progress line.

use std::fs;
use std::io::IsTerminal;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overfly_terminal::{shown, tell};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::Error;
use crate::environment::Environment;
use crate::hosts::{Binaries, Hosts, Tuned};
use crate::interruption::interrupted;
use crate::journal::{Journal, Line};
use crate::lab::require_root;
use crate::plan::{Case, Link, Mode, Plan};
use crate::report::Report;
use crate::schedule::{Attempt, Cores, STEADY, Schedule};
use crate::site::Site;
use crate::trial::{Tools, Trial, carry_out};

/// How to carry a plan out.
#[derive(Debug, Clone)]
pub struct Session {
    /// The `overfly` command, for the server and the generator.
    pub overfly: PathBuf,
    /// What `overfly run` preloads, for hosts that have no Overfly of their own.
    pub library: Option<PathBuf>,
    /// Folder for the results.
    pub output: PathBuf,
    /// Determines the order of the runs, if it is to be random.
    pub seed: u64,
    /// Go on with what an interrupted session left in `output`; its seed holds.
    pub resume: bool,
}

/// A run as it is kept under `raw/`.
#[derive(Debug, Serialize)]
struct RawRun<'a> {
    order: usize,
    payload_bytes: u64,
    connection: crate::plan::Connection,
    link: Link,
    varied: String,
    mode: Mode,
    generator: Link,
    repeat: u32,
    /// `order` of the run that this one was to replace.
    #[serde(skip_serializing_if = "Option::is_none")]
    made_again: Option<usize>,
    /// Speed of the cores, million iterations per second.
    yardstick: &'a Attempt,
    trial: &'a Trial,
}

impl Session {
    /// A seed that differs from run to run.
    pub fn random_seed() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64 & 0xffff_ffff)
    }

    /// Carries out every run, writes the results, and returns what they come to and where they are. A run that fails
    /// is tried again, and is in the report if it fails again; the others go on. After an [`interruption`](crate::interruption)
    /// the report is of what was measured until then, and the earlier session's is left alone.
    ///
    /// # Errors
    /// If nothing could be run at all, or the results cannot be written.
    pub fn run(&self, plan: &Plan) -> Result<(Report, PathBuf), Error> {
        if plan.needs_lab() {
            require_root(
                "this plan, which makes network namespaces and loads XDP programs (links = [\"memif\"] does not),",
            )?;
        }
        raise_descriptor_limit();
        let (mut journal, earlier) = if self.resume {
            let (journal, earlier) = Journal::resume(&self.output, plan)?;
            (journal, Some(earlier))
        } else {
            (Journal::begin(&self.output, plan, self.seed)?, None)
        };
        let seed = earlier.as_ref().map_or(self.seed, |earlier| earlier.seed);
        let raw = journal.place().join("raw");
        let build = self.build(plan)?;
        let binaries = Binaries { overfly: &self.overfly, library: self.library.as_deref() };
        let hosts = Hosts::reach(plan, binaries)?;
        let mut environment = match &hosts {
            Some(hosts) => {
                hosts.send_build(&build)?;
                hosts.environment()
            }
            None => Environment::observe(
                &if plan.needs_lab() { Site::lab(&self.overfly)? } else { Site::machine(&self.overfly)? },
                &plan.server.program,
            ),
        };
        let mut tuning = Tuning { plan, hosts: hosts.as_ref(), overfly: &self.overfly, tuned: None };
        if plan.tune {
            environment.tuned = tuning.be(true)?;
        }

        let cases = plan.cases();
        tell(format_args!("{}: {} runs in {}", plan.name(), cases.len(), plan.order.in_words(seed)));
        let mut progress = Progress::new(plan, cases.len());
        let started = Instant::now();
        let cores = Cores {
            server_cpus: plan.all_server_cores(),
            client_cpu: plan.client.cpu,
            started,
            hosts: hosts.as_ref(),
        };
        let patience = Duration::from_secs_f64(plan.patience_s);
        let mut schedule = Schedule::new(cores, plan.order_of_runs(seed), run_time(plan), patience);
        let mut trials = Vec::new();
        for Line { point, again, attempt, trial } in earlier.map(|earlier| earlier.lines).unwrap_or_default()
        {
            schedule.restore(Attempt { point, again, ..attempt });
            trials.push((cases[point], trial));
        }
        if self.resume {
            tell(format_args!("{} runs are there already", trials.len()));
        }
        while let Some(point) = schedule.next() {
            if interrupted() {
                break;
            }
            let (index, case) = (trials.len(), cases[point]);
            progress.before(index, schedule.left(), plan, case);
            tuning.be_for(case.mode)?;
            let tools = Tools { overfly: &self.overfly, build: &build, hosts: hosts.as_ref() };
            let mut trial = carry_out(plan, tools, case);
            if interrupted() {
                // Whoever asked for the end has ended this run too.
                break;
            }
            let Some(attempt) = schedule.made(take(&mut trial.conditions)) else { break };
            let again = attempt.again;
            journal.add(&Line { point, again, attempt: attempt.clone(), trial: trial.clone() })?;
            self.keep(&raw, index, plan, case, &attempt, &trial)?;
            progress.after(index, plan, case, &trial, schedule.share(&attempt) < STEADY);
            trials.push((case, trial));
        }
        progress.finish();
        drop(tuning);
        let report = Report::new(plan, seed, environment, started.elapsed(), schedule.close(), &trials);
        let place = journal.place();
        report.write(&place)?;
        if report.is_interrupted() {
            return Ok((report, place));
        }
        journal.publish()?;
        Ok((report, self.output.clone()))
    }

    /// The folder of what the plan's server needs, which is made if the plan says how.
    fn build(&self, plan: &Plan) -> Result<PathBuf, Error> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(Error::kernel("find the working folder"));
        let folder = absolute(&self.output.join("build"))?;
        if let Some(script) = &plan.server.build {
            fs::create_dir_all(&folder).map_err(Error::kernel(format!("make {}", folder.display())))?;
            let path = absolute(&plan.beside(script))?;
            let status = Command::new(&path)
                .arg(&folder)
                .stdin(Stdio::null())
                .status()
                .map_err(Error::kernel(format!("start {}", path.display())))?;
            if !status.success() {
                let message = format!("server.build = \"{}\": {status}", script.display());
                return Err(plan.fault("server.build", message));
            }
        }
        Ok(folder)
    }

    fn keep(
        &self,
        raw: &Path,
        index: usize,
        plan: &Plan,
        case: Case,
        attempt: &Attempt,
        trial: &Trial,
    ) -> Result<(), Error> {
        let cell = plan.cells()[case.cell];
        let generator = if case.generator == cell.generator(case.mode) {
            String::new()
        } else {
            format!("-{}-sockets", case.generator)
        };
        let name = format!(
            "{:03}-{}B-{}-{}{}-{}{generator}-{}{}.json",
            index + 1,
            cell.payload_bytes,
            cell.connection,
            cell.link,
            plan.varied(&cell).split([',', ' ', '/']).fold(String::new(), |name, word| match word {
                "" => name,
                word => format!("{name}-{word}"),
            }),
            case.mode,
            case.repeat,
            if attempt.again.is_some() { "-again" } else { "" }
        );
        let run = RawRun {
            order: index + 1,
            payload_bytes: cell.payload_bytes,
            connection: cell.connection,
            link: cell.link,
            varied: plan.varied(&cell),
            mode: case.mode,
            generator: case.generator,
            repeat: case.repeat,
            made_again: attempt.again.map(|earlier| earlier + 1),
            yardstick: attempt,
            trial,
        };
        let text = serde_json::to_string_pretty(&run).unwrap_or_default();
        let path = raw.join(name);
        fs::write(&path, text + "\n").map_err(Error::kernel(format!("write {}", path.display())))
    }
}

/// Whether hosts are tuned just now, where a plan wants that.
struct Tuning<'a> {
    plan: &'a Plan,
    hosts: Option<&'a Hosts>,
    overfly: &'a Path,
    tuned: Option<Tuned>,
}

impl Tuning<'_> {
    /// As a run of this mode has to find its hosts.
    fn be_for(&mut self, mode: Mode) -> Result<(), Error> {
        if self.plan.tune {
            self.be(mode != Mode::KernelAsFound)?;
        }
        Ok(())
    }

    /// Returns what was changed, if anything was.
    fn be(&mut self, tuned: bool) -> Result<Vec<String>, Error> {
        match (tuned, &self.tuned) {
            (true, None) => {
                let all = Tuned::all(self.hosts, self.overfly)?;
                Ok(self.tuned.insert(all).changed.clone())
            }
            (false, Some(_)) => {
                self.tuned = None;
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Runs of a search, about.
const SEARCH_RUNS: f64 = 10.0;

/// What a run takes: starting and stopping a server needs about half a second.
fn run_time(plan: &Plan) -> Duration {
    let runs = if plan.client.find_max.is_some() { SEARCH_RUNS } else { 1.0 };
    Duration::from_secs_f64((plan.warmup_s + plan.duration_s) * runs + 0.5)
}

/// One line that says how far we are: it rewrites itself on a terminal and is a line for each run
/// elsewhere.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    started: Instant,
    count: usize,
    expected: Duration,
}

impl Progress {
    fn new(plan: &Plan, count: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(count as u64), target);
        // The template is a constant; without it the bar has its default look.
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Progress { bar, terminal, started: Instant::now(), count, expected: run_time(plan) }
    }

    fn left(&self, done: usize) -> u64 {
        let each = if done == 0 {
            self.expected
        } else {
            self.started.elapsed() / u32::try_from(done).unwrap_or(u32::MAX)
        };
        each.saturating_mul(u32::try_from(self.count - done).unwrap_or(u32::MAX)).as_secs_f64().ceil() as u64
    }

    /// `more` runs follow this one.
    fn before(&mut self, done: usize, more: usize, plan: &Plan, case: Case) {
        self.count = done + 1 + more;
        self.bar.set_length(self.count as u64);
        let cell = plan.cells()[case.cell];
        self.bar.set_position(done as u64);
        self.bar.set_message(format!(
            "{} s left, now {}: {}",
            self.left(done),
            case.mode,
            plan.name_of(&cell)
        ));
    }

    fn after(&self, index: usize, plan: &Plan, case: Case, trial: &Trial, disturbed: bool) {
        let cell = plan.cells()[case.cell];
        let what = format!("{}, {} server, {} generator", plan.name_of(&cell), case.mode, case.generator);
        if !trial.problems.is_empty() || trial.failed_requests > 0 {
            let problems = trial.problems.join("; ");
            let line = format!("{what}: {} failed requests; {problems}", trial.failed_requests);
            if self.terminal { self.bar.println(shown(&line)) } else { tell(line) }
        }
        if !self.terminal {
            let measure = plan.measure().described();
            tell(format_args!(
                "{}/{} {what}: {} {}{}, {} s left",
                index + 1,
                self.count,
                measure.shown(trial.value),
                measure.unit,
                if disturbed { " on a slow machine" } else { "" },
                self.left(index + 1)
            ));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// As many descriptors as we may have, for the servers and generators that inherit the limit.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
