//! A sequence is played: its actors take one step after the other, and what each says is noted, also what it says later.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::script::{Place, Script, Step};
use crate::bench::lab::{CLIENT, CLIENT_V6, Namespace, SERVER, SERVER_V6};
use crate::bench::{Bench, Helper, programs, spawn, wait};

/// What each step led to: first what its own call said, then what calls that had waited said.
pub(crate) type Transcript = Vec<Vec<String>>;

/// How long an answer may take that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(20);
/// Ports of sequences, ten each.
const PORTS: std::ops::Range<u64> = 2_000..32_000;

static PLAYED: AtomicU64 = AtomicU64::new(0);

/// A program that makes the processes of one side.
struct Nursery {
    child: Helper,
    orders: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
}

impl Nursery {
    fn start(namespace: &Namespace, mut command: Command) -> Nursery {
        command.arg(programs("sequences.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Helper(spawn(namespace, command.stderr(Stdio::inherit())));
        let (orders, told) = (child.0.stdin.take(), BufReader::new(child.0.stdout.take().unwrap()));
        Nursery { child, orders, told }
    }

    fn order(&mut self, words: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{words}").unwrap();
    }

    /// Kills the sequence's processes of this side.
    fn end(&mut self) {
        self.order("end");
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        assert_eq!(line, "ended\n");
    }
}

impl Drop for Nursery {
    /// At the end of its orders it takes its processes with it.
    fn drop(&mut self) {
        self.orders = None;
        let _ = wait(&mut self.child.0, Duration::from_secs(5));
    }
}

/// Who plays, on the kernel or on Overfly.
pub(crate) struct Players {
    left: Nursery,
    far: Nursery,
    /// Within the host of `left`.
    near: Nursery,
    folder: PathBuf,
}

enum News {
    Came(char, UnixStream),
    Said(char, String),
    Gone(char),
}

impl Players {
    /// With statistics that go nowhere: what was accelerated the broker counts.
    pub(crate) fn new(bench: &Bench, accelerated: bool) -> Players {
        let program = || {
            let mut command = if accelerated {
                bench.accelerated("/usr/bin/python3")
            } else {
                Command::new("/usr/bin/python3")
            };
            command.env_remove("OVERFLY_STATS");
            command
        };
        Players {
            left: Nursery::start(&bench.lab.server, program()),
            far: Nursery::start(&bench.lab.client, Command::new("/usr/bin/python3")),
            near: Nursery::start(&bench.lab.server, program()),
            folder: bench.folder.path().to_owned(),
        }
    }

    /// After each step everything has `unit_ms` to come to rest.
    pub(crate) fn play(&mut self, script: &Script, unit_ms: u64) -> Transcript {
        let number = PLAYED.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{number}"));
        let base = PORTS.start + number * 10 % (PORTS.end - PORTS.start);
        let (own, other): (IpAddr, IpAddr) = match script.place {
            Place::V4 => (SERVER.into(), CLIENT.into()),
            Place::V6 => (SERVER_V6.into(), CLIENT_V6.into()),
            Place::Host => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        };
        let right = if script.place == Place::Host { &mut self.near } else { &mut self.far };
        let inbox = listen(&path);
        self.left.order(&format!("begin {} L {own} {other} {base} {unit_ms}", path.display()));
        right.order(&format!("begin {} R {other} {own} {base} {unit_ms}", path.display()));
        let mut stage = Stage::new(script, Duration::from_millis(unit_ms), inbox);
        let transcript = stage.play();
        right.end();
        self.left.end();
        writeln!(UnixStream::connect(&path).unwrap(), "-").unwrap();
        transcript
    }
}

/// Takes the actors of one sequence, until `-` comes.
fn listen(path: &Path) -> Receiver<News> {
    let listener = UnixListener::bind(path).unwrap();
    let (news, inbox) = channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut name = String::new();
            let _ = lines.read_line(&mut name);
            match name.chars().next() {
                Some('-') => break,
                Some(actor) => follow(actor, stream, lines, news.clone()),
                None => {}
            }
        }
        let _ = std::fs::remove_file(path);
    });
    inbox
}

/// Passes on what an actor says.
fn follow(actor: char, stream: UnixStream, lines: BufReader<UnixStream>, news: Sender<News>) {
    let _ = news.send(News::Came(actor, stream));
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let _ = news.send(News::Said(actor, line));
        }
        let _ = news.send(News::Gone(actor));
    });
}

