//! TCP Fast Open (RFC 7413): cookies that let data travel on a SYN.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::time::Instant;

/// Bytes of the cookies that a server makes (RFC 7413 section 4.1.1: 4 to 16, and even).
pub(crate) const COOKIE_LEN: usize = 8;

/// A server's keys. The cookie is a keyed hash of the client's address and the server's (RFC 7413 section 4.1.2), the same as
/// Linux's: SipHash-2-4 of both addresses as they stand in a packet (__tcp_fastopen_cookie_gen_cipher() in
/// net/ipv4/tcp_fastopen.c). So kernels and engines behind one address know each other's cookies.
#[derive(Clone, Debug)]
pub(crate) struct ServerCookies {
    primary: SipHasher24,
    /// For cookies that were given before: clients come back with them.
    backup: Option<SipHasher24>,
}

/// What a client's cookie is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Validity {
    /// The SYN's data may be delivered.
    Current,
    /// So it may, and the client should be told its new cookie.
    Previous,
    /// The SYN's data is to be ignored, and the client told its cookie (RFC 7413 section 4.2.2, step 2).
    Invalid,
}

impl ServerCookies {
    /// Cookies are made with `primary`; those made with `backup` are good, too.
    pub(crate) fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> Self {
        let hasher = |key: [u8; 16]| SipHasher24::new_with_key(&key);
        Self { primary: hasher(primary), backup: backup.map(hasher) }
    }

    /// The cookie of the client at `client` for the server at `server`.
    pub(crate) fn make(&self, client: IpAddr, server: IpAddr) -> [u8; COOKIE_LEN] {
        hash(self.primary, client, server)
    }

    /// Judges the cookie with which `client` came to `server`.
    pub(crate) fn check(&self, client: IpAddr, server: IpAddr, cookie: &[u8]) -> Validity {
        if cookie == hash(self.primary, client, server) {
            Validity::Current
        } else if self.backup.is_some_and(|backup| cookie == hash(backup, client, server)) {
            Validity::Previous
        } else {
            Validity::Invalid
        }
    }
}

fn hash(mut hasher: SipHasher24, client: IpAddr, server: IpAddr) -> [u8; COOKIE_LEN] {
    write(&mut hasher, client);
    write(&mut hasher, server);
    hasher.finish().to_le_bytes()
}

fn write(hasher: &mut impl Hasher, address: IpAddr) {
    match address {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
}

/// A cookie that a server gave: 4 to 16 bytes, an even number (RFC 7413 section 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cookie {
    bytes: [u8; 16],
    length: u8,
}

impl Cookie {
    /// `None`: not a cookie.
    pub(crate) fn new(cookie: &[u8]) -> Option<Self> {
        if !(4..=16).contains(&cookie.len()) || !cookie.len().is_multiple_of(2) {
            return None;
        }
        let mut bytes = [0; 16];
        bytes[..cookie.len()].copy_from_slice(cookie);
        Some(Self { bytes, length: cookie.len() as u8 })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// How a client opens a connection (RFC 7413 section 4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    /// With this cookie and as much data as fits the server's `mss`.
    Data { cookie: Cookie, mss: u16 },
    /// With an empty cookie option: a request for a cookie.
    Request,
    /// Without the option: it did not go well lately.
    Plain,
}

/// What a client knows of servers (RFC 7413 sections 4.1.3 and 4.1.3.1), bounded: a set of [`WAYS`] entries by the hash of the
/// addresses, in which the one unused for longest gives way. Memory is reserved once.
pub(crate) struct ClientCookies {
    /// Servers choose their addresses.
    secret: SipHasher13,
    entries: Box<[Option<Entry>]>,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    value: Value,
    used: Instant,
}

/// Cookies are a server's, whatever the port (RFC 7413 section 4.1.3): port 0. Refusals are a port's (section 4.1.3.1).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    client: IpAddr,
    server: IpAddr,
    port: u16,
}

#[derive(Clone, Copy)]
enum Value {
    Cookie { cookie: Cookie, mss: u16 },
    Refused { since: Instant, times: u8 },
}

/// Entries of a set.
const WAYS: usize = 4;
/// After a refusal Fast Open rests for this long, twice as long after each further one, up to 64 times.
const REST_US: u64 = 60_000_000;
const MAX_DOUBLINGS: u8 = 6;

