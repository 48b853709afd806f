//! Frames of any content: through every parser, and into an engine.

use overfly_testing::bytes::Bytes;
use overfly_wire::tcp::{Flags, Header, Options, Segment, write_checksum};
use overfly_wire::{MacAddr, arp, ethernet, icmpv4, ipv4, udp};

use super::{limited, pass, transmit, wind_up, within_limits};
use crate::harness::script::Script;
use crate::harness::{CLIENT, SERVER, config};
use std::time::Duration;

/// Frames, each of a kind that the first byte chooses, damaged by the bytes that follow.
pub fn frames(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut s = Script::with(limited(config(SERVER)));
    s.host.engine.listen(s.local, 4).expect("listen");
    while let Some(frame) = next_frame(&mut bytes) {
        every_parser(&frame);
        s.host.engine.receive(s.now, &frame, &mut s.host.owner);
        within_limits(&s.host);
        transmit(&mut s.host, s.now);
        s.host.outbox.frames.clear();
        let end = s.now + Duration::from_millis(1);
        pass(&mut s.host, s.now, end);
        s.now = end;
    }
    wind_up(&mut s.host, s.now);
}

fn next_frame(bytes: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let kind = bytes.byte()?;
    let mut frame = match kind & 7 {
        0 => return Some(bytes.take(1514).to_vec()),
        1 => arp_frame(bytes)?,
        2 => ip_frame(bytes, ipv4::PROTOCOL_ICMP)?,
        3 => ip_frame(bytes, ipv4::PROTOCOL_UDP)?,
        _ => ip_frame(bytes, ipv4::PROTOCOL_TCP)?,
    };
    // Damage: some bytes take other values, the end is cut off; then the sums hold again, or not.
    for _ in 0..kind >> 3 & 3 {
        let at = usize::from(bytes.byte()?) % frame.len();
        frame[at] = bytes.byte()?;
    }
    if kind & 0x20 != 0 {
        frame.truncate(usize::from(bytes.byte()?) % frame.len());
    }
    if kind & 0x40 != 0 {
        mend(&mut frame);
    }
    Some(frame)
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn arp_frame(bytes: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let mut frame = vec![0; 42];
    ethernet::Header { destination: mac(1), source: mac(2), ethertype: ethernet::ETHERTYPE_ARP }
        .emit(&mut frame);
    let packet = arp::Packet {
        operation: if bytes.byte()? & 1 == 0 { arp::Operation::Request } else { arp::Operation::Reply },
        sender_mac: mac(2),
        sender_ip: (CLIENT.to_bits() ^ u32::from(bytes.byte()?)).into(),
        target_mac: mac(1),
        target_ip: SERVER,
    };
    packet.emit(&mut frame[14..]);
    Some(frame)
}

fn ip_frame(bytes: &mut Bytes<'_>, protocol: u8) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    match protocol {
        ipv4::PROTOCOL_TCP => {
            let header = Header {
                source_port: 40_000 + u16::from(bytes.byte()? & 3),
                destination_port: 80,
                sequence: bytes.long()?,
                acknowledgment: bytes.long()?,
                flags: Flags::from_bits(bytes.byte()?),
                window: bytes.word()?,
                options: Options::NONE,
            };
            let mut segment = [0; 60];
            let length = header.emit(&mut segment);
            payload.extend_from_slice(&segment[..length]);
            // Options of any content, padded to words.
            let words = bytes.below(11)?;
            payload.extend_from_slice(bytes.take(4 * words));
            payload.resize(payload.len().next_multiple_of(4), 0);
            payload[12] = ((payload.len() / 4) as u8) << 4;
        }
        _ => payload.extend_from_slice(&[8, 0, 0, 0, 0, 1, 0, 1]),
    }
    let more = usize::from(bytes.byte()?);
    payload.extend_from_slice(bytes.take(more));
    let mut frame = vec![0; 34];
    ethernet::Header { destination: mac(1), source: mac(2), ethertype: ethernet::ETHERTYPE_IPV4 }
        .emit(&mut frame);
    ipv4::Header {
        source: CLIENT,
        destination: SERVER,
        protocol,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: payload.len() as u16,
    }
    .emit(&mut frame[14..]);
    frame.extend_from_slice(&payload);
    mend(&mut frame);
    Some(frame)
}

/// Makes the sums of an IPv4 frame hold.
fn mend(frame: &mut [u8]) {
    use overfly_wire::checksum::Sum;
    if frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    frame[24..26].fill(0);
    let sum = Sum::new().bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let payload = &mut frame[34..];
    let protocol = payload.len() >= 20;
    if protocol {
        write_checksum(payload, CLIENT, SERVER);
    } else if payload.len() >= 8 {
        payload[2..4].fill(0);
        let sum = Sum::new().bytes(payload).finish();
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Reads the frame with every parser that its layers ask for, and with those that they do not.
fn every_parser(frame: &[u8]) {
    let _ = ethernet::Header::parse(frame);
    for at in [0, 14, 34] {
        let Some(bytes) = frame.get(at..) else { continue };
        let _ = arp::Packet::parse(bytes);
        let _ = icmpv4::Echo::parse(bytes);
        let _ = udp::Header::parse(bytes, CLIENT, SERVER, true);
        if let Ok(packet) = ipv4::Packet::parse(bytes) {
            assert!(packet.payload().len() < bytes.len());
            let _ = (packet.source(), packet.destination(), packet.is_fragment(), packet.tos());
        }
        if let Ok(segment) = Segment::parse(bytes) {
            let _ = segment.verify(CLIENT, SERVER);
            let _ = segment.options();
            assert_eq!(segment.header_len() + segment.payload().len(), bytes.len());
        }
    }
}

/// The bytes are the options of a segment: what they are read as is written and read the same.
pub fn tcp_options(data: &[u8]) {
    let data = &data[..data.len().min(40)];
    let mut segment = vec![0; 20];
    segment.extend_from_slice(data);
    segment.resize(segment.len().next_multiple_of(4), 0);
    segment[12] = ((segment.len() / 4) as u8) << 4;
    let view = Segment::parse(&segment).expect("a header and any options");
    let Ok(options) = view.options() else { return };
    let header = Header {
        source_port: 0,
        destination_port: 0,
        sequence: 0,
        acknowledgment: 0,
        flags: Flags::NONE,
        window: 0,
        options,
    };
    let mut written = [0; 60];
    let length = header.emit(&mut written);
    let again = Segment::parse(&written[..length]).expect("what is emitted is parsed");
    let again = again.options().expect("what is emitted is parsed");
    // As many blocks are written as fit beside the other options.
    assert!(options.sack.as_slice().starts_with(again.sack.as_slice()));
    assert_eq!(again, Options { sack: again.sack, ..options });
}