/// A sequence that is being played.
struct Stage<'a> {
    script: &'a Script,
    unit: Duration,
    inbox: Receiver<News>,
    actors: BTreeMap<char, UnixStream>,
    /// Whose call waits, and which step that is.
    busy: BTreeMap<char, usize>,
}

impl<'a> Stage<'a> {
    fn new(script: &'a Script, unit: Duration, inbox: Receiver<News>) -> Self {
        Stage { script, unit, inbox, actors: BTreeMap::new(), busy: BTreeMap::new() }
    }

    fn play(&mut self) -> Transcript {
        self.until_here('L', &mut Vec::new());
        self.until_here('R', &mut Vec::new());
        let mut transcript: Transcript =
            (0..self.script.steps.len()).map(|number| self.take(number)).collect();
        let steps = &self.script.steps;
        transcript.push(self.busy.values().map(|step| format!("{} waits for ever", steps[*step])).collect());
        transcript
    }

    fn until_here(&mut self, actor: char, later: &mut Vec<String>) {
        let end = Instant::now() + PATIENCE;
        while !self.actors.contains_key(&actor) {
            assert!(Instant::now() < end, "{actor} does not come:\n{}", self.script);
            self.hear(Instant::now() + self.unit, None, later);
        }
    }

    fn take(&mut self, number: usize) -> Vec<String> {
        let steps = &self.script.steps;
        let step = &steps[number];
        let mut later = Vec::new();
        let own = if step.actor == '-' {
            // Whatever has a timer hears it.
            self.hear(Instant::now() + self.unit * 30, None, &mut later);
            String::new()
        } else if !self.actors.contains_key(&step.actor) {
            "nobody".to_owned()
        } else if self.busy.contains_key(&step.actor) {
            "busy".to_owned()
        } else if self.busy.values().any(|waiting| steps[*waiting].competes_with(step)) {
            "another one waits".to_owned()
        } else {
            self.call(number, step, &mut later)
        };
        self.hear(Instant::now() + self.unit, None, &mut later);
        later.sort();
        later.insert(0, own);
        later
    }

    fn call(&mut self, number: usize, step: &Step, later: &mut Vec<String>) -> String {
        let patience = match step.word() {
            _ if !step.may_block() => PATIENCE,
            // Often the first call for which a stack is made.
            "connect" | "accept" => self.unit * 40,
            _ => self.unit * 8,
        };
        self.busy.insert(step.actor, number);
        let sent = writeln!(self.actors.get_mut(&step.actor).unwrap(), "{number} {}", step.words);
        let said = match sent {
            Ok(()) => self.hear(Instant::now() + patience, Some(step.actor), later),
            Err(_) => Some("has gone".to_owned()),
        };
        let Some(said) = said else {
            return if step.may_block() { "waits".to_owned() } else { "is lost".to_owned() };
        };
        match said.as_str() {
            "started" => self.until_here(if step.actor == 'L' { 'M' } else { 'S' }, later),
            "forked" => self.until_here(if step.actor == 'L' { 'C' } else { 'D' }, later),
            _ => {}
        }
        said
    }

    /// What comes until then, or until the one that is awaited has said its word, which is returned.
    fn hear(&mut self, end: Instant, awaited: Option<char>, later: &mut Vec<String>) -> Option<String> {
        loop {
            let news = match self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("the listener's thread holds a sender"),
            };
            let (actor, said) = match news {
                News::Came(actor, stream) => {
                    self.actors.insert(actor, stream);
                    continue;
                }
                News::Said(actor, said) => (actor, said),
                News::Gone(actor) => {
                    self.actors.remove(&actor);
                    (actor, "has gone".to_owned())
                }
            };
            assert!(!said.starts_with("FAULT"), "{said}:\n{}", self.script);
            let begun = self.busy.remove(&actor);
            if Some(actor) == awaited {
                return Some(said);
            }
            later.push(match begun {
                Some(step) => format!("{} has waited: {said}", self.script.steps[step]),
                None => format!("{actor}: {said}"),
            });
        }
    }
}

/// What was played, step by step, for who reads it.
pub(crate) fn show(script: &Script, kernel: &Transcript, overfly: &Transcript) -> String {
    let mut shown = String::new();
    let end = Step::new('-', "the end");
    for (number, (kernel, overfly)) in kernel.iter().zip(overfly).enumerate() {
        let step = script.steps.get(number).unwrap_or(&end);
        let mark = if kernel == overfly { ' ' } else { '!' };
        shown += &format!("{mark} {step}: {}\n", kernel.join("; "));
        if kernel != overfly {
            shown += &format!("!     Overfly: {}\n", overfly.join("; "));
        }
    }
    shown
}
