//! The ways to other hosts: the kernel's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use overfly_broker::Route;
use overfly_broker::message::Kind;
use overfly_link::xdp::Changes;
use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::{Attachment, NEIGHBOR_WAIT};
use crate::error::Error;
use crate::mirror::Neighbor;
use crate::netlink::Asks;
use crate::program::Program;

/// How long a way is taken for granted that the kernel has just said. Each time it is asked costs 20 µs, and a program that opens a connection
/// for each request has it asked for all of them.
const TRUST: Duration = Duration::from_millis(10);
/// Ways that are remembered at most.
const KNOWN_MAX: usize = 256;

/// How long a program whose peer is not heard waits for the next hop's answer, with the other connections of its own: that of one that is
/// there takes less.
const LOOK_WAIT: Duration = Duration::from_millis(5);

/// Neighbours whose places are remembered at most.
const PLACES_MAX: usize = 4096;

impl Asks {
    /// What the kernel is made to do for a request, and how long its answer is waited for.
    pub(crate) fn of(kind: Kind) -> (Asks, Duration) {
        match kind {
            Kind::Look => (Asks::Anyway, LOOK_WAIT),
            _ => (Asks::IfUnknown, NEIGHBOR_WAIT),
        }
    }
}

/// What the kernel has just said of some ways.
#[derive(Debug)]
pub(super) struct Known {
    ways: HashMap<IpAddr, (Instant, Route)>,
    /// Where it has said last that neighbours are.
    places: HashMap<IpAddr, Option<MacAddr>>,
    /// Where stacks are told that it may say something else now.
    changes: Option<Changes>,
}

impl Known {
    pub(super) fn new(program: &Program) -> Known {
        let changes = program.pulses().ok().and_then(|pulses| Changes::open(pulses.as_fd()).ok());
        Known { ways: HashMap::new(), places: HashMap::new(), changes }
    }

    fn get(&self, destination: IpAddr) -> Option<Route> {
        self.ways.get(&destination).filter(|(since, _)| since.elapsed() < TRUST).map(|&(_, route)| route)
    }

    fn insert(&mut self, destination: IpAddr, route: Route) {
        if self.ways.len() >= KNOWN_MAX {
            self.ways.clear();
        }
        self.ways.insert(destination, (Instant::now(), route));
    }
}

impl Attachment {
    /// The kernel has said where a neighbour is, or that it does not know. True unless it said so before: most that it says is of whether
    /// it has heard of him lately.
    pub(crate) fn note_neighbor(&mut self, neighbor: &Neighbor) -> Result<bool, Error> {
        if neighbor.interface != self.interface.index {
            return Ok(false);
        }
        self.program.set_neighbor(neighbor.address, neighbor.mac)?;
        let places = &mut self.known.places;
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        Ok(places.insert(neighbor.address, neighbor.mac) != Some(neighbor.mac))
    }

    /// Something has changed: the kernel is asked again.
    pub(crate) fn forget_ways(&mut self) {
        self.known.ways.clear();
    }

    /// And has been taken into account: stacks ask again.
    pub(crate) fn note_change(&self) {
        if let Some(changes) = &self.known.changes {
            changes.note();
        }
    }

    /// How to reach an address through this interface: the kernel's own route and neighbour. Waits for the next hop to
    /// answer ARP or neighbour discovery, for as long as the kernel asks.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::RouteElsewhere`], [`Error::NoNeighbor`].
    pub fn route(&mut self, destination: IpAddr) -> Result<Route, Error> {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(100);
        let mut asks = Asks::IfUnknown;
        loop {
            match self.try_route(destination, std::mem::take(&mut asks))? {
                Ok(route) => return Ok(route),
                Err(next_hop) if begin.elapsed() > NEIGHBOR_WAIT => {
                    return Err(Error::NoNeighbor { next_hop });
                }
                Err(_) => {}
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// One attempt of [`Attachment::route`]; `Err(next_hop)` inside if its hardware address is not known yet.
    pub(crate) fn try_route(
        &mut self,
        destination: IpAddr,
        asks: Asks,
    ) -> Result<Result<Route, IpAddr>, Error> {
        let destination = destination.to_canonical();
        if asks != Asks::Anyway
            && let Some(route) = self.known.get(destination)
        {
            return Ok(Ok(route));
        }
        let entry = (self.netlink.route(destination, self.interface.index))
            .map_err(|errno| Error::Unreachable { destination, errno })?;
        if entry.local || entry.interface != self.interface.index {
            return Err(Error::RouteElsewhere { destination });
        }
        let unreachable = |errno| Error::Unreachable { destination, errno };
        if !entry.unicast {
            return Err(unreachable(Errno::HOSTUNREACH));
        }
        let source = entry
            .source
            .or_else(|| {
                (self.interface.addresses.iter().map(|(address, _)| *address))
                    .find(|address| address.is_ipv4() == destination.is_ipv4())
            })
            .ok_or_else(|| unreachable(Errno::ADDRNOTAVAIL))?;
        let next_hop = entry.gateway.unwrap_or(destination);
        let mac = (self.netlink.locate(entry.interface, next_hop, asks))
            .map_err(|errno| Error::system("asking for a neighbour", errno))?;
        let Some(mac) = mac else { return Ok(Err(next_hop)) };
        self.program.set_neighbor(next_hop, Some(mac))?;
        let route = Route { source, next_hop: mac };
        self.known.insert(destination, route);
        Ok(Ok(route))
    }
}
