//! SYN cookies: connections that cost nothing until their handshake is done (RFC 4987 section 3.6).
//!
//! The initial sequence number of a SYN's answer holds what a control block would have: proof that the peer sent that SYN, and
//! its MSS. The timestamp that the answer carries holds the other options, as in Linux's `net/ipv4/syncookies.c`.

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::time::Instant;

/// What a cookie can say of the peer's MSS: the largest entry that is not above it. The peaks of what is seen in the Internet
/// (Alcock and Nelson 2011), jumbo frames, and the least that is believed at all.
const IPV4_MSS: [u16; 6] = [64, 536, 1300, 1440, 1460, 8960];
const IPV6_MSS: [u16; 6] = [64, 1220, 1360, 1420, 1440, 8940];
/// Microseconds in which the counter moves by one.
const PERIOD_US: u64 = 60_000_000;
/// Counts for which a cookie is good: one to two minutes.
const MAX_AGE: u32 = 2;
/// Bits of a cookie that hold the MSS and its proof. Those above count, so that sequence numbers of one tuple go up with time
/// about as RFC 6528 section 3 wants them to.
const PROOF_BITS: u32 = 24;
const PROOF_MASK: u32 = (1 << PROOF_BITS) - 1;

/// Makes cookies and checks them. One in 2^32 / 12 guesses is right.
#[derive(Clone, Debug)]
pub(crate) struct Cookies {
    secret: SipHasher13,
    /// The count when a cookie was last made.
    made: Option<u32>,
}

impl Cookies {
    /// `secret` may serve other purposes too.
    pub(crate) fn new(secret: SipHasher13) -> Self {
        Self { secret, made: None }
    }

    /// The initial sequence number that answers a SYN with sequence number `syn` and an MSS option of `mss`.
    pub(crate) fn make(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        syn: u32,
        mss: u16,
    ) -> u32 {
        let count = count(now);
        self.made = Some(count);
        let index = table(local).iter().rposition(|&entry| entry <= mss).unwrap_or(0) as u32;
        let proof = self.hash(local, remote, Some((count, syn))).wrapping_add(index) & PROOF_MASK;
        self.base(local, remote, syn).wrapping_add(count << PROOF_BITS).wrapping_add(proof)
    }

    /// Whether a cookie was made so lately that it may come back.
    pub(crate) fn are_out(&self, now: Instant) -> bool {
        self.made.is_some_and(|made| count(now).wrapping_sub(made) < MAX_AGE)
    }

    /// The peer's MSS, if a segment with these sequence and acknowledgment numbers ends a handshake that a cookie began. While
    /// none was made lately there is none to be guessed either.
    pub(crate) fn check(
        &self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        sequence: u32,
        acknowledgment: u32,
    ) -> Option<u16> {
        let count = count(now);
        if count.wrapping_sub(self.made?) >= MAX_AGE {
            return None;
        }
        let syn = sequence.wrapping_sub(1);
        let cookie = acknowledgment.wrapping_sub(1).wrapping_sub(self.base(local, remote, syn));
        let age = count.wrapping_sub(cookie >> PROOF_BITS) & (u32::MAX >> PROOF_BITS);
        if age >= MAX_AGE {
            return None;
        }
        let proof = self.hash(local, remote, Some((count.wrapping_sub(age), syn)));
        let index = cookie.wrapping_sub(proof) & PROOF_MASK;
        table(local).get(index as usize).copied()
    }

    /// What of a cookie does not change with time.
    fn base(&self, local: SocketAddr, remote: SocketAddr, syn: u32) -> u32 {
        self.hash(local, remote, None).wrapping_add(syn)
    }

    fn hash(&self, local: SocketAddr, remote: SocketAddr, proof: Option<(u32, u32)>) -> u32 {
        let mut hasher = self.secret;
        // The secret's other users do not begin so.
        hasher.write(b"SYN cookie");
        for end in [local, remote] {
            match end.ip() {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
            hasher.write_u16(end.port());
        }
        if let Some((count, syn)) = proof {
            // With the SYN's number: else any later segment would do after which as many bytes had gone each way.
            hasher.write_u32(count);
            hasher.write_u32(syn);
        }
        hasher.finish() as u32
    }
}

fn count(now: Instant) -> u32 {
    (now.as_micros() / PERIOD_US) as u32
}

fn table(local: SocketAddr) -> &'static [u16] {
    if local.is_ipv4() { &IPV4_MSS } else { &IPV6_MSS }
}

