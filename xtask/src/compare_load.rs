//! Measures our generator beside others: one core for each generator in turn, the same server on another core, in one go.
//!
//! Rounds go through the generators in one order and in the other by turns, so that a machine that gets slower or quicker
//! meanwhile favours none; a figure is the median of its rounds. What counts is work done for each second of the
//! generator's processor time: a generator that waits for its server is charged only for what it used.

mod generators;
mod measure;
mod rates;
mod stalls;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use overfly_bench::lab::{DEVICE, Lab};

use self::generators::{Amount, Generator, Work};
use self::measure::{Run, Server};
use crate::{USAGE, cargo};

/// What to compare.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    rounds: usize,
    seconds: u32,
    connections: u32,
    /// Generators whose names begin so; empty: all.
    only: Vec<String>,
}

/// The runs of one generator at one kind of work.
pub(crate) struct Row {
    generator: Generator,
    work: Work,
    runs: Vec<Run>,
}

impl Plan {
    /// Reads the words after `compare-load`.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan { rounds: 5, seconds: 3, connections: 64, only: Vec::new() };
        while let Some(word) = words.next() {
            let mut number = || -> Result<usize, String> {
                let given = words.next().unwrap_or_default();
                given
                    .parse()
                    .ok()
                    .filter(|n| (1..=10_000).contains(n))
                    .ok_or(format!("{word} {given}: a number\n{USAGE}"))
            };
            match word.as_str() {
                "--quick" => (plan.rounds, plan.seconds) = (2, 1),
                "--rounds" => plan.rounds = number()?,
                "--seconds" => plan.seconds = number()? as u32,
                "--connections" => plan.connections = number()? as u32,
                "--only" => plan.only.push(words.next().ok_or(format!("--only: a generator\n{USAGE}"))?),
                _ => return Err(format!("{word} is not known\n{USAGE}")),
            }
        }
        Ok(plan)
    }

    /// Builds, measures, prints.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let overfly = build()?;
        let generators = self.generators();
        let lab = Lab::new(&overfly).map_err(|error| error.to_string())?;
        let mut rows: Vec<Row> = Work::ALL
            .into_iter()
            .flat_map(|work| generators.iter().map(move |generator| (work, generator.clone())))
            .map(|(work, generator)| Row { generator, work, runs: Vec::new() })
            .collect();
        let links = Link::all(&overfly)?;
        let measured = self.measure_all(&lab, &overfly, &links, &mut rows);
        links.iter().for_each(Link::forget);
        measured.map(|()| ExitCode::SUCCESS)
    }

    fn measure_all(
        &self,
        lab: &Lab,
        overfly: &Path,
        links: &[Link],
        rows: &mut Vec<Row>,
    ) -> Result<(), String> {
        for round in 0..self.rounds {
            for link in links {
                self.measure(lab, overfly, link, round, rows)?;
            }
        }
        rows.retain(|row| !row.runs.is_empty());
        print!("{}", table::table(rows));
        for link in links {
            print!("{}", rates::rates(lab, overfly, link, self.rounds, self.amount())?);
        }
        Ok(())
    }

    /// One round of every generator that reaches the server over this link.
    fn measure(
        &self,
        lab: &Lab,
        overfly: &Path,
        link: &Link,
        round: usize,
        rows: &mut [Row],
    ) -> Result<(), String> {
        let _server = Server::start(lab, overfly, link)?;
        let amount = self.amount();
        let mut order: Vec<&mut Row> =
            rows.iter_mut().filter(|row| link.clients.contains(&row.generator.link())).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for row in order {
            eprintln!(
                "round {} of {}: {}, {}",
                round + 1,
                self.rounds,
                row.generator.name(),
                row.work.name()
            );
            let words = link.words(row.generator.link());
            row.runs.extend(measure::run(lab, overfly, &row.generator, row.work, amount, &words)?);
        }
        Ok(())
    }

    fn amount(&self) -> Amount {
        Amount { connections: self.connections, seconds: self.seconds }
    }

    fn generators(&self) -> Vec<Generator> {
        let mut all = vec![Generator::Wrk, Generator::Ab];
        match oha() {
            Some(path) => all.push(Generator::Oha(path)),
            None => eprintln!("oha is not here: cargo install oha --locked --root target/tools"),
        }
        all.push(Generator::H2load);
        all.extend(["kernel", "xdp", "memif"].map(|link| Generator::Overfly { link }));
        let wanted = |generator: &Generator| {
            self.only.is_empty() || self.only.iter().any(|only| generator.name().starts_with(only.as_str()))
        };
        all.retain(wanted);
        all
    }
}

/// A server's link and the clients' links that lead to it.
pub(crate) struct Link {
    server: String,
    clients: &'static [&'static str],
    /// The socket at which the ends of shared memory meet.
    socket: PathBuf,
}

impl Link {
    /// The links that this `overfly load serve` has.
    fn all(overfly: &Path) -> Result<Vec<Link>, String> {
        let help = Command::new(overfly).args(["load", "serve", "--help"]).output();
        let help = help.map_err(|error| format!("cannot run {}: {error}", overfly.display()))?;
        // Not an abstract socket: those belong to one network namespace.
        // One for each run of this command: two at once do not meet, and nobody meets what a killed one has left.
        let socket = target(crate::root()?).join(format!("compare-load-{}.memif", std::process::id()));
        let xdp = Link { server: "xdp".to_owned(), clients: &["kernel", "xdp"], socket: socket.clone() };
        let mut links = vec![xdp];
        if String::from_utf8_lossy(&help.stdout).contains("memif:") {
            links.push(Link { server: "memif".to_owned(), clients: &["memif"], socket });
        }
        Ok(links)
    }

    /// Takes away what a server that was killed has left at the socket.
    fn forget(&self) {
        let _ = std::fs::remove_file(&self.socket);
    }

    fn server_words(&self) -> Vec<String> {
        self.words(&self.server)
    }

    /// What `overfly load` needs to use `link`.
    fn words(&self, link: &str) -> Vec<String> {
        match link {
            "memif" => vec!["--link".to_owned(), format!("memif:{}", self.socket.display())],
            "xdp" => ["--link", "xdp", "--interface", DEVICE].map(str::to_owned).to_vec(),
            other => vec!["--link".to_owned(), other.to_owned()],
        }
    }
}

fn build() -> Result<PathBuf, String> {
    let root = crate::root()?;
    let status = Command::new(cargo())
        .args(["build", "--release", "--locked", "-p", "overfly-cli"])
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err("overfly does not build".to_owned());
    }
    Ok(target(root).join("release/overfly"))
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// oha from `target/tools`, or from wherever the shell finds it.
fn oha() -> Option<PathBuf> {
    let ours = target(crate::root().ok()?).join("tools/bin/oha");
    if ours.exists() {
        return Some(ours);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("oha")).find(|oha| oha.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let plan = |line: &str| Plan::parse(line.split_ascii_whitespace().map(str::to_owned));
        assert_eq!(plan("").unwrap(), Plan { rounds: 5, seconds: 3, connections: 64, only: Vec::new() });
        let quick = plan("--quick --only wrk --connections 8").unwrap();
        assert_eq!(quick, Plan { rounds: 2, seconds: 1, connections: 8, only: vec!["wrk".to_owned()] });
        for wrong in ["--rounds", "--rounds 0", "--seconds x", "now"] {
            assert!(plan(wrong).unwrap_err().ends_with(USAGE), "{wrong}");
        }
    }
}
