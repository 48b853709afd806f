//! How long a packet may be, whether a peer's segments arrive together, and who completes checksums: what the options want, the
//! kernel knows, and the device has.
//!
//! A packet of several descriptors needs a program that takes several buffers (`xdp.frags`), sockets bound with `XDP_USE_SG`
//! (Linux 6.6), and a driver that gives such packets to either. Attached in the driver, a program switches off the segmentation of
//! a veth's peer (`veth_fix_features` in drivers/net/veth.c), whatever it takes; attached in generic mode, behind the driver, it
//! gets what the peer sends as it was sent.

use overfly_link::xdp::{
    FRAME_BUFFERS_MAX, FRAME_LEN, FRAME_WITH_METADATA_LEN_MAX, RECEIVED_FRAME_LEN_MAX, knows_checksums,
    knows_long_packets,
};
use overfly_wire::ethernet;

use crate::attachment::Options;
use crate::error::Error;
use crate::features::{XdpFeatures, xdp_features};
use crate::netlink::{Link, Netlink};
use crate::program::XdpMode;

/// What may arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveOffload {
    /// Packets of one buffer, up to 1,778 bytes.
    Off,
    /// Packets as long as the device's MTU, where it can be had.
    Packets,
    /// And what a kernel peer sends as one frame of several segments, in one piece: where the device is a veth, whose peer then keeps
    /// its segmentation offload. The program is attached in generic mode for it, and packets of several datagrams (UDP_SEGMENT) are the
    /// kernel's.
    #[default]
    Segments,
}

/// Who completes the TCP checksums of what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumOffload {
    /// The engine sums while it copies.
    Off,
    /// The device, where its driver offers that to AF_XDP.
    #[default]
    Device,
    /// And where the kernel copies each frame, the kernel, as it does with its own: later, by the device if that can, or not at all if the
    /// frame stays in memory.
    Kernel,
}

/// The first kernel in which generic XDP may give frames to sockets that share a fill ring on several processors at once (commit
/// a1356ac7749c, "xsk: Fix race condition in AF_XDP generic RX path"); packets of several buffers came to generic XDP in 6.9.
const GENERIC_SINCE: (u32, u32) = (6, 15);

/// How an interface is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) mode: XdpMode,
    /// Packets of several descriptors, or why there are none.
    pub(crate) long_packets: Result<(), String>,
    /// What a peer sends together arrives so, or why it does not.
    pub(crate) segments: Result<(), String>,
    /// Places that the longest frame to send takes.
    pub(crate) frame_buffers: u32,
    /// What a stack may send and expect.
    pub(crate) mtu: u16,
    /// Checksums may be left unfinished, or why they may not.
    pub(crate) checksums: Result<(), String>,
}

impl Shape {
    /// Asks the kernel.
    pub(crate) fn of(link: &Link, name: &str, options: &Options) -> Shape {
        let device = Device {
            features: xdp_features(name),
            sockets: knows_long_packets(),
            generic: kernel_version() >= GENERIC_SINCE,
            checksums: options.checksum_offload != ChecksumOffload::Off && knows_checksums(),
        };
        Shape::choose(link, options, &device)
    }

    fn choose(link: &Link, options: &Options, device: &Device) -> Shape {
        let (offload, force_copy) = (options.receive_offload, options.force_copy);
        let segments = device.segments(link, offload);
        let mode = if segments.is_ok() { XdpMode::Generic } else { XdpMode::Driver };
        let copies = force_copy || segments.is_ok();
        let buffers = device.buffers(link, offload, copies);
        let sent = *buffers.as_ref().unwrap_or(&1) as usize * FRAME_LEN;
        let longest = if buffers.is_ok() { sent } else { RECEIVED_FRAME_LEN_MAX } - ethernet::HEADER_LEN;
        let mtu = (link.mtu as usize).min(longest);
        Shape {
            mode,
            segments,
            long_packets: buffers.map(drop),
            frame_buffers: (mtu + ethernet::HEADER_LEN).div_ceil(FRAME_LEN) as u32,
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
            checksums: device.checksums(mtu + ethernet::HEADER_LEN, options.checksum_offload, copies),
        }
    }
}

/// What kernel and driver have.
struct Device {
    features: Result<Option<XdpFeatures>, Error>,
    /// Sockets take packets of several descriptors.
    sockets: bool,
    /// Generic mode is sound.
    generic: bool,
    /// Sockets take unfinished checksums.
    checksums: bool,
}

