//! Where neighbours are.

use std::net::IpAddr;

use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::{
    AF_INET, AF_INET6, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, Netlink, RTM_NEWNEIGH, Request, address, array,
    attributes, family_and_bytes,
};
use crate::mirror::Neighbor;

const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
/// An address that the kernel answers for, and no neighbour.
const NTF_PROXY: u8 = 8;
/// A control plane has said where it is.
const NTF_EXT_LEARNED: u8 = 0x10;
const NUD_STALE: u16 = 0x04;
/// NUD_NOARP, PERMANENT: nobody is asked.
const NUD_FIXED: u16 = 0x40 | 0x80;
/// NUD_REACHABLE, STALE, DELAY, PROBE, and those that are fixed: states whose address may be used.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | NUD_FIXED;

/// Whether the kernel is made to ask for a neighbour's hardware address, as if it had a packet for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Asks {
    #[default]
    No,
    IfUnknown,
    /// It looks whether the neighbour that it knows is still there, too (RFC 4861 section 7.3: DELAY and PROBE), and nothing is taken for
    /// granted.
    Anyway,
}

impl Netlink {
    /// Where a neighbour is, if the kernel knows it; it may be made to ask (needs CAP_NET_ADMIN).
    pub(crate) fn locate(
        &mut self,
        interface: u32,
        address: IpAddr,
        asks: Asks,
    ) -> Result<Option<MacAddr>, Errno> {
        let known = self.neighbor(interface, address)?;
        let mac = known.and_then(|its| its.mac);
        if asks == Asks::Anyway || (asks == Asks::IfUnknown && mac.is_none()) {
            match known {
                Some(known) => self.confirm(&known)?,
                None => self.provoke(interface, address)?,
            }
        }
        Ok(mac)
    }

    /// Makes the kernel ask whether a neighbour is where it was, unless somebody else has said that it is there (needs CAP_NET_ADMIN).
    pub(crate) fn confirm(&mut self, known: &Neighbor) -> Result<(), Errno> {
        if known.told { Ok(()) } else { self.provoke(known.interface, known.address) }
    }

    /// What the kernel knows of a neighbour.
    fn neighbor(&mut self, interface: u32, address: IpAddr) -> Result<Option<Neighbor>, Errno> {
        let (family, bytes) = family_and_bytes(address);
        let mut request = Request::new(RTM_GETNEIGH, 0, &header(family, interface, 0));
        request.attribute(NDA_DST, &bytes);
        let mut found = None;
        let result = self.exchange(request, |kind, body| {
            if kind == RTM_NEWNEIGH {
                found = parse_neighbor(body);
            }
        });
        match result {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// All neighbours of an interface.
    pub(crate) fn neighbors(&mut self, interface: u32) -> Result<Vec<Neighbor>, Errno> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let request = Request::new(RTM_GETNEIGH, NLM_F_DUMP, &header(family, 0, 0));
            self.exchange(request, |kind, body| {
                if kind == RTM_NEWNEIGH && body.first() == Some(&family) {
                    found.extend(parse_neighbor(body));
                }
            })?;
        }
        found.retain(|neighbor| neighbor.interface == interface);
        Ok(found)
    }

    /// Makes the kernel ask for a neighbour's address. It forgets meanwhile that an entry was to stay as it is: __neigh_update() and
    /// neigh_update_flags() in net/core/neighbour.c take NUD_PERMANENT and NTF_EXT_LEARNED away.
    fn provoke(&mut self, interface: u32, address: IpAddr) -> Result<(), Errno> {
        let (family, bytes) = family_and_bytes(address);
        let header = header(family, interface, NTF_USE);
        let mut request = Request::new(RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE, &header);
        request.attribute(NDA_DST, &bytes);
        self.exchange(request, |_, _| ())
    }
}

/// `struct ndmsg`.
fn header(family: u8, interface: u32, flags: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    header[10] = flags;
    header
}

pub(super) fn parse_neighbor(body: &[u8]) -> Option<Neighbor> {
    let interface = u32::from_ne_bytes(array(body, 4)?);
    let state = u16::from_ne_bytes(array(body, 8)?);
    let &flags = body.get(10)?;
    if flags & NTF_PROXY != 0 {
        return None;
    }
    let attribute = |wanted| attributes(body.get(12..)?).find(|(kind, _)| *kind == wanted).map(|(_, it)| it);
    let mac = (attribute(NDA_LLADDR).filter(|it| it.len() == 6 && state & NUD_VALID != 0))
        .and_then(|it| array(it, 0).map(MacAddr));
    Some(Neighbor {
        interface,
        address: address(attribute(NDA_DST)?)?,
        mac,
        stale: state & NUD_STALE != 0,
        told: state & NUD_FIXED != 0 || (flags & NTF_EXT_LEARNED != 0 && mac.is_some()),
    })
}
