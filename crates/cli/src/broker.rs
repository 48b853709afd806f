//! One broker for each interface and network namespace: a process of its own, so that programs come and go in any order.

pub(crate) mod agent;
mod heard;
mod notify;
mod policy;
mod seek;
pub(crate) mod service;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overfly_broker::{Deferral, Holder, Lease};
use overfly_profile::InForce;
use overfly_profile::options::Options;
use overfly_steer::{Hosting, host, leave_descriptors_behind, restore_deferral};
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use self::heard::Registration;
use self::seek::AgentAnswer;
use crate::acceleration::attachment_options;
use crate::complain;

/// How long a broker that comes or goes is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// A program's place at the broker of an interface. Dropping it gives the place up; the broker ends with the last.
pub(crate) struct Membership {
    place: Arc<Registration>,
    environment: String,
    /// What the device's settings were before the broker changed them.
    before: Option<Deferral>,
    /// Says what the broker has to say; at the end, whether that goes on.
    listening: Option<JoinHandle<bool>>,
    /// The broker, if it was started for this program.
    broker: Option<Child>,
}

impl Membership {
    /// Joins the broker of `interface`, has the node's agent start it, or starts it.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn join(interface: &str, in_force: &InForce) -> Result<Membership, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Lease::at_interface(interface) {
                Ok(Some(lease)) => {
                    return Membership::joined(interface, lease, in_force);
                }
                Ok(None) => {
                    if let Some(membership) = Membership::of_nobodys(interface, in_force)? {
                        return Ok(membership);
                    }
                }
                // It ended at this moment.
                Err(overfly_broker::Error::Gone { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            if Instant::now() > until {
                return Err(format!("the broker of {interface} does not answer"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn joined(interface: &str, lease: Lease, in_force: &InForce) -> Result<Membership, String> {
        for line in differences(&settings(&in_force.options), lease.in_force()) {
            complain(format_args!("{interface} is served with other options already: {line}"));
        }
        Membership::new(interface, lease, None)
    }

    /// Joins the broker of an interface that nobody serves yet: the agent's, or one that is started here. `None`: look again.
    fn of_nobodys(interface: &str, in_force: &InForce) -> Result<Option<Membership>, String> {
        let agent = seek::AgentSocket::known();
        let said = match agent.as_ref().map(|agent| agent.ask(interface)) {
            Some(AgentAnswer::Served(lease)) => {
                return Membership::joined(interface, lease, in_force).map(Some);
            }
            Some(AgentAnswer::Again) => return Ok(None),
            Some(AgentAnswer::No(reason)) => Some(reason),
            None => None,
        };
        let is_root = rustix::process::geteuid().is_root();
        match said {
            Some(reason) if !is_root || agent.is_some_and(|agent| agent.is_named) => Err(reason),
            None if !is_root => Err(format!(
                "nobody serves {interface} (`overfly broker` does), and loading an XDP program needs root (try again with sudo)"
            )),
            said => Membership::first(interface, in_force)
                .map_err(|error| said.map_or(error.clone(), |said| format!("{error} ({said})"))),
        }
    }

    /// Starts the broker. `None` if somebody else did at the same time.
    fn first(interface: &str, in_force: &InForce) -> Result<Option<Membership>, String> {
        let mut broker = Command::new("/proc/self/exe")
            .arg0("overfly")
            .args(["__broker", "--interface", interface])
            .env_clear()
            .envs(in_force.environment().filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("the broker could not be started: {error}"))?;
        let mut line = String::new();
        if let Some(output) = broker.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        match Word::parse(line.trim_end()) {
            Some(Word::Here { name, is_public }) => {
                if !is_public {
                    complain(format_args!(
                        "`overfly top` and other programs will not find this one: {}",
                        Holder::in_words(interface)
                    ));
                }
                Membership::at_own(interface, name, broker)
            }
            other => {
                let _ = broker.wait();
                match other {
                    Some(Word::Elsewhere) => Ok(None),
                    Some(Word::No(reason)) => Err(reason.to_owned()),
                    _ => Err("the broker ended before it had begun".to_owned()),
                }
            }
        }
    }

    /// Joins the broker that was started for this program. `None` if it has ended: others had joined it, and left, before this one came.
    fn at_own(interface: &str, name: &str, mut broker: Child) -> Result<Option<Membership>, String> {
        match Lease::at(name) {
            Ok(lease) => Membership::new(interface, lease, Some(broker)).map(Some),
            Err(overfly_broker::Error::Gone { .. }) => {
                let _ = broker.wait();
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn new(interface: &str, lease: Lease, broker: Option<Child>) -> Result<Membership, String> {
        let (environment, before) = (lease.environment().to_owned(), lease.device_before());
        let place = Arc::new(Registration::new(interface, lease));
        let listen = {
            let place = Arc::clone(&place);
            move || place.listen()
        };
        let listening = std::thread::Builder::new().spawn(listen);
        let listening = listening.map_err(|error| format!("no thread could be started: {error}"))?;
        Ok(Membership { place, environment, before, listening: Some(listening), broker })
    }

    /// The value of `OVERFLY_BROKER` for the program.
    pub(crate) fn environment(&self) -> &str {
        &self.environment
    }

    /// The broker, if it is a child of this process.
    pub(crate) fn process(&self) -> Option<Pid> {
        Pid::from_raw(self.broker.as_ref()?.id().cast_signed())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.place.leave();
        if self.listening.take().is_some_and(|listening| listening.join().unwrap_or(false)) {
            return;
        }
        if let Some(broker) = &mut self.broker {
            let _ = broker.wait();
        }
        // A broker that was killed could not do it.
        let interface = self.place.interface();
        if let Some(before) = self.before.filter(|_| Holder::of(interface) == Holder::Nobody) {
            let _ = restore_deferral(interface, before);
        }
    }
}

/// What a broker says to whoever started it, in one line.
#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    Here { name: &'a str, is_public: bool },
    Elsewhere,
    No(&'a str),
}

impl Word<'_> {
    fn parse(line: &str) -> Option<Word<'_>> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "public" => Some(Word::Here { name: rest, is_public: true }),
            "hidden" => Some(Word::Here { name: rest, is_public: false }),
            "elsewhere" => Some(Word::Elsewhere),
            "no" => Some(Word::No(rest)),
            _ => None,
        }
    }

    /// Nobody hears more than this: standard output is no pipe any more.
    fn say(&self) {
        let line = match self {
            Word::Here { name, is_public: true } => format!("public {name}\n"),
            Word::Here { name, is_public: false } => format!("hidden {name}\n"),
            Word::Elsewhere => "elsewhere\n".to_owned(),
            Word::No(reason) => format!("no {}\n", reason.replace('\n', " ")),
        };
        // If whoever started it has gone, no program comes, and it ends.
        let _ = overfly_terminal::print(&line);
        if let Ok(nothing) = std::fs::File::create("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(nothing);
        }
    }
}

/// What a broker begins with and no later program changes.
fn settings(options: &Options) -> String {
    format!(
        "EF_MAX_PACKETS={} EF_RXQ_SIZE={} EF_MIN_FREE_PACKETS={} EF_USE_HUGE_PAGES={} EF_INT_DRIVEN={} EF_FIREWALL={} EF_SEGMENT_OFFLOAD={} EF_RECEIVE_OFFLOAD={} EF_CHECKSUM_OFFLOAD={}",
        options.max_packets,
        options.rxq_size,
        options.min_free_packets,
        options.use_huge_pages,
        options.int_driven,
        options.value("EF_FIREWALL").unwrap_or_default(),
        options.segment_offload,
        options.receive_offload,
        options.checksum_offload
    )
}

/// Each of the settings that is not as it was asked for.
fn differences(asked: &str, in_force: &str) -> Vec<String> {
    asked
        .split(' ')
        .zip(in_force.split(' '))
        .filter(|(asked, in_force)| asked != in_force)
        .map(|(asked, in_force)| {
            let value = asked.split_once('=').map_or(asked, |(_, value)| value);
            format!("{in_force} is in force, not {value}")
        })
        .collect()
}

/// `overfly __broker`: the broker of an interface. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    interface: String,
    /// On its own already.
    #[arg(long)]
    alone: bool,
}

pub(crate) fn broker(arguments: &Arguments) -> ExitCode {
    if !arguments.alone {
        // Nothing of whoever started it stays: no terminal, no open file, no folder.
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
        leave_descriptors_behind();
        let error = Command::new("/proc/self/exe")
            .arg0("overfly")
            .args(["__broker", "--alone", "--interface", &arguments.interface])
            .exec();
        Word::No(&error.to_string()).say();
        return ExitCode::FAILURE;
    }
    hosting(|options| {
        host(&arguments.interface, attachment_options(options), &settings(options), |hosting| say(&hosting))
            .map_err(|error| error.to_string())
    })
}

/// Is a broker that ends by itself, with the options of the environment.
fn hosting(host: impl FnOnce(&Options) -> Result<(), String>) -> ExitCode {
    let _ = rustix::thread::set_name(c"overfly-broker");
    // It ends when nobody needs it: a service that is told to end may still have work to do.
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&told));
    }
    let environment = overfly_profile::environment();
    let variable =
        |name: &str| environment.iter().find(|(its, _)| its == name).map(|(_, value)| value.clone());
    let options = match Options::read(variable) {
        Ok(options) => options,
        Err(error) => {
            Word::No(&error.to_string()).say();
            return ExitCode::from(2);
        }
    };
    match host(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            Word::No(&error).say();
            ExitCode::FAILURE
        }
    }
}