impl Device {
    /// Buffers of a frame to send, at most, if packets of several buffers arrive.
    fn buffers(&self, link: &Link, offload: ReceiveOffload, copies: bool) -> Result<u32, String> {
        if offload == ReceiveOffload::Off {
            return Err("switched off".to_owned());
        }
        if !self.sockets {
            return Err(
                "AF_XDP of this kernel takes no packets of several buffers (Linux 6.6 does)".to_owned()
            );
        }
        let features = match &self.features {
            Ok(Some(features)) => features,
            Ok(None) => return Err("this kernel does not say what drivers offer".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        if !features.multi_buffer {
            return Err("the driver gives XDP no packets of several buffers".to_owned());
        }
        if !features.zero_copy || copies {
            return Ok(FRAME_BUFFERS_MAX);
        }
        // A device that moves frames without copying goes on as it was where nothing is to be gained.
        if link.mtu as usize + ethernet::HEADER_LEN <= RECEIVED_FRAME_LEN_MAX {
            return Err("its packets fit one buffer".to_owned());
        }
        match features.zero_copy_buffers {
            0 | 1 => Err("the driver moves frames of one buffer only without copying".to_owned()),
            buffers => Ok(buffers.min(FRAME_BUFFERS_MAX)),
        }
    }

    /// Whether checksums of frames of up to `length` bytes may be left unfinished.
    fn checksums(&self, length: usize, offload: ChecksumOffload, copies: bool) -> Result<(), String> {
        if offload == ChecksumOffload::Off {
            return Err("switched off".to_owned());
        }
        if !self.checksums {
            return Err("AF_XDP of this kernel completes no checksums (Linux 6.8 does)".to_owned());
        }
        if length > FRAME_WITH_METADATA_LEN_MAX {
            return Err("its packets take more than one buffer".to_owned());
        }
        let features = self.features.as_ref().ok().and_then(Option::as_ref);
        let has = |name| features.is_some_and(|features| features.metadata.contains(&name));
        // A driver that moves frames without copying, and does not know of it, would send them as they are.
        let by_kernel = copies || features.is_some_and(|features| !features.zero_copy);
        if has("tx-checksum") || offload == ChecksumOffload::Kernel && by_kernel {
            return Ok(());
        }
        Err("the driver completes none for AF_XDP".to_owned())
    }

    fn segments(&self, link: &Link, offload: ReceiveOffload) -> Result<(), String> {
        if offload != ReceiveOffload::Segments {
            return Err("switched off".to_owned());
        }
        if link.kind.as_deref() != Some("veth") {
            return Err("the device is no veth".to_owned());
        }
        if !self.generic {
            return Err("generic XDP of this kernel is not fit for it (Linux 6.15 is)".to_owned());
        }
        self.buffers(link, offload, true).map(drop)
    }
}

/// Whether packets longer than a buffer can be received on an interface of this thread's network namespace
/// ([`crate::Attachment::long_packets`] says whether they are), and bytes of the longest.
///
/// # Errors
/// Why not, in words.
pub fn long_packets_of(interface: &str) -> Result<u16, String> {
    let shape = shape_of(interface, ReceiveOffload::Packets)?;
    shape.long_packets.map(|()| shape.mtu)
}

/// Whether what a kernel peer sends together can arrive so on an interface of this thread's network namespace
/// ([`ReceiveOffload::Segments`]).
///
/// # Errors
/// Why not, in words.
pub fn segments_of(interface: &str) -> Result<(), String> {
    shape_of(interface, ReceiveOffload::Segments)?.segments
}

/// Whether the device of an interface of this thread's network namespace can complete the TCP checksums of what stacks send
/// ([`ChecksumOffload::Device`]).
///
/// # Errors
/// Why not, in words.
pub fn checksums_of(interface: &str) -> Result<(), String> {
    shape_of(interface, ReceiveOffload::default())?.checksums
}

fn shape_of(interface: &str, receive_offload: ReceiveOffload) -> Result<Shape, String> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    let link = link.map_err(|errno| format!("reading the interface: {errno}"))?;
    let link = link.ok_or("there is no such interface")?;
    Ok(Shape::of(&link, interface, &Options { receive_offload, ..Options::default() }))
}

/// Where an XDP program is attached to an interface of this thread's network namespace, in words. `None` if there is none.
#[must_use]
pub fn xdp_attached(interface: &str) -> Option<&'static str> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface)).ok()??;
    // XDP_ATTACHED_DRV, _SKB, _HW.
    match link.xdp_attached {
        1 => Some("in the driver"),
        2 => Some("behind the driver"),
        3 => Some("on the card"),
        _ => None,
    }
}

