//! Where the next hops to some hosts are, for who has no broker to ask and opens connections for a long time.

use std::net::IpAddr;

use overfly_wire::MacAddr;

use crate::error::Error;
use crate::netlink::{Asks, Netlink};

/// The kernel's next hops to some destinations behind one interface, of the calling thread's network namespace.
#[derive(Debug)]
pub struct NextHops {
    netlink: Netlink,
    interface: u32,
    destinations: Vec<IpAddr>,
}

impl NextHops {
    /// `interface` is an index.
    ///
    /// # Errors
    /// [`Error::System`]: no netlink socket.
    pub fn new(interface: u32, destinations: Vec<IpAddr>) -> Result<NextHops, Error> {
        let netlink = Netlink::open().map_err(|errno| Error::system("opening a netlink socket", errno))?;
        Ok(NextHops { netlink, interface, destinations })
    }

    /// Each destination whose next hop the kernel knows, and where that is. It is made to look whether the neighbour is still there
    /// (RFC 4861 section 7.3), as if it had a packet for it: nobody else has.
    pub fn look(&mut self) -> Vec<(IpAddr, MacAddr)> {
        let Self { netlink, interface, destinations } = self;
        let mut where_it_is = |destination: IpAddr| {
            let route = netlink.route(destination, *interface).ok();
            let route = route.filter(|route| route.interface == *interface)?;
            let next_hop = route.gateway.unwrap_or(destination);
            netlink.locate(route.interface, next_hop, Asks::Anyway).ok()?
        };
        destinations.iter().filter_map(|&to| Some((to, where_it_is(to)?))).collect()
    }
}
