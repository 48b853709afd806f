//! What peers must not guess.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::time::{Micros, Tick, Ticks};
use crate::tuple::Tuple;

/// What peers must not guess, made from [`crate::Config::hash_key`].
pub(crate) struct Secret(pub(crate) SipHasher13);

impl Secret {
    /// The hash of `words` for one purpose.
    fn hash(&self, purpose: u8, words: impl Fn(&mut SipHasher13)) -> u64 {
        let mut hasher = self.0;
        hasher.write_u8(purpose);
        words(&mut hasher);
        hasher.finish()
    }

    /// RFC 6528 section 3's F().
    pub(crate) fn tuple(&self, tuple: &Tuple) -> u64 {
        self.hash(1, |hasher| {
            hash_address(hasher, tuple.local.ip());
            hash_address(hasher, tuple.remote.ip());
            hasher.write_u16(tuple.local_port);
            hasher.write_u16(tuple.remote_port);
        })
    }

    /// RFC 7323 section 5.4's offset: the same for all connections between two addresses.
    pub(crate) fn addresses(&self, tuple: &Tuple) -> u32 {
        self.hash(2, |hasher| {
            hash_address(hasher, tuple.local.ip());
            hash_address(hasher, tuple.remote.ip());
        }) as u32
    }

    fn challenge(&self, now: Tick) -> u64 {
        self.hash(4, |hasher| hasher.write_u32(now.0))
    }

    pub(crate) fn word(&self, index: u64) -> u64 {
        self.hash(3, |hasher| hasher.write_u64(index))
    }
}

fn hash_address(hasher: &mut SipHasher13, address: IpAddr) {
    match address {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
}

/// RFC 5961 section 7: challenge ACKs are rate limited. The limit differs from second to second, so that a stranger cannot
/// count on it to learn whose connections are challenged (CVE-2016-5696).
#[derive(Default)]
pub(crate) struct Challenges {
    since: Tick,
    left: u32,
}

impl Challenges {
    /// Whether one more may be sent now, if so many are allowed a second.
    pub(crate) fn allow(&mut self, now: Tick, per_s: u32, secret: &Secret) -> bool {
        if now.since(self.since) >= Ticks::from(Micros::new(1_000_000)) {
            // Between half of it and one and a half.
            let random = secret.challenge(now) % u64::from(per_s.max(1));
            *self = Self { since: now, left: (per_s / 2).saturating_add(random as u32) };
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}
