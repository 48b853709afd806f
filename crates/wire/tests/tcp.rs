//! TCP against smoltcp and etherparse, in both directions, and cases worked out by hand.

use std::net::{IpAddr, Ipv4Addr};

use crate::strategies::{address, address_pair, bytes, config, fast_open, options, tcp_header};
use etherparse::{TcpHeader, TcpOptionElement};
use overfly_wire::Malformed;
use overfly_wire::checksum::{Address, copy_and_sum, pseudo_ipv4};
use overfly_wire::ipv4::PROTOCOL_TCP;
use overfly_wire::tcp::{
    ChecksumState, FastOpen, Flags, Header, Options, Sacks, Segment, Timestamps, write_checksum,
    write_checksum_of, write_partial_checksum,
};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr};

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A segment as it goes out.
fn emitted<A: Address>(header: &Header, payload: &[u8], source: A, destination: A) -> Vec<u8> {
    let mut segment = vec![0xa5; header.header_len() + payload.len()];
    let header_len = header.emit(&mut segment);
    assert_eq!(header_len, header.header_len());
    segment[header_len..].copy_from_slice(payload);
    write_checksum(&mut segment, source, destination);
    segment
}

/// What a header must have been for this segment to come out.
fn header_of(segment: &Segment<'_>) -> Result<Header, Malformed> {
    Ok(Header {
        source_port: segment.source_port(),
        destination_port: segment.destination_port(),
        sequence: segment.sequence(),
        acknowledgment: segment.acknowledgment(),
        flags: segment.flags(),
        window: segment.window(),
        options: segment.options()?,
    })
}

/// A segment with these option bytes, padded with zeros (end of list) to a multiple of 4.
fn with_options(bytes: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment.extend(bytes);
    segment.resize(segment.len().next_multiple_of(4), 0);
    segment[12] = ((segment.len() / 4) << 4) as u8;
    segment
}

fn parse_options(bytes: &[u8]) -> Result<Options, Malformed> {
    Segment::parse(&with_options(bytes)).and_then(|segment| segment.options())
}

/// What smoltcp makes of option bytes; timestamps of a wrong length, which it steps over, are an error here.
fn smoltcp_options(mut bytes: &[u8]) -> Result<Options, ()> {
    let mut options = Options::NONE;
    while !bytes.is_empty() {
        let (rest, option) = TcpOption::parse(bytes).map_err(|_| ())?;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
            TcpOption::WindowScale(shift) => options.window_scale = Some(shift.min(14)),
            TcpOption::SackPermitted => options.sack_permitted = true,
            TcpOption::SackRange(blocks) => {
                options.sack = Sacks::EMPTY;
                blocks.iter().flatten().for_each(|&(left, right)| assert!(options.sack.push(left, right)));
            }
            TcpOption::TimeStamp { tsval, tsecr } => {
                options.timestamps = Some(Timestamps { value: tsval, echo: tsecr });
            }
            TcpOption::Unknown { kind: 8, .. } => return Err(()),
            TcpOption::Unknown { kind: 34, data: [] } => options.fast_open = Some(FastOpen::REQUEST),
            TcpOption::Unknown { kind: 34, data } => options.fast_open = FastOpen::with_cookie(data),
            TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
        }
        bytes = rest;
    }
    Ok(options)
}

/// smoltcp keeps three blocks.
fn three_blocks(mut options: Options) -> Options {
    let blocks = options.sack;
    options.sack = Sacks::EMPTY;
    for &(left, right) in blocks.as_slice().iter().take(3) {
        options.sack.push(left, right);
    }
    options
}

/// What etherparse makes of options that it knows.
fn etherparse_options(header: &TcpHeader) -> Options {
    let mut options = Options::NONE;
    for element in header.options_iterator() {
        match element.expect("etherparse reads the option") {
            TcpOptionElement::Noop => {}
            TcpOptionElement::MaximumSegmentSize(mss) => options.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) => options.window_scale = Some(shift),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
            TcpOptionElement::SelectiveAcknowledgement(first, more) => {
                for (left, right) in std::iter::once(first).chain(more.into_iter().flatten()) {
                    assert!(options.sack.push(left, right));
                }
            }
            TcpOptionElement::Timestamp(value, echo) => {
                options.timestamps = Some(Timestamps { value, echo });
            }
        }
    }
    options
}

