//! Where the client side's flows come from and go to.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::address::{LocalPorts, Route, Share};
use super::plan::{Plan, Template};
use crate::random::SplitMix;

/// The ports that a thread opens flows from.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    pub(crate) range: RangeInclusive<u16>,
    /// Every so many of them: where frames find their thread by the port.
    pub(crate) stride: u16,
}

/// One template's addresses, those of one thread.
#[derive(Debug)]
struct Ends {
    clients: Share,
    servers: Share,
    ports: LocalPorts,
    server_port: u16,
    /// The pair that the next flow is of: a port that was taken is no reason to leave it.
    pair: Option<(u64, IpAddr, IpAddr)>,
}

/// One thread's share of the addresses.
#[derive(Debug)]
pub(crate) struct Opener {
    templates: Vec<Ends>,
}

impl Opener {
    /// The share of thread `index` of `threads`: of the clients, or where ports say which thread is whose, of the ports.
    pub(crate) fn new(plan: &Plan, index: usize, threads: usize, ports: &Ports) -> Opener {
        let by_port = ports.stride > 1;
        let ends = |template: &Template| {
            let (range, distribution) = template.clients;
            let (of, among) = if by_port || range.count < threads as u64 { (0, 1) } else { (index, threads) };
            let clients = Share::new(range, distribution, of, among);
            let (servers, distribution) = template.servers;
            Ends {
                clients,
                servers: Share::new(servers, distribution, 0, 1).from(index as u64),
                ports: LocalPorts::new(*ports.range.start(), *ports.range.end(), ports.stride, range.count),
                server_port: template.port,
                pair: None,
            }
        };
        Opener { templates: plan.templates.iter().map(ends).collect() }
    }

    /// The next route of a template's flows, from the next client or from this one.
    #[inline]
    pub(crate) fn route(&mut self, template: u16, from: Option<IpAddr>, random: &mut SplitMix) -> Route {
        let ends = &mut self.templates[usize::from(template)];
        let (position, client, server) = match ends.pair {
            Some(pair) => pair,
            None => {
                let (position, client) = match from {
                    Some(client) => (0, client),
                    None => ends.clients.take(random),
                };
                let pair = (position, client, ends.servers.take(random).1);
                ends.pair = Some(pair);
                pair
            }
        };
        let port = ends.ports.take(position);
        Route { local: SocketAddr::new(client, port), remote: SocketAddr::new(server, ends.server_port) }
    }

    /// The last route was good: the next flow has another one.
    #[inline]
    pub(crate) fn routed(&mut self, template: u16) {
        self.templates[usize::from(template)].pair = None;
    }
}