impl ClientCookies {
    /// Room for `capacity` entries, rounded up to sets; none if it is 0.
    pub(crate) fn new(capacity: usize, secret: SipHasher13) -> Self {
        let entries = vec![None; capacity.next_multiple_of(WAYS)].into_boxed_slice();
        Self { secret, entries }
    }

    /// How to open a connection from `client` to `server`.
    pub(crate) fn opening(&mut self, now: Instant, client: IpAddr, server: SocketAddr) -> Opening {
        let port = Key { client, server: server.ip(), port: server.port() };
        if let Some(Value::Refused { since, times }) = self.find(now, port) {
            let rest_us = REST_US << times.saturating_sub(1).min(MAX_DOUBLINGS);
            if ((now - since).as_micros() as u64) < rest_us {
                return Opening::Plain;
            }
        }
        match self.find(now, Key { port: 0, ..port }) {
            Some(Value::Cookie { cookie, mss }) => Opening::Data { cookie, mss },
            _ => Opening::Request,
        }
    }

    /// The server at `server` gave a cookie, and offered `mss`.
    pub(crate) fn learned(&mut self, now: Instant, client: IpAddr, server: IpAddr, cookie: Cookie, mss: u16) {
        self.put(now, Key { client, server, port: 0 }, Value::Cookie { cookie, mss });
    }

    /// A SYN with data or a request was not answered, or its data not acknowledged: opens plainly for a while (RFC 7413
    /// section 4.1.3.1).
    pub(crate) fn refused(&mut self, now: Instant, client: IpAddr, server: SocketAddr) {
        let key = Key { client, server: server.ip(), port: server.port() };
        let times = match self.find(now, key) {
            Some(Value::Refused { times, .. }) => times.saturating_add(1),
            _ => 1,
        };
        self.put(now, key, Value::Refused { since: now, times });
    }

    /// A SYN's data was acknowledged: refusals are forgotten.
    pub(crate) fn worked(&mut self, client: IpAddr, server: SocketAddr) {
        let key = Key { client, server: server.ip(), port: server.port() };
        for entry in self.set(key) {
            if entry.is_some_and(|entry| entry.key == key) {
                *entry = None;
            }
        }
    }

    fn set(&mut self, key: Key) -> &mut [Option<Entry>] {
        let mut hasher = self.secret;
        write(&mut hasher, key.client);
        write(&mut hasher, key.server);
        hasher.write_u16(key.port);
        let sets = self.entries.len() / WAYS;
        if sets == 0 {
            return &mut [];
        }
        let start = (hasher.finish() % sets as u64) as usize * WAYS;
        &mut self.entries[start..start + WAYS]
    }

    fn find(&mut self, now: Instant, key: Key) -> Option<Value> {
        let entry = self.set(key).iter_mut().flatten().find(|entry| entry.key == key)?;
        entry.used = now;
        Some(entry.value)
    }

