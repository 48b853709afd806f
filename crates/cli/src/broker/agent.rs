//! `overfly broker --agent`: serves a node's containers from outside.
//!
//! A container's `overfly run` connects to a socket that is mounted there and names an interface. The agent learns from the kernel who that
//! is, asks the policy, and starts a broker for that interface in the container's network namespace: a process of its own, so that no
//! container's trouble is another's. Whoever asked is told that broker's name, which can be reached from that namespace only; everything else
//! is between those two. The broker ends with the last program that it serves, and does not need the agent any more.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use overfly_broker::agent::{Seek, answer};
use overfly_broker::message::MESSAGE_LEN_MAX;
use overfly_broker::service::{Agent, Applicant, Caller, readable};
use overfly_link::messages;
use overfly_profile::InForce;
use overfly_steer::host_pod;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::RecvFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::notify::notify;
use super::service::{PolicyFile, Watch, stop_signals};
use super::{Word, hosting};
use crate::acceleration::attachment_options;
use crate::log::{Level, say};

/// Who has not said what it wants by then is closed.
const GREETING: Duration = Duration::from_secs(2);
/// What a broker may take to begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// Connections of one container that have said nothing yet, and of all; the longest silent make place.
const SILENT_OF_POD: usize = 16;
const SILENT_MAX: usize = 1024;
/// Connections of one container that wait for a broker to begin.
const WAITING_OF_POD: usize = 16;
/// Brokers in one container (one an interface), and at all.
const BROKERS_OF_POD: usize = 4;
const BROKERS_MAX: usize = 1024;
/// Connections that are let in before those that are in are heard again.
const TURN: usize = 64;
/// How long nobody is let in when there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(50);
/// Longer than a broker's first words.
const WORDS_MAX: u64 = 1024;

/// Somebody who has said nothing yet.
struct Silent {
    socket: OwnedFd,
    caller: Caller,
    until: Instant,
}

/// A broker in a container.
struct Pod {
    /// The container's network namespace.
    network: u64,
    interface: String,
    child: Child,
    /// Readable when it has ended.
    process: OwnedFd,
    /// What it says first.
    said: Option<ChildStdout>,
    words: Vec<u8>,
    /// Its socket's name, once it serves.
    name: Option<String>,
    /// Who wants to know that.
    waiting: Vec<OwnedFd>,
    until: Instant,
}

/// The agent.
struct Node {
    agent: Agent,
    policy: PolicyFile,
    /// What brokers begin with.
    environment: HashMap<String, String>,
    silent: Vec<Silent>,
    pods: Vec<Pod>,
    /// Nobody is let in until then.
    shut_until: Option<Instant>,
}

/// Serves the containers that ask at `path`, until this process is told to stop. Their brokers go on.
///
/// # Errors
/// Says in words why it cannot begin.
pub(super) fn serve(path: &Path, policy: &PolicyFile, in_force: &InForce) -> Result<(), String> {
    let stop = stop_signals().map_err(|error| format!("signals cannot be heard: {error}"))?;
    if let Err(error) = Agent::see_hosts_control_groups() {
        say(Level::Notice, format_args!("the policy's cgroups are those below the agent's own: {error}"));
    }
    let named =
        policy.0.as_deref().map(std::path::absolute).transpose().map_err(|error| error.to_string())?;
    let agent = Agent::listen(path).map_err(|error| error.to_string())?;
    let environment = in_force.environment().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let environment = environment.collect();
    let policy = PolicyFile(named);
    let mut node =
        Node { agent, policy, environment, silent: Vec::new(), pods: Vec::new(), shut_until: None };
    say(Level::Info, format_args!("containers are served at {}", path.display()));
    notify("READY=1\nSTATUS=Serves no container");
    while !node.turn(&stop) {}
    say(Level::Notice, format_args!("the agent was told to stop{}", going_on(node.pods.len())));
    notify("STOPPING=1");
    Ok(())
}

fn containers(number: usize) -> String {
    match number {
        0 => "no container".to_owned(),
        1 => "one container".to_owned(),
        several => format!("{several} containers"),
    }
}

/// What becomes of the brokers, if there are any.
fn going_on(number: usize) -> String {
    match number {
        0 => String::new(),
        1 => ": the broker of one container goes on".to_owned(),
        several => format!(": the brokers of {} go on", containers(several)),
    }
}