fn etherparse_flags(header: &TcpHeader) -> Flags {
    let bits =
        [header.fin, header.syn, header.rst, header.psh, header.ack, header.urg, header.ece, header.cwr];
    Flags::from_bits((0..8).map(|bit| u8::from(bits[bit]) << bit).sum())
}

fn smoltcp_flags<T: AsRef<[u8]>>(packet: &TcpPacket<T>) -> Flags {
    let bits = [
        packet.fin(),
        packet.syn(),
        packet.rst(),
        packet.psh(),
        packet.ack(),
        packet.urg(),
        packet.ece(),
        packet.cwr(),
    ];
    Flags::from_bits((0..8).map(|bit| u8::from(bits[bit]) << bit).sum())
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn what_is_emitted_is_parsed_again(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(),
    ) {
        let bytes = emitted(&header, &payload, source, destination);
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&segment), Ok(header));
        prop_assert_eq!(segment.payload(), &payload[..]);
        prop_assert_eq!(segment.header_len(), header.header_len());
        prop_assert_eq!(segment.options_bytes().len(), header.header_len() - 20);
        prop_assert_eq!(segment.urgent(), 0);
        prop_assert!(segment.checksum_holds(source, destination));
        prop_assert_ne!(segment.verify(source, destination), ChecksumState::Invalid);
    }

    #[test]
    fn smoltcp_parses_what_is_emitted(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(),
    ) {
        let bytes = emitted(&header, &payload, source, destination);
        let packet = TcpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(packet.verify_checksum(&IpAddress::Ipv4(source), &IpAddress::Ipv4(destination)));
        let parsed = Header {
            source_port: packet.src_port(),
            destination_port: packet.dst_port(),
            sequence: packet.seq_number().0 as u32,
            acknowledgment: packet.ack_number().0 as u32,
            flags: smoltcp_flags(&packet),
            window: packet.window_len(),
            options: smoltcp_options(packet.options()).unwrap(),
        };
        prop_assert_eq!(parsed, Header { options: three_blocks(header.options), ..header });
        prop_assert_eq!(packet.payload(), &payload[..]);
    }

    #[test]
    fn etherparse_parses_what_is_emitted(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(),
    ) {
        let bytes = emitted(&header, &payload, source, destination);
        let (parsed, rest) = TcpHeader::from_slice(&bytes).unwrap();
        let checksum = parsed.calc_checksum_ipv4_raw(source.octets(), destination.octets(), rest).unwrap();
        prop_assert_eq!(parsed.checksum, checksum);
        prop_assert!(!parsed.ns);
        prop_assert_eq!(parsed.urgent_pointer, 0);
        let fields = Header {
            source_port: parsed.source_port,
            destination_port: parsed.destination_port,
            sequence: parsed.sequence_number,
            acknowledgment: parsed.acknowledgment_number,
            flags: etherparse_flags(&parsed),
            window: parsed.window_size,
            options: etherparse_options(&parsed),
        };
        prop_assert_eq!(fields, header);
        prop_assert_eq!(rest, &payload[..]);
    }

    #[test]
    fn what_smoltcp_builds_is_parsed(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(), control in 0..5u8,
    ) {
        let (control, flag) = match control {
            0 => (TcpControl::None, Flags::NONE),
            1 => (TcpControl::Psh, Flags::PSH),
            2 => (TcpControl::Syn, Flags::SYN),
            3 => (TcpControl::Fin, Flags::FIN),
            _ => (TcpControl::Rst, Flags::RST),
        };
        // smoltcp writes SACK blocks only with ACK and without SACK-permitted, three of them, and packs tightly.
        let mut options = three_blocks(header.options);
        if options.sack_permitted {
            options.sack = Sacks::EMPTY;
        }
        let mut sack_ranges = [None; 3];
        for (range, &block) in sack_ranges.iter_mut().zip(options.sack.as_slice()) {
            *range = Some(block);
        }
        let repr = TcpRepr {
            src_port: header.source_port,
            dst_port: header.destination_port,
            control,
            seq_number: TcpSeqNumber(header.sequence as i32),
            ack_number: Some(TcpSeqNumber(header.acknowledgment as i32)),
            window_len: header.window,
            window_scale: options.window_scale,
            max_seg_size: options.mss,
            sack_permitted: options.sack_permitted,
            sack_ranges,
            timestamp: options.timestamps.map(|it| TcpTimestampRepr::new(it.value, it.echo)),
            payload: &payload,
        };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(
            &mut TcpPacket::new_unchecked(&mut bytes),
            &IpAddress::Ipv4(source),
            &IpAddress::Ipv4(destination),
            &ChecksumCapabilities::default(),
        );
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&segment), Ok(Header { flags: flag | Flags::ACK, options, ..header }));
        prop_assert_eq!(segment.payload(), &payload[..]);
        prop_assert!(segment.checksum_holds(source, destination));
    }

    #[test]
    fn what_etherparse_builds_is_parsed(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(),
        ns: bool, urgent: u16,
    ) {
        let mut built = TcpHeader::new(header.source_port, header.destination_port, header.sequence, header.window);
        built.acknowledgment_number = header.acknowledgment;
        built.ns = ns;
        built.fin = header.flags.contains(Flags::FIN);
        built.syn = header.flags.contains(Flags::SYN);
        built.rst = header.flags.contains(Flags::RST);
        built.psh = header.flags.contains(Flags::PSH);
        built.ack = header.flags.contains(Flags::ACK);
        built.urg = header.flags.contains(Flags::URG);
        built.ece = header.flags.contains(Flags::ECE);
        built.cwr = header.flags.contains(Flags::CWR);
        built.urgent_pointer = urgent;
        // Another order than ours, and unaligned.
        let mut elements = Vec::new();
        if let [first, more @ ..] = header.options.sack.as_slice() {
            let mut rest = [None; 3];
            rest.iter_mut().zip(more).for_each(|(place, block)| *place = Some(*block));
            elements.push(TcpOptionElement::SelectiveAcknowledgement(*first, rest));
        }
        elements.extend(header.options.window_scale.map(TcpOptionElement::WindowScale));
        elements.extend(header.options.timestamps.map(|it| TcpOptionElement::Timestamp(it.value, it.echo)));
        elements.extend(header.options.mss.map(TcpOptionElement::MaximumSegmentSize));
        if header.options.sack_permitted {
            elements.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
        built.set_options(&elements).unwrap();
        built.checksum = built.calc_checksum_ipv4_raw(source.octets(), destination.octets(), &payload).unwrap();
        let bytes = [&built.to_bytes()[..], &payload].concat();
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&segment), Ok(header));
        prop_assert_eq!(segment.urgent(), urgent);
        prop_assert_eq!(segment.checksum(), built.checksum);
        prop_assert_eq!(segment.payload(), &payload[..]);
        prop_assert!(segment.checksum_holds(source, destination));
    }

    #[test]
    fn any_option_bytes_are_read_as_smoltcp_reads_them(bytes in proptest::collection::vec(
        prop_oneof![0..10u8, Just(10u8), Just(18), Just(34), any::<u8>()], 0..=40,
    )) {
        let padded = with_options(&bytes);
        let ours = Segment::parse(&padded).unwrap().options();
        match smoltcp_options(&padded[20..]) {
            Ok(options) => prop_assert_eq!(ours.map(three_blocks), Ok(options)),
            Err(()) => prop_assert_eq!(ours, Err(Malformed::TcpOption)),
        }
    }

    #[test]
    fn a_partial_checksum_is_told_from_valid_and_invalid(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(), wrong: u16,
    ) {
        let mut bytes = emitted(&header, &payload, source, destination);
        let right = Segment::parse(&bytes).unwrap().checksum();
        let partial = pseudo_ipv4(source, destination, PROTOCOL_TCP, bytes.len() as u16).fold();
        for field in [partial, right, wrong] {
            bytes[16..18].copy_from_slice(&field.to_be_bytes());
            let segment = Segment::parse(&bytes).unwrap();
            let same = |a: u16, b: u16| a == b || (a, b) == (0, 0xffff) || (a, b) == (0xffff, 0);
            let state = if field == partial {
                ChecksumState::Partial
            } else if same(field, right) {
                ChecksumState::Valid
            } else {
                ChecksumState::Invalid
            };
            prop_assert_eq!(segment.verify(source, destination), state);
            prop_assert_eq!(segment.checksum_holds(source, destination), same(field, right));
        }
    }

    #[test]
    fn checksums_of_both_families(header in tcp_header(), payload in bytes(1_460), (source, destination) in address_pair()) {
        let bytes = emitted(&header, &payload, source, destination);
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert!(segment.checksum_holds(source, destination));
        let packet = TcpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(packet.verify_checksum(&source.into(), &destination.into()));
        let (theirs, rest) = TcpHeader::from_slice(&bytes).unwrap();
        let mapped = [source, destination].map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                prop_assert_eq!(emitted(&header, &payload, source, destination), &bytes[..]);
                prop_assert!(segment.checksum_holds(source, destination));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let sum = theirs.calc_checksum_ipv6_raw(source.octets(), destination.octets(), rest).unwrap();
                prop_assert_eq!(segment.checksum(), sum);
            }
            _ => unreachable!("one family"),
        }
        // An IPv4-mapped address sums as the address in it.
        prop_assert_eq!(emitted(&header, &payload, mapped[0], mapped[1]), &bytes[..]);

        let mut fused = vec![0; bytes.len()];
        let (head, body) = fused.split_at_mut(header.header_len());
        header.emit(head);
        let sum = copy_and_sum(&payload, body);
        write_checksum_of(head, sum, payload.len(), source, destination);
        prop_assert_eq!(&fused, &bytes);

        write_partial_checksum(&mut fused, source, destination);
        let partial = Segment::parse(&fused).unwrap();
        prop_assert_eq!(partial.verify(source, destination), ChecksumState::Partial);
        // What the link does to complete it.
        let complete = overfly_wire::checksum::Sum::new().bytes(&fused).finish();
        fused[16..18].copy_from_slice(&complete.to_be_bytes());
        prop_assert_eq!(&fused, &bytes);
    }

    #[test]
    fn fast_open_beside_other_options(header in tcp_header(), options in options(), fast_open in fast_open()) {
        let options = Options { sack: Sacks::EMPTY, fast_open: Some(fast_open), ..options };
        let header = Header { options, ..header };
        let bytes = emitted(&header, b"payload", SOURCE, DESTINATION);
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&segment), Ok(header));
        prop_assert_eq!(segment.payload(), b"payload");
        prop_assert_eq!(smoltcp_options(segment.options_bytes()), Ok(options));
    }

    #[test]
    fn one_changed_bit_is_noticed(
        header in tcp_header(), payload in bytes(1_460), source in address(), destination in address(), place: usize,
    ) {
        let mut bytes = emitted(&header, &payload, source, destination);
        let bit = place % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(segment) = Segment::parse(&bytes) {
            prop_assert!(!segment.checksum_holds(source, destination));
        }
    }

    #[test]
    fn sack_blocks_beyond_the_room_are_left_out(header in tcp_header(), options in options()) {
        let mut header = Header { options, ..header };
        while header.options.sack.push(1, 2) {}
        let bytes = emitted(&header, b"payload", SOURCE, DESTINATION);
        let segment = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(segment.payload(), b"payload");
        let options = segment.options().unwrap();
        prop_assert!(header.options.sack.as_slice().starts_with(options.sack.as_slice()));
        prop_assert!(segment.header_len() + 8 > 60 || options.sack.len() == Sacks::CAPACITY);
        prop_assert_eq!(Options { sack: header.options.sack, ..options }, header.options);
    }
}