    fn put(&mut self, now: Instant, key: Key, value: Value) {
        let set = self.set(key);
        let place = set.iter().position(|entry| entry.is_some_and(|entry| entry.key == key)).or_else(|| {
            let age = |entry: &Option<Entry>| entry.map(|entry| entry.used);
            (0..set.len()).min_by_key(|&index| age(&set[index]))
        });
        if let Some(place) = place {
            set[place] = Some(Entry { key, value, used: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients() -> [IpAddr; 2] {
        ["198.51.100.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]
    }

    fn server(port: u16) -> SocketAddr {
        SocketAddr::new("192.0.2.1".parse().unwrap(), port)
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn cache(capacity: usize) -> ClientCookies {
        ClientCookies::new(capacity, SipHasher13::new_with_key(&[3; 16]))
    }

    fn cookie(byte: u8) -> Cookie {
        Cookie::new(&[byte; 8]).unwrap()
    }

    fn servers() -> [IpAddr; 2] {
        ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]
    }

    #[test]
    fn cookie_is_for_one_address() {
        let cookies = ServerCookies::new([1; 16], None);
        for (client, server) in clients().into_iter().zip(servers()) {
            let cookie = cookies.make(client, server);
            assert_eq!(cookies.check(client, server, &cookie), Validity::Current);
            assert_eq!(ServerCookies::new([2; 16], None).check(client, server, &cookie), Validity::Invalid);
            assert_eq!(cookies.check(server, client, &cookie), Validity::Invalid);
            assert_eq!(cookies.check(client, client, &cookie), Validity::Invalid);
            assert_eq!(cookies.check(server, server, &cookie), Validity::Invalid);
        }
    }

    #[test]
    fn damaged_cookies_are_invalid() {
        let cookies = ServerCookies::new([1; 16], Some([2; 16]));
        let (client, server) = (clients()[0], servers()[0]);
        let good = cookies.make(client, server);
        for bit in 0..64 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(cookies.check(client, server, &bad), Validity::Invalid);
        }
        assert_eq!(cookies.check(client, server, &good[..7]), Validity::Invalid);
        assert_eq!(cookies.check(client, server, &[]), Validity::Invalid);
        assert_eq!(cookies.check(client, server, &[0; 16]), Validity::Invalid);
    }

    #[test]
    fn cookies_of_the_backup_key_are_good_and_renewed() {
        let (client, server) = (clients()[1], servers()[1]);
        let old = ServerCookies::new([1; 16], None).make(client, server);
        let cookies = ServerCookies::new([2; 16], Some([1; 16]));
        assert_eq!(cookies.check(client, server, &old), Validity::Previous);
        assert_eq!(cookies.check(client, server, &cookies.make(client, server)), Validity::Current);
        assert_eq!(ServerCookies::new([2; 16], Some([3; 16])).check(client, server, &old), Validity::Invalid);
    }

    #[test]
    fn cookies_have_an_even_length_of_4_to_16() {
        for length in 0..40 {
            let bytes = vec![9; length];
            let expected = matches!(length, 4 | 6 | 8 | 10 | 12 | 14 | 16);
            assert_eq!(Cookie::new(&bytes).is_some(), expected);
            if let Some(cookie) = Cookie::new(&bytes) {
                assert_eq!(cookie.as_bytes(), bytes);
            }
        }
    }

    #[test]
    fn client_asks_then_uses_what_it_was_given_on_every_port() {
        let mut cache = cache(64);
        let client = clients()[0];
        assert_eq!(cache.opening(at(0), client, server(80)), Opening::Request);
        cache.learned(at(0), client, server(80).ip(), cookie(5), 1460);
        let data = Opening::Data { cookie: cookie(5), mss: 1460 };
        assert_eq!(cache.opening(at(1), client, server(80)), data);
        assert_eq!(cache.opening(at(1), client, server(443)), data);
        assert_eq!(cache.opening(at(1), "198.51.100.8".parse().unwrap(), server(80)), Opening::Request);
        cache.learned(at(2), client, server(80).ip(), cookie(6), 1440);
        assert_eq!(cache.opening(at(3), client, server(80)), Opening::Data { cookie: cookie(6), mss: 1440 });
    }

    #[test]
    fn refusals_rest_a_port_for_longer_each_time() {
        let mut cache = cache(64);
        let client = clients()[0];
        cache.learned(at(0), client, server(80).ip(), cookie(5), 1460);
        let mut now = 0;
        for minutes in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            cache.refused(at(now), client, server(80));
            assert_eq!(cache.opening(at(now + 60 * minutes - 1), client, server(80)), Opening::Plain);
            assert_ne!(cache.opening(at(now), client, server(443)), Opening::Plain);
            now += 60 * minutes;
            assert_ne!(cache.opening(at(now), client, server(80)), Opening::Plain);
        }
        cache.worked(client, server(80));
        cache.refused(at(now), client, server(80));
        assert_ne!(cache.opening(at(now + 60), client, server(80)), Opening::Plain);
    }

    #[test]
    fn cache_keeps_its_bound_and_what_is_used() {
        let mut cache = cache(61);
        assert_eq!(cache.entries.len(), 64);
        let client = clients()[0];
        cache.learned(at(0), client, server(80).ip(), cookie(1), 1460);
        for number in 0..10_000_u32 {
            let other = IpAddr::V4((0x0a00_0000 + number).into());
            cache.learned(at(1 + u64::from(number)), client, other, cookie(2), 1460);
            assert_ne!(cache.opening(at(1 + u64::from(number)), client, server(80)), Opening::Request);
        }
        assert_eq!(cache.entries.len(), 64);
    }

    #[test]
    fn cache_without_room_only_asks() {
        let mut cache = cache(0);
        let client = clients()[0];
        cache.learned(at(0), client, server(80).ip(), cookie(1), 1460);
        cache.refused(at(0), client, server(80));
        cache.worked(client, server(80));
        assert_eq!(cache.opening(at(0), client, server(80)), Opening::Request);
    }
}
