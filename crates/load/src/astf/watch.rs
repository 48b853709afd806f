//! What others see of a run while it goes on: a line a second in a file, a page for Prometheus, a line or a screen for a person.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write as _};
use std::sync::Arc;
use std::time::Duration;

use overfly_terminal::{redraw, tell};
use ratatui::Frame;
use ratatui::widgets::Paragraph;

use super::counter::{Counter, Counts, Tally};
use super::plan::Plan;
use super::probe::ProbeTimes;
use super::report::{Counted, Table, rates, sum};
use super::rig::Snapshot;
use super::run::Shared;
use super::settings::Settings;
use crate::error::Error;
use crate::output::metrics::{Label, Page};
use crate::output::tui::Tui;
use crate::output::units;
use crate::output::{OutputArgs, redraw_fitted};

/// How often an interval ends.
const INTERVAL: Duration = Duration::from_secs(1);
const SIDES: [&str; 2] = ["client", "server"];

/// What is computed of each interval.
const RATES: [&str; 5] = ["m_tx_bw_l7_r", "m_tx_bw_l7_total_r", "m_rx_bw_l7_r", "m_tx_pps_r", "m_rx_pps_r"];

/// What shows a run to a person.
enum Live {
    Nothing,
    Line,
    Screen(Tui),
}

/// Follows a run.
pub(super) struct Watch {
    title: String,
    threads: usize,
    csv: Option<BufWriter<File>>,
    csv_name: String,
    _page: Option<Page>,
    live: Live,
    last: Duration,
    before: [Counts; 2],
    busy_before_ns: u64,
}

impl Watch {
    /// Makes the file and listens, so that what cannot be is said before the run.
    pub(super) fn new(
        args: &OutputArgs,
        settings: &Settings,
        plan: &Arc<Plan>,
        shared: &Arc<Shared>,
    ) -> Result<Watch, Error> {
        let create = |path: &std::path::PathBuf| {
            let file = File::create(path).and_then(|file| {
                let mut file = BufWriter::new(file);
                writeln!(file, "{}", columns())?;
                Ok(file)
            });
            file.map_err(|error| {
                Error::usage("--csv", path.display(), format!("a file that can be written ({error})"))
            })
        };
        if args.hdr.is_some() {
            return Err(Error::usage(
                "--hdr",
                "",
                "--json: it has each group's histograms in HdrHistogram's encoding",
            ));
        }
        let page = args.metrics.as_ref().map(|address| {
            let (plan, shared) = (plan.clone(), shared.clone());
            Page::serve(address, move || exposition(&plan, &shared.totals()))
        });
        let page = page.transpose()?;
        if let Some(address) = page.as_ref().and_then(|page| page.address().ok()) {
            tell(format_args!("Metrics at http://{address}/metrics"));
        }
        let live = if args.tui {
            Tui::check()?;
            Live::Screen(Tui::open()?)
        } else if !args.json && std::io::stderr().is_terminal() {
            Live::Line
        } else {
            Live::Nothing
        };
        Ok(Watch {
            title: format!(
                "{}, {} side over {}",
                plan.name,
                settings.ends.name(),
                settings.link.as_ref().map_or("memory", crate::link::Link::name)
            ),
            threads: settings.threads,
            csv: args.csv.as_ref().map(create).transpose()?,
            csv_name: args.csv.as_ref().map_or(String::new(), |path| path.display().to_string()),
            _page: page,
            live,
            last: Duration::ZERO,
            before: [Counts::ZERO; 2],
            busy_before_ns: 0,
        })
    }

