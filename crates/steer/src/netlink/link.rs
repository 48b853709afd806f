//! What the kernel says about an interface.

use overfly_wire::MacAddr;

use super::{
    IFF_UP, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MTU, array, attributes, number, text,
};

const IFLA_ADDRESS: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;

/// What the kernel says about an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) mtu: u32,
    pub(crate) kind: Option<String>,
    pub(crate) rx_queues: u32,
    pub(crate) tx_queues: u32,
    pub(crate) xdp_program: Option<u32>,
    /// Where that is: `XDP_ATTACHED_DRV` and so on (linux/if_link.h).
    pub(crate) xdp_attached: u8,
    /// The queueing discipline that frames wait in before the device sends them.
    pub(crate) queueing: Option<String>,
    /// What it belongs to, with veth the other end of the pair, is in another network namespace.
    pub(crate) reaches_out: bool,
    /// That one's number, with veth the other end's. It may be in another network namespace.
    pub(crate) lower: Option<u32>,
    /// The bridge, bond or VRF that it is part of.
    pub(crate) master: Option<u32>,
    /// It is up.
    pub(crate) is_up: bool,
}

/// From the body of an answer to RTM_GETLINK (struct ifinfomsg, then attributes).
pub(super) fn parse_link(body: &[u8]) -> Option<Link> {
    let index = u32::from_ne_bytes(array(body, 4)?);
    let is_up = u32::from_ne_bytes(array(body, 8)?) & IFF_UP != 0;
    let mut link = Link { index, rx_queues: 1, tx_queues: 1, is_up, ..Link::default() };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = (value.len() == 6).then(|| array(value, 0).map(MacAddr)).flatten(),
            IFLA_MTU => link.mtu = number(value)?,
            IFLA_IFNAME => link.name = text(value),
            IFLA_LINK => link.lower = Some(number(value)?),
            IFLA_LINK_NETNSID => link.reaches_out = true,
            IFLA_MASTER => link.master = Some(number(value)?),
            IFLA_QDISC => link.queueing = Some(text(value)),
            IFLA_NUM_RX_QUEUES => link.rx_queues = number(value)?,
            IFLA_NUM_TX_QUEUES => link.tx_queues = number(value)?,
            IFLA_LINKINFO => {
                link.kind =
                    attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND).map(|(_, kind)| text(kind));
            }
            IFLA_XDP => {
                link.xdp_program = attributes(value)
                    .find(|(kind, _)| *kind == IFLA_XDP_PROG_ID)
                    .and_then(|(_, id)| number(id));
                let attached = attributes(value).find(|(kind, _)| *kind == IFLA_XDP_ATTACHED);
                link.xdp_attached = attached.and_then(|(_, place)| place.first().copied()).unwrap_or(0);
            }
            _ => {}
        }
    }
    Some(link)
}
