//! `cargo xtask suites`: every suite of `workloads/suites` on the kernel and on Overfly, as a table.

use std::process::ExitCode;
use std::time::Duration;

use overfly_tests::programs::Way;
use overfly_tests::suites::{Suite, Verdict, Verdicts};

const USAGE: &str = "usage: cargo xtask suites [--on kernel|overfly|both] [--test PATTERN] [--list] [--jobs N] [--minutes N] \
                     [--again N] [SUITE…]";
const OVERFLY: Way = Way::Overfly("balanced");

/// What is to be run.
struct Plan {
    suites: Vec<Suite>,
    ways: Vec<Way>,
    /// Only tests whose names have this in them.
    pattern: Option<String>,
    /// Nothing is run.
    only_lists: bool,
    /// How many tests run at a time, where a suite can do that.
    jobs: u32,
    /// Longest time of one run.
    within: Duration,
    /// How often a test that did not end as on the other side is run alone.
    again: u64,
}

impl Plan {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let all = Suite::all().map_err(|error| format!("workloads/suites: {error}"))?;
        let mut plan = Plan {
            suites: Vec::new(),
            ways: vec![Way::Kernel, OVERFLY],
            pattern: None,
            only_lists: false,
            jobs: 2,
            within: Duration::from_secs(60 * 60),
            again: 2,
        };
        while let Some(word) = words.next() {
            let mut given = || words.next().ok_or_else(|| format!("{word} needs a word behind it\n{USAGE}"));
            let number = |given: String| {
                given.parse::<u32>().map_err(|_| format!("{word} {given}: expected a number\n{USAGE}"))
            };
            match word.as_str() {
                "--on" => plan.ways = ways(&given()?)?,
                "--test" => plan.pattern = Some(given()?),
                "--list" => plan.only_lists = true,
                "--jobs" => plan.jobs = number(given()?)?.max(1),
                "--minutes" => plan.within = Duration::from_secs(60 * u64::from(number(given()?)?)),
                "--again" => plan.again = number(given()?)?.into(),
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

    /// What is to run of a suite. A pattern that no name has in it may be the name of a test within one.
    fn names(&self, suite: &Suite) -> Result<Vec<String>, String> {
        let mut names = suite.names()?;
        if let Some(pattern) = &self.pattern {
            names.retain(|name| name.contains(pattern));
            if names.is_empty() {
                names.push(pattern.clone());
            }
        }
        Ok(names)
    }
}

fn ways(word: &str) -> Result<Vec<Way>, String> {
    match word {
        "kernel" => Ok(vec![Way::Kernel]),
        "overfly" => Ok(vec![OVERFLY]),
        "both" => Ok(vec![Way::Kernel, OVERFLY]),
        other => Err(format!("--on {other}: expected kernel, overfly or both\n{USAGE}")),
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
    if !plan.only_lists {
        println!(
            "| suite | tests | passed on the kernel | passed on Overfly | only on the kernel | only on Overfly |"
        );
        println!("|---|---|---|---|---|---|");
    }
    let mut all_agree = true;
    for suite in &plan.suites {
        let done = if plan.only_lists { list(suite, &plan).map(|()| true) } else { row(suite, &plan) };
        match done {
            Ok(agrees) => all_agree &= agrees,
            Err(error) => {
                eprintln!("{}: {error}", suite.name());
                all_agree = false;
            }
        }
    }
    ExitCode::from(u8::from(!all_agree))
}

fn list(suite: &Suite, plan: &Plan) -> Result<(), String> {
    suite.prepare()?;
    plan.names(suite)?.iter().for_each(|name| println!("{} {name}", suite.name()));
    Ok(())
}

/// Runs the suite and prints its row, and what differs. Whether it does as well as on the kernel.
fn row(suite: &Suite, plan: &Plan) -> Result<bool, String> {
    suite.prepare()?;
    let names = plan.names(suite)?;
    let mut sides = Vec::new();
    for &way in &plan.ways {
        sides.push(suite.run(way, &names, plan.jobs, plan.within)?);
    }
    if let [kernel, overfly] = sides.as_mut_slice() {
        // What fails in one run of several is the suite's own chance: on either side it may.
        let again = |way, failed: &mut Verdicts, other: &Verdicts| repeat(suite, plan, way, failed, other);
        again(OVERFLY, overfly, kernel)?;
        again(Way::Kernel, kernel, overfly)?;
    }
    let passes = |verdicts: &Verdicts| verdicts.values().filter(|verdict| **verdict == Verdict::Pass).count();
    let of = |way| plan.ways.iter().position(|&each| each == way).map(|index| &sides[index]);
    let ran =
        sides.iter().map(|side| side.values().filter(|verdict| **verdict != Verdict::Skip).count()).max();
    let passed = |way| of(way).map_or_else(|| "–".to_owned(), |side| passes(side).to_string());
    let none = Verdicts::new();
    let (kernel, overfly) = (of(Way::Kernel).unwrap_or(&none), of(OVERFLY).unwrap_or(&none));
    let (worse, better) =
        if sides.len() == 2 { (only(kernel, overfly), only(overfly, kernel)) } else { (vec![], vec![]) };
    println!(
        "| {} | {} | {} | {} | {} | {} |",
        suite.name(),
        ran.unwrap_or(0),
        passed(Way::Kernel),
        passed(OVERFLY),
        worse.len(),
        better.len()
    );
    let say = |name: &String, what: &str| eprintln!("{}: {name} {what}", suite.name());
    worse.iter().for_each(|name| say(name, "passes on the kernel and not on Overfly"));
    better.iter().for_each(|name| say(name, "passes on Overfly and not on the kernel"));
    let fails = |name: &&String| sides.iter().all(|side| side.get(*name) == Some(&Verdict::Fail));
    sides.first().into_iter().flat_map(Verdicts::keys).filter(fails).for_each(|name| say(name, "fails"));
    Ok(worse.is_empty())
}

/// Runs what passes only on the other side again, each alone, and keeps what passes then.
fn repeat(
    suite: &Suite,
    plan: &Plan,
    way: Way,
    failed: &mut Verdicts,
    other: &Verdicts,
) -> Result<(), String> {
    for _ in 0..plan.again {
        for name in only(other, failed) {
            let again = suite.run(way, std::slice::from_ref(&name), 1, plan.within)?;
            if again.get(&name) == Some(&Verdict::Pass) {
                eprintln!("{}: {name} passed {way:?} when it ran again, alone", suite.name());
                failed.insert(name, Verdict::Pass);
            }
        }
    }
    Ok(())
}

/// What passes on the one side and not on the other.
fn only(one: &Verdicts, other: &Verdicts) -> Vec<String> {
    let passed = |verdicts: &Verdicts, name: &String| verdicts.get(name) == Some(&Verdict::Pass);
    one.keys().filter(|name| passed(one, name) && !passed(other, name)).cloned().collect()
}
