//! `overfly broker`: a broker as a service, which stands before programs come and serves those whom its policy admits.

use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overfly_broker::agent::PATH;
use overfly_broker::service::{Admission, Applicant, Event, Share};
use overfly_load::Page;
use overfly_profile::{InForce, Profile};
use overfly_steer::stand;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::notify::notify;
use super::policy::Policy;
use crate::acceleration::attachment_options;
use crate::complain;
use crate::log::{Level, say};
use crate::watch::metrics;

/// Serve an interface, or a node's containers, to programs of users without privilege, as a service
///
/// `overfly run` finds the broker of its interface by itself, and needs no privilege then. The policy says who is served,
/// and how much they get. Told to stop (SIGTERM), the broker has programs hand their connections over to the kernel, and ends; they
/// are accelerated again when another one begins. Systemd's unit is overfly-broker@INTERFACE.service. With --agent it serves
/// containers from outside, each on the interface in its own network namespace: `overfly run` in a container finds the agent's
/// socket if that is mounted there; systemd's unit is overfly-agent.service.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The network interface to serve
    #[arg(short, long, value_name = "NAME", required_unless_present_any = ["check", "agent"])]
    interface: Option<String>,
    /// Serve containers, whose `overfly run` asks at this socket [default: /run/overfly/agent.sock; there: OVERFLY_AGENT]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = PATH, conflicts_with_all = ["interface", "metrics"])]
    agent: Option<PathBuf>,
    /// Who may run programs, and with how many stacks [default: /etc/overfly/broker.toml if it is there; without it root alone, and no container]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Only say whether the policy can be read
    #[arg(long)]
    check: bool,
    /// The options of the packet memory and the device, as `overfly run` takes them
    #[arg(short, long, default_value = "balanced")]
    profile: String,
    /// Show what runs over the interface to Prometheus, at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
}

/// Where the policy is, if nobody says otherwise.
const POLICY: &str = "/etc/overfly/broker.toml";

/// A policy that could be read, which a missing one can too.
fn what_is_at(path: &Path, rules: usize) -> String {
    let said = if path.exists() {
        if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") }
    } else {
        "is not there: root alone is served".to_owned()
    };
    format!("{}: {said}\n", path.display())
}

pub(crate) fn serve(arguments: &Arguments) -> ExitCode {
    let policy = PolicyFile(arguments.policy.clone());
    let read = match policy.read() {
        Ok(read) => read,
        Err(error) => {
            complain(error);
            return ExitCode::from(2);
        }
    };
    let what = match (&arguments.interface, &arguments.agent) {
        _ if arguments.check => None,
        (Some(interface), _) => Some(Served::Interface(interface)),
        (None, Some(path)) => Some(Served::Containers(path)),
        (None, None) => None,
    };
    let Some(what) = what else {
        return crate::written(overfly_terminal::print(&what_is_at(policy.path(), read.len())));
    };
    let in_force = Profile::load(&arguments.profile, &overfly_profile::folders())
        .and_then(|profile| profile.in_environment(&overfly_profile::environment(), false))
        .map_err(|error| error.to_string());
    // What was typed is wrong: trying again does not help.
    let in_force = match in_force.and_then(|its| address(arguments.metrics.as_deref()).map(|()| its)) {
        Ok(in_force) => in_force,
        Err(error) => return not_served(what, &error, ExitCode::from(2)),
    };
    let served = match what {
        Served::Interface(interface) => begin(arguments, interface, policy, &in_force),
        Served::Containers(path) => super::agent::serve(path, &policy, &in_force),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => not_served(what, &error, ExitCode::FAILURE),
    }
}

fn not_served(what: Served<'_>, why: &str, status: ExitCode) -> ExitCode {
    match what {
        Served::Interface(interface) => complain(format_args!("{interface} is not served: {why}")),
        Served::Containers(_) => complain(format_args!("containers are not served: {why}")),
    }
    status
}

/// Whether this is an address at all. Whether it can be listened at turns out later.
fn address(metrics: Option<&str>) -> Result<(), String> {
    let Some(given) = metrics else { return Ok(()) };
    let resolved = given.to_socket_addrs().map(drop);
    resolved.map_err(|error| {
        format!("--metrics {given}: expected ADDRESS:PORT to listen on, such as 127.0.0.1:9477 ({error})")
    })
}

