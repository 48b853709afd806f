//! Medians, gains, the table, and what is written.

mod page;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::environment::Environment;
use crate::plan::{Case, Cell, Connection, Link, Metric, Mode, Plan, Rule};
use crate::schedule::{Account, Standing};
use crate::statistics::{self, Interval};
use crate::trial::Trial;

/// What a session came to. Its JSON form is `summary.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    title: String,
    /// When it was made, UTC: `2026-11-24 03:20`.
    date: String,
    /// The plan's path, as it was given.
    plan_file: String,
    plan: Plan,
    seed: u64,
    /// Of all runs together.
    duration_s: f64,
    environment: Environment,
    /// How steady the machine was.
    yardstick: Account,
    /// Somebody ended it: runs are missing.
    interrupted: bool,
    /// Only whether the plan works was to be seen: the figures say nothing.
    smoke: bool,
    /// In the order of the plan.
    pub cells: Vec<CellReport>,
    /// What the plan's rules say of each cell.
    pub judgements: Vec<Judgement>,
}

/// Above this share of what the null server gives, the generator may be the limit.
const NEAR_CEILING: f64 = 0.9;

/// A rule of the plan, applied to a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Judgement {
    /// The rule.
    pub rule: Rule,
    /// The cell's name.
    pub place: String,
    /// The figure that the rule is about.
    pub value: f64,
    /// Whether it is as required.
    pub holds: bool,
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Judgement { rule, place, value, holds } = self;
        let (mark, word) = if *holds { ("+", "holds") } else { ("!", "is missed") };
        write!(f, "{mark} {rule} {word}: {place} has {value:.2}")
    }
}

/// One cell of the comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellReport {
    /// Size of the file.
    pub payload_bytes: u64,
    /// How connections were used.
    pub connection: Connection,
    /// What carried the generator's connections.
    pub link: Link,
    /// Connections that were kept busy.
    pub connections: u32,
    /// Requests that were due each second; none in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Of each server.
    pub workers: u32,
    /// Servers that ran at once.
    pub instances: u32,
    /// What Overfly ran with.
    pub profile: String,
    /// What sets this cell apart beyond payload, connection and link; empty where the plan goes through nothing else.
    pub varied: String,
    /// The kernel's figures are those of an earlier cell, which has another profile and the same kernel.
    pub shares_kernel: bool,
    /// The kernel figure to beat: the better of the two below, if there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Figure>,
    /// The kernel server under the cell's link, where kernel sockets were tried too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_xdp: Option<Figure>,
    /// The kernel server under a generator with kernel sockets, every offload on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_sockets: Option<Figure>,
    /// The kernel server with nothing tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_as_found: Option<Figure>,
    /// The server that does nothing but answer: what the generator can do at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null_server: Option<Figure>,
    /// Overfly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overfly: Option<Figure>,
    /// Overfly's median over the kernel's; over memif the kernel's server CPU a request over Overfly's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// Where the gain lies ([`statistics::ratio_interval`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain_interval: Option<Interval>,
    /// Every point of one side, or of both, was measured while the machine was slow.
    pub gain_disturbed: bool,
}

/// The repeats of one mode in one cell. All but `points` and the errors are medians: over the points that are not
/// disturbed, if both sides of the comparison have such, else over all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Requests per second.
    pub median: f64,
    /// Where the median of many more runs would lie ([`statistics::median_interval`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_interval: Option<Interval>,
    /// Requests per second of every run, in the order of the repeats; 0 where a run failed.
    pub points: Vec<f64>,
    /// Indices into `points` of those that stand although the machine was slow during the run.
    pub disturbed: Vec<usize>,
    /// Indices into `points` of those that lie far from the others ([`statistics::outliers`]); they count all the same.
    pub outliers: Vec<usize>,
    /// What the median is of: requests per second, and µs of the server's CPU for each.
    #[serde(skip)]
    counted: Vec<(f64, f64)>,
    /// Requests per second of runs that another run at the same point has replaced, or failed to.
    pub set_aside: Vec<f64>,
    /// Failed requests of all runs, also of those set aside, and one for each run that failed.
    pub errors: u64,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Why runs failed that worked at the second try: these are no errors.
    pub tried_again: Vec<String>,
    /// What carried the generator's connections.
    pub link: Link,
    /// µs.
    pub server_cpu_us_per_request: f64,
    /// µs.
    pub client_cpu_us_per_request: f64,
    /// µs.
    pub latency_p50_us: f64,
    /// µs.
    pub latency_p99_us: f64,
    /// Every percentile that the generator reports, µs: `p99_9`.
    pub latency_us: BTreeMap<String, f64>,
    /// %.
    pub server_core_busy_percent: f64,
    /// %.
    pub server_core_softirq_percent: f64,
    /// %.
    pub client_core_busy_percent: f64,
    /// %.
    pub client_core_softirq_percent: f64,
    /// Share of the time that the generator had something to do, %.
    pub generator_busy_percent: f64,
    /// Which side could not do more.
    pub limit: Limit,
    /// As it is typed inside the server's namespace, if it had one.
    pub server_command: String,
    /// As it is typed inside the client's namespace, if it had one.
    pub client_command: String,
}

