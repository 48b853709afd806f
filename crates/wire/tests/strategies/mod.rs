//! What the property tests draw their cases from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::MacAddr;
use overfly_wire::tcp::{FastOpen, Flags, Header, Options, Sacks, Timestamps};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// On failure the seed is printed, and kept in a `.regressions` file beside the test.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(cases)
    }
}

pub(crate) fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

pub(crate) fn address() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

pub(crate) fn ipv6_address() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from)
}

/// Two addresses of one family.
pub(crate) fn address_pair() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        (address(), address()).prop_map(|(source, destination)| (source.into(), destination.into())),
        (ipv6_address(), ipv6_address())
            .prop_map(|(source, destination)| (source.into(), destination.into())),
    ]
}

pub(crate) fn fast_open() -> impl Strategy<Value = FastOpen> {
    prop_oneof![
        Just(FastOpen::REQUEST),
        (any::<[u8; 16]>(), 2..=8usize)
            .prop_map(|(bytes, pairs)| FastOpen::with_cookie(&bytes[..2 * pairs]).unwrap()),
    ]
}

/// Lengths are spread over everything that takes another path through the checksum.
pub(crate) fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..=most.min(20)),
        proptest::collection::vec(any::<u8>(), 0..=most),
        (any::<u8>(), 0..=most).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

/// Options that fit into a header.
pub(crate) fn options() -> impl Strategy<Value = Options> {
    (
        option::of(any::<u16>()),
        option::of(0..=14u8),
        any::<bool>(),
        option::of((any::<u32>(), any::<u32>())),
        proptest::collection::vec((any::<u32>(), any::<u32>()), 0..=4),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, blocks)| {
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            let mut options = Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack: Sacks::EMPTY,
                fast_open: None,
            };
            let used = Header { options, ..Header::default() }.header_len();
            let room = (60 - used).saturating_sub(4) / 8;
            for (left, right) in blocks.into_iter().take(room) {
                options.sack.push(left, right);
            }
            options
        })
}

pub(crate) fn tcp_header() -> impl Strategy<Value = Header> {
    let options = prop_oneof![
        Just(Options::NONE),
        (any::<u32>(), any::<u32>()).prop_map(|(value, echo)| Options {
            timestamps: Some(Timestamps { value, echo }),
            ..Options::NONE
        }),
        options(),
    ];
    (any::<(u16, u16, u32, u32, u8, u16)>(), options).prop_map(|(fields, options)| {
        let (source_port, destination_port, sequence, acknowledgment, flags, window) = fields;
        let flags = Flags::from_bits(flags);
        Header { source_port, destination_port, sequence, acknowledgment, flags, window, options }
    })
}