fn kernel_version() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-', '+']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReceiveOffload::{Off, Packets, Segments};

    fn receiving(receive_offload: ReceiveOffload) -> Options {
        Options { receive_offload, ..Options::default() }
    }

    fn veth() -> Device {
        let features =
            XdpFeatures { native: true, redirect: true, multi_buffer: true, ..XdpFeatures::default() };
        Device { features: Ok(Some(features)), sockets: true, generic: true, checksums: true }
    }

    fn card(buffers: u32) -> Device {
        let features = XdpFeatures {
            native: true,
            redirect: true,
            multi_buffer: true,
            zero_copy: true,
            zero_copy_buffers: buffers,
            ..XdpFeatures::default()
        };
        Device { features: Ok(Some(features)), ..veth() }
    }

    fn link(kind: Option<&str>, mtu: u32) -> Link {
        Link { mtu, kind: kind.map(str::to_owned), ..Link::default() }
    }

    fn sizes(shape: &Shape) -> (u16, u32, bool) {
        (shape.mtu, shape.frame_buffers, shape.long_packets.is_ok())
    }

    #[test]
    fn frames_are_as_long_as_the_device_and_the_sockets_allow() {
        let choose = |mtu, offload| Shape::choose(&link(Some("veth"), mtu), &receiving(offload), &veth());
        for (mtu, expected) in [
            (1500, (1500, 1, true)),
            (2034, (2034, 1, true)),
            (2035, (2035, 2, true)),
            (9000, (9000, 5, true)),
            (65_535, (34_802, 17, true)),
        ] {
            assert_eq!(sizes(&choose(mtu, Packets)), expected);
            assert_eq!(sizes(&choose(mtu, Segments)), expected);
            assert_eq!(choose(mtu, Packets).mode, XdpMode::Driver);
            assert_eq!(choose(mtu, Segments).mode, XdpMode::Generic);
        }
        assert_eq!(sizes(&choose(9000, Off)), (1778, 1, false));
        assert_eq!(sizes(&choose(1500, Off)), (1500, 1, false));
    }

    #[test]
    fn where_something_lacks_all_is_as_it_was_and_the_reason_is_said() {
        let veth_link = link(Some("veth"), 9000);
        let none = XdpFeatures { native: true, redirect: true, ..XdpFeatures::default() };
        for (device, reason) in [
            (Device { sockets: false, ..veth() }, "Linux 6.6"),
            (Device { features: Ok(None), ..veth() }, "does not say"),
            (Device { features: Ok(Some(none)), ..veth() }, "no packets of several buffers"),
        ] {
            for offload in [Packets, Segments] {
                let shape = Shape::choose(&veth_link, &receiving(offload), &device);
                assert_eq!(sizes(&shape), (1778, 1, false));
                assert_eq!(shape.mode, XdpMode::Driver);
                assert!(shape.long_packets.unwrap_err().contains(reason), "{reason}");
            }
        }
        let old = Shape::choose(&veth_link, &receiving(Segments), &Device { generic: false, ..veth() });
        assert_eq!((sizes(&old), old.mode), ((9000, 5, true), XdpMode::Driver));
        assert!(old.segments.unwrap_err().contains("6.15"));
        let other = Shape::choose(&link(None, 1500), &receiving(Segments), &veth());
        assert_eq!(other.mode, XdpMode::Driver);
        assert!(other.segments.unwrap_err().contains("no veth"));
    }

    #[test]
    fn zero_copy_is_not_given_up_for_packets_that_are_not_longer() {
        let choose = |mtu, device| Shape::choose(&link(None, mtu), &receiving(Packets), &device);
        assert_eq!(sizes(&choose(1500, card(8))), (1500, 1, false));
        assert_eq!(sizes(&choose(9000, card(8))), (9000, 5, true));
        assert_eq!(sizes(&choose(9000, card(2))), (4082, 2, true));
        assert_eq!(sizes(&choose(9000, card(1))), (1778, 1, false));
        let copying =
            Shape::choose(&link(None, 9000), &Options { force_copy: true, ..receiving(Packets) }, &card(1));
        assert_eq!(sizes(&copying), (9000, 5, true));
    }
    #[test]
    fn checksums_are_left_to_who_completes_them() {
        let names = |names: &[&'static str], device: Device| {
            let features = device.features.unwrap().unwrap();
            let features = XdpFeatures { metadata: names.to_vec(), ..features };
            Device { features: Ok(Some(features)), ..device }
        };
        let able = || names(&["tx-timestamp", "tx-checksum"], card(1));
        let choose = |mtu, checksum_offload, device: &Device| {
            let options = Options { checksum_offload, ..receiving(Packets) };
            Shape::choose(&link(None, mtu), &options, device).checksums
        };
        use ChecksumOffload::{Device as ByDevice, Kernel, Off as ByNobody};
        assert_eq!(choose(1500, ByDevice, &able()), Ok(()));
        assert_eq!(choose(1970, ByDevice, &names(&["tx-checksum"], veth())), Ok(()));
        assert_eq!(choose(1500, Kernel, &veth()), Ok(()));
        for (mtu, offload, device, reason) in [
            (1500, ByNobody, able(), "switched off"),
            (1500, Kernel, Device { checksums: false, ..able() }, "Linux 6.8"),
            (1971, ByDevice, names(&["tx-checksum"], veth()), "its packets take more than one buffer"),
            (9000, Kernel, veth(), "its packets take more than one buffer"),
            (1500, ByDevice, veth(), "the driver completes none"),
            // It may move frames without copying, and then nobody would.
            (1500, Kernel, card(1), "the driver completes none"),
            (1500, Kernel, Device { features: Ok(None), ..veth() }, "the driver completes none"),
        ] {
            let found = choose(mtu, offload, &device).unwrap_err();
            assert!(found.contains(reason), "{mtu} {offload:?}: {found}");
        }
        let copying = Options { force_copy: true, checksum_offload: Kernel, ..receiving(Packets) };
        assert_eq!(Shape::choose(&link(None, 1500), &copying, &card(1)).checksums, Ok(()));
    }
}