/// Which side could not do more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The server's core had no time left, the generator had.
    Server,
    /// The generator had no time left: the server might have done more.
    Generator,
    /// Both had time left, and waited for each other.
    Neither,
}

impl Limit {
    /// A side that is busy for more than this has no time left.
    const BUSY_PERCENT: f64 = 95.0;

    fn of(server_percent: f64, generator_percent: f64) -> Limit {
        if generator_percent > Limit::BUSY_PERCENT {
            Limit::Generator
        } else if server_percent > Limit::BUSY_PERCENT {
            Limit::Server
        } else {
            Limit::Neither
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limit::Server => "server",
            Limit::Generator => "generator",
            Limit::Neither => "neither",
        })
    }
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        seed: u64,
        environment: Environment,
        duration: Duration,
        account: Account,
        trials: &[(Case, Trial)],
    ) -> Report {
        let cells = plan.cells().into_iter().enumerate();
        let cells: Vec<CellReport> = cells
            .map(|(index, cell)| CellReport::new(plan, index, cell, trials, &account.standings))
            .collect();
        let rules = plan.rules.iter();
        let judgements = rules.flat_map(|rule| cells.iter().filter_map(|cell| cell.judged(rule))).collect();
        Report {
            judgements,
            title: plan.title.clone(),
            date: crate::environment::now(),
            plan_file: plan.source.file.display().to_string(),
            plan: plan.clone(),
            seed,
            duration_s: (duration.as_secs_f64() * 10.0).round() / 10.0,
            environment,
            yardstick: account,
            interrupted: crate::interruption::interrupted(),
            smoke: plan.source.smoke,
            cells,
        }
    }

    /// Failed runs and failed requests of all cells.
    pub fn errors(&self) -> u64 {
        self.cells.iter().flat_map(CellReport::figures).map(|figure| figure.errors).sum()
    }

    /// Whether somebody ended the session before its end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// What a reader has to know before all else.
    fn warning(&self) -> Option<&'static str> {
        match (self.interrupted, self.smoke) {
            (true, _) => Some("The session was interrupted: runs are missing. `--resume` goes on with it."),
            (_, true) => Some("A smoke run: it shows that the plan works; its figures say nothing."),
            _ => None,
        }
    }

    /// Rules of the plan that were missed, over all cells.
    pub fn missed(&self) -> usize {
        self.judgements.iter().filter(|judgement| !judgement.holds).count()
    }

    /// What an earlier session came to: `folder` has its `summary.json`.
    ///
    /// # Errors
    /// [`Error::Plan`] if there is none, or it is of another version.
    pub fn read(folder: &Path) -> Result<Report, Error> {
        let path = folder.join("summary.json");
        let wrong = |message: String| Error::Plan { file: path.display().to_string(), line: None, message };
        let text = fs::read_to_string(&path)
            .map_err(|error| wrong(format!("{error}; expected the folder that `overfly bench` wrote")))?;
        serde_json::from_str(&text).map_err(|error| {
            wrong(format!("{error}; expected a summary.json of this version's `overfly bench`"))
        })
    }

    /// Writes every form of the report to `folder`; each takes the place of an earlier one only when it is whole.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        for (name, text) in [
            ("summary.json", self.to_json()),
            ("report.md", self.to_markdown()),
            ("report.html", self.to_html()),
            ("points.csv", self.to_csv()),
        ] {
            let path = folder.join(name);
            let part = folder.join(format!("{name}.part"));
            let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
            if written.is_err() {
                let _ = fs::remove_file(&part);
            }
            written.map_err(Error::kernel(format!("write {}", path.display())))?;
        }
        Ok(())
    }

    /// `summary.json`
    pub fn to_json(&self) -> String {
        // Numbers, strings and string keys only: there is nothing that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The table for a terminal.
    pub fn to_text(&self) -> String {
        let head = [
            "payload",
            "connection",
            "server",
            "median req/s",
            "gain",
            "server µs/req",
            "p99 µs",
            "busy s/c %",
            "limit",
            "errors",
            "points",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for cell in &self.cells {
            rows.extend(cell.rows());
        }
        let widths: Vec<usize> = (0..head.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = format!("{}\n\n", self.title);
        if let Some(warning) = self.warning() {
            let _ = writeln!(text, "! {warning}\n");
        }
        for row in &rows {
            for (column, (value, width)) in row.iter().zip(&widths).enumerate() {
                // Words to the left, numbers to the right, and the last column free.
                let _ = match column {
                    0..3 => write!(text, "{value:<width$}  "),
                    10 => write!(text, "{value}"),
                    _ => write!(text, "{value:>width$}  "),
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        if self.has(Link::Memif) {
            text.push_str(
                "Gain over memif is that of a server core: the kernel's server µs/req over Overfly's.\n",
            );
        }
        for note in self.method().into_iter().chain(self.steadiness()) {
            let _ = writeln!(text, "{note}");
        }
        for problem in self.problems() {
            let _ = writeln!(text, "! {problem}");
        }
        for near in self.cells.iter().flat_map(CellReport::near_ceiling) {
            let _ = writeln!(text, "{near}");
        }
        for judgement in &self.judgements {
            let _ = writeln!(text, "{judgement}");
        }
        text
    }

    /// `report.md`
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        if let Some(warning) = self.warning() {
            let _ = writeln!(text, "**{warning}**\n");
        }
        let _ = writeln!(
            text,
            "Requests/s over {} repeats of {} s each, in random order (seed {}), {:.0} s in all. \
             `overfly bench {}` makes this.\n",
            self.plan.repeats, self.plan.duration_s, self.seed, self.duration_s, self.plan_file
        );
        text.push_str("| payload | connection | server | median | gain | server CPU µs/request | p99 µs | server/client busy % | limit | errors | points |\n");
        text.push_str("|---|---|---|---:|---:|---:|---:|---:|---|---:|---|\n");
        for row in self.cells.iter().flat_map(CellReport::rows) {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text.push('\n');
        if self.has(Link::Xdp) {
            text.push_str(
                "*kernel (sockets)*: the same kernel server under a generator with kernel sockets, with all offloads on, \
                 since an XDP generator turns the server's segmentation offload off. The better of the two is compared.\n",
            );
        }
        if self.has(Link::Memif) {
            text.push_str(
                "*kernel, loopback*: the server on the kernel's TCP, and a generator with kernel sockets, over 127.0.0.1.\n\
                 *overfly, memif*: the same server under `overfly run`, and a generator with a user-level stack, over memory \
                 that both share. A generator over memif does much less work than one on kernel sockets, which may be the limit \
                 before its server is. So gain is that of a server core here: how much more a second of the server's processor \
                 time does, by *server CPU*; where the server was the limit on both sides, requests/s say the same.\n",
            );
        }
        text.push_str(
            "*busy*: of the server its core, of the generator the time that it had something to do. *limit*: the side that was \
             busy for more than 95 %; a server may be able to do more where it is the generator. A server that spins is busy \
             all the time.\n",
        );
        for note in self.method().into_iter().chain(self.steadiness()) {
            let _ = writeln!(text, "\n{note}");
        }
        for near in self.cells.iter().flat_map(CellReport::near_ceiling) {
            let _ = writeln!(text, "\n{near}.");
        }
        if !self.judgements.is_empty() {
            text.push_str("\n## What the plan requires\n\n");
            for judgement in &self.judgements {
                let Judgement { rule, place, value, holds } = judgement;
                let word = if *holds { "holds" } else { "**is missed**" };
                let _ = writeln!(text, "- `{rule}` {word}: {place} has {value:.2}");
            }
        }
        let problems = self.problems();
        if !problems.is_empty() {
            text.push_str("\n## What went wrong\n\n");
            for problem in problems {
                let _ = writeln!(text, "- {problem}");
            }
        }
        self.write_environment(&mut text);
        text.push_str(if self.plan.needs_lab() {
            "\n## Commands, inside the namespaces of each run\n"
        } else {
            "\n## Commands of each run\n"
        });
        for cell in &self.cells {
            for figure in cell.figures() {
                let _ = writeln!(text, "\n    {}\n    {}", figure.server_command, figure.client_command);
            }
        }
        text
    }

    fn write_environment(&self, text: &mut String) {
        let environment = &self.environment;
        let _ = writeln!(text, "\n## Environment\n\n| | |\n|---|---|");
        for (name, value) in [
            (
                "CPU",
                format!(
                    "{}, {} cores, SMT {}, governor {}",
                    environment.cpu_model, environment.cores, environment.smt, environment.governor
                ),
            ),
            ("memory", format!("{} MiB", environment.memory_mib)),
            ("kernel", environment.kernel.clone()),
            ("kernel command line", format!("`{}`", environment.kernel_command_line)),
            ("load average before", environment.load_average.clone()),
            ("overfly", environment.overfly_version.clone()),
            ("server", environment.server_version.clone()),
            (
                "offloads on",
                if self.plan.needs_lab() {
                    environment.offloads_on.join(", ")
                } else {
                    "all of loopback's".to_owned()
                },
            ),
        ] {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        for (name, value) in environment.sysctls.iter().chain(&environment.mitigations) {
            let _ = writeln!(text, "| {name} | {value} |");
        }
    }

    fn has(&self, link: Link) -> bool {
        self.cells.iter().any(|cell| cell.link == link)
    }

    /// What the gain's interval is, where there is one.
    fn method(&self) -> Option<String> {
        let confidence =
            self.cells.iter().filter_map(|cell| cell.gain_interval).map(|interval| interval.confidence);
        let least = confidence.min_by(f64::total_cmp)?;
        let few = if least < statistics::CONFIDENCE {
            "; so few runs allow less, which is said then: four of each side allow 97 %"
        } else {
            ""
        };
        Some(format!(
            "In parentheses, where the gain lies with at least 95 % confidence (Hodges and Lehmann's estimate of a ratio, Mann and \
             Whitney's exact distribution){few}. Where that holds 1 no difference was seen. A gain with ~ is of disturbed runs. \
             A point with ? lies far from the others (modified z-score above 3.5), and counts."
        ))
    }

    /// One line if there is something to say of how steady the machine was.
    fn steadiness(&self) -> Option<String> {
        let Account { made_again, points, disturbed, steady_share, .. } = self.yardstick;
        let slow = format!("the machine was slower than {:.0} % of its best", steady_share * 100.0);
        match (made_again, disturbed) {
            (0, 0) => None,
            (0, _) => Some(format!("{disturbed} of {points} points (~) were measured while {slow}.")),
            (_, 0) => Some(format!("{made_again} of {points} runs were made again because {slow}.")),
            _ => Some(format!(
                "{made_again} of {points} runs were made again because {slow}; \
                 {disturbed} points (~) stand although it was, and count only where there are no others."
            )),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for cell in &self.cells {
            for (name, figure) in cell.named_figures() {
                let place = format!("{} B {}, {name}", cell.payload_bytes, cell.use_of_connections());
                problems.extend(figure.problems.iter().map(|problem| format!("{place}: {problem}")));
                let again = figure.tried_again.iter();
                problems.extend(again.map(|why| format!("{place}: made again, and well then, after: {why}")));
            }
        }
        problems
    }
}

impl CellReport {
    fn new(
        plan: &Plan,
        index: usize,
        cell: Cell,
        trials: &[(Case, Trial)],
        standings: &[Standing],
    ) -> CellReport {
        // The kernel was measured once for all profiles.
        let of = |mode: Mode| if mode == Mode::Overfly { index } else { index - cell.profile };
        let attempts = |mode: Mode, generator: Link| {
            let mut chosen: Vec<(&Case, &Trial, Standing)> = trials
                .iter()
                .zip(standings)
                .map(|((case, trial), &standing)| (case, trial, standing))
                .filter(|(case, ..)| {
                    case.cell == of(mode) && case.mode == mode && case.generator == generator
                })
                .collect();
            chosen.sort_by_key(|(case, ..)| case.repeat);
            let trials: Vec<(&Trial, Standing)> =
                chosen.into_iter().map(|(_, trial, standing)| (trial, standing)).collect();
            trials
        };
        let generator = cell.generator(Mode::Kernel);
        let direct = attempts(Mode::Kernel, generator);
        let sockets =
            if generator == Link::Kernel { Vec::new() } else { attempts(Mode::Kernel, Link::Kernel) };
        let overfly = attempts(Mode::Overfly, cell.link);
        // Like is compared with like: steady points with steady ones, or all with all.
        let is_steady = |attempts: &[(&Trial, Standing)]| {
            attempts.iter().any(|&(_, standing)| standing == Standing::Stands)
        };
        let steady = [&direct, &overfly].iter().all(|attempts| attempts.is_empty() || is_steady(attempts));
        let figure = |generator: Link, attempts: &[(&Trial, Standing)], steady: bool| {
            (!attempts.is_empty()).then(|| Figure::new(generator, attempts, steady))
        };
        let direct = figure(generator, &direct, steady);
        // The second look at the kernel must not take the first two's points from them.
        let sockets = figure(Link::Kernel, &sockets, is_steady(&sockets));
        let overfly = figure(cell.link, &overfly, steady);
        let as_found = attempts(Mode::KernelAsFound, cell.link);
        let kernel_as_found = figure(cell.link, &as_found, is_steady(&as_found));
        let null = attempts(Mode::Null, cell.link);
        let null_server = figure(cell.link, &null, is_steady(&null));
        let (kernel, kernel_xdp) = match (&direct, &sockets) {
            (Some(direct), Some(sockets)) => {
                let better = if sockets.median > direct.median { sockets } else { direct };
                (Some(better.clone()), Some(direct.clone()))
            }
            _ => (direct, None),
        };
        // Over memif the two sides have different generators. What one core of the server can do does not depend on those,
        // as requests/s do where the generator was the limit.
        let both = kernel.as_ref().zip(overfly.as_ref());
        let gain = both.and_then(|(kernel, overfly)| {
            let (more, less) = match cell.link {
                Link::Memif => (kernel.server_cpu_us_per_request, overfly.server_cpu_us_per_request),
                Link::Xdp | Link::Kernel => (overfly.median, kernel.median),
            };
            (more > 0.0 && less > 0.0).then_some(more / less)
        });
        let gain_interval = both.filter(|_| gain.is_some()).and_then(|(kernel, overfly)| match cell.link {
            Link::Memif => statistics::ratio_interval(kernel.server_us(), overfly.server_us()),
            Link::Xdp | Link::Kernel => statistics::ratio_interval(overfly.per_s(), kernel.per_s()),
        });
        let is_disturbed = |figure: &Figure| figure.disturbed.len() == figure.points.len();
        let gain_disturbed =
            both.is_some_and(|(kernel, overfly)| is_disturbed(kernel) || is_disturbed(overfly));
        CellReport {
            payload_bytes: cell.payload_bytes,
            connection: cell.connection,
            link: cell.link,
            connections: cell.connections,
            rate_per_s: cell.rate_per_s,
            workers: cell.workers,
            instances: cell.instances,
            profile: plan.profile_of(&cell).to_owned(),
            varied: plan.varied(&cell),
            shares_kernel: cell.profile > 0,
            kernel,
            kernel_xdp,
            kernel_sockets: sockets,
            kernel_as_found,
            null_server,
            overfly,
            gain,
            gain_interval,
            gain_disturbed,
        }
    }

    /// Every figure once, with the name it has in tables.
    fn named_figures(&self) -> Vec<(&'static str, &Figure)> {
        let direct = if self.kernel_sockets.is_some() { &self.kernel_xdp } else { &self.kernel };
        let (kernel, overfly) = match self.link {
            Link::Memif => ("kernel, loopback", "overfly, memif"),
            Link::Xdp | Link::Kernel => ("kernel", "overfly"),
        };
        [
            (kernel, direct),
            ("kernel (sockets)", &self.kernel_sockets),
            ("kernel, as found", &self.kernel_as_found),
            ("null server", &self.null_server),
            (overfly, &self.overfly),
        ]
        .into_iter()
        .filter(|(name, _)| !self.shares_kernel || name.starts_with("overfly"))
        .filter_map(|(name, figure)| Some((name, figure.as_ref()?)))
        .collect()
    }

    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.named_figures().into_iter().map(|(_, figure)| figure)
    }

    /// The gain, and where it lies; no more of it than is known.
    fn gain_in_words(&self) -> String {
        let Some(gain) = self.gain else { return String::new() };
        match self.gain_interval {
            _ if self.gain_disturbed => format!("~{gain:.1}"),
            Some(interval) if interval.holds(1.0) => "no difference seen".to_owned(),
            Some(interval) => {
                let sure = if interval.is_sure() {
                    String::new()
                } else {
                    format!(", {:.0} %", interval.confidence * 100.0)
                };
                format!("{gain:.2} ({:.2} to {:.2}{sure})", interval.low, interval.high)
            }
            None => format!("{gain:.2}"),
        }
    }

    /// How connections are used, and what else sets this cell apart.
    fn use_of_connections(&self) -> String {
        match self.varied.as_str() {
            "" => self.connection.to_string(),
            varied => format!("{}, {varied}", self.connection),
        }
    }

    /// Which share of what the generator reached against the null server it reached against this one, over the same link.
    fn of_ceiling(&self, figure: &Figure) -> Option<f64> {
        let null = self.null_server.as_ref().filter(|null| null.link == figure.link && null.median > 0.0)?;
        Some(figure.median / null.median)
    }

    /// One line on a figure that the generator may have limited, by the null server's.
    fn near_ceiling(&self) -> Vec<String> {
        // Where the null server itself had no time left, the generator's ceiling is higher than what was seen.
        if self.null_server.as_ref().is_none_or(|null| null.limit != Limit::Generator) {
            return Vec::new();
        }
        let figures = self.named_figures().into_iter().filter(|(name, _)| *name != "null server");
        let near = figures.filter_map(|(name, figure)| {
            let share = self.of_ceiling(figure).filter(|&share| share > NEAR_CEILING)?;
            Some(format!(
                "{} B {}, {name}: {:.0} % of what the generator reached against a server that only answers; the generator may be \
                 the limit",
                self.payload_bytes,
                self.use_of_connections(),
                share * 100.0
            ))
        });
        // At a constant rate all reach the same.
        if self.rate_per_s.is_some() { Vec::new() } else { near.collect() }
    }

    /// Whether the figures are as a rule of the plan requires; `None` where the cell has no such figure.
    fn judged(&self, rule: &Rule) -> Option<Judgement> {
        let overfly = || self.overfly.as_ref();
        let value = match rule.metric {
            Metric::Gain => self.gain,
            Metric::RequestsPerS => overfly().map(|figure| figure.median),
            Metric::LatencyP99Us => overfly().map(|figure| figure.latency_p99_us),
            Metric::ServerCpuUs => overfly().map(|figure| figure.server_cpu_us_per_request),
            Metric::Errors => Some(self.figures().map(|figure| figure.errors as f64).sum()),
        }?;
        let place = format!("{} B {} over {}", self.payload_bytes, self.use_of_connections(), self.link);
        Some(Judgement { rule: rule.clone(), place, value, holds: rule.holds(value) })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.named_figures().into_iter().map(|(name, figure)| {
            let gain = if name.starts_with("overfly") { self.gain_in_words() } else { String::new() };
            vec![
                format!("{} B", self.payload_bytes),
                self.use_of_connections(),
                name.to_owned(),
                thousands(figure.median),
                gain,
                format!("{:.2}", figure.server_cpu_us_per_request),
                format!("{:.0}", figure.latency_p99_us),
                format!("{:.0}/{:.0}", figure.server_core_busy_percent, figure.generator_busy_percent),
                figure.limit.to_string(),
                figure.errors.to_string(),
                figure.points_in_words(),
            ]
        });
        rows.collect()
    }
}

impl Figure {
    fn new(link: Link, attempts: &[(&Trial, Standing)], steady: bool) -> Figure {
        // What went wrong did so even in a run that does not count otherwise.
        let all = || attempts.iter().map(|&(trial, _)| trial);
        let mut problems: Vec<String> = all().flat_map(|trial| trial.problems.clone()).collect();
        problems.extend(all().filter(|trial| trial.failed_requests > 0).map(failures));
        let (set_aside, standing): (Vec<_>, Vec<_>) =
            attempts.iter().partition(|(_, standing)| *standing == Standing::SetAside);
        let counted = |standing: Standing| !steady || standing == Standing::Stands;
        let trials: Vec<&Trial> =
            standing.iter().filter(|(_, standing)| counted(*standing)).map(|&(trial, _)| trial).collect();
        let disturbed =
            standing.iter().enumerate().filter(|(_, (_, standing))| *standing == Standing::Disturbed);
        // Only runs that worked say something about CPU and latency.
        let of = |value: fn(&Trial) -> f64| {
            median(trials.iter().filter(|trial| trial.requests_per_s > 0.0).map(|trial| value(trial)))
        };
        let first = trials.first();
        let points: Vec<f64> = standing.iter().map(|(trial, _)| tenths(trial.requests_per_s)).collect();
        let per_s = || trials.iter().map(|trial| trial.requests_per_s);
        let counted = trials.iter().filter(|trial| trial.requests_per_s > 0.0);
        let (server_core_busy_percent, generator_busy_percent) =
            (of(|trial| trial.server_core_busy_percent), of(|trial| trial.generator_busy_percent));
        Figure {
            median: median(per_s()),
            median_interval: statistics::median_interval(per_s()),
            outliers: statistics::outliers(&points),
            counted: counted.map(|trial| (trial.requests_per_s, trial.server_cpu_us_per_request)).collect(),
            points,
            disturbed: disturbed.map(|(index, _)| index).collect(),
            set_aside: set_aside.iter().map(|(trial, _)| tenths(trial.requests_per_s)).collect(),
            errors: all().map(|trial| trial.failed_requests + trial.problems.len() as u64).sum(),
            problems,
            tried_again: all()
                .filter(|trial| trial.requests_per_s > 0.0)
                .filter_map(|trial| trial.first_try.clone())
                .collect(),
            link,
            server_cpu_us_per_request: of(|trial| trial.server_cpu_us_per_request),
            client_cpu_us_per_request: of(|trial| trial.client_cpu_us_per_request),
            latency_p50_us: of(|trial| trial.latency_p50_us),
            latency_p99_us: of(|trial| trial.latency_p99_us),
            latency_us: percentiles(&trials),
            server_core_busy_percent,
            generator_busy_percent,
            limit: Limit::of(server_core_busy_percent, generator_busy_percent),
            server_core_softirq_percent: of(|trial| trial.server_core_softirq_percent),
            client_core_busy_percent: of(|trial| trial.client_core_busy_percent),
            client_core_softirq_percent: of(|trial| trial.client_core_softirq_percent),
            server_command: first.map(|trial| trial.server_command.clone()).unwrap_or_default(),
            client_command: first.map(|trial| trial.client_command.clone()).unwrap_or_default(),
        }
    }
}

impl Figure {
    fn per_s(&self) -> impl Iterator<Item = f64> {
        self.counted.iter().map(|&(per_s, _)| per_s)
    }

    fn server_us(&self) -> impl Iterator<Item = f64> {
        self.counted.iter().map(|&(_, us)| us)
    }

    /// Every point; those of a slow machine with a `~`, those far from the others with a `?`.
    fn points_in_words(&self) -> String {
        let point = |(index, &point): (usize, &f64)| {
            let mark = if self.disturbed.contains(&index) { "~" } else { "" };
            let doubt = if self.outliers.contains(&index) { "?" } else { "" };
            format!("{mark}{}{doubt}", thousands(point))
        };
        self.points.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
    }
}

/// The median over the runs of each percentile that all of them report.
fn percentiles(trials: &[&Trial]) -> BTreeMap<String, f64> {
    let reported = |trial: &Trial| trial.load.get("latency_us").and_then(|its| its.as_object().cloned());
    let all: Vec<_> = trials.iter().filter_map(|trial| reported(trial)).collect();
    let Some(first) = all.first() else { return BTreeMap::new() };
    let names = first.keys().filter(|name| name.starts_with('p'));
    let values = names.map(|name| {
        let each = all.iter().filter_map(|its| its.get(name)?.as_f64());
        (name.clone(), median(each))
    });
    values.collect()
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// How many requests of a run failed, by kind.
fn failures(trial: &Trial) -> String {
    let kinds = trial.load.get("failed").and_then(serde_json::Value::as_object);
    let kinds: Vec<String> = kinds
        .into_iter()
        .flatten()
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(kind, count)| format!("{} {count}", kind.replace('_', " ")))
        .collect();
    format!("{} requests failed ({})", trial.failed_requests, kinds.join(", "))
}

/// To three places; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let value = statistics::median(values);
    if value.is_nan() { 0.0 } else { (value * 1000.0).round() / 1000.0 }
}

/// `123,456`
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(requests_per_s: f64, failed_requests: u64) -> Trial {
        Trial { requests_per_s, failed_requests, latency_p99_us: requests_per_s, ..Trial::default() }
    }

    #[test]
    fn a_run_that_was_set_aside_counts_for_nothing_but_its_errors() {
        let (first, second, again) = (trial(100.0, 0), trial(10.0, 3), trial(200.0, 0));
        let attempts =
            [(&first, Standing::Disturbed), (&second, Standing::SetAside), (&again, Standing::Stands)];
        for (steady, median) in [(true, 200.0), (false, 150.0)] {
            let figure = Figure::new(Link::Xdp, &attempts, steady);
            assert_eq!((figure.median, figure.latency_p99_us), (median, median));
            assert_eq!(figure.points_in_words(), "~100 200");
            assert_eq!((figure.points, figure.set_aside), (vec![100.0, 200.0], vec![10.0]));
            assert_eq!(figure.disturbed, [0]);
            assert_eq!(figure.errors, 3);
            assert!(figure.problems[0].contains("3 requests failed"), "{:?}", figure.problems);
        }
    }

    #[test]
    fn no_more_of_a_gain_is_said_than_is_known() {
        let cell = Cell::plain(0, Connection::Close, Link::Kernel);
        let report = |ours: &[f64], standing: Standing| {
            let kernel = [100.0, 101.0, 99.0, 102.0].map(|value| (Mode::Kernel, value));
            let ours = ours.iter().map(|&value| (Mode::Overfly, value));
            let trials: Vec<(Case, Trial)> = kernel
                .into_iter()
                .chain(ours)
                .zip(1..)
                .map(|((mode, value), repeat)| {
                    (Case { cell: 0, mode, generator: Link::Kernel, repeat }, trial(value, 0))
                })
                .collect();
            CellReport::new(&Plan::any(), 0, cell, &trials, &vec![standing; trials.len()])
        };
        let twice = report(&[200.0, 202.0, 198.0, 204.0], Standing::Stands);
        assert_eq!(twice.gain_in_words(), "2.00 (1.94 to 2.06)");
        assert_eq!(report(&[200.0, 202.0], Standing::Stands).gain_in_words(), "2.00 (1.96 to 2.04, 87 %)");
        let same = report(&[100.0, 103.0, 98.0, 101.5], Standing::Stands);
        assert_eq!(same.gain_in_words(), "no difference seen");
        let disturbed = report(&[200.0, 202.0, 198.0, 204.0], Standing::Disturbed);
        assert!(disturbed.gain_disturbed);
        assert_eq!(disturbed.gain_in_words(), "~2.0");
        let far = report(&[200.0, 201.0, 199.0, 120.0, 200.5], Standing::Stands);
        assert_eq!(far.overfly.unwrap().points_in_words(), "200 201 199 120? 200");
    }

    #[test]
    fn over_memif_the_gain_is_that_of_a_server_core() {
        let cell = Cell::plain(0, Connection::Close, Link::Memif);
        let case = |mode| Case { cell: 0, mode, generator: cell.generator(mode), repeat: 1 };
        // The kernel's generator was the limit: its server had half of its time left.
        let kernel =
            Trial { server_cpu_us_per_request: 10.0, generator_busy_percent: 99.0, ..trial(50_000.0, 0) };
        let overfly = Trial { server_cpu_us_per_request: 2.5, ..trial(400_000.0, 0) };
        let overfly = Trial { server_core_busy_percent: 100.0, ..overfly };
        let trials = [(case(Mode::Kernel), kernel), (case(Mode::Overfly), overfly)];
        let report = CellReport::new(&Plan::any(), 0, cell, &trials, &[Standing::Stands; 2]);
        assert_eq!(report.gain, Some(4.0));
        let limits = report.figures().map(|figure| figure.limit).collect::<Vec<_>>();
        assert_eq!(limits, [Limit::Generator, Limit::Server]);
        assert_eq!(Limit::of(60.0, 60.0), Limit::Neither);
    }

    #[test]
    fn a_figure_near_the_generators_ceiling_is_named_where_the_ceiling_is_known() {
        let cell = Cell::plain(0, Connection::Close, Link::Kernel);
        let case = |mode| Case { cell: 0, mode, generator: Link::Kernel, repeat: 1 };
        let near = |null: Trial, overfly: f64| {
            let trials = [
                (case(Mode::Kernel), trial(50.0, 0)),
                (case(Mode::Null), null),
                (case(Mode::Overfly), trial(overfly, 0)),
            ];
            CellReport::new(&Plan::any(), 0, cell, &trials, &[Standing::Stands; 3]).near_ceiling()
        };
        let limited = |busy: f64| Trial { generator_busy_percent: busy, ..trial(100.0, 0) };
        let named = near(limited(99.0), 95.0);
        assert!(
            named.len() == 1 && named[0].contains("overfly: 95 % of what the generator reached"),
            "{named:?}"
        );
        assert!(near(limited(99.0), 80.0).is_empty());
        assert!(near(limited(60.0), 95.0).is_empty(), "the null server was the limit itself");
    }

    #[test]
    fn steady_points_are_compared_with_steady_points_or_all_with_all() {
        let cell = Cell::plain(0, Connection::Close, Link::Kernel);
        let case = |mode, repeat| Case { cell: 0, mode, generator: Link::Kernel, repeat };
        let trials = [
            (case(Mode::Kernel, 1), trial(50.0, 0)),
            (case(Mode::Kernel, 2), trial(100.0, 0)),
            (case(Mode::Overfly, 1), trial(100.0, 0)),
            (case(Mode::Overfly, 2), trial(200.0, 0)),
        ];
        let (slow, fast) = (Standing::Disturbed, Standing::Stands);
        let gain =
            |standings: [Standing; 4]| CellReport::new(&Plan::any(), 0, cell, &trials, &standings).gain;
        assert_eq!(gain([slow, fast, slow, fast]), Some(2.0));
        assert_eq!(gain([slow, fast, fast, slow]), Some(1.0));
        assert_eq!(gain([slow, slow, slow, fast]), Some(2.0), "all with all: 150 and 75");
    }
}
