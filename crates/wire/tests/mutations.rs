//! A small fuzz driver: sound frames are damaged at random and read by every parser.
//!
//! The seed is printed; `OVERFLY_SEED=<seed>` runs the same sequence again.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::checksum::{Address, Sum, pseudo_ipv6};
use overfly_wire::icmpv4::{Echo, Kind};
use overfly_wire::ip::{self, Quote};
use overfly_wire::tcp::{ChecksumState, FastOpen, Flags, Options, Sacks, Segment, Timestamps};
use overfly_wire::{MacAddr, Malformed, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};

const ITERATIONS: u32 = 200_000;
const IP: usize = ethernet::HEADER_LEN;
const TRANSPORT: usize = IP + ipv4::HEADER_LEN;

/// Marks frames in these tests whose payload may be of either IP version.
const ETHERTYPE_NONE: u16 = 0;

/// What frames are made of, at random.
struct Random(overfly_testing::Random);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn mac(&mut self) -> MacAddr {
        let [bytes @ .., _, _] = self.next().to_be_bytes();
        MacAddr(bytes)
    }

    fn address(&mut self) -> Ipv4Addr {
        Ipv4Addr::from(self.next() as u32)
    }

    /// Hardly any bits are one where groups of addresses begin.
    fn ipv6_address(&mut self) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(self.next()) | 0x20 << 120)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }

    fn options(&mut self) -> Options {
        let mut options = Options {
            mss: self.chance(3).then(|| self.next() as u16),
            window_scale: self.chance(3).then(|| self.below(15) as u8),
            sack_permitted: self.chance(3),
            timestamps: self
                .chance(2)
                .then(|| Timestamps { value: self.next() as u32, echo: self.next() as u32 }),
            sack: Sacks::EMPTY,
            fast_open: None,
        };
        if self.chance(4) {
            let cookie = self.bytes(16);
            options.fast_open = FastOpen::with_cookie(&cookie).or(Some(FastOpen::REQUEST));
            return options;
        }
        // Two blocks fit beside all of the others.
        for _ in 0..self.below(3) {
            options.sack.push(self.next() as u32, self.next() as u32);
        }
        options
    }
}

/// A frame of one of the formats; each is parsed again on the way, and must say the same.
fn sound_frame(random: &mut Random) -> Vec<u8> {
    let (source, destination) = (random.address(), random.address());
    let mut frame = vec![0; 2_048];
    let (ethertype, length) = match random.below(12) {
        0 => {
            let packet = arp::Packet {
                operation: if random.chance(2) { arp::Operation::Request } else { arp::Operation::Reply },
                sender_mac: random.mac(),
                sender_ip: source,
                target_mac: random.mac(),
                target_ip: destination,
            };
            let length = packet.emit(&mut frame[IP..]);
            assert_eq!(arp::Packet::parse(&frame[IP..]), Ok(packet));
            (ethernet::ETHERTYPE_ARP, IP + length)
        }
        1 => {
            let data = random.bytes(64);
            let kind = if random.chance(2) { Kind::Request } else { Kind::Reply };
            let echo =
                Echo { kind, identifier: random.next() as u16, sequence: random.next() as u16, data: &data };
            let length = echo.emit(&mut frame[TRANSPORT..]);
            assert_eq!(Echo::parse(&frame[TRANSPORT..TRANSPORT + length]), Ok(echo));
            emit_ipv4(random, &mut frame, source, destination, ipv4::PROTOCOL_ICMP, length)
        }
        2 => {
            let payload = random.bytes(64);
            let header =
                udp::Header { source_port: random.next() as u16, destination_port: random.next() as u16 };
            let length = udp::HEADER_LEN + payload.len();
            let datagram = &mut frame[TRANSPORT..TRANSPORT + length];
            datagram[udp::HEADER_LEN..].copy_from_slice(&payload);
            header.emit(datagram, source, destination);
            assert_eq!(udp::Header::parse(datagram, source, destination, false), Ok((header, &payload[..])));
            emit_ipv4(random, &mut frame, source, destination, ipv4::PROTOCOL_UDP, length)
        }
        3 | 4 => sound_ipv6(random, &mut frame),
        5 => {
            let quoted = quotable_ipv4(random, source, destination);
            let message = &mut frame[TRANSPORT..];
            let length = icmpv4::emit_port_unreachable(&quoted, message);
            // Of any error, with any code and word.
            message[0] = [3, 11, 12][random.below(3)];
            message[1] = [3, 4][random.below(2)];
            message[4..8].copy_from_slice(&(random.next() as u32).to_be_bytes());
            message[2..4].fill(0);
            let checksum = Sum::new().bytes(&message[..length]).finish();
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            assert!(icmpv4::Message::parse(&message[..length]).is_ok());
            emit_ipv4(random, &mut frame, source, destination, ipv4::PROTOCOL_ICMP, length)
        }
        _ => {
            let length = emit_segment(random, &mut frame[TRANSPORT..], source, destination);
            emit_ipv4(random, &mut frame, source, destination, ipv4::PROTOCOL_TCP, length)
        }
    };
    let of_ip = ethertype != ethernet::ETHERTYPE_ARP;
    let ethertype = if of_ip && random.chance(8) { ETHERTYPE_NONE } else { ethertype };
    let header = ethernet::Header { destination: random.mac(), source: random.mac(), ethertype };
    header.emit(&mut frame);
    assert_eq!(ethernet::Header::parse(&frame).map(|(header, _)| header), Ok(header));
    frame.truncate(length);
    frame
}

