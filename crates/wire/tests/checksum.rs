//! The checksum against RFC 1071 written down word for word.

use std::net::{IpAddr, Ipv4Addr};

use crate::strategies::{address, bytes, config, ipv6_address};
use overfly_wire::checksum::{Address, Sum, Template, copy_and_sum, pseudo_ipv4, pseudo_ipv6};
use proptest::prelude::*;

/// RFC 1071 section 4.1, without any thought for speed.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn every_length_and_alignment_up_to_512_is_as_the_naive_sum() {
    let buffer: Vec<u8> = (0..600u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for start in 0..16 {
        for length in 0..=512 {
            let part = &buffer[start..start + length];
            assert_eq!(Sum::new().bytes(part).fold(), naive(part), "start {start}, length {length}");
            let mut copy = vec![0; length];
            assert_eq!(copy_and_sum(part, &mut copy).fold(), naive(part), "start {start}, length {length}");
            assert_eq!(copy, part);
        }
    }
}

#[test]
fn every_part_of_a_template_is_as_the_naive_sum() {
    let bytes: Vec<u8> = (0..700u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (template, bytes) in
        [(Template::new(bytes.clone()), bytes), (Template::new(vec![0xff; 700]), vec![0xff; 700])]
    {
        for start in 0..140 {
            for end in start..=bytes.len() {
                let part = &bytes[start..end];
                let mut copy = vec![0; part.len()];
                assert_eq!(template.copy_and_sum(start, &mut copy).fold(), naive(part), "{start}..{end}");
                assert_eq!(copy, part);
            }
        }
    }
}

#[test]
fn all_ones_carry_around() {
    for length in [1, 2, 63, 64, 65, 127, 128, 129, 1448, 65_535, 1 << 20, 5 << 20] {
        let ones = vec![0xff; length];
        assert_eq!(Sum::new().bytes(&ones).fold(), naive(&ones), "length {length}");
    }
}

#[test]
fn rfc_1071_section_3_example() {
    assert_eq!(Sum::new().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
}

#[test]
fn nothing_sums_to_zero() {
    assert_eq!(Sum::new().fold(), 0);
    assert_eq!(Sum::default().bytes(&[]).finish(), 0xffff);
}

#[test]
fn a_pseudo_header_is_never_zero() {
    // So a CHECKSUM_PARTIAL field, its folded sum, can be told from "no checksum".
    assert_eq!(pseudo_ipv4(Ipv4Addr::BROADCAST, Ipv4Addr::BROADCAST, 6, 0xfff9).fold(), 0xffff);
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn any_bytes(bytes in bytes(3_000)) {
        let sum = Sum::new().bytes(&bytes);
        prop_assert_eq!(sum.fold(), naive(&bytes));
        prop_assert_eq!(sum.finish(), !naive(&bytes));
    }

    #[test]
    fn pieces_of_even_length_sum_as_the_whole(bytes in bytes(600), cuts in proptest::collection::vec(0..300usize, 0..6)) {
        let mut sum = Sum::new();
        let mut rest = &bytes[..];
        for cut in cuts {
            let Some((piece, after)) = rest.split_at_checked(cut * 2) else { continue };
            sum = sum.bytes(piece);
            rest = after;
        }
        prop_assert_eq!(sum.bytes(rest).fold(), naive(&bytes));
    }

    #[test]
    fn words_sum_as_their_bytes(short: u16, long: u32, bytes in bytes(100)) {
        let mut whole = [&long.to_be_bytes()[..], &short.to_be_bytes()].concat();
        whole.extend(&bytes);
        prop_assert_eq!(Sum::new().add_u32(long).add_u16(short).bytes(&bytes).fold(), naive(&whole));
    }

    #[test]
    fn pseudo_header(source in address(), destination in address(), protocol: u8, length: u16) {
        let mut header = [source.octets(), destination.octets()].concat();
        header.extend([0, protocol]);
        header.extend(length.to_be_bytes());
        prop_assert_eq!(pseudo_ipv4(source, destination, protocol, length).fold(), naive(&header));
    }

    #[test]
    fn pseudo_headers_of_ipv6(source in ipv6_address(), destination in ipv6_address(), protocol: u8, length: u16) {
        let mut header = [source.octets(), destination.octets()].concat();
        header.extend(u32::from(length).to_be_bytes());
        header.extend([0, 0, 0, protocol]);
        prop_assert_eq!(pseudo_ipv6(source, destination, protocol, u32::from(length)).fold(), naive(&header));
        let either = IpAddr::pseudo_header(source.into(), destination.into(), protocol, length);
        prop_assert_eq!(either.fold(), naive(&header));
    }

    #[test]
    fn sums_add_up(first in bytes(300), second in bytes(3_000)) {
        let even = &first[..first.len() & !1];
        let mut copy = vec![0; second.len()];
        let sum = Sum::new().bytes(even) + copy_and_sum(&second, &mut copy);
        prop_assert_eq!(sum.fold(), naive(&[even, &second].concat()));
        prop_assert_eq!(copy, second);
    }
}