/// Low bits of a timestamp that hold options: ECN, SACK, and four of the window scale.
const OPTION_BITS: u32 = 6;
const SCALE_MASK: u32 = 0xf;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// What a SYN offered beside its MSS and timestamps. Nobody vouches for what comes back: a peer that changes it deceives
/// itself about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offer {
    /// RFC 7323 section 2.2; 14 at most.
    pub(crate) window_scale: Option<u8>,
    /// RFC 2018 section 2.
    pub(crate) sack_permitted: bool,
    /// RFC 3168 section 6.1.1: ECE and CWR.
    pub(crate) ecn: bool,
}

/// The timestamp to send with a cookie: at most 64 before `timestamp`, the one that would be sent otherwise, never after it,
/// since later ones must not be older (RFC 7323 section 5.4). No round trip may be measured by its echo.
pub(crate) fn encode_timestamp(timestamp: u32, offer: Offer) -> u32 {
    // RFC 7323 section 2.3 takes no shift above 14: 15 is none.
    let scale = offer.window_scale.map_or(SCALE_MASK, |scale| u32::from(scale.min(14)));
    let options = scale | if offer.sack_permitted { SACK } else { 0 } | if offer.ecn { ECN } else { 0 };
    let mask = (1 << OPTION_BITS) - 1;
    let encoded = (timestamp & !mask) | options;
    if options > timestamp & mask { encoded.wrapping_sub(1 << OPTION_BITS) } else { encoded }
}