/// The beginning of a packet of which an error may be about.
fn quotable_ipv4(random: &mut Random, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0; ipv4::HEADER_LEN];
    let payload = random.next().to_be_bytes();
    ipv4::Header {
        source,
        destination,
        protocol: [ipv4::PROTOCOL_TCP, ipv4::PROTOCOL_UDP][random.below(2)],
        ttl: 1,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: 1_000,
    }
    .emit(&mut packet);
    packet.extend(payload);
    packet
}

/// An IPv6 packet with any of the extension headers and payloads; returns the frame's type and length.
fn sound_ipv6(random: &mut Random, frame: &mut [u8]) -> (u16, usize) {
    let (source, destination) = (random.ipv6_address(), random.ipv6_address());
    let mut extensions: Vec<(u8, Vec<u8>)> = Vec::new();
    if random.chance(2) {
        for _ in 0..random.below(9) {
            let kind = [0, 43, 44, 60][random.below(4)];
            let kind = if extensions.is_empty() || kind != 0 { kind } else { 60 };
            extensions.push((
                kind,
                match kind {
                    43 => vec![0, 0, random.next() as u8, 0, 0, 0, 0, 0],
                    44 => vec![0; 8],
                    _ => vec![0, 1, 1, 4, 9, 9, 9, 9, 0, 0x1e, 3, 9, 9, 9, 1, 0],
                },
            ));
        }
    }
    let start = IP + ipv6::HEADER_LEN + extensions.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    let buffer = &mut frame[start..];
    let (protocol, length) = match random.below(8) {
        0 | 1 => (ipv4::PROTOCOL_TCP, emit_segment(random, buffer, source, destination)),
        2 => {
            let header = udp::Header { source_port: random.next() as u16, destination_port: 53 };
            let length = udp::HEADER_LEN + random.below(40);
            header.emit(&mut buffer[..length], source, destination);
            assert!(udp::Header::parse(&buffer[..length], source, destination, false).is_ok());
            (ipv4::PROTOCOL_UDP, length)
        }
        3 => {
            let echo = icmpv6::Echo { kind: Kind::Request, identifier: 1, sequence: 2, data: b"echo" };
            (ipv6::PROTOCOL_ICMPV6, echo.emit(buffer, source, destination))
        }
        4 | 5 => {
            let mut packet = vec![0; ipv6::HEADER_LEN];
            let protocol = [ipv4::PROTOCOL_TCP, ipv4::PROTOCOL_UDP][random.below(2)];
            let next = if random.chance(2) { 44 } else { protocol };
            let payload_len = 1_000;
            ipv6::Header {
                source,
                destination,
                protocol: next,
                hop_limit: 1,
                traffic_class: 0,
                flow_label: 0,
                payload_len,
            }
            .emit(&mut packet);
            if next == 44 {
                packet.extend([protocol, 0, 0, 1, 0, 0, 0, 0]);
            }
            packet.extend(random.next().to_be_bytes());
            let length = icmpv6::emit_port_unreachable(&packet, buffer, source, destination);
            buffer[0] = 1 + random.below(4) as u8;
            mend_icmpv6(&mut buffer[..length], source, destination);
            (ipv6::PROTOCOL_ICMPV6, length)
        }
        6 => {
            let message =
                icmpv6::NeighborSolicitation { target: source, source_link_address: Some(random.mac()) };
            (ipv6::PROTOCOL_ICMPV6, message.emit(buffer, source, destination))
        }
        _ => {
            let message = icmpv6::NeighborAdvertisement {
                target: source,
                target_link_address: Some(random.mac()),
                router: random.chance(2),
                solicited: random.chance(2),
                overrides: random.chance(2),
            };
            (ipv6::PROTOCOL_ICMPV6, message.emit(buffer, source, destination))
        }
    };
    let mut at = start;
    let mut next_header = protocol;
    for (kind, mut bytes) in extensions.into_iter().rev() {
        bytes[0] = next_header;
        next_header = kind;
        at -= bytes.len();
        frame[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    ipv6::Header {
        source,
        destination,
        protocol: next_header,
        hop_limit: random.next() as u8,
        traffic_class: random.next() as u8,
        flow_label: random.next() as u32 & ipv6::MAX_FLOW_LABEL,
        payload_len: (start + length - IP - ipv6::HEADER_LEN) as u16,
    }
    .emit(&mut frame[IP..]);
    let packet = ipv6::Packet::parse(&frame[IP..]).expect("what is emitted is parsed");
    assert_eq!((packet.protocol(), packet.payload().len()), (protocol, length));
    assert_eq!(packet.total_len(), start + length - IP);
    (ethernet::ETHERTYPE_IPV6, start + length)
}

fn mend_icmpv6(message: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
    message[2..4].fill(0);
    let pseudo = pseudo_ipv6(source, destination, ipv6::PROTOCOL_ICMPV6, message.len() as u32);
    let checksum = pseudo.bytes(message).finish();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

fn emit_segment<A: Address>(random: &mut Random, buffer: &mut [u8], source: A, destination: A) -> usize {
    let most = if random.chance(8) { 1_400 } else { 32 };
    let payload = random.bytes(most);
    let header = tcp::Header {
        source_port: random.next() as u16,
        destination_port: random.next() as u16,
        sequence: random.next() as u32,
        acknowledgment: random.next() as u32,
        flags: Flags::from_bits(random.next() as u8),
        window: random.next() as u16,
        options: random.options(),
    };
    let header_len = header.emit(buffer);
    let length = header_len + payload.len();
    buffer[header_len..length].copy_from_slice(&payload);
    tcp::write_checksum(&mut buffer[..length], source, destination);
    let segment = Segment::parse(&buffer[..length]).expect("what is emitted is parsed");
    assert!(segment.checksum_holds(source, destination));
    assert_eq!(header_of(&segment), Ok(header));
    assert_eq!(segment.payload(), payload);
    length
}

fn header_of(segment: &Segment<'_>) -> Result<tcp::Header, Malformed> {
    Ok(tcp::Header {
        source_port: segment.source_port(),
        destination_port: segment.destination_port(),
        sequence: segment.sequence(),
        acknowledgment: segment.acknowledgment(),
        flags: segment.flags(),
        window: segment.window(),
        options: segment.options()?,
    })
}

/// Writes the IPv4 header before a payload of `length` bytes; returns the frame's type and length.
fn emit_ipv4(
    random: &mut Random,
    frame: &mut [u8],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    length: usize,
) -> (u16, usize) {
    let header = ipv4::Header {
        source,
        destination,
        protocol,
        ttl: random.next() as u8,
        tos: random.next() as u8,
        identification: random.next() as u16,
        dont_fragment: random.chance(2),
        payload_len: length as u16,
    };
    header.emit(&mut frame[IP..]);
    let packet = ipv4::Packet::parse(&frame[IP..]).expect("what is emitted is parsed");
    assert_eq!((packet.source(), packet.destination(), packet.protocol()), (source, destination, protocol));
    assert_eq!(
        (packet.ttl(), packet.tos(), packet.identification()),
        (header.ttl, header.tos, header.identification)
    );
    assert_eq!((packet.dont_fragment(), packet.payload().len()), (header.dont_fragment, length));
    (ethernet::ETHERTYPE_IPV4, TRANSPORT + length)
}

/// Damages a frame in one to four places, most of them in the headers.
fn damage(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let reach = if random.chance(4) { frame.len() } else { frame.len().min(TRANSPORT + 60) };
        let place = random.below(reach);
        match random.below(6) {
            0 => frame.truncate(place),
            1 => {
                let more = random.bytes(40);
                frame.extend(more);
            }
            2 => {
                let piece = random.bytes(12);
                frame.splice(place..place, piece);
            }
            kind => {
                if let Some(byte) = frame.get_mut(place) {
                    *byte = match kind {
                        3 => *byte ^ 1 << random.below(8),
                        4 => [0, 1, 2, 3, 4, 5, 8, 10, 43, 44, 60, 0x45, 0x50, 0x7f, 0xc2, 0xff]
                            [random.below(16)],
                        _ => random.next() as u8,
                    };
                }
            }
        }
    }
}

/// Puts up to nine destination options, which say nothing, before everything else that follows an IPv6 header.
fn prepend_extensions(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..=random.below(9) {
        let start = IP + ipv6::HEADER_LEN;
        frame.splice(start..start, [frame[IP + 6], 0, 1, 4, 0, 0, 0, 0]);
        frame[IP + 6] = 60;
    }
    let length = (frame.len() - IP - ipv6::HEADER_LEN) as u16;
    frame[IP + 4..IP + 6].copy_from_slice(&length.to_be_bytes());
}

/// Makes lengths and checksums right again, so that the damage behind them is reached.
fn mend(random: &mut Random, frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(IP..) else {
        return;
    };
    if packet.first().is_some_and(|byte| byte >> 4 == 6) {
        return mend_ipv6(random, packet);
    }
    let header_len = packet.first().map_or(0, |byte| usize::from(byte & 0xf) * 4);
    let total_length = packet.len() as u16;
    let Some((header, payload)) = packet.split_at_mut_checked(header_len) else {
        return;
    };
    if header_len < ipv4::HEADER_LEN {
        return;
    }
    if random.chance(2) {
        header[2..4].copy_from_slice(&total_length.to_be_bytes());
    }
    header[10..12].fill(0);
    let checksum = Sum::new().bytes(header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    if random.chance(2) {
        mend_transport(header, payload);
    }
}

fn mend_ipv6(random: &mut Random, bytes: &mut [u8]) {
    let Some(length) = bytes.len().checked_sub(ipv6::HEADER_LEN) else {
        return;
    };
    if random.chance(2) {
        bytes[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    }
    let Ok(packet) = ipv6::Packet::parse(bytes) else {
        return;
    };
    let (source, destination) = (packet.source(), packet.destination());
    let (protocol, length) = (packet.protocol(), packet.payload().len());
    let end = packet.total_len();
    let payload = &mut bytes[end - length..end];
    match (protocol, length) {
        (ipv6::PROTOCOL_ICMPV6, 24..) if random.chance(4) => {
            // A multicast target, if it is neighbour discovery.
            payload[8] = 0xff;
            mend_icmpv6(payload, source, destination);
        }
        (ipv6::PROTOCOL_ICMPV6, 4..) => mend_icmpv6(payload, source, destination),
        (ipv6::PROTOCOL_UDP, 8..) => payload[6..8].fill(0),
        (ipv6::PROTOCOL_TCP, 20..) => tcp::write_checksum(payload, source, destination),
        _ => {}
    }
}

fn mend_transport(header: &[u8], payload: &mut [u8]) {
    let address = |from: usize| Ipv4Addr::from([0, 1, 2, 3].map(|at: usize| header[from + at]));
    let (source, destination) = (address(12), address(16));
    match (header[9], payload.len()) {
        (ipv4::PROTOCOL_ICMP, 4..) => {
            payload[2..4].fill(0);
            let checksum = Sum::new().bytes(payload).finish();
            payload[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        (ipv4::PROTOCOL_UDP, 8..) => {
            let ports = [0, 2].map(|at| u16::from_be_bytes([payload[at], payload[at + 1]]));
            let header = udp::Header { source_port: ports[0], destination_port: ports[1] };
            header.emit(payload, source, destination);
        }
        (ipv4::PROTOCOL_TCP, 20..) => tcp::write_checksum(payload, source, destination),
        _ => {}
    }
}

/// Goes through the frame as a receiver does; what is accepted must hold together.
fn receive(frame: &[u8]) -> Result<(), Malformed> {
    let (header, payload) = ethernet::Header::parse(frame)?;
    match header.ethertype {
        ethernet::ETHERTYPE_ARP => {
            let packet = arp::Packet::parse(payload)?;
            let mut again = [0; arp::LEN];
            packet.emit(&mut again);
            assert_eq!(again, payload[..arp::LEN]);
        }
        ethernet::ETHERTYPE_IPV4 => receive_ip(&ip::Packet::V4(ipv4::Packet::parse(payload)?), payload)?,
        ethernet::ETHERTYPE_IPV6 => receive_ip(&ip::Packet::V6(ipv6::Packet::parse(payload)?), payload)?,
        // A link without Ethernet types.
        ETHERTYPE_NONE => receive_ip(&ip::Packet::parse(payload)?, payload)?,
        _ => {}
    }
    Ok(())
}

fn receive_ip(packet: &ip::Packet<'_>, bytes: &[u8]) -> Result<(), Malformed> {
    assert!(packet.payload().len() < packet.total_len() && packet.total_len() <= bytes.len());
    match (packet.source(), packet.destination()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => receive_transport(packet, source, destination),
        (IpAddr::V6(source), IpAddr::V6(destination)) => receive_transport(packet, source, destination),
        _ => unreachable!("a packet of two families"),
    }
}

fn receive_transport<A: Address + Into<IpAddr>>(
    packet: &ip::Packet<'_>,
    source: A,
    destination: A,
) -> Result<(), Malformed> {
    let payload = packet.payload();
    if packet.is_fragment() {
        return Ok(());
    }
    match (packet.protocol(), source.into(), destination.into()) {
        (ipv4::PROTOCOL_ICMP, IpAddr::V4(_), _) => {
            if let icmpv4::Message::Echo(echo) = icmpv4::Message::parse(payload)? {
                let mut again = vec![0; payload.len()];
                assert_eq!(echo.emit(&mut again), payload.len());
                assert_eq!(Echo::parse(&again), Ok(echo));
            }
        }
        (ipv6::PROTOCOL_ICMPV6, IpAddr::V6(source), IpAddr::V6(destination)) => {
            receive_icmpv6(payload, source, destination)?;
        }
        (ipv4::PROTOCOL_UDP, ..) => {
            let (_, data) = udp::Header::parse(payload, source, destination, true)?;
            assert!(data.len() + udp::HEADER_LEN <= payload.len());
        }
        (ipv4::PROTOCOL_TCP, ..) => {
            let segment = Segment::parse(payload)?;
            assert_eq!(segment.header_len() + segment.payload().len(), payload.len());
            let header = header_of(&segment)?;
            assert!(header.options.window_scale.is_none_or(|shift| shift <= tcp::MAX_WINDOW_SCALE));
            emit_again(&header);
            if segment.verify(source, destination) == ChecksumState::Invalid {
                return Err(Malformed::TcpChecksum);
            }
        }
        _ => {}
    }
    Ok(())
}

fn receive_icmpv6(payload: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Result<(), Malformed> {
    let message = icmpv6::Message::parse(payload, source, destination)?;
    let mut again = vec![0; payload.len().max(icmpv6::MAX_NEIGHBOR_LEN)];
    let length = match message {
        icmpv6::Message::Echo(echo) => echo.emit(&mut again, source, destination),
        icmpv6::Message::NeighborSolicitation(message) => message.emit(&mut again, source, destination),
        icmpv6::Message::NeighborAdvertisement(message) => message.emit(&mut again, source, destination),
        _ => return Ok(()),
    };
    assert_eq!(icmpv6::Message::parse(&again[..length], source, destination), Ok(message));
    Ok(())
}

/// Whatever header came, it can be emitted, and then says the same except for SACK blocks that found no room.
fn emit_again(header: &tcp::Header) {
    let mut buffer = [0; tcp::MAX_HEADER_LEN];
    let length = header.emit(&mut buffer);
    let again = header_of(&Segment::parse(&buffer[..length]).expect("parsed")).expect("options parsed");
    let sack = header.options.sack;
    assert!(sack.as_slice().starts_with(again.options.sack.as_slice()));
    assert_eq!(tcp::Header { options: Options { sack, ..again.options }, ..again }, *header);
}

#[test]
fn damaged_frames_are_refused_by_name_or_hold_together() {
    let seed = overfly_testing::seed(RandomState::new().hash_one(0));
    let mut random = Random(overfly_testing::Random(seed));
    let mut refused = vec![0u32; Malformed::ALL.len()];
    let mut accepted = 0u32;
    for _ in 0..ITERATIONS {
        let mut frame = sound_frame(&mut random);
        assert_eq!(receive(&frame), Ok(()), "a sound frame");
        if frame[IP] == 0x60 && random.chance(8) {
            prepend_extensions(&mut random, &mut frame);
        }
        damage(&mut random, &mut frame);
        if !random.chance(4) {
            mend(&mut random, &mut frame);
        }
        match receive(&frame) {
            Ok(()) => accepted += 1,
            Err(reason) => refused[reason as usize] += 1,
        }
        // And every parser on what was never meant for it.
        let from = random.below(frame.len() + 1);
        let bytes = &frame[from..];
        let _ = receive(bytes);
        let _ = arp::Packet::parse(bytes);
        let _ = ip::Packet::parse(bytes).and_then(|packet| receive_ip(&packet, bytes));
        let _ = icmpv4::Message::parse(bytes);
        let _ = icmpv6::Message::parse(bytes, Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let _ = (Quote::parse_ipv4(bytes), Quote::parse_ipv6(bytes));
        let _ = Echo::parse(bytes);
        let _ = udp::Header::parse(bytes, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, true);
        let _ = Segment::parse(bytes).and_then(|segment| segment.options());
    }
    println!("accepted: {accepted}");
    for (reason, count) in Malformed::ALL.iter().zip(&refused) {
        println!("{}: {count}", reason.name());
        assert!(*count > 0, "OVERFLY_SEED={seed}: no frame was refused as {}", reason.name());
    }
    assert!(accepted > 0, "OVERFLY_SEED={seed}: no damaged frame was accepted");
}
