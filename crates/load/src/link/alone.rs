//! Stacks that have a link to themselves: no kernel knows their addresses, so they answer ARP and ping.

use std::net::{IpAddr, Ipv4Addr};

use overfly_engine::{Config, Engine};
use overfly_wire::MacAddr;

use super::{Network, boot_key};
use crate::error::Error;

/// TCP payload of one frame where the link takes more than the MTU (`FRAME_LEN_MAX` of the links).
const SEGMENT_OFFLOAD: u32 = 65_435;

pub(crate) fn engine(config: Config) -> Result<Engine, Error> {
    Engine::new(config).map_err(|error| Error::machine("the user-level stack", error))
}

/// The defaults for a stack that has the link to itself. Stacks with one address have hardware addresses of their own.
pub(crate) fn config_of(network: Network, index: usize, offload: bool) -> Config {
    let none = match network.address {
        IpAddr::V4(address) => Config::new(mac(network.address, index), address, network.prefix_len),
        IpAddr::V6(address) => Config {
            address6: Some(address),
            prefix6_len: network.prefix_len,
            ..Config::new(mac(network.address, index), Ipv4Addr::UNSPECIFIED, 32)
        },
    };
    Config {
        alone: true,
        checksum_offload: offload,
        segment_offload: if offload { SEGMENT_OFFLOAD } else { 0 },
        // Frames cross no wire: what an Overfly peer left out nobody needs.
        partial_checksums: true,
        hash_key: boot_key(),
        ..none
    }
}

/// A locally administered address (IEEE 802, bit 1 of the first byte) out of the last bytes of the IP address.
fn mac(address: IpAddr, index: usize) -> MacAddr {
    let [.., a, b, c, d] = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    MacAddr([2, index as u8, a, b, c, d])
}