/// What a broker is to serve.
#[derive(Clone, Copy)]
enum Served<'a> {
    Interface(&'a str),
    /// Those that ask at this path.
    Containers(&'a Path),
}

fn begin(
    arguments: &Arguments,
    interface: &str,
    policy: PolicyFile,
    in_force: &InForce,
) -> Result<(), String> {
    let options = attachment_options(&in_force.options);
    let stop = stop_signals().map_err(|error| format!("signals cannot be heard: {error}"))?;
    let metrics = arguments.metrics.as_deref().map(|address| {
        Page::serve(address, metrics::of_interface(interface)).map_err(|error| error.to_string())
    });
    let metrics = metrics.transpose()?;
    let watch = Watch::new(interface, interface.to_owned(), policy, None);
    let ready = || {
        if let Some(address) = metrics.as_ref().and_then(|page| page.address().ok()) {
            say(Level::Info, format_args!("metrics are at http://{address}/metrics"));
        }
        say(Level::Info, format_args!("{interface} is served"));
        if let Some(warning) = crate::interface::warning(interface) {
            say(Level::Notice, warning);
        }
        notify("READY=1\nSTATUS=Serves no program");
    };
    let settings = super::settings(&in_force.options);
    stand(interface, options, &settings, Box::new(watch), &stop, ready).map_err(|error| error.to_string())
}

/// Readable when this process is told to stop.
pub(super) fn stop_signals() -> std::io::Result<OwnedFd> {
    let (stop, told) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, told.try_clone()?)?;
    }
    Ok(stop.into())
}

/// Where the policy is: a file that must be there, or one that may be.
pub(super) struct PolicyFile(pub(super) Option<PathBuf>);

impl PolicyFile {
    pub(super) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(POLICY))
    }

    pub(super) fn read(&self) -> Result<Policy, String> {
        if self.0.is_none() && !self.path().exists() {
            return Ok(Policy::default());
        }
        Policy::read(self.path())
    }
}

/// Judges by the policy, and keeps the log.
pub(super) struct Watch {
    /// The interface's name, as the policy has it.
    name: String,
    /// As the log has it.
    interface: String,
    policy: PolicyFile,
    /// In a container its network namespace: whoever is in another one is none of the container's, and nobody is served without a rule.
    network: Option<u64>,
    /// The processes that have had a program served, with the programs' names.
    programs: Vec<(u32, String)>,
}

impl PolicyFile {
    /// What somebody who has no privilege gets.
    ///
    /// # Errors
    /// Says in words why that is nothing.
    pub(super) fn share(&self, applicant: &Applicant, interface: &str) -> Result<Share, String> {
        let policy = self.read().map_err(|error| format!("the broker's policy cannot be read: {error}"))?;
        policy.share(applicant, interface).ok_or_else(|| {
            let (Applicant { user, .. }, path) = (applicant, self.path().display());
            format!("the broker's policy, {path}, gives user {user} nothing on {interface}")
        })
    }
}

impl Watch {
    /// `name` is the interface's in the policy, `interface` in the log; `network`: only processes of that network namespace are served,
    /// and only by a rule.
    pub(super) fn new(name: &str, interface: String, policy: PolicyFile, network: Option<u64>) -> Watch {
        Watch { name: name.to_owned(), interface, policy, network, programs: Vec::new() }
    }
}

impl Admission for Watch {
    fn judge(&mut self, applicant: &Applicant) -> Result<Option<Share>, String> {
        match self.network {
            None if applicant.is_privileged => return Ok(None),
            Some(own) if applicant.network != Some(own) => {
                return Err("the process that asks is in another network namespace".to_owned());
            }
            _ => {}
        }
        self.policy.share(applicant, &self.name).map(Some)
    }

    fn note(&mut self, event: Event) {
        let Watch { interface, programs, .. } = self;
        match event {
            Event::Begun(Applicant { process, name, user, .. }) => {
                say(Level::Info, format_args!("{interface} serves {name} (process {process}, user {user})"));
                programs.push((process, name));
            }
            Event::Refused(Applicant { process, name, user, .. }, reason) => {
                say(
                    Level::Notice,
                    format_args!(
                        "{interface} does not serve {name} (process {process}, user {user}): {reason}"
                    ),
                );
            }
            Event::Ended { process } => {
                let place = programs.iter().position(|(its, _)| *its == process);
                let name = place.map(|place| programs.swap_remove(place).1).unwrap_or_default();
                say(Level::Info, format_args!("{interface} no longer serves {name} (process {process})"));
            }
            Event::NoStack { process, user, reason } => {
                say(
                    Level::Notice,
                    format_args!(
                        "{interface}: process {process} of user {user} continues on the kernel's stack: {reason}"
                    ),
                );
            }
            Event::Ending { programs: left } => {
                let programs = match left {
                    0 => String::new(),
                    1 => ": a program continues on the kernel's stack".to_owned(),
                    several => format!(": {several} programs continue on the kernel's stack"),
                };
                say(Level::Notice, format_args!("{interface}: the broker was told to stop{programs}"));
                notify("STOPPING=1");
            }
            Event::News(line) => say(Level::Notice, line),
        }
        match &programs[..] {
            [] => notify("STATUS=Serves no program"),
            [(_, only)] => {
                notify(&format!("STATUS=Serves {}", overfly_terminal::shown(&only.replace('\n', " "))));
            }
            several => notify(&format!("STATUS=Serves {} programs", several.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_not_there_is_not_said_to_be() {
        assert_eq!(
            what_is_at(Path::new("/nosuch/broker.toml"), 0),
            "/nosuch/broker.toml: is not there: root alone is served\n"
        );
        assert_eq!(what_is_at(Path::new("/dev/null"), 0), "/dev/null: 0 rules\n");
    }
}
