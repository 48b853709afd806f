//! Where requests go.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::error::Error;

/// Longest key of memcached, in bytes (`KEY_MAX_LENGTH`).
const LONGEST_KEY: usize = 250;

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Store(Store),
}

/// What gives the value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// A Redis server.
    Redis,
    /// A memcached, in its text protocol.
    Memcached,
}

impl Scheme {
    const ALL: [(&str, Scheme); 4] = [
        ("http://", Scheme::Http),
        ("https://", Scheme::Https),
        ("redis://", Scheme::Store(Store::Redis)),
        ("memcached://", Scheme::Store(Store::Memcached)),
    ];

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
            Scheme::Store(Store::Redis) => 6379,
            Scheme::Store(Store::Memcached) => 11211,
        }
    }
}

/// A server and a resource, from an `http://`, `https://`, `redis://` or `memcached://` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    url: String,
    scheme: Scheme,
    host: String,
    port: u16,
    path: String,
    /// Its share of the requests, beside the weights of the run's other targets.
    pub weight: u64,
}

/// The host of `host[:port]`, without the brackets of an address of IPv6, and its port, which may be empty. None where such an
/// address has no brackets around it, or what they have is none.
fn host_and_port(authority: &str) -> Option<(&str, &str)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let (address, _zone) = host.split_once('%').unwrap_or((host, ""));
        address.parse::<Ipv6Addr>().ok()?;
        return if port.is_empty() { Some((host, "")) } else { Some((host, port.strip_prefix(':')?)) };
    }
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    (!port.contains(':') && !host.contains(']')).then_some((host, port))
}

impl Target {
    /// Reads `http[s]://host[:port][/path][?query]`; a fragment is dropped (RFC 9110 section 7.1). Or `redis://host[:port]/key`,
    /// or the same of memcached, whose keys have 250 bytes at most.
    ///
    /// # Errors
    /// [`Error::Usage`] for anything else.
    pub fn parse(url: &str) -> Result<Target, Error> {
        let wrong = |expected: &str| Error::usage("URL", url, expected);
        const SHAPE: &str = "http://HOST[:PORT][/PATH], https://HOST[:PORT][/PATH], redis://HOST[:PORT]/KEY or memcached://HOST[:PORT]/KEY";
        let found = Scheme::ALL.into_iter().find(|(start, _)| starts_with_ignoring_case(url, start));
        let Some((start, scheme)) = found else {
            return Err(wrong(SHAPE));
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("visible ASCII only: other bytes are written as %XX"));
        }
        let rest = url[start.len()..].split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(wrong("no user name in it; give -H 'Authorization: …' instead"));
        }
        let (host, port) = host_and_port(authority)
            .ok_or_else(|| wrong("an IPv6 address between brackets, such as http://[fd77::1]:8080/"))?;
        let port = match port {
            "" => scheme.default_port(),
            digits => digits
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| wrong("a port from 1 to 65535 after the colon"))?,
        };
        if host.is_empty() {
            return Err(wrong(SHAPE));
        }
        let path = match path.as_bytes().first() {
            None => "/".to_string(),
            Some(b'?') => format!("/{path}"),
            Some(_) => path.to_string(),
        };
        if matches!(scheme, Scheme::Store(_)) && path.len() < 2 {
            return Err(wrong(&format!("a key after the slash: {start}HOST[:PORT]/KEY")));
        }
        if scheme == Scheme::Store(Store::Memcached) && path.len() > 1 + LONGEST_KEY {
            return Err(wrong("a key of 250 bytes at most: memcached takes no longer one"));
        }
        Ok(Target { url: url.to_string(), scheme, host: host.to_string(), port, path, weight: 1 })
    }

    /// As it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
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

    /// Whether it wants TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The key to get, and of what, if it is no web server: the key is sent as it stands in the URL.
    #[must_use]
    pub fn key(&self) -> Option<(Store, &str)> {
        let Scheme::Store(store) = self.scheme else { return None };
        Some((store, self.path.get(1..).unwrap_or_default()))
    }

    /// The host as it was given, without the brackets of an IPv6 address.
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

    /// Whether both are one server: a connection to the one can carry requests for the other.
    pub(crate) fn is_same_server(&self, other: &Target) -> bool {
        (self.scheme, self.port) == (other.scheme, other.port) && self.host.eq_ignore_ascii_case(&other.host)
    }

    /// The Host field (RFC 9112 section 3.2): the port only where it is not the scheme's.
    #[must_use]
    pub fn host_field(&self) -> String {
        let host = match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.clone(),
        };
        if self.port == self.scheme.default_port() { host } else { format!("{host}:{}", self.port) }
    }
}

fn starts_with_ignoring_case(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_url_is_said_in_one_line() {
        for url in [
            "",
            "a",
            "https://",
            "http://",
            "http:///x",
            "http://a:0",
            "http://a:x",
            "http://a:70000",
            "http://u:p@a/",
            "http://a/ b",
            "ftp://a",
            "redis://a",
            "redis://a/",
            "memcached://a",
            "http://a/\u{e9}",
        ] {
            let error = Target::parse(url).unwrap_err();
            assert!(error.is_usage());
            let text = error.to_string();
            assert!(text.starts_with("URL") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn an_address_of_ipv6_stands_between_brackets() {
        for (url, host, port) in [
            ("http://[fd77::1]/", "fd77::1", 80),
            ("http://[fd77::1]:8080/", "fd77::1", 8080),
            ("http://[fe80::1%eth0]", "fe80::1%eth0", 80),
            ("http://a:8080/", "a", 8080),
            ("http://a:/", "a", 80),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.host.as_str(), target.port), (host, port), "{url}");
        }
        for url in [
            "http://fd77::1/",
            "http://[fd77::1/",
            "http://[fd77::zz]/",
            "http://[fd77::1]8080/",
            "http://[a]/",
            "http://a]/",
        ] {
            let text = Target::parse(url).unwrap_err().to_string();
            assert!(text.contains("between brackets"), "{text}");
        }
    }
}
