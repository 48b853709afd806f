//! What to run, checked before anything runs.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overfly_engine::Prefix;
use overfly_steer::ReceiveOffload;

use super::schedule::Rate;
use super::script::Workload;
use super::{Hostility, Store, Target};
use crate::error::Error;
use crate::link::{Link, Network};
use crate::{memcached, redis};

/// The targets' weights together: so many requests after which the mix repeats.
const MAX_WEIGHT: u64 = 10_000;

/// How a connection ends that has carried all its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The last request says `Connection: close`, and the server's FIN is waited for: TIME-WAIT is the server's.
    Fin,
    /// A reset, as soon as the last response is complete.
    Reset,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What to ask for, each by its weight; at least one. Connections are shared among servers by weight, the requests of a
    /// connection among its server's targets.
    pub targets: Vec<Target>,
    /// The request method.
    pub method: String,
    /// The content of each request. Content-Length says how long it is; empty: none is sent.
    pub body: Arc<[u8]>,
    /// Generator threads; with `xdp` each has a stack of its own.
    pub threads: usize,
    /// Connections over all threads.
    pub connections: usize,
    /// How long to measure, the warm-up not counted. `None`: until `requests` are done.
    pub duration: Option<Duration>,
    /// How many requests to end, failures counted too. `None`: as many as `duration` allows.
    pub requests: Option<u64>,
    /// How long to run before anything is counted.
    pub warmup: Duration,
    /// A connection that takes longer to be made has failed, and so has a request that takes longer.
    pub timeout: Duration,
    /// Not requests, but connections that a server would rather not have.
    pub hostile: Option<Hostility>,
    /// How often a slow one of them does a little.
    pub hostile_interval: Duration,
    /// A new connection for each request.
    pub close: bool,
    /// Requests that a connection carries before another takes its place. `None`: as many as the server allows.
    pub requests_per_connection: Option<u64>,
    /// How a connection that has carried all its requests ends.
    pub ending: Ending,
    /// Requests under way at once on a connection, of a closed loop or an open one.
    pub pipeline: usize,
    /// Open loop: when requests are due, whatever becomes of those before them. `None`: a closed loop, in which each
    /// connection has its next request when the one before is over.
    pub rate: Option<Rate>,
    /// Makes the requests up; `None`: they are as `target` and `headers` say.
    pub workload: Option<Arc<dyn Workload>>,
    /// How often [`super::Progress::interval`] is there. `None`: never, and nothing is kept for it.
    pub interval: Option<Duration>,
    /// More request header lines, or another Host.
    pub headers: Vec<(String, String)>,
    /// The only status that is a success; `None`: any of 2xx and 3xx.
    pub expect_status: Option<u16>,
    /// The only content size that is a success, bytes.
    pub expect_size: Option<u64>,
    /// The SHA-256 digest of the only content that is a success.
    pub expect_sha256: Option<[u8; 32]>,
    /// `https`: take any certificate.
    pub insecure: bool,
    /// `https`: a file of certificates (PEM) that a server's may be signed by, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// What carries the connections.
    pub link: Link,
    /// The stack's own address with `memif` and `tap`.
    pub network: Network,
    /// The interface for `xdp`; `None`: the one that the route to the server names.
    pub interface: Option<String>,
    /// What may arrive over `xdp`.
    pub receive_offload: ReceiveOffload,
    /// Thread i runs on processor `cpus[i % cpus.len()]` alone. Empty: wherever.
    pub cpus: Vec<usize>,
    /// Local addresses that connections come from in turn; `None`: the one on the way to the server.
    pub sources: Option<Prefix>,
    /// The local ports that `xdp` takes for itself.
    pub ports: RangeInclusive<u16>,
}

