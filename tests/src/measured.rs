//! nginx under `overfly run` as `overfly bench` has it, for measurements of other things than requests/s.

use std::path::Path;
use std::process::Stdio;

use overfly_bench::lab::{DEVICE, Lab, SERVER};
use serde_json::Value;

use crate::{ROOT, Server, eventually, overfly, titled};

/// How often something is measured, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Measurements of each kind.
    pub repeats: usize,
    /// Length of one, s.
    pub seconds: u32,
}

impl Rounds {
    /// `[--repeats N] [--seconds N]`, 5 and 2 if nothing is said; `None` if something else is.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Option<Rounds> {
        let mut rounds = Rounds { repeats: 5, seconds: 2 };
        while let Some(word) = words.next() {
            let number = words.next()?.parse().ok().filter(|number| *number > 0)?;
            match word.as_str() {
                "--repeats" => rounds.repeats = number as usize,
                "--seconds" => rounds.seconds = number,
                _ => return None,
            }
        }
        Some(rounds)
    }

    /// Measures two ways in turns, each first as often as the other.
    pub fn in_turns<T>(self, mut measure: impl FnMut(usize) -> T) -> [Vec<T>; 2] {
        let mut results = [Vec::new(), Vec::new()];
        for repeat in 0..self.repeats {
            for turn in 0..2 {
                let way = (turn + repeat) % 2;
                results[way].push(measure(way));
            }
        }
        results
    }
}

/// What carries the frames between nginx and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Shared memory: the generator is at the server's side.
    Memif,
    /// AF_XDP over veth.
    Xdp,
}

impl Link {
    /// Both.
    pub const ALL: [Link; 2] = [Link::Memif, Link::Xdp];

    /// As options have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Link::Memif => "memif",
            Link::Xdp => "xdp",
        }
    }
}

/// A running nginx.
#[derive(Debug)]
pub struct Measured<'a> {
    lab: &'a Lab,
    link: Link,
    server: Server,
    /// Where the workers run.
    pub cores: Vec<usize>,
    /// The process id of each worker.
    pub workers: Vec<u32>,
}

impl<'a> Measured<'a> {
    /// Starts it with the profile `performance`, `options` of `EF_…` instead of the profile's, and a worker on each of these
    /// cores. It serves a file `0` without content and a file `1024`.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn start(lab: &'a Lab, link: Link, cores: &[usize], options: &[(&str, &str)]) -> Self {
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/nginx/nginx.conf");
        let workers = cores.len();
        let masks: Vec<String> = cores.iter().map(|core| format!("{:b}", 1 << core)).collect();
        let config = std::fs::read_to_string(template)
            .expect("workloads/nginx/nginx.conf")
            .replace("@ROOT@", ROOT)
            .replace("@PORT@", "80")
            .replace(
                "worker_processes @WORKERS@;",
                &format!("worker_processes {workers};\nworker_cpu_affinity {};", masks.join(" ")),
            );
        lab.write("server", format!("{ROOT}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
        for size in [0, 1024] {
            lab.write("server", format!("{ROOT}/www/{size}"), &vec![b'x'; size]).expect("write a file");
        }
        let mut command = lab.command("server", overfly());
        command.args(["run", "-p", "performance"]);
        match link {
            Link::Memif => command.args(["--link", &memif()]),
            Link::Xdp => command.args(["--interface", DEVICE]),
        };
        command.args(["--", "nginx", "-e", "stderr", "-c", &format!("{ROOT}/nginx.conf")]);
        command.envs(options.iter().copied()).stderr(Stdio::null());
        let server = Server::spawn(command);
        let mut found = Vec::new();
        eventually("nginx has its workers", || {
            found = titled(server.id(), "nginx: worker process");
            found.len() == workers
        });
        let measured = Measured { lab, link, server, cores: cores.to_vec(), workers: found };
        eventually("nginx answers", || measured.try_load(&["-n", "1", "-c", "1"], 0).is_some());
        measured
    }

    /// What `overfly load http` reports, with these words, of requests for a file of so many bytes.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn load(&self, words: &[&str], bytes: u32) -> Value {
        let report = self.try_load(words, bytes).expect("the generator's report");
        assert_eq!(report["failed_total"], 0, "{report}");
        report
    }

    fn try_load(&self, words: &[&str], bytes: u32) -> Option<Value> {
        let side = match self.link {
            Link::Memif => "server",
            Link::Xdp => "client",
        };
        let mut command = self.lab.command(side, overfly());
        command.args(["load", "http", "--json", "--link"]);
        match self.link {
            Link::Memif => command.arg(memif()),
            Link::Xdp => command.args(["xdp", "--interface", DEVICE]),
        };
        command.args(words).arg(format!("http://{SERVER}/{bytes}")).stdin(Stdio::null());
        let output = command.output().ok()?;
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }

    /// Ends it.
    ///
    /// # Panics
    /// If it does not end.
    pub fn stop(self) {
        self.server.stop();
    }
}

fn memif() -> String {
    format!("memif:{ROOT}/socket")
}
