//! What to serve, checked before anything is served.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::fault::Chances;
use crate::error::Error;
use crate::link::{Link, Network};

/// Connections of a server on a user-level stack, if nobody says otherwise.
const CONNECTIONS: usize = 65_536;

/// One server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen; port 0 lets the kernel choose, if it is asked.
    pub listen: SocketAddr,
    /// Length in bits of the prefix that the address is in, with `memif` and `tap`.
    pub prefix_len: u8,
    /// Threads, each with a listener of its own.
    pub threads: usize,
    /// Thread i runs on processor `cpus[i % cpus.len()]` alone. Empty: wherever.
    pub cpus: Vec<usize>,
    /// What carries the connections.
    pub link: Link,
    /// The interface for `xdp`; `None`: the one that has the address.
    pub interface: Option<String>,
    /// Connections at most, over all threads. `None`: as many as there can be descriptors over kernel sockets, else 65,536.
    pub connections: Option<usize>,
    /// How long to serve; `None`: until told to stop.
    pub duration: Option<Duration>,
    /// How long a client may be silent: between requests, within a head, and while it should read.
    pub timeout: Duration,
    /// Bodies in chunks.
    pub chunked: bool,
    /// Every response is its connection's last.
    pub close: bool,
    /// How often responses are spoilt.
    pub faults: Chances,
    /// The same seed spoils the same requests of each thread.
    pub seed: u64,
}

impl Default for Settings {
    /// What a bare `overfly load serve` does: port 8080 of all IPv4 addresses, one thread, kernel sockets.
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080),
            prefix_len: Network::SERVER.prefix_len,
            threads: 1,
            cpus: Vec::new(),
            link: Link::Kernel,
            interface: None,
            connections: None,
            duration: None,
            timeout: Duration::from_secs(60),
            chunked: false,
            close: false,
            faults: Chances::default(),
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
        if !(1..=64).contains(&self.threads) {
            return Err(Error::usage("-t", self.threads, "1 to 64 threads"));
        }
        if let Some(connections) = self.connections
            && !(self.threads..=10_000_000).contains(&connections)
        {
            return Err(Error::usage(
                "--connections",
                connections,
                "one for each thread at least, and 10000000 at most",
            ));
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return Err(Error::usage("-d", 0, "a duration such as 10s, 500ms or 2m"));
        }
        if self.timeout < Duration::from_millis(1) {
            return Err(Error::usage("--timeout", 0, "a duration such as 60s or 500ms"));
        }
        if self.interface.is_some() && self.link != Link::Xdp {
            return Err(Error::usage(
                "--interface",
                self.interface.as_deref().unwrap_or_default(),
                "--link xdp with it: kernel sockets listen at addresses (--address)",
            ));
        }
        if matches!(self.link, Link::Memif(_) | Link::Tap(_))
            && (self.listen.ip().is_unspecified() || self.listen.port() == 0)
        {
            return Err(Error::usage(
                "--address",
                self.listen,
                "an address of its own, such as 10.77.0.1/24, and a port: no kernel gives them over this link",
            ));
        }
        Ok(())
    }

    /// How many connections each thread may have.
    pub(crate) fn connections_each(&self) -> usize {
        self.connections.unwrap_or(CONNECTIONS).div_ceil(self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut Settings), option: &str| {
            let mut settings = Settings::default();
            change(&mut settings);
            let text = settings.check().unwrap_err().to_string();
            assert!(text.starts_with(option), "{text}");
        };
        Settings::default().check().unwrap();
        refused(|s| s.threads = 0, "-t 0");
        refused(|s| s.connections = Some(0), "--connections 0");
        refused(|s| s.duration = Some(Duration::ZERO), "-d 0");
        refused(|s| s.timeout = Duration::ZERO, "--timeout 0");
        refused(|s| s.interface = Some("eth0".into()), "--interface eth0");
    }
}