/// Tells whoever started this broker.
fn say(hosting: &Hosting) {
    match hosting {
        Hosting::Elsewhere => Word::Elsewhere.say(),
        Hosting::Here { name, is_public } => Word::Here { name, is_public: *is_public }.say(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_says_is_understood() {
        let here = Word::Here { name: "overfly-1-2", is_public: false };
        assert_eq!(Word::parse("hidden overfly-1-2"), Some(here));
        assert_eq!(Word::parse("elsewhere"), Some(Word::Elsewhere));
        assert_eq!(Word::parse("no such interface"), Some(Word::No("such interface")));
        assert_eq!(Word::parse(""), None);
    }

    #[test]
    fn a_broker_that_was_used_up_before_its_own_program_came_is_no_failure() {
        let own = |name: &str| Membership::at_own("none", name, Command::new("true").spawn().unwrap());
        let (listener, name, _) = overfly_broker::service::open_socket().unwrap();
        let ends = std::thread::spawn(move || {
            // It has let this one in, and hears nobody any more.
            drop(rustix::net::accept(&listener));
        });
        assert!(own(&name).is_ok_and(|own| own.is_none()), "it ended before it answered");
        ends.join().unwrap();
        assert!(own(&name).is_ok_and(|own| own.is_none()), "nobody is there any more");
    }

    #[test]
    fn the_options_that_are_not_as_asked_for_are_named() {
        let asked = settings(&Options::DEFAULT);
        assert!(differences(&asked, &asked).is_empty());
        let other = Options { max_packets: 1024, ..Options::DEFAULT };
        assert_eq!(
            differences(&asked, &settings(&other)),
            [format!("EF_MAX_PACKETS=1024 is in force, not {}", Options::DEFAULT.max_packets)]
        );
    }
}
