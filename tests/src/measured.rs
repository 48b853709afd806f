//! Servers under `overfly run` as `overfly bench` has them, for measurements of other things than requests/s.

use std::path::Path;
use std::process::Stdio;

use overfly_bench::lab::{DEVICE, Lab, SERVER};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
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
        self.each_in_turns(2, |way| results[way].push(measure(way)));
        results
    }

    /// Does something for so many ways in turns, each first as often as the others.
    pub fn each_in_turns(self, ways: usize, mut act: impl FnMut(usize)) {
        for repeat in 0..self.repeats {
            for turn in 0..ways {
                act((turn + repeat) % ways);
            }
        }
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

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// nginx, whose workers are processes, each with a listener of its own.
    Nginx,
    /// HAProxy that answers by itself, whose workers are threads, each with a listener of its own.
    Haproxy,
    /// memcached, whose workers are threads that another one gives connections to.
    Memcached,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 3] = [Program::Nginx, Program::Haproxy, Program::Memcached];

    /// The command's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Program::Nginx => "nginx",
            Program::Haproxy => "haproxy",
            Program::Memcached => "memcached",
        }
    }

    /// The command, with a worker on each of these cores as far as it can be told so, once its files are there.
    fn prepared(self, lab: &Lab, cores: &[usize]) -> Vec<String> {
        match self {
            Program::Nginx => prepared_nginx(lab, cores),
            Program::Haproxy => prepared_haproxy(lab, cores),
            Program::Memcached => {
                let threads = cores.len().to_string();
                let words = ["memcached", "-u", "root", "-l", "0.0.0.0", "-c", "4096", "-t", &threads];
                words.map(str::to_owned).into()
            }
        }
    }

    /// How its workers' processes, or the one that has them as threads, begin their command line.
    fn title(self) -> &'static str {
        match self {
            Program::Nginx => "nginx: worker process",
            Program::Haproxy | Program::Memcached => self.name(),
        }
    }

    /// How many bytes its smallest file or value has.
    #[must_use]
    pub fn bytes(self) -> u32 {
        if self == Program::Memcached { 16 } else { 0 }
    }

    /// What is asked for, whose value or file has so many bytes.
    fn url(self, bytes: u32) -> String {
        match self {
            Program::Nginx | Program::Haproxy => format!("http://{SERVER}/{bytes}"),
            Program::Memcached => format!("memcached://{SERVER}/{bytes}"),
        }
    }
}

fn prepared_nginx(lab: &Lab, cores: &[usize]) -> Vec<String> {
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
    ["nginx", "-e", "stderr", "-c", &format!("{ROOT}/nginx.conf")].map(str::to_owned).into()
}

fn prepared_haproxy(lab: &Lab, cores: &[usize]) -> Vec<String> {
    let threads = cores.len();
    let places: Vec<String> =
        cores.iter().enumerate().map(|(thread, core)| format!("cpu-map 1/{} {core}", thread + 1)).collect();
    let config = format!(
        "global\nnbthread {threads}\n{}\nmaxconn 4096\n\
         defaults\nmode http\ntimeout client 60s\ntimeout server 60s\ntimeout connect 5s\n\
         frontend f\nbind :80 shards by-thread backlog 4096\nhttp-request return status 200\n",
        places.join("\n"),
    );
    lab.write("server", format!("{ROOT}/haproxy.cfg"), config.as_bytes()).expect("write haproxy.cfg");
    ["haproxy", "-db", "-f", &format!("{ROOT}/haproxy.cfg")].map(str::to_owned).into()
}

/// A running server.
#[derive(Debug)]
pub struct Measured<'a> {
    lab: &'a Lab,
    program: Program,
    link: Link,
    server: Server,
    /// Where the workers run.
    pub cores: Vec<usize>,
    /// The process id of each worker, or of the process that has them as threads.
    pub workers: Vec<u32>,
}

impl<'a> Measured<'a> {
    /// Starts nginx with the profile `performance`, `options` of `EF_…` instead of the profile's, and a worker on each of these
    /// cores. It serves a file `0` without content and a file `1024`.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn start(lab: &'a Lab, link: Link, cores: &[usize], options: &[(&str, &str)]) -> Self {
        Measured::start_program(Program::Nginx, lab, link, cores, Some(options))
    }

    /// The same of another program, or without `options` of one on the kernel. memcached has a value `16` of so many bytes; HAProxy's
    /// answers are empty.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn start_program(
        program: Program,
        lab: &'a Lab,
        link: Link,
        cores: &[usize],
        options: Option<&[(&str, &str)]>,
    ) -> Self {
        let words = program.prepared(lab, cores);
        let mut command = match options {
            Some(options) => {
                let mut command = lab.command("server", overfly());
                command.args(["run", "-p", "performance"]);
                match link {
                    Link::Memif => command.args(["--link", &memif()]),
                    Link::Xdp => command.args(["--interface", DEVICE]),
                };
                command.arg("--").args(words).envs(options.iter().copied());
                command
            }
            None => {
                let mut command = lab.command("server", "env");
                command.args(words);
                command
            }
        };
        command.stderr(Stdio::null());
        let server = Server::spawn(command);
        let processes = if program == Program::Nginx { cores.len() } else { 1 };
        let mut found = Vec::new();
        eventually("the server has its workers", || {
            found = titled(server.id(), program.title());
            if found.is_empty()
                && std::fs::read(format!("/proc/{}/cmdline", server.id()))
                    .is_ok_and(|line| line.starts_with(program.title().as_bytes()))
            {
                found = vec![server.id()];
            }
            found.len() == processes
        });
        let measured = Measured { lab, program, link, server, cores: cores.to_vec(), workers: found };
        if program == Program::Memcached {
            measured.settle_memcached();
        }
        eventually("the server answers", || {
            measured.try_load(&["-n", "1", "-c", "1"], program.bytes()).is_ok()
        });
        measured
    }

    /// Puts memcached's workers on their cores, and a value into it.
    fn settle_memcached(&self) {
        let tasks = format!("/proc/{}/task", self.workers[0]);
        let mut threads = Vec::new();
        eventually("memcached has its threads", || {
            let all = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
            threads = all
                .filter(|task| {
                    std::fs::read(task.path().join("comm")).is_ok_and(|name| name == b"mc-worker\n")
                })
                .filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok())
                .collect();
            threads.len() >= self.cores.len()
        });
        threads.sort_unstable();
        for (thread, core) in threads.into_iter().zip(&self.cores) {
            let mut set = CpuSet::new();
            set.set(*core);
            sched_setaffinity(Pid::from_raw(thread), &set).expect("a worker on its core");
        }
        let set = "exec 3<>/dev/tcp/127.0.0.1/11211; printf 'set 16 0 0 16\\r\\n0123456789abcdef\\r\\n' >&3; read -r line <&3; echo $line";
        eventually("memcached has a value", || {
            let output = self.lab.command("server", "bash").args(["-c", set]).output();
            output.is_ok_and(|output| output.stdout.starts_with(b"STORED"))
        });
    }

    /// What `overfly load http` reports, with these words, of requests for a file or a value of so many bytes.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn load(&self, words: &[&str], bytes: u32) -> Value {
        let report = self.try_load(words, bytes).unwrap_or_else(|why| panic!("the generator: {why}"));
        assert_eq!(report["failed_total"], 0, "{report}");
        report
    }

    /// The report, or what the generator complained of.
    fn try_load(&self, words: &[&str], bytes: u32) -> Result<Value, String> {
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
        command.args(words).arg(self.program.url(bytes)).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&said)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
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