impl Settings {
    /// The settings that a bare `overfly load http URL` has: 1 thread, 10 connections, 10 s.
    #[must_use]
    pub fn new(target: Target) -> Settings {
        Settings {
            targets: vec![target],
            method: "GET".to_string(),
            body: Arc::from([]),
            threads: 1,
            connections: 10,
            duration: Some(Duration::from_secs(10)),
            requests: None,
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(2),
            hostile: None,
            hostile_interval: Duration::from_secs(1),
            close: false,
            requests_per_connection: None,
            ending: Ending::Fin,
            pipeline: 1,
            rate: None,
            workload: None,
            interval: None,
            headers: Vec::new(),
            expect_status: None,
            expect_size: None,
            expect_sha256: None,
            insecure: false,
            ca_file: None,
            link: Link::Kernel,
            network: Network::default(),
            interface: None,
            receive_offload: ReceiveOffload::Packets,
            cpus: Vec::new(),
            sources: None,
            ports: 10_000..=32_000,
        }
    }

    /// What can be known to be wrong without touching the machine.
    ///
    /// # Errors
    /// [`Error::Usage`], for the first option that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=64).contains(&self.threads) {
            return Err(Error::usage("-t", self.threads, "1 to 64 threads"));
        }
        if self.connections < self.threads {
            return Err(Error::usage(
                "-c",
                self.connections,
                format!("at least one connection for each of the {} threads (-t)", self.threads),
            ));
        }
        if self.connections > 10_000_000 {
            return Err(Error::usage("-c", self.connections, "10000000 connections at most"));
        }
        if self.duration.is_none() && self.requests.is_none() {
            return Err(Error::usage("-d", "", "a duration (-d) or a number of requests (-n)"));
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return Err(Error::usage("-d", "0", "a duration such as 10s, 500ms or 2m"));
        }
        if self.requests == Some(0) {
            return Err(Error::usage("-n", 0, "at least one request"));
        }
        if self.targets.is_empty() || self.targets.iter().all(|target| target.weight == 0) {
            return Err(Error::usage("URL", "", "at least one URL with a weight above 0"));
        }
        if self.targets.iter().map(|target| target.weight).sum::<u64>() > MAX_WEIGHT {
            return Err(Error::usage(
                "--weights",
                "",
                format!("weights that add up to {MAX_WEIGHT} at most"),
            ));
        }
        if self.connections < self.threads * self.servers().len() {
            let expected = format!(
                "a connection for each server and thread: {} or more",
                self.threads * self.servers().len()
            );
            return Err(Error::usage("-c", self.connections, expected));
        }
        if self.requests_per_connection == Some(0) {
            return Err(Error::usage("--requests-per-connection", 0, "at least one request"));
        }
        if self.close && self.requests_per_connection.is_some() {
            return Err(Error::usage(
                "--requests-per-connection",
                self.requests_per_connection.unwrap_or_default(),
                "it or --close, not both",
            ));
        }
        if !(1..=1024).contains(&self.pipeline) {
            return Err(Error::usage("--pipeline", self.pipeline, "1 to 1024 requests"));
        }
        self.check_hostile()?;
        self.check_store()?;
        if let Some(rate) = &self.rate {
            let sound = |per_s: f64| (0.0..=1e9).contains(&per_s);
            if rate.legs.iter().any(|leg| !sound(leg.from_per_s) || !sound(leg.to_per_s))
                || !rate.legs.iter().any(|leg| leg.from_per_s > 0.0 || leg.to_per_s > 0.0)
            {
                return Err(Error::usage("-R", "", "a rate above 0 and up to 1G requests per second"));
            }
        }
        if self.timeout.is_zero() {
            return Err(Error::usage("--timeout", 0, "a duration such as 2s or 500ms"));
        }
        if self.interval.is_some_and(|interval| interval < Duration::from_millis(10)) {
            return Err(Error::usage("interval", "", "intervals of 10 ms or more"));
        }
        if self.interface.is_some() && self.link != Link::Xdp {
            return Err(Error::usage(
                "--interface",
                self.interface.as_deref().unwrap_or_default(),
                "--link xdp with it: kernel sockets follow the kernel's routes, and other links have no interface",
            ));
        }
        if self.link != Link::Kernel && !self.ports.is_empty() && self.sources.is_none() {
            self.check_ports(self.ports.len())?;
        }
        Ok(())
    }

    fn check_hostile(&self) -> Result<(), Error> {
        let Some(kind) = self.hostile else { return Ok(()) };
        let wrong = |expected: &str| Err(Error::usage("--hostile", kind.name(), expected));
        if self.hostile_interval.is_zero() {
            return Err(Error::usage("--hostile-interval", 0, "a time above 0"));
        }
        if self.duration.is_none()
            || self.requests.is_some()
            || self.rate.is_some()
            || self.workload.is_some()
        {
            return wrong("a duration (-d) with it, and no -n, no rate and no script");
        }
        if self.targets.iter().any(Target::is_secure) {
            return wrong("an http:// URL with it");
        }
        if kind == Hostility::HalfOpen && self.link == Link::Kernel {
            return wrong("a user-level link with it: the kernel answers what its SYNs bring");
        }
        Ok(())
    }

    /// A server of Redis or memcached is asked for values, and told nothing else.
    fn check_store(&self) -> Result<(), Error> {
        let stores = || self.targets.iter().map(|target| target.key().map(|(store, _)| store));
        let Some(store) = stores().flatten().next() else { return Ok(()) };
        let scheme = match store {
            Store::Redis => "redis://",
            Store::Memcached => "memcached://",
        };
        let wrong =
            |option, expected: &str| Err(Error::usage(option, "", format!("{expected} with {scheme}")));
        if !stores().all(|other| other == Some(store)) {
            return wrong("URL", "no other kind of URL");
        }
        if self.method != "GET" || !self.body.is_empty() || !self.headers.is_empty() {
            return wrong("-X", "no method, headers or body");
        }
        if self.hostile.is_some() || self.workload.is_some() {
            return wrong("--hostile", "neither hostile clients nor a script");
        }
        if self.turns() < u64::MAX && self.ending == Ending::Fin {
            return wrong("--close", "--close=rst: nothing asks the server to close a connection,");
        }
        Ok(())
    }

    /// Each connection needs a local port of its own.
    pub(crate) fn check_ports(&self, ports: usize) -> Result<(), Error> {
        if self.connections > ports {
            return Err(Error::usage(
                "-c",
                self.connections,
                format!("{ports} connections at most: there are no more local ports here; see --sources"),
            ));
        }
        Ok(())
    }

    /// The targets' servers: the first target of each.
    pub(crate) fn servers(&self) -> Vec<&Target> {
        let mut servers: Vec<&Target> = Vec::new();
        for target in &self.targets {
            if !servers.iter().any(|server| server.is_same_server(target)) {
                servers.push(target);
            }
        }
        servers
    }

    /// How many connections thread `index` has.
    #[must_use]
    pub fn connections_of(&self, index: usize) -> usize {
        self.connections / self.threads + usize::from(index < self.connections % self.threads)
    }

    /// Requests that a connection carries at most.
    pub(crate) fn turns(&self) -> u64 {
        if self.close { 1 } else { self.requests_per_connection.unwrap_or(u64::MAX) }
    }

    /// Whether the schedule waits until the connections are made: those of an open loop that keeps them.
    pub(crate) fn connects_first(&self) -> bool {
        self.rate.is_some() && self.turns() > 1
    }

    /// A request for `target`; the `last` one of a connection says so.
    #[must_use]
    pub fn request(&self, target: &Target, last: bool) -> Vec<u8> {
        match target.key() {
            Some((Store::Redis, key)) => return redis::get(key),
            Some((Store::Memcached, key)) => return memcached::get(key),
            None => {}
        }
        let given = |name: &str| self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let mut request = format!("{} {} HTTP/1.1\r\n", self.method, target.path());
        let mut line = |name: &str, value: &str| {
            request.push_str(name);
            request.push_str(": ");
            request.push_str(value);
            request.push_str("\r\n");
        };
        if !given("host") {
            line("Host", &target.host_field());
        }
        if last && self.ending == Ending::Fin && !given("connection") {
            line("Connection", "close");
        }
        // RFC 9110 section 8.6: methods that anticipate content say so also where there is none.
        let anticipates = matches!(self.method.as_str(), "POST" | "PUT" | "PATCH");
        if (anticipates || !self.body.is_empty()) && !given("content-length") && !given("transfer-encoding") {
            line("Content-Length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        request.push_str("\r\n");
        [request.as_bytes(), &self.body].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_their_requests() {
        let request = |url: &str| {
            let target = Target::parse(url).unwrap();
            String::from_utf8(Settings::new(target.clone()).request(&target, false)).unwrap()
        };
        assert_eq!(request("http://a"), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(request("HTTP://a:80/b?c#d"), "GET /b?c HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(request("http://a:81?c"), "GET /?c HTTP/1.1\r\nHost: a:81\r\n\r\n");
        assert_eq!(request("http://[::1]:8080/"), "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n");
        assert_eq!(request("https://a:443/b"), "GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(request("https://a:80/"), "GET / HTTP/1.1\r\nHost: a:80\r\n\r\n");
        assert_eq!(request("http://[::1]"), "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n");
        assert_eq!(request("redis://a/b:c"), "*2\r\n$3\r\nGET\r\n$3\r\nb:c\r\n");
        assert_eq!(request("memcached://a/b:c"), "get b:c\r\n");
    }

    #[test]
    fn headers_are_added_or_replace_ours() {
        let mut settings = Settings::new(Target::parse("http://a/").unwrap());
        settings.headers = vec![("Host".into(), "b".into()), ("X-Y".into(), "z".into())];
        let request = |settings: &Settings, last| {
            String::from_utf8(settings.request(&settings.targets[0], last)).unwrap()
        };
        let closing = "GET / HTTP/1.1\r\nConnection: close\r\nHost: b\r\nX-Y: z\r\n\r\n";
        assert_eq!(request(&settings, true), closing);
        assert_eq!(request(&settings, false), closing.replace("Connection: close\r\n", ""));
        settings.ending = Ending::Reset;
        assert_eq!(request(&settings, true), request(&settings, false), "a reset comes unannounced");
        settings.method = "POST".into();
        settings.body = b"abc".as_slice().into();
        let post = "POST / HTTP/1.1\r\nContent-Length: 3\r\nHost: b\r\nX-Y: z\r\n\r\nabc";
        assert_eq!(request(&settings, false), post);
    }

    #[test]
    fn settings_that_contradict_are_refused() {
        let settings = |change: fn(&mut Settings)| {
            let mut settings = Settings::new(Target::parse("http://a/").unwrap());
            change(&mut settings);
            settings.check().err().map(|error| error.to_string())
        };
        assert_eq!(settings(|_| {}), None);
        let starts = |text: Option<String>, option: &str| {
            assert!(text.as_ref().is_some_and(|text| text.starts_with(option)), "{text:?}");
        };
        starts(settings(|s| s.threads = 0), "-t 0");
        starts(settings(|s| s.threads = 11), "-c 10");
        starts(settings(|s| s.duration = None), "-d");
        starts(settings(|s| s.requests = Some(0)), "-n 0");
        starts(settings(|s| s.timeout = Duration::ZERO), "--timeout 0");
        starts(settings(|s| s.interface = Some("eth0".into())), "--interface eth0");
        let redis = |change: fn(&mut Settings)| {
            let mut settings = Settings::new(Target::parse("redis://a/b").unwrap());
            change(&mut settings);
            settings.check().err().map(|error| error.to_string())
        };
        assert_eq!(redis(|_| {}), None);
        assert_eq!(redis(|s| (s.close, s.ending) = (true, Ending::Reset)), None);
        starts(redis(|s| s.close = true), "--close");
        starts(redis(|s| s.method = "PUT".into()), "-X");
        starts(redis(|s| s.targets.push(Target::parse("http://a/").unwrap())), "URL");
        starts(redis(|s| s.targets.push(Target::parse("memcached://a/b").unwrap())), "URL");
        starts(
            settings(|s| {
                s.link = Link::Xdp;
                s.connections = 30_000;
            }),
            "-c 30000",
        );
    }

    #[test]
    fn connections_are_shared_out_whole() {
        let mut settings = Settings::new(Target::parse("http://a/").unwrap());
        settings.threads = 3;
        let shares: Vec<usize> = (0..3).map(|index| settings.connections_of(index)).collect();
        assert_eq!(shares, [4, 3, 3]);
    }
}
