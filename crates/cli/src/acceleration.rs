//! The one place where `overfly run` meets the links: what carries the program's frames in, an accelerator out.

use overfly_broker::service::Broker;
use overfly_link::memif::Address;
use overfly_link::xdp::HugePages;
use overfly_load::Network;
use overfly_profile::InForce;
use overfly_profile::options::Options;
use overfly_steer::{ChecksumOffload, ReceiveOffload, over_memif, over_tap};
use rustix::process::Pid;

use crate::broker::Membership;

/// Holds what serves the program's processes; dropping it takes it away.
pub(crate) enum Acceleration {
    /// With the interface's XDP program, which other programs may use too.
    Xdp(Membership),
    /// With the socket that memif's clients connect to, or a tap device.
    Local(Broker),
}

impl Acceleration {
    /// Joins the programs that run over `interface`, or is the first of them.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn start(interface: &str, in_force: &InForce) -> Result<Acceleration, String> {
        let membership = Membership::join(interface, in_force)?;
        if let Some(warning) = crate::interface::warning(interface) {
            crate::complain(warning);
        }
        Ok(Acceleration::Xdp(membership))
    }

    /// A child of this process that is none of the program's and may outlive it.
    pub(crate) fn process(&self) -> Option<Pid> {
        match self {
            Acceleration::Xdp(membership) => membership.process(),
            Acceleration::Local(_) => None,
        }
    }

    /// Listens for clients over shared memory.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn start_memif(place: &Address, network: Network) -> Result<Acceleration, String> {
        let broker =
            over_memif(place, network.address, network.prefix_len).map_err(|error| error.to_string())?;
        if !broker.is_public() {
            complain_of_name(&format!("memif:{place}"));
        }
        Ok(Acceleration::Local(broker))
    }

    /// Takes a tap device's frames.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn start_tap(name: &str, network: Network) -> Result<Acceleration, String> {
        let broker = over_tap(name, network.address, network.prefix_len);
        broker.map(Acceleration::Local).map_err(|error| error.to_string())
    }

    /// The environment variables that tell the program of it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, &str)> {
        match self {
            Acceleration::Xdp(membership) => vec![("OVERFLY_BROKER", membership.environment())],
            Acceleration::Local(broker) => {
                vec![("OVERFLY_BROKER", broker.environment()), ("OVERFLY_FREE_BIND", "1")]
            }
        }
    }
}

/// Observers will not find what runs over `link`.
fn complain_of_name(link: &str) {
    crate::complain(format_args!(
        "another program has the name @overfly/{link}, or it is too long: `overfly top` will not find this one"
    ));
}

/// What a profile says of the memory that the stacks share, and of the device.
pub(crate) fn attachment_options(options: &Options) -> overfly_steer::Options {
    // The shares of EF_MAX_PACKETS: with the default they are what `overfly_steer::Options` has by itself.
    const RECEIVE_SHARE: u64 = 4;
    const SEND_SHARE: u64 = 64;
    const SEND_UNIT: u64 = 64;
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let send = (options.max_packets / SEND_SHARE).next_multiple_of(SEND_UNIT);
    overfly_steer::Options {
        busy_poll: options.int_driven == 0,
        rx_ring: number(options.rxq_size),
        rx_frames: number((options.max_packets / RECEIVE_SHARE).max(options.rxq_size)),
        tx_frames: number(send.min(16_384)),
        min_free_frames: number(options.min_free_packets),
        huge_pages: match options.use_huge_pages {
            0 => HugePages::No,
            1 => HugePages::Try,
            _ => HugePages::Insist,
        },
        heed_firewall: options.firewall == 0,
        segment_offload: options.segment_offload != 0,
        receive_offload: match options.receive_offload {
            0 => ReceiveOffload::Off,
            1 => ReceiveOffload::Packets,
            _ => ReceiveOffload::Segments,
        },
        checksum_offload: match options.checksum_offload {
            0 => ChecksumOffload::Off,
            1 => ChecksumOffload::Device,
            _ => ChecksumOffload::Kernel,
        },
        ..overfly_steer::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> overfly_steer::Options {
        attachment_options(&Options::read(|its| (its == name).then(|| value.to_owned())).unwrap())
    }

    #[test]
    fn the_defaults_are_those_of_an_attachment() {
        let usual = overfly_steer::Options::default();
        let huge_pages = HugePages::Try;
        let expected = overfly_steer::Options { min_free_frames: 100, huge_pages, ..usual };
        assert_eq!(attachment_options(&Options::DEFAULT), expected);
    }

    #[test]
    fn the_packet_memory_follows_the_profile() {
        let few = with("EF_MAX_PACKETS", "1024");
        assert_eq!((few.rx_frames, few.tx_frames), (1024, 64));
        let many = with("EF_MAX_PACKETS", "2097152");
        assert_eq!((many.rx_frames, many.tx_frames), (524_288, 16_384));
        let ring = with("EF_RXQ_SIZE", "16384");
        assert_eq!((ring.rx_ring, ring.rx_frames), (16_384, 16_384));
        assert_eq!(with("EF_MIN_FREE_PACKETS", "7").min_free_frames, 7);
        assert!(with("EF_FIREWALL", "honour").heed_firewall && !with("EF_FIREWALL", "ignore").heed_firewall);
        assert!(
            with("EF_SEGMENT_OFFLOAD", "1").segment_offload
                && !with("EF_SEGMENT_OFFLOAD", "0").segment_offload
        );
        for (value, expected) in
            [("0", ReceiveOffload::Off), ("1", ReceiveOffload::Packets), ("2", ReceiveOffload::Segments)]
        {
            assert_eq!(with("EF_RECEIVE_OFFLOAD", value).receive_offload, expected);
        }
        for (value, expected) in
            [("0", ChecksumOffload::Off), ("1", ChecksumOffload::Device), ("2", ChecksumOffload::Kernel)]
        {
            assert_eq!(with("EF_CHECKSUM_OFFLOAD", value).checksum_offload, expected);
        }
        assert_eq!(with("EF_USE_HUGE_PAGES", "0").huge_pages, HugePages::No);
        assert_eq!(with("EF_USE_HUGE_PAGES", "2").huge_pages, HugePages::Insist);
        assert!(with("EF_INT_DRIVEN", "0").busy_poll && with("EF_POLL_USEC", "20").busy_poll);
    }
}
