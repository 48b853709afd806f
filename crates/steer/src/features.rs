//! What a device's driver says that it offers XDP and AF_XDP.
//!
//! Source: Documentation/netlink/specs/netdev.yaml (generic netlink, family `netdev`, Linux 6.3; metadata 6.8), include/uapi/linux/netdev.h.

use crate::error::Error;
use crate::napi::{Netdev, generic_attribute};
use crate::netlink::{Netlink, Request, number};

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_REDIRECT: u64 = 2;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;
const NETDEV_XDP_ACT_RX_SG: u64 = 32;
/// Names of bits, the lowest first.
const RX_METADATA: [&str; 3] = ["timestamp", "hash", "vlan-tag"];
const XSK_FEATURES: [&str; 3] = ["tx-timestamp", "tx-checksum", "tx-launch-time"];

/// What a driver offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    /// XDP programs run in the driver.
    pub native: bool,
    /// Frames can be given to AF_XDP sockets.
    pub redirect: bool,
    /// The device reads and writes the stacks' memory.
    pub zero_copy: bool,
    /// Frames of several buffers reach XDP programs.
    pub multi_buffer: bool,
    /// Buffers of a zero-copy frame, at most; 0 where there is no zero-copy.
    pub zero_copy_buffers: u32,
    /// What is known of a received frame, and what the device does for a sent one.
    pub metadata: Vec<&'static str>,
}

/// Asks the kernel. `None` if it cannot say: before Linux 6.3.
///
/// # Errors
/// [`Error::NoInterface`], or what the kernel said.
pub fn xdp_features(interface: &str) -> Result<Option<XdpFeatures>, Error> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    let link = link.map_err(|errno| Error::system("asking for the interface", errno))?;
    let index = link.ok_or_else(|| Error::NoInterface { name: interface.to_owned() })?.index;
    let Ok(mut netdev) = Netdev::open() else { return Ok(None) };
    let mut request = Request::generic(netdev.family, 0, NETDEV_CMD_DEV_GET);
    request.attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let mut features = None;
    netdev
        .netlink
        .exchange(request, |_, body| {
            let wide = |kind| {
                generic_attribute(body, kind).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
            };
            let Some(flags) = wide(NETDEV_A_DEV_XDP_FEATURES) else { return };
            let segments = generic_attribute(body, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(number);
            let metadata = wide(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES).unwrap_or(0);
            let sockets = wide(NETDEV_A_DEV_XSK_FEATURES).unwrap_or(0);
            features = Some(XdpFeatures::of(flags, segments.unwrap_or(0), metadata, sockets));
        })
        .map_err(|errno| Error::system("asking for the device's XDP features", errno))?;
    Ok(features)
}

impl XdpFeatures {
    fn of(flags: u64, segments: u32, metadata: u64, sockets: u64) -> XdpFeatures {
        let named = |names: [&'static str; 3], bits: u64| {
            names.into_iter().enumerate().filter(move |(bit, _)| bits & 1 << bit != 0).map(|(_, name)| name)
        };
        let zero_copy = flags & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0;
        XdpFeatures {
            native: flags & NETDEV_XDP_ACT_BASIC != 0,
            redirect: flags & NETDEV_XDP_ACT_REDIRECT != 0,
            zero_copy,
            multi_buffer: flags & NETDEV_XDP_ACT_RX_SG != 0,
            zero_copy_buffers: if zero_copy { segments } else { 0 },
            metadata: named(RX_METADATA, metadata).chain(named(XSK_FEATURES, sockets)).collect(),
        }
    }
}

impl std::fmt::Display for XdpFeatures {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_no = |has: bool, name: &str| if has { name.to_owned() } else { format!("no {name}") };
        write!(
            formatter,
            "{}, {}, {}, {}",
            or_no(self.native, "native"),
            or_no(self.redirect, "redirect"),
            or_no(self.zero_copy, "zero-copy"),
            or_no(self.multi_buffer, "multi-buffer")
        )?;
        match &self.metadata[..] {
            [] => write!(formatter, ", no metadata"),
            names => write!(formatter, ", metadata {}", names.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overfly_lab::{INTERFACE, Lab};

    #[test]
    fn flags_have_their_names() {
        let all = XdpFeatures::of(0x7f, 8, 7, 3);
        assert_eq!(
            all.to_string(),
            "native, redirect, zero-copy, multi-buffer, metadata timestamp hash vlan-tag tx-timestamp tx-checksum"
        );
        assert_eq!(all.zero_copy_buffers, 8);
        let few = XdpFeatures::of(3, 1, 0, 0);
        assert_eq!(few.to_string(), "native, redirect, no zero-copy, no multi-buffer, no metadata");
        assert_eq!(few.zero_copy_buffers, 0);
    }

    /// drivers/net/veth.c: a device of this test's namespace.
    #[test]
    fn veth_says_what_its_source_says() {
        let lab = Lab::new(1);
        lab.server.enter();
        let features = xdp_features(INTERFACE).unwrap().expect("Linux 6.3 or later");
        assert!(features.native && features.redirect && !features.zero_copy, "{features:?}");
        assert!(features.metadata.starts_with(&["timestamp", "hash"]), "{features:?}");
        assert!(matches!(xdp_features("nosuch0"), Err(Error::NoInterface { .. })));
    }
}