#[test]
fn a_syn_as_linux_lays_it_out() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 0x0102_0304, echo: 0 }),
        ..Options::NONE
    };
    let header = Header {
        source_port: 0x1234,
        destination_port: 80,
        sequence: 0xdead_beef,
        flags: Flags::SYN,
        window: 64_240,
        options,
        ..Header::default()
    };
    let mut bytes = [0xff; 40];
    assert_eq!(header.emit(&mut bytes), 40);
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0x12, 0x34, 0, 80, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0, 0, 0, 0,
        2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
    ]);
}

#[test]
fn a_checksum_written_twice_is_the_same() {
    let mut bytes = emitted(&Header::default(), b"payload", SOURCE, DESTINATION);
    let once = bytes.clone();
    write_checksum(&mut bytes, SOURCE, DESTINATION);
    assert_eq!(bytes, once);
}

#[test]
fn a_window_scale_above_14_is_14() {
    for shift in [15, 64, 255] {
        assert_eq!(parse_options(&[3, 3, shift]).unwrap().window_scale, Some(14));
        let options = Options { window_scale: Some(shift), ..Options::NONE };
        let bytes = emitted(&Header { options, ..Header::default() }, &[], SOURCE, DESTINATION);
        assert_eq!(bytes[20..], [1, 3, 3, 14]);
    }
}

