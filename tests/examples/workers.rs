//! `cargo xtask workers`: what two workers lose by being workers of one program.
//!
//! Two cores, and on each a worker and a thread of the generator, which so take turns. Either the workers are those of two
//! programs in networks of their own, which share nothing but the machine, or they are those of one. The first is twice one worker.
//! nginx's are processes; those of HAProxy and memcached are threads, which share one stack, or each have one (EF_STACK_PER_THREAD), from the
//! beginning or since they met at its lock.

use std::process::ExitCode;
use std::thread;

use overfly_bench::lab::Lab;
use overfly_bench::statistics::median;
use overfly_testing::process;
use overfly_tests::measured::{Link, Measured, Program, Rounds};
use overfly_tests::overfly;
use serde_json::Value;

const USAGE: &str =
    "usage: cargo xtask workers [nginx|haproxy|memcached…] [--link memif|xdp] [--repeats N] [--seconds N]";
/// A worker that has nothing to do sleeps at once: the time is the generator's, and no processor time of the worker.
const OPTIONS: &[(&str, &str)] = &[("EF_POLL_USEC", "0"), ("EF_STACK_PER_THREAD", "0")];
const DIVIDED: &[(&str, &str)] = &[("EF_POLL_USEC", "0")];
const A_STACK_EACH: &[(&str, &str)] = &[("EF_POLL_USEC", "0"), ("EF_STACK_PER_THREAD", "1")];
const FOLLOWED: &[(&str, &str)] = &[("EF_POLL_USEC", "0"), ("EF_STACK_PER_THREAD", "2")];

/// Whose the two workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Two programs', in a network each.
    Apart,
    /// One program's.
    Together,
    /// One program's, with a stack for each thread.
    StackEach,
    /// The same, and connections move to the stack of the thread that serves them.
    Followed,
    /// One program's, which divides if its threads meet.
    Divided,
    /// One program's on the kernel.
    Kernel,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Apart, Way::Together, Way::StackEach, Way::Followed, Way::Divided, Way::Kernel];

    fn name(self) -> &'static str {
        match self {
            Way::Apart => "apart",
            Way::Together => "together",
            Way::StackEach => "together, a stack each",
            Way::Followed => "together, connections follow",
            Way::Divided => "together, dividing",
            Way::Kernel => "together, on the kernel",
        }
    }

    /// Whether there is such a thing.
    fn is_for(self, program: Program, link: Link) -> bool {
        match self {
            Way::Apart | Way::Together => true,
            // A process has a stack of its own anyhow.
            Way::StackEach => program != Program::Nginx,
            // A client over memif is one stack's.
            Way::Followed | Way::Divided => program != Program::Nginx && link == Link::Xdp,
            Way::Kernel => link == Link::Xdp,
        }
    }

    fn options(self) -> Option<&'static [(&'static str, &'static str)]> {
        match self {
            Way::Apart | Way::Together => Some(OPTIONS),
            Way::StackEach => Some(A_STACK_EACH),
            Way::Followed => Some(FOLLOWED),
            Way::Divided => Some(DIVIDED),
            Way::Kernel => None,
        }
    }
}

