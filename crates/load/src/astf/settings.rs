//! What a run is, checked before anything is sent.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use overfly_steer::ReceiveOffload;

use crate::error::Error;
use crate::link::Link;

/// Which ends of the flows this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Both, joined in memory.
    Both,
    /// Those that open.
    Client,
    /// Those that answer.
    Server,
}

impl Ends {
    /// As `--side` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ends::Both => "both",
            Ends::Client => "client",
            Ends::Server => "server",
        }
    }
}

/// A run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which ends.
    pub ends: Ends,
    /// What carries them; `None`: memory, for both.
    pub link: Option<Link>,
    /// The interface for `xdp`; `None`: the one that the route names.
    pub interface: Option<String>,
    /// What may arrive over `xdp`.
    pub receive_offload: ReceiveOffload,
    /// The stack's own address and prefix length, where no kernel gives one.
    pub network: Option<crate::link::Network>,
    /// The next hop for the other side's addresses; `None`: whoever is at the other end of the link.
    pub gateway: Option<std::net::IpAddr>,
    /// Multiplies the rates of the profile.
    pub multiplier: f64,
    /// How long flows are begun; `None`: until told to end, or nothing is left to begin.
    pub duration: Option<Duration>,
    /// How long flows that are there may go on after it.
    pub drain: Duration,
    /// Threads.
    pub threads: usize,
    /// Thread i runs on processor `cpus[i % cpus.len()]` alone. Empty: wherever.
    pub cpus: Vec<usize>,
    /// Flows of one thread and side at most, those in TIME-WAIT included.
    pub flows: u32,
    /// Local ports of each client address.
    pub ports: RangeInclusive<u16>,
    /// Bytes of an IP packet at most on the wire in memory; `None`: the profile's largest segment and its headers.
    pub mtu: Option<u16>,
    /// How long the client keeps a connection that it closed first.
    pub time_wait: Duration,
    /// Where orders are taken.
    pub control: Option<PathBuf>,
    /// Echo requests a second from a client to a server, beside the flows; `None`: those that the profile asks for, one a second.
    pub probe_per_s: Option<f64>,
    /// The same seed draws the same random numbers.
    pub seed: u64,
}

impl Default for Settings {
    /// Both sides in memory, as fast as the profile says, until nothing is left to begin.
    fn default() -> Settings {
        Settings {
            ends: Ends::Both,
            link: None,
            interface: None,
            receive_offload: ReceiveOffload::Packets,
            network: None,
            gateway: None,
            multiplier: 1.0,
            duration: None,
            drain: Duration::from_secs(10),
            threads: 1,
            cpus: Vec::new(),
            flows: 2 << 20,
            ports: 1024..=65_535,
            mtu: None,
            time_wait: Duration::from_millis(1),
            control: None,
            probe_per_s: None,
            seed: 1,
        }
    }
}

impl Settings {
    /// What can be known to be wrong without touching the machine.
    ///
    /// # Errors
    /// [`Error::Usage`], for the first option that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        match (self.ends, &self.link) {
            (Ends::Both, Some(link)) => {
                return Err(Error::usage(
                    "--link",
                    link.name(),
                    "--side client or --side server with it: both meet in memory",
                ));
            }
            (Ends::Client | Ends::Server, None) => {
                return Err(Error::usage(
                    "--side",
                    self.ends.name(),
                    "--link with it: xdp, memif:PATH or tap:NAME",
                ));
            }
            (_, Some(Link::Kernel)) => {
                return Err(Error::usage(
                    "--link",
                    "kernel",
                    "xdp, memif:PATH or tap:NAME: flows need a stack of their own",
                ));
            }
            _ => {}
        }
        if let Some(per_s) = self.probe_per_s {
            if !(per_s > 0.0 && per_s <= 1000.0) {
                return Err(Error::usage("--probe", per_s, "a number above 0, 1000 at most"));
            }
            if self.ends == Ends::Server {
                return Err(Error::usage(
                    "--probe",
                    per_s,
                    "--side client or both with it: the server side only answers",
                ));
            }
        }
        if !(1..=64).contains(&self.threads) {
            return Err(Error::usage("--threads", self.threads, "1 to 64 threads"));
        }
        if !(self.multiplier > 0.0 && self.multiplier <= 1e9) {
            return Err(Error::usage("-m", self.multiplier, "a number above 0, 1e9 at most"));
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return Err(Error::usage("-d", 0, "a duration such as 10s, 500ms or 2m"));
        }
        if !(1024..=1 << 28).contains(&self.flows) {
            return Err(Error::usage("--flows", self.flows, "1024 to 268435456"));
        }
        if self.mtu.is_some() && self.ends != Ends::Both {
            return Err(Error::usage(
                "--mtu",
                self.mtu.unwrap_or(0),
                "--side both with it: other links say what they take",
            ));
        }
        Ok(())
    }
}