#[test]
fn options_of_a_wrong_length_are_refused() {
    let wrong: [&[u8]; 20] = [
        &[2, 3, 1],
        &[2, 5, 1, 1, 1],
        &[2, 0],
        &[2, 1],
        &[3, 2],
        &[3, 4, 1, 1],
        &[4, 3, 0],
        &[4, 1],
        &[5, 2],
        &[5, 9, 0, 0, 0, 0, 0, 0, 0],
        &[5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[8, 9, 0, 0, 0, 0, 0, 0, 0],
        &[8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 1, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 1, 1, 8],
        &[1, 1, 1, 2],
        &[1, 1, 2, 4],
        &[30, 0],
        &[30, 1],
        &[30, 40, 0, 0],
    ];
    for bytes in wrong {
        assert_eq!(parse_options(bytes), Err(Malformed::TcpOption), "{bytes:?}");
    }
}

#[test]
fn unknown_options_and_what_follows_the_end_are_stepped_over() {
    // Multipath, a Fast Open option of an illegal length, an experiment, and then MSS.
    let options = parse_options(&[30, 4, 0, 0, 34, 3, 0, 254, 6, 1, 2, 3, 4, 2, 4, 5, 0xb4]).unwrap();
    assert_eq!(options, Options { mss: Some(1460), ..Options::NONE });
    assert_eq!(parse_options(&[0, 2, 0, 0]), Ok(Options::NONE));
    assert_eq!(parse_options(&[]), Ok(Options::NONE));
    assert_eq!(parse_options(&[2, 4, 1, 1, 2, 4, 5, 0xb4]).unwrap().mss, Some(1460), "the last counts");
}

#[test]
fn data_offsets_and_lengths() {
    let mut bytes = [0; 24];
    for length in 0..20 {
        assert_eq!(Segment::parse(&bytes[..length]).err(), Some(Malformed::TcpShort));
    }
    for words in 0..16u8 {
        bytes[12] = words << 4 | 0xf;
        let header_len = Segment::parse(&bytes).map(|segment| segment.header_len());
        match words {
            5 => assert_eq!(header_len, Ok(20)),
            6 => assert_eq!(header_len, Ok(24)),
            _ => assert_eq!(header_len, Err(Malformed::TcpDataOffset)),
        }
    }
}

#[test]
fn a_segment_beyond_ip_is_never_valid() {
    let mut bytes = vec![0; 65_536];
    bytes[12] = 0x50;
    let segment = Segment::parse(&bytes).unwrap();
    assert_eq!(segment.verify(SOURCE, DESTINATION), ChecksumState::Invalid);
    assert!(!segment.checksum_holds(SOURCE, DESTINATION));
}

#[test]
fn flags() {
    let synchronize = Flags::SYN | Flags::ACK;
    assert!(synchronize.contains(Flags::SYN) && synchronize.contains(synchronize));
    assert!(!Flags::SYN.contains(synchronize) && Flags::SYN.intersects(synchronize));
    assert!(!Flags::FIN.intersects(synchronize) && Flags::FIN.contains(Flags::NONE));
    assert_eq!(format!("{synchronize:?} {:?}", Flags::NONE), "SYN|ACK -");
}

#[test]
fn sacks_hold_four() {
    let mut sacks = Sacks::EMPTY;
    assert!(sacks.is_empty());
    assert!((0..4).all(|at| sacks.push(at, at + 1)));
    assert!(!sacks.push(9, 9));
    assert_eq!((sacks.len(), sacks.as_slice()), (4, &[(0, 1), (1, 2), (2, 3), (3, 4)][..]));
}

#[test]
fn fast_open_cookies_are_4_to_16_bytes_and_even() {
    for length in 0..=40u8 {
        let cookie = vec![7; usize::from(length)];
        let legal = matches!(length, 4 | 6 | 8 | 10 | 12 | 14 | 16);
        assert_eq!(FastOpen::with_cookie(&cookie).is_some(), legal, "{length}");
        if length <= 38 {
            let mut bytes = vec![34, 2 + length];
            bytes.extend(&cookie);
            let fast_open = parse_options(&bytes).unwrap().fast_open;
            assert_eq!(fast_open.is_some(), legal || length == 0, "{length}");
            assert_eq!(fast_open.is_some_and(|it| it.is_request()), length == 0);
            assert!(fast_open.is_none_or(|it| it.cookie() == cookie));
        }
    }
    let options = Options { fast_open: Some(FastOpen::REQUEST), ..Options::NONE };
    let header = Header { options, ..Header::default() };
    assert_eq!(emitted(&header, &[], SOURCE, DESTINATION)[20..], [1, 1, 34, 2]);
    let options = Options { fast_open: FastOpen::with_cookie(&[1, 2, 3, 4, 5, 6]), ..Options::NONE };
    let header = Header { options, ..Header::default() };
    assert_eq!(emitted(&header, &[], SOURCE, DESTINATION)[20..], [34, 8, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_syn_with_every_option_fills_the_header() {
    let options = Options {
        mss: Some(1440),
        window_scale: Some(14),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        fast_open: FastOpen::with_cookie(&[9; 16]),
        sack: Sacks::EMPTY,
    };
    let mut header = Header { options, ..Header::default() };
    assert_eq!(header.header_len(), 60);
    assert!(header.options.sack.push(1, 2));
    assert_eq!(header.header_len(), 60, "no room for a block");
    let bytes = emitted(&header, &[], SOURCE, DESTINATION);
    assert_eq!(Segment::parse(&bytes).unwrap().options(), Ok(options));
}

#[test]
fn four_sack_blocks_alone_and_three_beside_timestamps() {
    let mut options = Options::NONE;
    assert!((0..4).all(|at| options.sack.push(at, at + 1)));
    let alone = emitted(&Header { options, ..Header::default() }, &[], SOURCE, DESTINATION);
    #[rustfmt::skip]
    assert_eq!(alone[20..], [
        1, 1, 5, 34, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2,
        0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 4,
    ]);
    options.timestamps = Some(Timestamps { value: 8, echo: 9 });
    let beside = emitted(&Header { options, ..Header::default() }, &[], SOURCE, DESTINATION);
    #[rustfmt::skip]
    assert_eq!(beside[20..], [
        1, 1, 8, 10, 0, 0, 0, 8, 0, 0, 0, 9,
        1, 1, 5, 26, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3,
    ]);
}

#[test]
fn options_stay_small() {
    assert!(size_of::<Options>() <= 76, "{}", size_of::<Options>());
}