impl Node {
    /// Waits until something is to be done, and does it. True when the agent is to stop.
    fn turn(&mut self, stop: &OwnedFd) -> bool {
        let [stopped, door, silent, words, ended] = self.wait(stop);
        if stopped.contains(&true) {
            return true;
        }
        let served = self.pods.len();
        let mut ready = silent.into_iter();
        let heard: Vec<Silent> = self.silent.extract_if(.., |_| ready.next() == Some(true)).collect();
        for (index, pod) in self.pods.iter_mut().enumerate() {
            if words[index] {
                pod.hear();
            }
            if ended[index] || pod.is_late() {
                pod.end();
            }
        }
        self.pods.retain_mut(Pod::is_there);
        for silent in heard {
            self.greet(silent);
        }
        let now = Instant::now();
        self.silent.retain(|silent| silent.until > now);
        if door.contains(&true) {
            self.admit();
        }
        if self.pods.len() != served {
            notify(&format!("STATUS=Serves {}", self.containers()));
        }
        false
    }

    fn containers(&self) -> String {
        containers(self.pods.len())
    }

    /// What is ready: to stop, who waits at the door, who has said something, which brokers have, and which have ended.
    fn wait(&mut self, stop: &OwnedFd) -> [Vec<bool>; 5] {
        let now = Instant::now();
        self.shut_until = self.shut_until.filter(|until| *until > now);
        let begins = self.pods.iter().filter(|pod| pod.said.is_some()).map(|pod| pod.until);
        let until = self.silent.iter().map(|silent| silent.until).chain(begins).chain(self.shut_until).min();
        let pause = until.map(|until| until.saturating_duration_since(now));
        let parts: [Vec<BorrowedFd<'_>>; 5] = [
            vec![stop.as_fd()],
            self.shut_until.is_none().then(|| self.agent.as_fd()).into_iter().collect(),
            self.silent.iter().map(|silent| silent.socket.as_fd()).collect(),
            // One place for each broker, so that results are found by number.
            self.pods.iter().map(|pod| pod.said.as_ref().map_or(pod.process.as_fd(), AsFd::as_fd)).collect(),
            self.pods.iter().map(|pod| pod.process.as_fd()).collect(),
        ];
        readable(parts, pause)
    }