fn main() -> ExitCode {
    let Some((programs, links, rounds)) = parse(std::env::args().skip(1).collect()) else {
        eprintln!("workers: {USAGE}");
        return ExitCode::from(2);
    };
    println!("| program | link | connections | workers | requests/s | µs/request | two for one | points |");
    println!("|---|---|---|---|---|---|---|---|");
    for program in programs {
        for &link in &links {
            for close in [false, true] {
                // Nothing asks memcached to close.
                if !(close && program == Program::Memcached) {
                    compare(program, link, close, rounds);
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn parse(words: Vec<String>) -> Option<(Vec<Program>, Vec<Link>, Rounds)> {
    let mut programs = Vec::new();
    let mut links = Link::ALL.to_vec();
    let mut words = words.into_iter().peekable();
    while let Some(program) =
        words.peek().and_then(|word| Program::ALL.into_iter().find(|its| its.name() == word))
    {
        programs.push(program);
        words.next();
    }
    if words.next_if(|word| word == "--link").is_some() {
        let name = words.next()?;
        links.retain(|link| link.name() == name);
    }
    if programs.is_empty() {
        programs = Program::ALL.to_vec();
    }
    let rounds = Rounds::parse(words)?;
    (!links.is_empty()).then_some((programs, links, rounds))
}

fn compare(program: Program, link: Link, close: bool, rounds: Rounds) {
    let ways: Vec<Way> = Way::ALL.into_iter().filter(|way| way.is_for(program, link)).collect();
    let mut runs: Vec<Vec<Run>> = ways.iter().map(|_| Vec::new()).collect();
    rounds.each_in_turns(ways.len(), |way| {
        let run = match ways[way] {
            Way::Apart => apart(program, link, close, rounds.seconds),
            way => together(program, link, way, close, rounds.seconds),
        };
        runs[way].push(run);
    });
    let apart = median(runs[0].iter().map(|run| run.per_s));
    for (way, its) in ways.iter().zip(&runs) {
        let per_s = median(its.iter().map(|run| run.per_s));
        let points: Vec<String> = runs[0]
            .iter()
            .zip(its)
            .map(|(one, other)| format!("{:.2}", 2.0 * other.per_s / one.per_s))
            .collect();
        println!(
            "| {} | {} | {} | {} | {per_s:.0} | {:.2} | {:.2} | {} |",
            program.name(),
            link.name(),
            if close { "one each" } else { "stay open" },
            way.name(),
            median(its.iter().map(|run| run.cost_us)),
            2.0 * per_s / apart,
            points.join(" ")
        );
    }
}

struct Run {
    /// Requests a second, all together.
    per_s: f64,
    /// Processor time of the workers, a request.
    cost_us: f64,
}

impl Run {
    fn new(reports: &[Value], ticks: u64) -> Run {
        let sum =
            |name: &str| reports.iter().map(|report| report[name].as_f64().expect("a figure")).sum::<f64>();
        let tick_us = 1e6 / rustix::param::clock_ticks_per_second() as f64;
        Run { per_s: sum("requests_per_s"), cost_us: ticks as f64 * tick_us / sum("succeeded") }
    }
}

/// Two programs with a worker each; the generator's thread for one is on the other's core.
fn apart(program: Program, link: Link, close: bool, seconds: u32) -> Run {
    let labs = [0, 1].map(|_| Lab::new(overfly()).expect("a lab"));
    let start = |core: usize| Measured::start_program(program, &labs[core], link, &[core], Some(OPTIONS));
    let servers = [start(0), start(1)];
    let before: u64 = servers.iter().map(ticks).sum();
    let reports: Vec<Value> = thread::scope(|scope| {
        let loads = servers.each_ref().map(|server| {
            let other = if server.cores == [0] { "1" } else { "0" };
            scope.spawn(move || {
                load(program, server, &["-t", "1", "-c", "256", "--cpus", other], close, seconds)
            })
        });
        loads.into_iter().map(|load| load.join().expect("a generator")).collect()
    });
    let run = Run::new(&reports, servers.iter().map(ticks).sum::<u64>() - before);
    servers.into_iter().for_each(Measured::stop);
    run
}

/// One program with two workers. Over memif a thread's connections are one process's, and whoever comes first has a client: it is
/// done again if one of nginx's workers has all of them.
fn together(program: Program, link: Link, way: Way, close: bool, seconds: u32) -> Run {
    for _ in 0..10 {
        let lab = Lab::new(overfly()).expect("a lab");
        let server = Measured::start_program(program, &lab, link, &[0, 1], way.options());
        let before: Vec<u64> = server.workers.iter().map(|id| process::ticks(*id)).collect();
        let report = load(program, &server, &["-t", "2", "-c", "512", "--cpus", "0,1"], close, seconds);
        let spent: Vec<u64> =
            server.workers.iter().zip(before).map(|(id, before)| process::ticks(*id) - before).collect();
        server.stop();
        let all: u64 = spent.iter().sum();
        if spent.iter().all(|one| one * 5 > all) {
            return Run::new(&[report], all);
        }
    }
    panic!("one of the workers has no work, again and again");
}

fn load(program: Program, server: &Measured<'_>, words: &[&str], close: bool, seconds: u32) -> Value {
    let duration = format!("{seconds}s");
    let mut words = [words, &["--warmup", "1s", "-d", &duration]].concat();
    if close {
        words.push("--close");
    }
    server.load(&words, program.bytes())
}

fn ticks(server: &Measured<'_>) -> u64 {
    server.workers.iter().map(|id| process::ticks(*id)).sum()
}
