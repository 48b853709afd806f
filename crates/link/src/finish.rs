//! What a link does in software for a peer that takes nothing unfinished: cuts frames into segments and sums them.

use overfly_wire::checksum::{Sum, pseudo_ipv4, pseudo_ipv6};
use overfly_wire::{FrameSink, Unfinished};

/// Where the IP header begins.
const IP: usize = 14;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const PROTOCOL_TCP: u8 = 6;

/// Sends a frame, cut as `left` says and with whole checksums. Returns whether the sink had room for all of it.
pub(crate) fn send(frame: &[u8], left: Unfinished, sink: &mut impl FrameSink) -> bool {
    send_on(frame, left, &mut 0, sink)
}

/// As [`send`], from the segment after the first `sent`, which counts on: a sink that had no room gets the rest later.
pub(crate) fn send_on(frame: &[u8], left: Unfinished, sent: &mut usize, sink: &mut impl FrameSink) -> bool {
    let headers_len = if left.headers_len == 0 { frame.len() } else { usize::from(left.headers_len) };
    let (headers, payload) = frame.split_at(headers_len.min(frame.len()));
    let most = if left.segment_len == 0 { payload.len().max(1) } else { usize::from(left.segment_len) };
    let count = payload.len().div_ceil(most).max(1);
    for index in *sent..count {
        let part = payload.get(index * most..).unwrap_or_default();
        let part = &part[..part.len().min(most)];
        let length = headers.len() + part.len();
        let Some(segment) = sink.frame().and_then(|buffer| buffer.get_mut(..length)) else { return false };
        segment[..headers.len()].copy_from_slice(headers);
        segment[headers.len()..].copy_from_slice(part);
        if count > 1 {
            renumber(segment, usize::from(left.checksum_from), index, index * most, index + 1 == count);
        }
        if left.checksum_from != 0 {
            sum(segment, usize::from(left.checksum_from));
        }
        sink.commit(length);
        *sent = index + 1;
    }
    true
}