    /// Lets in who waits.
    fn admit(&mut self) {
        for _ in 0..TURN {
            match self.agent.accept() {
                Ok(Some(socket)) => match self.agent.caller(&socket) {
                    Ok(caller) => self.seat(Silent { socket, caller, until: Instant::now() + GREETING }),
                    Err(reason) => refuse(&socket, &reason),
                },
                Ok(None) => return,
                Err(_) => {
                    self.shut_until = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// One more is silent, in the place of its container's longest silent, or of the fullest container's.
    fn seat(&mut self, silent: Silent) {
        const FULL: &str = "too many processes of this container ask at the same time";
        let network = silent.caller.network;
        self.silent.push(silent);
        let mut of_pod: HashMap<u64, usize> = HashMap::new();
        for silent in &self.silent {
            *of_pod.entry(silent.caller.network).or_default() += 1;
        }
        let crowded = if of_pod.get(&network).is_some_and(|&count| count > SILENT_OF_POD) {
            Some(network)
        } else if self.silent.len() > SILENT_MAX {
            of_pod.into_iter().max_by_key(|&(_, count)| count).map(|(network, _)| network)
        } else {
            None
        };
        let place = self.silent.iter().position(|silent| Some(silent.caller.network) == crowded);
        if let Some(place) = place {
            refuse(&self.silent.remove(place).socket, FULL);
        }
    }

    /// Hears what somebody wants.
    fn greet(&mut self, silent: Silent) {
        let Silent { socket, caller, .. } = silent;
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let length = match messages::receive(&socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((length, _)) if length > 0 => length,
            _ => return,
        };
        let Some(interface) = Seek::parse(bytes.get(..length).unwrap_or_default()) else {
            return refuse(&socket, "this is another version of Overfly's agent");
        };
        if let Err(reason) = self.policy.share(&caller.applicant, &interface) {
            return refuse_aloud(&socket, &caller.applicant, &interface, &reason);
        }
        let its = |pod: &Pod| pod.network == caller.network;
        if let Some(pod) = self.pods.iter_mut().find(|pod| its(pod) && pod.interface == interface) {
            match &pod.name {
                Some(name) => answer(&socket, Ok(Some(name))),
                None if pod.waiting.len() < WAITING_OF_POD => pod.waiting.push(socket),
                None => refuse(&socket, "too many processes of this container wait for its broker"),
            }
            return;
        }
        if self.pods.iter().filter(|pod| its(pod)).count() >= BROKERS_OF_POD {
            return refuse_aloud(
                &socket,
                &caller.applicant,
                &interface,
                "the container has too many brokers",
            );
        }
        if self.pods.len() >= BROKERS_MAX {
            return refuse_aloud(&socket, &caller.applicant, &interface, "the node has too many brokers");
        }
        match self.start(&caller, interface.clone()) {
            Ok(mut pod) => {
                pod.waiting.push(socket);
                self.pods.push(pod);
            }
            Err(error) => {
                let reason = format!("the broker could not be started: {error}");
                refuse_aloud(&socket, &caller.applicant, &interface, &reason);
            }
        }
    }

    /// Starts a broker where the caller is.
    fn start(&self, caller: &Caller, interface: String) -> std::io::Result<Pod> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("overfly").args(["__pod", "--interface", &interface]);
        if let Some(policy) = &self.policy.0 {
            command.arg("--policy").arg(policy);
        }
        let mut child = command
            .env_clear()
            .envs(&self.environment)
            .envs(std::env::var_os("JOURNAL_STREAM").map(|journal| ("JOURNAL_STREAM", journal)))
            .stdin(Stdio::from(caller.namespace.try_clone()?))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut begin = || -> Result<(OwnedFd, Option<ChildStdout>), Errno> {
            let said = child.stdout.take();
            if let Some(said) = &said {
                ioctl_fionbio(said, true)?;
            }
            let number = Pid::from_raw(child.id().cast_signed()).ok_or(Errno::SRCH)?;
            Ok((pidfd_open(number, PidfdFlags::empty())?, said))
        };
        let (process, said) = match begin() {
            Ok(begun) => begun,
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(errno.into());
            }
        };
        Ok(Pod {
            network: caller.network,
            interface,
            child,
            process,
            said,
            words: Vec::new(),
            name: None,
            waiting: Vec::new(),
            until: Instant::now() + BEGINNING,
        })
    }
}

impl Pod {
    /// Reads what the broker says, and tells it to those who wait once it is said.
    fn hear(&mut self) {
        let Some(said) = &mut self.said else { return };
        let room = WORDS_MAX.saturating_sub(self.words.len() as u64);
        let read = said.take(room).read_to_end(&mut self.words);
        if read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            && !self.words.ends_with(b"\n")
        {
            return;
        }
        self.said = None;
        let words = String::from_utf8_lossy(&self.words).into_owned();
        let outcome = match Word::parse(words.trim_end()) {
            Some(Word::Here { name, .. }) => Ok(Some(name)),
            Some(Word::Elsewhere) => Ok(None),
            Some(Word::No(reason)) => Err(reason),
            None => Err("the broker ended before it had begun"),
        };
        self.name = outcome.ok().flatten().map(str::to_owned);
        if let Err(reason) = outcome {
            let (interface, network) = (&self.interface, self.network);
            say(Level::Notice, format_args!("{} is not served: {reason}", shown(interface, network)));
        }
        for socket in self.waiting.drain(..) {
            answer(&socket, outcome);
        }
    }

    /// Whether it should have begun long ago.
    fn is_late(&self) -> bool {
        self.said.is_some() && self.until <= Instant::now()
    }

    /// It has ended, or is to end.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.words.push(b'\n');
        self.hear();
        for socket in self.waiting.drain(..) {
            refuse(&socket, "the broker did not begin");
        }
    }

    /// Whether it runs.
    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// An interface in the log: many containers have one of the same name.
fn shown(interface: &str, network: u64) -> String {
    format!("{interface} of net:[{network}]")
}

fn refuse_aloud(socket: &OwnedFd, applicant: &Applicant, interface: &str, reason: &str) {
    let Applicant { process, name, user, .. } = applicant;
    let line = format_args!("{interface} does not serve {name} (process {process}, user {user}): {reason}");
    say(Level::Notice, line);
    refuse(socket, reason);
}

fn refuse(socket: &OwnedFd, reason: &str) {
    answer(socket, Err(reason));
}

/// `overfly __pod`: the broker of an interface in a container's network namespace, which is its standard input. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct PodArguments {
    #[arg(long)]
    interface: String,
    #[arg(long)]
    policy: Option<PathBuf>,
}

pub(crate) fn pod(arguments: &PodArguments) -> ExitCode {
    let PodArguments { interface, policy } = arguments;
    // No terminal and no folder of the agent's stay.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let enter = || -> std::io::Result<u64> {
        move_into_link_name_space(std::io::stdin().as_fd(), Some(LinkNameSpaceType::Network))?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(std::fs::metadata("/proc/self/ns/net")?.ino())
    };
    let network = enter();
    hosting(|options| {
        let network =
            network.map_err(|error| format!("the container's network cannot be entered: {error}"))?;
        let policy = PolicyFile(policy.clone());
        let watch = Watch::new(interface, shown(interface, network), policy, Some(network));
        host_pod(
            interface,
            attachment_options(options),
            &super::settings(options),
            Box::new(watch),
            |hosting| super::say(&hosting),
        )
        .map_err(|error| error.to_string())
    })
}
