//! What to run, checked before anything runs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::schedule::Rate;
use super::script::Workload;
use crate::error::Error;
use crate::link::Link;

/// The server and the resource, from an `http://` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    url: String,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// Reads `http://host[:port][/path][?query]`; a fragment is dropped (RFC 9110 section 7.1).
    ///
    /// # Errors
    /// [`Error::Usage`] for anything else.
    pub fn parse(url: &str) -> Result<Target, Error> {
        let wrong = |expected: &str| Error::usage("URL", url, expected);
        const SHAPE: &str = "http://HOST[:PORT][/PATH]";
        let scheme = url.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
        if scheme.is_none() {
            return Err(wrong(SHAPE));
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("visible ASCII only: other bytes are written as %XX"));
        }
        let rest = url[7..].split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(wrong("no user name in it; give -H 'Authorization: …' instead"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (authority, ""),
        };
        let port = match port {
            "" => 80,
            digits => digits
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| wrong("a port from 1 to 65535 after the colon"))?,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong(SHAPE));
        }
        let path = match path.as_bytes().first() {
            None => "/".to_string(),
            Some(b'?') => format!("/{path}"),
            Some(_) => path.to_string(),
        };
        Ok(Target { url: url.to_string(), host: host.to_string(), port, path })
    }

    /// As it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The server's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The server's address; IPv4 first where a name has both.
    ///
    /// # Errors
    /// [`Error::Usage`] if the name has no address.
    pub fn resolve(&self) -> Result<SocketAddr, Error> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let mut addresses: Vec<SocketAddr> = found
            .map_err(|error| Error::usage("URL", &self.url, format!("a host that has an address ({error})")))?
            .collect();
        addresses.sort_by_key(|address| !address.is_ipv4());
        let first = addresses.first().copied();
        first.ok_or_else(|| Error::usage("URL", &self.url, "a host that has an address"))
    }

    /// The Host field (RFC 9112 section 3.2): the port only where it is not 80.
    #[must_use]
    pub fn host_field(&self) -> String {
        let host = match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.clone(),
        };
        if self.port == 80 { host } else { format!("{host}:{}", self.port) }
    }
}

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What to ask for.
    pub target: Target,
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
    /// A request that takes longer, its connection included where it needs one, has failed.
    pub timeout: Duration,
    /// A new connection for each request.
    pub close: bool,
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
    /// What carries the connections.
    pub link: Link,
    /// The interface for `xdp`; `None`: the one that the route to the server names.
    pub interface: Option<String>,
    /// Thread i runs on processor `cpus[i % cpus.len()]` alone. Empty: wherever.
    pub cpus: Vec<usize>,
    /// The local ports that `xdp` takes for itself.
    pub ports: RangeInclusive<u16>,
}

impl Settings {
    /// The settings that a bare `overfly load http URL` has: 1 thread, 10 connections, 10 s.
    #[must_use]
    pub fn new(target: Target) -> Settings {
        Settings {
            target,
            threads: 1,
            connections: 10,
            duration: Some(Duration::from_secs(10)),
            requests: None,
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(2),
            close: false,
            rate: None,
            workload: None,
            interval: None,
            headers: Vec::new(),
            expect_status: None,
            expect_size: None,
            link: Link::Kernel,
            interface: None,
            cpus: Vec::new(),
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
        if self.timeout.is_zero() {
            return Err(Error::usage("--timeout", 0, "a duration such as 2s or 500ms"));
        }
        if self.interval.is_some_and(|interval| interval < Duration::from_millis(10)) {
            return Err(Error::usage("interval", "", "intervals of 10 ms or more"));
        }
        if self.interface.is_some() && self.link == Link::Kernel {
            return Err(Error::usage(
                "--interface",
                self.interface.as_deref().unwrap_or_default(),
                "--link xdp with it: kernel sockets follow the kernel's routes",
            ));
        }
        if self.link == Link::Xdp && !self.ports.is_empty() {
            self.check_ports(self.ports.len())?;
        }
        Ok(())
    }

    /// Each connection needs a local port of its own.
    pub(crate) fn check_ports(&self, ports: usize) -> Result<(), Error> {
        if self.connections > ports {
            return Err(Error::usage(
                "-c",
                self.connections,
                format!("{ports} connections at most: there are no more local ports here"),
            ));
        }
        Ok(())
    }

    /// How many connections thread `index` has.
    #[must_use]
    pub fn connections_of(&self, index: usize) -> usize {
        self.connections / self.threads + usize::from(index < self.connections % self.threads)
    }

    /// The request, head only: it has no content.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let given = |name: &str| self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let mut request = format!("GET {} HTTP/1.1\r\n", self.target.path);
        let mut line = |name: &str, value: &str| {
            request.push_str(name);
            request.push_str(": ");
            request.push_str(value);
            request.push_str("\r\n");
        };
        if !given("host") {
            line("Host", &self.target.host_field());
        }
        if self.close && !given("connection") {
            line("Connection", "close");
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        request.push_str("\r\n");
        request.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_their_requests() {
        let request =
            |url: &str| String::from_utf8(Settings::new(Target::parse(url).unwrap()).request()).unwrap();
        assert_eq!(request("http://a"), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(request("HTTP://a:80/b?c#d"), "GET /b?c HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(request("http://a:81?c"), "GET /?c HTTP/1.1\r\nHost: a:81\r\n\r\n");
        assert_eq!(request("http://[::1]:8080/"), "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n");
        assert_eq!(request("http://[::1]"), "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n");
    }

    #[test]
    fn what_is_no_url_is_said_in_one_line() {
        for url in [
            "",
            "a",
            "https://a",
            "http://",
            "http:///x",
            "http://a:0",
            "http://a:x",
            "http://a:70000",
            "http://u:p@a/",
            "http://a/ b",
            "ftp://a",
            "http://a/\u{e9}",
        ] {
            let error = Target::parse(url).unwrap_err();
            assert!(error.is_usage());
            let text = error.to_string();
            assert!(text.starts_with("URL") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn headers_are_added_or_replace_ours() {
        let mut settings = Settings::new(Target::parse("http://a/").unwrap());
        settings.close = true;
        settings.headers = vec![("Host".into(), "b".into()), ("X-Y".into(), "z".into())];
        let request = String::from_utf8(settings.request()).unwrap();
        assert_eq!(request, "GET / HTTP/1.1\r\nConnection: close\r\nHost: b\r\nX-Y: z\r\n\r\n");
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
