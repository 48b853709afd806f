//! What has waited in the receive rings while the process was stopped, and is out of date.

use std::collections::HashSet;
use std::net::SocketAddr;

use overfly_wire::tcp::{Flags, Segment};
use overfly_wire::{ethernet, ip};

/// IANA's number of TCP.
const TCP: u8 = 6;

/// Frames of which the first are late. A SYN among them has been sent again by now. If that one is here too, it is answered.
/// Otherwise another stack has answered it, and a second answer, with another sequence number, would end the connection.
#[derive(Debug)]
pub(crate) struct LateSyns {
    waiting: usize,
    seen: HashSet<(SocketAddr, SocketAddr)>,
}

impl LateSyns {
    /// So many frames wait.
    pub(crate) fn new(waiting: usize) -> LateSyns {
        LateSyns { waiting, seen: HashSet::new() }
    }

    /// Late frames that have not been taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether the next of the late frames is to be dropped.
    pub(crate) fn is_stale(&mut self, frame: &[u8]) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        syn(frame).is_some_and(|tuple| self.seen.insert(tuple))
    }
}

/// Where a SYN comes from and goes to; none if the frame is something else.
fn syn(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let packet = ip::Packet::parse(packet).ok()?;
    if packet.protocol() != TCP || packet.is_fragment() {
        return None;
    }
    let segment = Segment::parse(packet.payload()).ok()?;
    let is_syn = segment.flags().contains(Flags::SYN) && !segment.flags().contains(Flags::ACK);
    is_syn.then(|| {
        let source = SocketAddr::new(packet.source(), segment.source_port());
        (source, SocketAddr::new(packet.destination(), segment.destination_port()))
    })
}

#[cfg(test)]
mod tests {
    use overfly_wire::checksum::Sum;

    use super::*;

    /// An Ethernet frame with IPv4 and TCP.
    fn frame(port: u16, flags: u8) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
        frame[22..24].copy_from_slice(&[64, TCP]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        let checksum = Sum::new().bytes(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = flags;
        frame
    }

    #[test]
    fn a_syn_that_was_sent_again_elsewhere_is_dropped_and_nothing_else() {
        const SYN: u8 = 2;
        const ACK: u8 = 0x10;
        let mut late = LateSyns::new(6);
        assert!(late.is_stale(&frame(1, SYN)));
        assert!(!late.is_stale(&frame(2, ACK)));
        assert!(!late.is_stale(&frame(2, SYN | ACK)));
        assert!(late.is_stale(&frame(3, SYN)));
        assert!(!late.is_stale(&frame(1, SYN)), "it was sent again, and came here");
        assert!(!late.is_stale(&[0; 20]));
        assert_eq!(late.waiting(), 0);
    }
}
