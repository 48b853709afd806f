//! Bytes that nobody meant as a packet: no parser panics, and each refuses with reasons of its own format only.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::strategies::{bytes, config};
use overfly_wire::Malformed;
use overfly_wire::icmpv4::Echo;
use overfly_wire::ip::{self, Quote};
use overfly_wire::tcp::Segment;
use overfly_wire::{arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, udp};
use proptest::prelude::*;

/// The reason, if there is one, has this format's name before the underscore.
fn refused_as<T>(format: &str, result: &Result<T, Malformed>) -> Result<(), TestCaseError> {
    if let Err(reason) = result {
        prop_assert_eq!(reason.name().split('_').next(), Some(format));
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(5_000))]

    #[test]
    fn any_bytes(bytes in bytes(200), partial_checksums: bool) {
        refused_as("ethernet", &ethernet::Header::parse(&bytes))?;
        refused_as("arp", &arp::Packet::parse(&bytes))?;
        refused_as("ipv4", &ipv4::Packet::parse(&bytes))?;
        refused_as("icmp", &Echo::parse(&bytes))?;
        let address = Ipv4Addr::LOCALHOST;
        refused_as("udp", &udp::Header::parse(&bytes, address, address, partial_checksums))?;
        refused_as("ipv6", &ipv6::Packet::parse(&bytes))?;
        let _ = (ip::Packet::parse(&bytes), icmpv4::Message::parse(&bytes));
        refused_as("quote", &Quote::parse_ipv4(&bytes))?;
        refused_as("quote", &Quote::parse_ipv6(&bytes))?;
        let localhost = Ipv6Addr::LOCALHOST;
        refused_as("icmpv6", &icmpv6::Message::parse(&bytes, localhost, localhost))?;
        refused_as("udp", &udp::Header::parse(&bytes, localhost, localhost, partial_checksums))?;
        let segment = Segment::parse(&bytes);
        refused_as("tcp", &segment)?;
        if let Ok(segment) = segment {
            refused_as("tcp", &segment.options())?;
            let _ = segment.verify(address, address);
            prop_assert_eq!(segment.header_len() + segment.payload().len(), bytes.len());
        }
    }

    #[test]
    fn bytes_that_begin_well(mut bytes in bytes(200), options in 0..=10u8) {
        if let Some(first) = bytes.first_mut() {
            *first = 0x45 + options;
        }
        refused_as("ipv4", &ipv4::Packet::parse(&bytes))?;
        if let Some(first) = bytes.first_mut() {
            *first = 0x60;
        }
        if let Some(next_header) = bytes.get_mut(6) {
            *next_header = [0, 43, 44, 60][usize::from(options % 4)];
        }
        if let Some(length) = bytes.len().checked_sub(40) {
            bytes[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        }
        refused_as("ipv6", &ipv6::Packet::parse(&bytes))?;
        refused_as("quote", &Quote::parse_ipv6(&bytes))?;
        if let Some(data_offset) = bytes.get_mut(12) {
            *data_offset = (5 + options) << 4;
        }
        refused_as("tcp", &Segment::parse(&bytes).and_then(|segment| segment.options()))?;
    }
}
