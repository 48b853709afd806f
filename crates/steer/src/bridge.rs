//! An interface on a bridge of its own network namespace: the other end of its veth pair is a port there.
//!
//! The kernel answers ARP for its addresses on whichever interface is asked (`arp_ignore` 0, Documentation/networking/ip-sysctl.rst), so the
//! bridge, which hears every question, offers its own hardware address for that of the interface. Peers send there, and what they send is the
//! kernel's: it never comes to the interface.

use std::net::IpAddr;

use crate::error::Error;
use crate::netlink::{Link, Netlink};

/// Values of `arp_ignore` with which an interface does not answer for another one's address.
const SILENT: [u32; 3] = [1, 2, 8];

/// The bridge of this thread's network namespace that also answers for the interface's IPv4 addresses.
///
/// # Errors
/// What the kernel said.
pub fn bridge_that_answers(interface: &str) -> Result<Option<String>, Error> {
    let mut netlink = Netlink::open().map_err(|errno| Error::system("netlink", errno))?;
    let Some(bridge) =
        bridge_of(&mut netlink, interface).map_err(|errno| Error::system("reading the interface", errno))?
    else {
        return Ok(None);
    };
    let answers = bridge.is_up && !SILENT.contains(&arp_ignore(&bridge.name));
    Ok(answers.then_some(bridge.name))
}

/// The bridge that the other end of a veth pair is a port of, if both are here and the interface has an IPv4 address.
fn bridge_of(netlink: &mut Netlink, interface: &str) -> Result<Option<Link>, rustix::io::Errno> {
    let is_veth = |link: &Link| link.kind.as_deref() == Some("veth") && !link.reaches_out;
    let Some(link) = netlink.link(interface)?.filter(is_veth) else { return Ok(None) };
    let has_ipv4 = |address: &(IpAddr, u8)| address.0.is_ipv4();
    if !netlink.addresses(link.index)?.iter().any(has_ipv4) {
        return Ok(None);
    }
    let Some(peer) = link.lower.map(|index| netlink.link_at(index)).transpose()?.flatten() else {
        return Ok(None);
    };
    let master = peer.master.map(|index| netlink.link_at(index)).transpose()?.flatten();
    Ok(master.filter(|master| master.kind.as_deref() == Some("bridge")))
}

/// What is in force: the greater of what is said of all interfaces and of this one.
fn arp_ignore(interface: &str) -> u32 {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore")).ok()?;
        text.trim().parse().ok()
    };
    read("all").max(read(interface)).unwrap_or(0)
}
