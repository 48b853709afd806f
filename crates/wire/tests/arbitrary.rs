//! Bytes that nobody meant as a packet: no parser panics, and each refuses with reasons of its own format only.

mod strategies;

use std::net::Ipv4Addr;

use overfly_wire::Malformed;
use overfly_wire::icmpv4::Echo;
use overfly_wire::tcp::Segment;
use overfly_wire::{arp, ethernet, ipv4, udp};
use proptest::prelude::*;
use strategies::{bytes, config};

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
        if let Some(data_offset) = bytes.get_mut(12) {
            *data_offset = (5 + options) << 4;
        }
        refused_as("tcp", &Segment::parse(&bytes).and_then(|segment| segment.options()))?;
    }
}