    /// Once in a while. True: somebody at the terminal wants the end.
    pub(super) fn show(
        &mut self,
        elapsed: Duration,
        totals: &Snapshot,
        multiplier: f64,
        paused: bool,
    ) -> Result<bool, Error> {
        let passed = elapsed.saturating_sub(self.last);
        if passed < INTERVAL {
            return Ok(false);
        }
        self.last = elapsed;
        let sides = [sum(&totals.tallies[0]), sum(&totals.tallies[1])];
        let interval: Vec<Counts> =
            sides.iter().zip(&self.before).map(|(tally, before)| tally.counts.since(before)).collect();
        self.before = [sides[0].counts, sides[1].counts];
        let busy_ns =
            totals.busy_ns.saturating_sub(std::mem::replace(&mut self.busy_before_ns, totals.busy_ns));
        let busy = busy_ns as f64 / passed.as_nanos() as f64 / self.threads as f64;
        if let Some(csv) = &mut self.csv {
            let line = line(elapsed, passed, multiplier, busy, &sides, &interval);
            let written = writeln!(csv, "{line}").and_then(|()| csv.flush());
            written.map_err(|error| Error::machine(format!("writing {}", self.csv_name), error))?;
        }
        let mut text = summary(elapsed, passed, multiplier, paused, busy, &sides, &interval);
        if let Some(probe) = totals.probes.first().filter(|probe| probe.received > 0) {
            let _ = write!(text, ", probe {} ({} lost)", units::time(probe.mean_us()), probe.lost);
        }
        match &mut self.live {
            Live::Nothing => Ok(false),
            Live::Line => {
                redraw_fitted(&text);
                Ok(false)
            }
            Live::Screen(tui) => {
                let table = SIDES.into_iter().zip(&sides).zip(&interval).map(|((side, tally), counts)| {
                    let mut counted = Counted::new(tally, elapsed.as_secs_f64());
                    counted.rates = rates(counts, passed.as_secs_f64());
                    (side, counted)
                });
                let table = table.collect();
                let page = format!("{}\n{text}\nq ends the run and reports\n\n{}", self.title, Table(&table));
                match tui.show_with(|frame| draw(frame, &page)) {
                    Ok(end) => Ok(end),
                    Err(_) => {
                        // The terminal has gone: the run need not.
                        self.live = Live::Nothing;
                        Ok(false)
                    }
                }
            }
        }
    }

    /// The terminal is for messages again.
    pub(super) fn end(&mut self) {
        if matches!(self.live, Live::Line) {
            redraw("");
        }
        self.live = Live::Nothing;
    }
}

fn draw(frame: &mut Frame<'_>, page: &str) {
    frame.render_widget(Paragraph::new(page), frame.area());
}

/// `3 s: CPU 80 %, …`.
fn summary(
    elapsed: Duration,
    passed: Duration,
    multiplier: f64,
    paused: bool,
    busy: f64,
    sides: &[Tally; 2],
    interval: &[Counts],
) -> String {
    let passed_s = passed.as_secs_f64();
    let rates: Vec<_> = interval.iter().map(|counts| rates(counts, passed_s)).collect();
    let both = |name: &str| rates.iter().map(|rates| rates[name]).sum::<f64>();
    let begun = interval.iter().map(|counts| counts.at(Counter::flows_total)).max().unwrap_or(0);
    let drops: u64 = interval
        .iter()
        .map(|counts| {
            counts.at(Counter::tcps_drops)
                + counts.at(Counter::tcps_conndrops)
                + counts.at(Counter::udps_keepdrops)
        })
        .sum();
    format!(
        "{} s{}, -m {multiplier}: CPU {}, {:.2} Gb/s, {} packets/s, {} connections/s, {} active, {} dropped",
        elapsed.as_secs(),
        if paused { ", paused" } else { "" },
        units::percent(busy),
        both("m_tx_bw_l7_total_r") / 1e9,
        units::grouped(both("m_tx_pps_r") as u64),
        units::grouped((begun as f64 / passed_s) as u64),
        units::grouped(sides.iter().map(|tally| tally.active).max().unwrap_or(0)),
        units::grouped(drops),
    )
}

/// The names of the columns.
fn columns() -> String {
    let mut names: Vec<String> = ["elapsed_s", "length_s", "multiplier", "busy"].map(String::from).into();
    for side in SIDES {
        names.extend(
            ["m_active_flows", "m_est_flows"].iter().chain(&RATES).map(|name| format!("{side}.{name}")),
        );
        names.extend(Counter::ALL.iter().map(|counter| format!("{side}.{}", counter.name())));
    }
    names.join(",")
}

