//! `[hosts.NAME]`: machines that a plan's two sides run on.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Link, Mode, Plan, Tool, no_twin, within};

/// The last core that a host may have: what it has is known once it answers.
const LAST_CORE: usize = 1023;

/// `[hosts.NAME]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The destination, as `ssh` takes it: its configuration and its agent apply. Without it the host is this machine.
    pub ssh: Option<String>,
    /// `-F` of ssh, relative to the plan.
    pub ssh_config: Option<PathBuf>,
    /// The command there; without it this one is copied there for the session.
    pub overfly: Option<PathBuf>,
    /// The network interface that the sides meet over.
    #[serde(default = "first_device")]
    pub interface: String,
    /// Its address there, for the other side.
    pub address: Option<String>,
    /// Cores for the interface's interrupts, queue after queue, while the host is tuned.
    #[serde(default)]
    pub irq_cpus: Vec<usize>,
}

fn first_device() -> String {
    "eth0".to_owned()
}

/// The hosts of a plan, by name.
pub type Hosts = BTreeMap<String, Host>;

impl Plan {
    /// The host of the plan's server and that of its generator, by name; `None` where both are this machine and its namespaces.
    #[must_use]
    pub fn sides(&self) -> Option<[(&str, &Host); 2]> {
        let side = |name: &Option<String>| self.hosts.get_key_value(name.as_deref()?);
        let (server, client) = (side(&self.server.host)?, side(&self.client.host)?);
        Some([server, client].map(|(name, host)| (name.as_str(), host)))
    }

    /// The last core that a side may name.
    pub(super) fn last_core(&self) -> usize {
        if self.hosts.is_empty() { crate::lab::queue_count() - 1 } else { LAST_CORE }
    }

    pub(super) fn check_hosts(&self) -> Result<(), String> {
        let names = self.hosts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        for (key, host) in [("server.host", &self.server.host), ("client.host", &self.client.host)] {
            match host {
                None if self.hosts.is_empty() => {}
                None => return Err(format!("{key}: the plan has hosts; expected one of {names}")),
                Some(name) if !self.hosts.contains_key(name) => {
                    return Err(format!(
                        "{key} = \"{name}\": there is no [hosts.{name}]; expected {}",
                        known(&names)
                    ));
                }
                Some(_) => {}
            }
        }
        for (name, host) in &self.hosts {
            host.check(name)?;
        }
        let Some([(server, host), _]) = self.sides() else { return Ok(()) };
        let Some(address) = &host.address else {
            return Err(format!(
                "hosts.{server}.address: nobody knows where the server is; expected its address"
            ));
        };
        if address.parse::<Ipv4Addr>().is_err() {
            return Err(format!(
                "hosts.{server}.address = \"{address}\": expected an IPv4 address such as 10.0.0.1"
            ));
        }
        self.check_far_load()
    }

    /// What can be done on this machine only.
    fn check_far_load(&self) -> Result<(), String> {
        if let Some(link) = self.links.iter().find(|link| !matches!(link, Link::Xdp | Link::Kernel)) {
            return Err(format!("links: {link} is within one machine; expected xdp or kernel with hosts"));
        }
        if matches!(self.client.tool, Tool::Astf | Tool::Idle) {
            let tool = self.client.tool;
            return Err(format!(
                "client.tool = \"{tool}\": it needs both sides on this machine; expected no hosts, or another tool"
            ));
        }
        if !self.server.fill.is_empty() {
            return Err("server.fill: it is a program of this machine; expected no hosts, or a server that needs no filling".to_owned());
        }
        if let Some(word) = self.server.arguments.iter().find(|word| word.contains("@PLAN@")) {
            return Err(format!(
                "server.arguments: \"{word}\": the plan's folder is on this machine only; expected another way with hosts"
            ));
        }
        if self.modes.contains(&Mode::KernelAsFound) && !self.tune {
            return Err("modes: kernel-as-found is what `tune = true` changes for the other modes; expected tune = true with hosts".to_owned());
        }
        Ok(())
    }
}

fn known(names: &str) -> String {
    if names.is_empty() { "a table [hosts.NAME]".to_owned() } else { format!("one of {names}") }
}

impl Host {
    fn check(&self, name: &str) -> Result<(), String> {
        // A word that ssh would take for an option.
        if let Some(ssh) = self.ssh.as_ref().filter(|ssh| ssh.is_empty() || ssh.starts_with('-')) {
            return Err(format!(
                "hosts.{name}.ssh = \"{ssh}\": expected a destination of ssh, such as root@10.0.0.1"
            ));
        }
        if self.ssh.is_none() && self.ssh_config.is_some() {
            return Err(format!(
                "hosts.{name}.ssh_config: this host is this machine; expected hosts.{name}.ssh too"
            ));
        }
        for &cpu in &self.irq_cpus {
            within(&format!("hosts.{name}.irq_cpus"), cpu, 0..=LAST_CORE)?;
        }
        no_twin(&format!("hosts.{name}.irq_cpus"), &self.irq_cpus)
    }
}