/// What the echo of an encoded timestamp says. Without an echo the answer is [`Offer::default`].
pub(crate) fn decode_timestamp(echo: u32) -> Offer {
    let scale = echo & SCALE_MASK;
    Offer {
        window_scale: (scale != SCALE_MASK).then_some(scale as u8),
        sack_permitted: echo & SACK != 0,
        ecn: echo & ECN != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = PERIOD_US;

    fn cookies() -> Cookies {
        Cookies::new(SipHasher13::new_with_key(&[7; 16]))
    }

    fn ends() -> [(SocketAddr, SocketAddr); 2] {
        [("192.0.2.1:80", "198.51.100.7:40000"), ("[2001:db8::1]:80", "[2001:db8::7]:40000")]
            .map(|(local, remote)| (local.parse().unwrap(), remote.parse().unwrap()))
    }

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn cookie_brings_the_mss_back_rounded_down() {
        for (local, remote) in ends() {
            for (mss, v4, v6) in [
                (0, 64, 64),
                (535, 64, 64),
                (536, 536, 64),
                (1220, 536, 1220),
                (1459, 1440, 1440),
                (1460, 1460, 1440),
                (65_535, 8960, 8940),
            ] {
                let mut cookies = cookies();
                let isn = cookies.make(at(5 * MINUTE), local, remote, 1000, mss);
                let got = cookies.check(at(5 * MINUTE + 1), local, remote, 1001, isn.wrapping_add(1));
                assert_eq!(got, Some(if local.is_ipv4() { v4 } else { v6 }));
            }
        }
    }

    #[test]
    fn sequence_numbers_and_counts_may_wrap() {
        for (local, remote) in ends() {
            for minutes in [0, 255, 256, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
                for syn in [0, u32::MAX] {
                    let mut cookies = cookies();
                    let now = at(minutes * MINUTE + MINUTE - 1);
                    let isn = cookies.make(now, local, remote, syn, 1460);
                    let next = at((minutes + 1) * MINUTE);
                    let check =
                        |now| cookies.check(now, local, remote, syn.wrapping_add(1), isn.wrapping_add(1));
                    assert!(check(now).is_some() && check(next).is_some());
                }
            }
        }
    }

    #[test]
    fn cookie_is_good_for_two_minutes_at_most() {
        let (local, remote) = ends()[0];
        let mut cookies = cookies();
        let isn = cookies.make(at(10 * MINUTE), local, remote, 1, 1460);
        // Others keep the checks going.
        cookies.make(at(13 * MINUTE), remote, local, 1, 1460);
        for (minute, good) in [(10, true), (11, true), (12, false), (13, false), (9, false), (266, false)] {
            let got = cookies.check(at(minute * MINUTE), local, remote, 2, isn.wrapping_add(1));
            assert_eq!(got.is_some() && minute >= 10, good && got.is_some(), "minute {minute}");
            if minute >= 12 {
                assert_eq!(got, None, "minute {minute}");
            }
        }
    }

    #[test]
    fn nothing_is_believed_while_none_is_made() {
        let (local, remote) = ends()[0];
        let mut maker = cookies();
        let isn = maker.make(at(0), local, remote, 1, 1460);
        assert_eq!(cookies().check(at(0), local, remote, 2, isn.wrapping_add(1)), None);
        assert!(maker.check(at(0), local, remote, 2, isn.wrapping_add(1)).is_some());
    }

    #[test]
    fn other_tuples_sequences_and_keys_are_refused() {
        for (local, remote) in ends() {
            let mut cookies = cookies();
            let now = at(3 * MINUTE);
            let isn = cookies.make(now, local, remote, 1000, 1460);
            let ack = isn.wrapping_add(1);
            let mut neighbour = remote;
            neighbour.set_port(remote.port() + 1);
            assert_eq!(cookies.check(now, local, neighbour, 1001, ack), None);
            assert_eq!(cookies.check(now, remote, local, 1001, ack), None);
            assert_eq!(cookies.check(now, local, remote, 1001 + 77, ack), None);
            let mut other = Cookies::new(SipHasher13::new_with_key(&[8; 16]));
            other.make(now, local, remote, 5, 1460);
            assert_eq!(other.check(now, local, remote, 1001, ack), None);
        }
    }

    /// Twelve acknowledgment numbers of 2^32 are right: six sizes, two minutes.
    #[test]
    fn guesses_are_refused() {
        for (local, remote) in ends() {
            let mut cookies = cookies();
            let now = at(3 * MINUTE);
            cookies.make(now, local, remote, 1000, 1460);
            let guesses = 1_u32 << 20;
            let right = (0..guesses)
                .filter(|guess| {
                    cookies.check(now, local, remote, 1001, guess.wrapping_mul(0x9e37_79b1)).is_some()
                })
                .count();
            assert!(right <= 1, "{right} of {guesses}");
            // All that are right lie beside what is made in the two minutes.
            let mut right = 0;
            for minute in [2, 3] {
                let isn = cookies.make(at(minute * MINUTE), local, remote, 1000, 0);
                cookies.make(now, local, remote, 1000, 0);
                for offset in 0..1 << 16 {
                    let ack = isn.wrapping_add(1).wrapping_add(offset).wrapping_sub(1 << 15);
                    right += u32::from(cookies.check(now, local, remote, 1001, ack).is_some());
                }
            }
            assert_eq!(right, 12);
        }
    }

    #[test]
    fn sequence_numbers_of_a_tuple_go_up() {
        let (local, remote) = ends()[1];
        let mut cookies = cookies();
        let mut last = cookies.make(at(0), local, remote, 1000, 1440);
        for two_minutes in 1..100 {
            let next = cookies.make(at(2 * two_minutes * MINUTE), local, remote, 1000, 1440);
            assert!(next.wrapping_sub(last) < 1 << 31);
            last = next;
        }
    }

    #[test]
    fn timestamp_holds_every_offer_and_is_never_ahead() {
        let scales = (0..=14).map(Some).chain([None]);
        for window_scale in scales {
            for (sack_permitted, ecn) in [(false, false), (false, true), (true, false), (true, true)] {
                let offer = Offer { window_scale, sack_permitted, ecn };
                for timestamp in (0..200).chain(u32::MAX - 200..=u32::MAX) {
                    let encoded = encode_timestamp(timestamp, offer);
                    assert_eq!(decode_timestamp(encoded), offer);
                    assert!(timestamp.wrapping_sub(encoded) <= 64);
                }
            }
        }
        let wild = Offer { window_scale: Some(255), ..Offer::default() };
        assert_eq!(decode_timestamp(encode_timestamp(0, wild)).window_scale, Some(14));
    }
}