/// A line of the file: counters are those of the interval.
fn line(
    elapsed: Duration,
    passed: Duration,
    multiplier: f64,
    busy: f64,
    sides: &[Tally; 2],
    interval: &[Counts],
) -> String {
    let mut line = format!("{:.3},{:.3},{multiplier},{busy:.4}", elapsed.as_secs_f64(), passed.as_secs_f64());
    for (tally, counts) in sides.iter().zip(interval) {
        let rates = rates(counts, passed.as_secs_f64());
        let _ = write!(line, ",{},{}", tally.active, tally.established);
        RATES.iter().for_each(|name| _ = write!(line, ",{:.0}", rates[name]));
        counts.iter().for_each(|(_, count)| _ = write!(line, ",{count}"));
    }
    line
}

/// Prometheus's text format 0.0.4: every counter by side and group.
fn exposition(plan: &Plan, totals: &Snapshot) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Tally) -> u64| {
        let _ = writeln!(text, "# HELP overfly_astf_{name} {help}\n# TYPE overfly_astf_{name} {kind}");
        for (side, tallies) in SIDES.into_iter().zip(&totals.tallies) {
            for (group, tally) in plan.groups.iter().map(String::as_str).chain([""]).zip(tallies) {
                let _ = writeln!(
                    text,
                    "overfly_astf_{name}{{side=\"{side}\",group=\"{}\"}} {}",
                    Label(group),
                    value(tally)
                );
            }
        }
    };
    family("active_flows", "gauge", "Flows that are there.", &|tally| tally.active);
    family("established_flows", "gauge", "Flows that are established.", &|tally| tally.established);
    for counter in Counter::ALL {
        family(&format!("{}_total", counter.name()), "counter", counter.help(), &|tally| {
            tally.counts.at(*counter)
        });
    }
    probed(&mut text, totals);
    text
}

/// The latency probes, by client and server.
fn probed(text: &mut String, totals: &Snapshot) {
    type Of = fn(&ProbeTimes) -> f64;
    let families: [(&str, &str, &str, Of); 7] = [
        ("sent_total", "counter", "Echo requests.", |times| times.sent as f64),
        ("received_total", "counter", "Echo replies.", |times| times.received as f64),
        ("lost_total", "counter", "Echo requests without a reply within a second.", |times| {
            times.lost as f64
        }),
        ("min_us", "gauge", "The shortest round trip.", |times| times.min_us as f64),
        ("avg_us", "gauge", "The mean round trip.", ProbeTimes::mean_us),
        ("max_us", "gauge", "The longest round trip.", |times| times.max_us as f64),
        ("jitter_us", "gauge", "RFC 3550's jitter of round trips.", |times| times.jitter_us),
    ];
    for (name, kind, help, value) in families.into_iter().filter(|_| !totals.probes.is_empty()) {
        let _ = writeln!(
            text,
            "# HELP overfly_astf_probe_{name} {help}\n# TYPE overfly_astf_probe_{name} {kind}"
        );
        for times in &totals.probes {
            let (client, server) = (times.client, times.server);
            let _ = writeln!(
                text,
                "overfly_astf_probe_{name}{{client=\"{client}\",server=\"{server}\"}} {}",
                value(times)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_columns_that_the_head_names() {
        let mut tally = Tally::ZERO;
        tally.counts.add(Counter::tcps_rcvbyte, 12_500_000);
        let counts = [tally.counts, Counts::ZERO];
        let second = Duration::from_secs(1);
        let line = line(second, second, 2.0, 0.5, &[tally, Tally::ZERO], &counts);
        let (names, cells): (Vec<_>, Vec<_>) =
            (columns().split(',').map(String::from).collect(), line.split(',').map(String::from).collect());
        assert_eq!(names.len(), cells.len());
        let at = |name: &str| cells[names.iter().position(|other| other == name).unwrap()].clone();
        assert_eq!(
            (at("client.m_rx_bw_l7_r"), at("client.tcps_rcvbyte"), at("server.tcps_rcvbyte")),
            ("100000000".into(), "12500000".into(), "0".into())
        );
        let text = summary(second, second, 2.0, true, 0.5, &[tally, Tally::ZERO], &counts);
        assert!(text.contains("paused") && text.contains("CPU 50.00%"), "{text}");
    }
}