/// Makes a segment's headers those of the `index`th, whose payload begins at `offset`, as Linux's tcp_gso_segment() does.
fn renumber(segment: &mut [u8], tcp: usize, index: usize, offset: usize, last: bool) {
    let ip_len = (segment.len() - IP) as u16;
    if segment[IP] >> 4 == 4 {
        segment[IP + 2..IP + 4].copy_from_slice(&ip_len.to_be_bytes());
        let id = u16::from_be_bytes([segment[IP + 4], segment[IP + 5]]).wrapping_add(index as u16);
        segment[IP + 4..IP + 6].copy_from_slice(&id.to_be_bytes());
        segment[IP + 10..IP + 12].fill(0);
        let checksum = Sum::new().bytes(&segment[IP..tcp]).finish();
        segment[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        segment[IP + 4..IP + 6].copy_from_slice(&(ip_len - 40).to_be_bytes());
    }
    let sequence = &mut segment[tcp + 4..tcp + 8];
    let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
    sequence.copy_from_slice(&first.wrapping_add(offset as u32).to_be_bytes());
    let flags = &mut segment[tcp + 13];
    if !last {
        *flags &= !(FIN | PSH);
    }
    if index > 0 {
        *flags &= !CWR;
    }
}

/// Writes the TCP checksum.
pub(crate) fn sum(segment: &mut [u8], tcp: usize) {
    let length = segment.len() - tcp;
    let bytes = |at: usize| &segment[IP + at..];
    let pseudo = if segment[IP] >> 4 == 4 {
        let address = |at| bytes(at).first_chunk::<4>().map_or([0; 4], |octets| *octets);
        pseudo_ipv4(address(12).into(), address(16).into(), PROTOCOL_TCP, length as u16)
    } else {
        let address = |at| bytes(at).first_chunk::<16>().map_or([0; 16], |octets| *octets);
        pseudo_ipv6(address(8).into(), address(24).into(), PROTOCOL_TCP, length as u32)
    };
    let field = tcp + 16;
    segment[field..field + 2].fill(0);
    let checksum = pseudo.bytes(&segment[tcp..]).finish();
    segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use overfly_wire::{ip, tcp};

    #[derive(Default)]
    struct Outbox {
        buffer: Vec<u8>,
        frames: Vec<Vec<u8>>,
    }

    impl FrameSink for Outbox {
        fn frame(&mut self) -> Option<&mut [u8]> {
            self.buffer.resize(1600, 0);
            Some(&mut self.buffer)
        }

        fn commit(&mut self, length: usize) {
            self.frames.push(self.buffer[..length].to_vec());
        }
    }

    /// An outbox that has room for so many frames.
    struct Narrow(Outbox, usize);

    impl FrameSink for Narrow {
        fn frame(&mut self) -> Option<&mut [u8]> {
            if self.0.frames.len() == self.1 { None } else { self.0.frame() }
        }

        fn commit(&mut self, length: usize) {
            self.0.commit(length);
        }
    }

    #[test]
    fn a_sink_that_was_full_gets_the_rest_and_nothing_twice() {
        let (frame, left) = unfinished(true, 14_480);
        let mut whole = Outbox::default();
        assert!(send(&frame, left, &mut whole));
        for room in 1..10 {
            let (mut narrow, mut sent) = (Narrow(Outbox::default(), room), 0);
            while !send_on(&frame, left, &mut sent, &mut narrow) {
                assert_eq!(narrow.0.frames.len(), narrow.1, "all the room is used");
                narrow.1 += room;
            }
            assert_eq!(narrow.0.frames, whole.frames, "{room}");
        }
    }

    /// An IPv4 or IPv6 frame with a TCP segment of all flags, whose sums are not written.
    fn unfinished(is_v4: bool, payload: usize) -> (Vec<u8>, Unfinished) {
        let mut frame = vec![2; 12];
        if is_v4 {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(((40 + payload) as u16).to_be_bytes());
            frame.extend([0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let checksum = Sum::new().bytes(&frame[14..34]).finish();
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((20 + payload) as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend([0xfd; 32]);
        }
        let tcp = frame.len();
        frame.extend([0, 80, 1, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        let headers_len = frame.len() as u16;
        frame.extend((0..payload).map(|at| (at % 251) as u8));
        (frame, Unfinished { checksum_from: tcp as u16, segment_len: 1448, headers_len })
    }

    #[test]
    fn a_long_frame_becomes_segments_whose_sums_hold() {
        for (is_v4, payload) in
            [(true, 0), (true, 1), (false, 1448), (true, 1449), (false, 14_480), (true, 60_000)]
        {
            let (frame, left) = unfinished(is_v4, payload);
            let mut outbox = Outbox::default();
            assert!(send(&frame, left, &mut outbox));
            assert_eq!(outbox.frames.len(), payload.div_ceil(1448).max(1));
            let mut rebuilt = Vec::new();
            let last = outbox.frames.len() - 1;
            for (index, sent) in outbox.frames.iter().enumerate() {
                let packet = ip::Packet::parse(&sent[14..]).expect("a valid IP header");
                assert_eq!(packet.total_len(), sent.len() - 14);
                let segment = tcp::Segment::parse(packet.payload()).expect("a TCP segment");
                let pseudo = match (packet.source(), packet.destination()) {
                    (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
                        pseudo_ipv4(from, to, PROTOCOL_TCP, packet.payload().len() as u16)
                    }
                    (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
                        pseudo_ipv6(from, to, PROTOCOL_TCP, packet.payload().len() as u32)
                    }
                    _ => unreachable!("both are of one family"),
                };
                assert_eq!(pseudo.bytes(packet.payload()).finish(), 0, "the sum of segment {index}");
                assert_eq!(segment.sequence(), 0xffff_ff00_u32.wrapping_add(rebuilt.len() as u32));
                let flags = sent[usize::from(left.checksum_from) + 13];
                assert_eq!(
                    (flags & FIN != 0, flags & PSH != 0, flags & CWR != 0),
                    (index == last, index == last, index == 0)
                );
                rebuilt.extend_from_slice(segment.payload());
            }
            assert_eq!(rebuilt, frame[usize::from(left.headers_len)..]);
        }
    }
}
