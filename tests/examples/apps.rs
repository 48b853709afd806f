//! `cargo xtask apps`: every program of `workloads/programs` on the kernel and under `overfly run`, as a table.

use std::process::ExitCode;

use overfly_bench::statistics;
use overfly_tests::programs::{Outcome, Program, Way};

const USAGE: &str =
    "usage: cargo xtask apps [--seconds N] [--repeats N] [--profile NAME] [--kernel-only] [PROGRAM…]";

/// What is to be run.
struct Plan {
    programs: Vec<Program>,
    /// Length of a measurement, s; 0: none.
    seconds: u32,
    repeats: usize,
    profile: &'static str,
    kernel_only: bool,
}

impl Plan {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let all = Program::all();
        let mut plan =
            Plan { programs: Vec::new(), seconds: 3, repeats: 3, profile: "balanced", kernel_only: false };
        while let Some(word) = words.next() {
            let mut number = |least: u32| {
                let given = words.next().unwrap_or_default();
                let number = given.parse().ok().filter(|number| *number >= least);
                number.ok_or_else(|| format!("{word} {given}: expected a number from {least}\n{USAGE}"))
            };
            match word.as_str() {
                "--seconds" => plan.seconds = number(0)?,
                "--repeats" => plan.repeats = number(1)? as usize,
                "--profile" => {
                    plan.profile = match words.next().as_deref() {
                        Some("balanced") => "balanced",
                        Some("performance") => "performance",
                        other => {
                            return Err(format!(
                                "--profile {}: expected balanced or performance",
                                other.unwrap_or_default()
                            ));
                        }
                    }
                }
                "--kernel-only" => plan.kernel_only = true,
                name => match all.iter().find(|program| program.name() == name) {
                    Some(program) => plan.programs.push(program.clone()),
                    None => {
                        let names: Vec<String> = all.iter().map(Program::name).collect();
                        return Err(format!("{name}: expected one of {}\n{USAGE}", names.join(", ")));
                    }
                },
            }
        }
        if plan.programs.is_empty() {
            plan.programs = all;
        }
        Ok(plan)
    }
}

fn main() -> ExitCode {
    let plan = match Plan::parse(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("apps: {message}");
            return ExitCode::from(2);
        }
    };
    println!("| program | works | accelerated | kernel | Overfly | gain |");
    println!("|---|---|---|---|---|---|");
    let mut all_work = true;
    for program in &plan.programs {
        all_work &= row(program, &plan);
    }
    ExitCode::from(u8::from(!all_work))
}

/// Runs the program and prints its row. Whether it works.
fn row(program: &Program, plan: &Plan) -> bool {
    let ways: &[Way] =
        if plan.kernel_only { &[Way::Kernel] } else { &[Way::Kernel, Way::Overfly(plan.profile)] };
    if let Err(error) = program.install() {
        eprintln!("{program}: {error}");
        return false;
    }
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); ways.len()];
    let repeats = if plan.seconds == 0 { 1 } else { plan.repeats };
    for repeat in 0..repeats {
        // In turns, each first as often as the other.
        for turn in 0..ways.len() {
            let index = (turn + repeat) % ways.len();
            outcomes[index].push(program.run(ways[index], plan.seconds));
        }
    }
    let mut faults = Vec::new();
    for (way, outcomes) in ways.iter().zip(&outcomes) {
        let carrier = if *way == Way::Kernel { "the kernel" } else { "Overfly" };
        for (index, fault) in
            outcomes.iter().enumerate().filter_map(|(index, outcome)| Some((index, outcome.fault.as_ref()?)))
        {
            faults.push(format!("{program} over {carrier}, run {} of {repeats}: {fault}", index + 1));
        }
    }
    let accelerated = match outcomes.get(1).and_then(|outcomes| outcomes.last()) {
        Some(outcome) => {
            let handed_over = match outcome.handed_over {
                0 => String::new(),
                count => format!(", {count} handed over"),
            };
            format!("{:.0} % of {}{handed_over}", outcome.accelerated() * 100.0, outcome.connections)
        }
        None => "–".to_owned(),
    };
    let medians: Vec<Option<f64>> = outcomes.iter().map(|outcomes| median(outcomes)).collect();
    let shown = |value: Option<f64>| {
        value.map_or_else(|| "–".to_owned(), |value| format!("{value:.5}").chars().take(7).collect())
    };
    let gain = match medians.as_slice() {
        [Some(kernel), Some(overfly)] => format!("{:.2}", overfly / kernel),
        _ => "–".to_owned(),
    };
    let overfly = medians.get(1).copied().flatten();
    let works = if faults.is_empty() { "yes" } else { "no" };
    println!("| {program} | {works} | {accelerated} | {} | {} | {gain} |", shown(medians[0]), shown(overfly));
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    faults.is_empty()
}

/// `None` where nothing is measured.
fn median(outcomes: &[Outcome]) -> Option<f64> {
    let value = statistics::median(outcomes.iter().filter_map(|outcome| outcome.measured));
    (!value.is_nan()).then_some(value)
}
