//! A sequence is played: its actors take one step after the other, and what each says is noted, also what it says later.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::inbox::{Inbox, News};
use super::rest::{Pace, Patience, Wait, Watch};
use super::script::{Place, Script, Step, side_of};
use crate::bench::lab::{CLIENT, CLIENT_V6, Namespace, SERVER, SERVER_V6};
use crate::bench::{Bench, Helper, compile, spawn, wait};

/// What each step led to: first what its own call said, then what calls that had waited said.
pub(crate) type Transcript = Vec<Vec<String>>;

/// How long an answer may take that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(20);
/// After so long urgent data has been sent again: to a stack, which leaves it to the kernel (TCP_RTO_MIN in Linux, include/net/tcp.h).
const SENT_AGAIN: Duration = Duration::from_millis(300);
/// Ports of sequences, ten each.
const PORTS: std::ops::Range<u64> = 2_000..32_000;

/// Does what its side does in a sequence: in C, as it is begun anew for each.
pub(crate) const PROGRAM: &str = "sequences";

static PLAYED: AtomicU64 = AtomicU64::new(0);

/// A program that makes the processes of one side.
struct Nursery {
    child: Helper,
    orders: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
}

impl Nursery {
    fn start(namespace: &Namespace, mut command: Command) -> Nursery {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Helper(spawn(namespace, command.stderr(Stdio::inherit())));
        let (orders, told) = (child.0.stdin.take(), BufReader::new(child.0.stdout.take().unwrap()));
        Nursery { child, orders, told }
    }

    fn order(&mut self, words: &str) {
        self.orders.as_mut().unwrap().write_all(format!("{words}\n").as_bytes()).unwrap();
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
    /// The threads of the broker.
    brokers: Vec<u32>,
    folder: PathBuf,
    /// Whether somebody went on running for a long time, in one of the sequences since this was last set.
    pub(crate) restless: bool,
}

impl Players {
    /// Of that program. Accelerated if there is a broker, whose threads these are; with statistics that go nowhere: what was accelerated
    /// the broker counts.
    pub(crate) fn new(program: &Path, bench: &Bench, brokers: Option<&[u32]>) -> Players {
        let command = || {
            let mut command = Command::new(program);
            if brokers.is_some() {
                bench.accelerate(&mut command).env_remove("OVERFLY_STATS");
            }
            command
        };
        Players {
            left: Nursery::start(&bench.lab.server, command()),
            far: Nursery::start(&bench.lab.client, Command::new(program)),
            near: Nursery::start(&bench.lab.server, command()),
            brokers: brokers.unwrap_or_default().to_vec(),
            folder: bench.folder.path().to_owned(),
            restless: false,
        }
    }

    /// After each step everything has time to come to rest.
    pub(crate) fn play(&mut self, script: &Script, pace: Pace) -> Transcript {
        let number = PLAYED.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{number}"));
        let base = PORTS.start + number * 10 % (PORTS.end - PORTS.start);
        let (own, other): (IpAddr, IpAddr) = match script.place {
            Place::V4 => (SERVER.into(), CLIENT.into()),
            Place::V6 => (SERVER_V6.into(), CLIENT_V6.into()),
            Place::Host => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        };
        let right = if script.place == Place::Host { &mut self.near } else { &mut self.far };
        let (inbox, unit_ms) = (Inbox::new(&path), pace.unit.as_millis());
        self.left.order(&format!("begin {} L {own} {other} {base} {unit_ms}", path.display()));
        right.order(&format!("begin {} R {other} {own} {base} {unit_ms}", path.display()));
        let accelerated = match script.place {
            _ if self.brokers.is_empty() => "",
            Place::Host => "LR",
            Place::V4 | Place::V6 => "L",
        };
        let mut stage = Stage::new(script, pace, Watch::new(&self.brokers), inbox, accelerated);
        let transcript = stage.play();
        self.restless |= stage.restless;
        right.end();
        self.left.end();
        transcript
    }
}

/// A sequence that is being played.
struct Stage<'a> {
    script: &'a Script,
    pace: Pace,
    watch: Watch,
    inbox: Inbox,
    /// The sides that are.
    accelerated: &'static str,
    /// Whether somebody went on running after a step for as long as was waited.
    restless: bool,
    /// Whose call waits, and which step that is.
    busy: BTreeMap<char, usize>,
}

impl<'a> Stage<'a> {
    fn new(script: &'a Script, pace: Pace, watch: Watch, inbox: Inbox, accelerated: &'static str) -> Self {
        Stage { script, pace, watch, inbox, accelerated, restless: false, busy: BTreeMap::new() }
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
        // Counted, as a clock goes on while the machine stands still.
        let mut left = PATIENCE.div_duration_f64(self.pace.unit) as usize;
        while !self.inbox.has(actor) {
            assert!(left > 0, "{actor} does not come:\n{}", self.script);
            left -= 1;
            self.hear(Instant::now() + self.pace.unit, None, later);
        }
    }

