//! Where a link's frames are shared with the kernel, it takes the answers to probes: raw sockets hear them too (raw(7)).

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use overfly_wire::{icmpv4, icmpv6, ipv4};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recvfrom, socket_with};

use crate::error::Error;

/// An echo is some fifty bytes; of what is longer no more is looked at.
const PACKET_MOST: usize = 256;
/// Whoever floods this host with ICMP does not hold the flows up.
const PACKETS_AT_ONCE: usize = 64;

/// A raw socket for each family that is probed.
#[derive(Debug)]
pub(crate) struct Ear {
    sockets: Vec<(AddressFamily, OwnedFd)>,
}

impl Ear {
    /// For the families of those addresses.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub(crate) fn new(addresses: impl Iterator<Item = IpAddr>) -> Result<Ear, Error> {
        let mut sockets: Vec<(AddressFamily, OwnedFd)> = Vec::new();
        for address in addresses {
            let (family, protocol) = match address {
                IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
                IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
            };
            if sockets.iter().any(|(other, _)| *other == family) {
                continue;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(family, SocketType::RAW, flags, Some(protocol))
                .map_err(|errno| Error::machine("a raw socket for the answers to --probe", errno))?;
            sockets.push((family, socket));
        }
        Ok(Ear { sockets })
    }

    /// Hands what has come to `each`: who sent it, to whom if that is known, and the echo.
    pub(crate) fn hear(&self, mut each: impl FnMut(IpAddr, Option<IpAddr>, &icmpv6::Echo<'_>)) {
        let mut buffer = [0; PACKET_MOST];
        for (family, socket) in &self.sockets {
            for _ in 0..PACKETS_AT_ONCE {
                let Ok((length, _, from)) = recvfrom(socket, &mut buffer[..], RecvFlags::empty()) else {
                    break;
                };
                let packet = &buffer[..length.min(PACKET_MOST)];
                if *family == AddressFamily::INET {
                    let Ok(packet) = ipv4::Packet::parse(packet) else { continue };
                    if let Ok(icmpv4::Echo { kind, identifier, sequence, data }) =
                        icmpv4::Echo::parse(packet.payload())
                    {
                        let ends = (packet.source().into(), packet.destination().into());
                        each(ends.0, Some(ends.1), &icmpv6::Echo { kind, identifier, sequence, data });
                    }
                } else if let Some(from) = from.and_then(|from| std::net::SocketAddrV6::try_from(from).ok())
                    && let Some(echo) = echo_of_icmpv6(packet)
                {
                    // The kernel has checked the sum (RFC 3542 section 3.1), and keeps the IP header.
                    each((*from.ip()).into(), None, &echo);
                }
            }
        }
    }
}

/// RFC 4443 section 4.2.
fn echo_of_icmpv6(packet: &[u8]) -> Option<icmpv6::Echo<'_>> {
    const ECHO_REPLY: u8 = 129;
    let (head, data) = packet.split_first_chunk::<8>()?;
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    (head[0] == ECHO_REPLY && head[1] == 0).then(|| icmpv6::Echo {
        kind: icmpv4::Kind::Reply,
        identifier: half(4),
        sequence: half(6),
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_echo_replies_are_heard() {
        let packet = [129, 0, 1, 2, 0, 7, 0, 9, b'd'];
        let echo = echo_of_icmpv6(&packet).unwrap();
        assert_eq!((echo.identifier, echo.sequence, echo.data), (7, 9, &b"d"[..]));
        assert!(echo_of_icmpv6(&packet[..7]).is_none());
        assert!(echo_of_icmpv6(&[128, 0, 1, 2, 0, 7, 0, 9]).is_none(), "a request");
    }
}
