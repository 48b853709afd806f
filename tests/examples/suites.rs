//! `cargo xtask suites`: every suite of `workloads/suites` on the kernel and on Overfly, as a table.

use std::process::ExitCode;
use std::time::Duration;

use overfly_tests::programs::Way;
use overfly_tests::suites::{Suite, Verdict, Verdicts};

const USAGE: &str = "usage: cargo xtask suites [--minutes N] [--again N] [SUITE…]";

/// What is to be run.
struct Plan {
    suites: Vec<Suite>,
    /// Longest time of one run.
    within: Duration,
    /// How often a test that did not end as on the kernel is run alone, both ways.
    again: u64,
}

impl Plan {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let all = Suite::all().map_err(|error| format!("workloads/suites: {error}"))?;
        let mut plan = Plan { suites: Vec::new(), within: Duration::from_secs(20 * 60), again: 2 };
        while let Some(word) = words.next() {
            let mut number = || {
                let given = words.next().unwrap_or_default();
                given.parse::<u64>().map_err(|_| format!("{word} {given}: expected a number\n{USAGE}"))
            };
            match word.as_str() {
                "--minutes" => plan.within = Duration::from_secs(60 * number()?),
                "--again" => plan.again = number()?,
                name => match all.iter().find(|suite| suite.name() == name) {
                    Some(suite) => plan.suites.push(suite.clone()),
                    None => {
                        let names: Vec<String> = all.iter().map(Suite::name).collect();
                        return Err(format!("{name}: expected one of {}\n{USAGE}", names.join(", ")));
                    }
                },
            }
        }
        if plan.suites.is_empty() {
            plan.suites = all;
        }
        Ok(plan)
    }
}

fn main() -> ExitCode {
    let plan = match Plan::parse(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("suites: {message}");
            return ExitCode::from(2);
        }
    };
    println!("| suite | tests | on the kernel | on Overfly | differ |");
    println!("|---|---|---|---|---|");
    let mut all_agree = true;
    for suite in &plan.suites {
        match row(suite, &plan) {
            Ok(agrees) => all_agree &= agrees,
            Err(error) => {
                eprintln!("{}: {error}", suite.name());
                all_agree = false;
            }
        }
    }
    ExitCode::from(u8::from(!all_agree))
}

/// Runs the suite and prints its row. Whether it does as well as on the kernel.
fn row(suite: &Suite, plan: &Plan) -> Result<bool, String> {
    suite.prepare()?;
    let kernel = suite.run(Way::Kernel, &[], plan.within)?;
    let mut overfly = suite.run(Way::Overfly("balanced"), &[], plan.within)?;
    let mut differ = worse(&kernel, &overfly);
    let first = differ.clone();
    // What fails in one run of several is the suite's own chance: on either side it may.
    for _ in 0..plan.again {
        if differ.is_empty() {
            break;
        }
        let again = suite.run(Way::Overfly("balanced"), &differ, plan.within)?;
        overfly.extend(again.into_iter().filter(|(_, verdict)| *verdict == Verdict::Pass));
        differ = worse(&kernel, &overfly);
    }
    let passed = |verdicts: &Verdicts| verdicts.values().filter(|verdict| **verdict == Verdict::Pass).count();
    let ran = kernel.values().filter(|verdict| **verdict != Verdict::Skip).count();
    println!("| {} | {ran} | {} | {} | {} |", suite.name(), passed(&kernel), passed(&overfly), differ.len());
    for name in &differ {
        eprintln!("{}: {name} passes on the kernel and not on Overfly", suite.name());
    }
    for name in first.iter().filter(|name| !differ.contains(name)) {
        eprintln!("{}: {name} passed on Overfly when it ran again", suite.name());
    }
    Ok(differ.is_empty())
}

/// What passes on the kernel and not on Overfly.
fn worse(kernel: &Verdicts, overfly: &Verdicts) -> Vec<String> {
    let passed = |verdicts: &Verdicts, name: &String| verdicts.get(name) == Some(&Verdict::Pass);
    kernel.keys().filter(|name| passed(kernel, name) && !passed(overfly, name)).cloned().collect()
}