    fn take(&mut self, number: usize) -> Vec<String> {
        let steps = &self.script.steps;
        let step = &steps[number];
        let mut later = Vec::new();
        let own = if step.actor == '-' {
            // Whatever has a timer hears it.
            let times = step.words.split(' ').nth(1).map_or(1, |times| times.parse().expect("a number"));
            self.hear(Instant::now() + self.pace.unit * 30 * times, None, &mut later);
            String::new()
        } else if !self.inbox.has(step.actor) {
            "nobody".to_owned()
        } else if self.busy.contains_key(&step.actor) {
            "busy".to_owned()
        } else if self.busy.values().any(|waiting| steps[*waiting].competes_with(step)) {
            "another one waits".to_owned()
        } else {
            self.call(number, step, &mut later)
        };
        if step.is_urgent() {
            self.hear(Instant::now() + SENT_AGAIN, None, &mut later);
        }
        self.come_to_rest(&mut later);
        later.sort();
        later.insert(0, own);
        later
    }

    fn call(&mut self, number: usize, step: &Step, later: &mut Vec<String>) -> String {
        self.busy.insert(step.actor, number);
        let said = if !self.inbox.tell(step.actor, &format!("{number} {}", step.words)) {
            Some("has gone".to_owned())
        } else if step.may_block() {
            self.hear_whether_it_waits(step, later)
        } else {
            self.hear(Instant::now() + PATIENCE, Some(step.actor), later)
        };
        let Some(said) = said else {
            return if step.may_block() { "waits".to_owned() } else { "is lost".to_owned() };
        };
        match said.as_str() {
            "started" => self.until_here(if step.actor == 'L' { 'M' } else { 'S' }, later),
            "forked" => self.until_here(step.child(), later),
            _ => {}
        }
        said
    }

    /// What comes until nothing more will.
    fn come_to_rest(&mut self, later: &mut Vec<String>) {
        let Pace { unit, quiet } = self.pace;
        self.hear_until_over(Patience { quiet, rest: unit, end: unit * 250 }, None, later);
    }

    /// What a call says that may wait, unless it does.
    fn hear_whether_it_waits(&mut self, step: &Step, later: &mut Vec<String>) -> Option<String> {
        let Pace { unit, quiet } = self.pace;
        let patience = match step.word() {
            // Often the first call for which a stack is made, which takes the broker its time; or it waits for a delayed acknowledgment.
            "connect" | "accept" | "leave" => {
                Patience { quiet: unit * 40, rest: unit * 40, end: unit * 1000 }
            }
            _ => Patience { quiet: quiet * 4, rest: unit * 8, end: unit * 500 },
        };
        self.hear_until_over(patience, Some(step.actor), later)
    }

    fn hear_until_over(
        &mut self,
        patience: Patience,
        awaited: Option<char>,
        later: &mut Vec<String>,
    ) -> Option<String> {
        let began = self.watch.begin();
        loop {
            let said = self.hear(self.watch.next_look(began, patience), awaited, later);
            if said.is_some() {
                return said;
            }
            self.watch.set_busy(self.busy.keys().map(|actor| side_of(*actor)));
            let waited = self.watch.wait(began, patience);
            self.restless |= waited == Wait::Restless;
            if waited != Wait::GoesOn {
                // Who sleeps now has perhaps just said something.
                return self.hear(Instant::now(), awaited, later);
            }
        }
    }

    /// What comes until then, or until the one that is awaited has said its word, which is returned.
    fn hear(&mut self, end: Instant, awaited: Option<char>, later: &mut Vec<String>) -> Option<String> {
        loop {
            let (actor, said) = match self.inbox.next(end)? {
                News::Came(actor, process) => {
                    let side = side_of(actor);
                    self.watch.add(process, side, self.accelerated.contains(side));
                    continue;
                }
                News::Said(actor, said) => (actor, said),
                News::Gone(actor) => (actor, "has gone".to_owned()),
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

/// However the driver ends: those who play end with it, and complain of nothing.
#[test]
fn who_plays_ends_with_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0");
    let listener = UnixListener::bind(&path).unwrap();
    let mut command = Command::new(compile(PROGRAM, folder.path()));
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut nursery = Helper(command.spawn().unwrap());
    let mut orders = nursery.0.stdin.take().unwrap();
    writeln!(orders, "begin {} L 127.0.0.1 127.0.0.1 {} 8", path.display(), PORTS.start).unwrap();
    let come = || {
        let mut lines = BufReader::new(listener.accept().unwrap().0);
        let mut hello = String::new();
        lines.read_line(&mut hello).unwrap();
        let process: u32 = hello.split_whitespace().nth(1).unwrap().parse().unwrap();
        (process, lines)
    };
    let (process, mut first) = come();
    writeln!(first.get_mut(), "0 thread").unwrap();
    let (_, second) = come();
    writeln!(first.get_mut(), "1 fork").unwrap();
    let (child, third) = come();
    // Its answer stays unread, and so the end of this connection is a reset.
    let mut said = String::new();
    first.read_line(&mut said).and_then(|_| first.read_line(&mut said)).unwrap();
    assert_eq!(said, "started\nforked\n");
    writeln!(first.get_mut(), "2 get a state").unwrap();
    let answers = || rustix::io::ioctl_fionread(first.get_ref()).unwrap() > 0;
    crate::bench::until("an answer comes", answers);
    let ended = |process: u32| {
        crate::bench::until("the players end", || {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    };
    drop(first);
    ended(process);
    drop((second, third));
    ended(child);
    drop(orders);
    assert!(wait(&mut nursery.0, Duration::from_secs(5)), "the nursery goes on");
    // All have ended that could write there.
    let complaints = std::io::read_to_string(nursery.0.stderr.take().unwrap()).unwrap();
    assert_eq!(complaints, "");
}
