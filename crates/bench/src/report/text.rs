//! The table for a terminal, and `report.md`.

use std::fmt::Write;

use super::{CellReport, Judgement, Report};
use crate::plan::Link;
use crate::schedule::Account;
use crate::statistics;

impl Report {
    /// The table for a terminal.
    pub fn to_text(&self) -> String {
        let head = [
            "payload",
            "connection",
            "server",
            &format!("median {}", self.measure.unit),
            "gain",
            &format!("server µs/{}", self.measure.each),
            "p99 µs",
            "busy s/c %",
            "limit",
            "errors",
            "points",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for cell in &self.cells {
            rows.extend(cell.rows(&self.measure));
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
        if self.gain_is_of_a_core() {
            let each = &self.measure.each;
            let _ = writeln!(
                text,
                "Gain over memif is that of a server core: the kernel's server µs/{each} over Overfly's."
            );
        }
        for note in self.method().into_iter().chain(self.steadiness()) {
            let _ = writeln!(text, "{note}");
        }
        for problem in self.problems() {
            let _ = writeln!(text, "! {problem}");
        }
        for remark in self.remarks() {
            let _ = writeln!(text, "{remark}");
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
            "{} ({}) over {} repeats of {} s each, in {}, {:.0} s in all. \
             `overfly bench {}{}` makes this.\n",
            self.measure.name,
            self.measure.unit,
            self.plan.repeats,
            self.plan.duration_s,
            self.plan.order.in_words(self.seed),
            self.duration_s,
            if self.quick { "--quick " } else { "" },
            self.plan_file
        );
        let _ = writeln!(
            text,
            "| payload | connection | server | median | gain | server CPU µs/{} | p99 µs | server/client busy % | limit | errors | points |",
            self.measure.each
        );
        text.push_str("|---|---|---|---:|---:|---:|---:|---:|---|---:|---|\n");
        for row in self.cells.iter().flat_map(|cell| cell.rows(&self.measure)) {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text.push('\n');
        if self.cells.iter().any(|cell| cell.kernel_sockets.is_some()) {
            text.push_str(
                "*kernel (sockets)*: the same kernel server under a generator with kernel sockets, with all offloads on, \
                 since an XDP generator turns the server's segmentation offload off. The better of the two is compared.\n",
            );
        }
        if self.gain_is_of_a_core() {
            text.push_str(
                "*kernel, loopback*: the server on the kernel's TCP, and a generator with kernel sockets, over 127.0.0.1.\n\
                 *overfly, memif*: the same server under `overfly run`, and a generator with a user-level stack, over memory \
                 that both share. A generator over memif does much less work than one on kernel sockets, which may be the limit \
                 before its server is. So gain is that of a server core here: how much more a second of the server's processor \
                 time does, by *server CPU*; where the server was the limit on both sides, requests/s say the same.\n",
            );
        }
        if self.has(Link::Host) {
            text.push_str(
                "*kernel, loopback* and *overfly, loopback*: both programs on this host; on the kernel they meet over 127.0.0.1, on Overfly \
                 over memory that they share.\n",
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
                let Judgement { rule, place, value, .. } = judgement;
                let mark = if judgement.is_missed() { "**" } else { "" };
                let (verdict, why) = (judgement.verdict(), judgement.why());
                let _ = writeln!(text, "- `{rule}` {mark}{verdict}{mark}: {place} has {value:.2}{why}");
            }
        }
        let problems = self.problems();
        if !problems.is_empty() {
            text.push_str("\n## What went wrong\n\n");
            for problem in problems {
                let _ = writeln!(text, "- {problem}");
            }
        }
        let remarks = self.remarks();
        if !remarks.is_empty() {
            text.push_str("\n## What to know of the figures\n\n");
            for remark in remarks {
                let _ = writeln!(text, "- {remark}");
            }
        }
        self.write_environment(&mut text);
        text.push_str(
            "\nEvery run as it was made: [raw/](raw/), and one line each in [points.jsonl](points.jsonl).\n",
        );
        match self.plan.sides() {
            None if self.plan.needs_lab() => {
                text.push_str("\n## Commands, inside the namespaces of each run\n");
            }
            None => text.push_str("\n## Commands of each run\n"),
            Some([(server, _), (client, _)]) => {
                let _ = writeln!(text, "\n## Commands of each run, on {server} and on {client}");
            }
        }
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
            ("the bench itself", format!("{} % of a core while it measured", self.harness_percent)),
            ("overfly", environment.overfly_version.clone()),
            ("server", environment.server_version.clone()),
            (
                "offloads on",
                if self.plan.needs_lab() || !self.plan.hosts.is_empty() {
                    environment.offloads_on.join(", ")
                } else {
                    "all of loopback's".to_owned()
                },
            ),
        ] {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        for tuned in &environment.tuned {
            let _ = writeln!(text, "| tuned | {tuned} |");
        }
        for refused in &environment.refused_sysctls {
            let _ = writeln!(text, "| refused by the kernel | {refused} |");
        }
        for (name, value) in environment.sysctls.iter().chain(&environment.mitigations) {
            let _ = writeln!(text, "| {name} | {value} |");
        }
    }

    /// Whether the generators of the two sides differ, so that not the figures are compared.
    fn gain_is_of_a_core(&self) -> bool {
        self.cells.iter().any(|cell| self.plan.measure().gain_is_of_a_core(cell.link))
    }

    /// What to know of figures, by the place where they are.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for cell in &self.cells {
            for (name, figure) in cell.named_figures() {
                let place = format!("{} B {}, {name}", cell.payload_bytes, cell.use_of_connections());
                remarks.extend(figure.remarks.iter().map(|remark| format!("{place}: {remark}")));
            }
        }
        remarks
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
