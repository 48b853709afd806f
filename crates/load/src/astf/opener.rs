//! Where the client side's flows come from and go to.

use std::collections::VecDeque;
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
    pair: Option<Pair>,
    /// What the flows after that are of, and their ports.
    ahead: VecDeque<(Pair, u16)>,
}

/// A client and a server.
#[derive(Debug, Clone, Copy)]
struct Pair {
    position: u64,
    client: IpAddr,
    server: IpAddr,
}

impl Ends {
    fn pair(&mut self, from: Option<IpAddr>, random: &mut SplitMix) -> Pair {
        let (position, client) = match from {
            Some(client) => (0, client),
            None => self.clients.take(random),
        };
        Pair { position, client, server: self.servers.take(random).1 }
    }

    fn between(&self, pair: Pair, port: u16) -> Route {
        Route {
            local: SocketAddr::new(pair.client, port),
            remote: SocketAddr::new(pair.server, self.server_port),
        }
    }
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
                ahead: VecDeque::new(),
            }
        };
        Opener { templates: plan.templates.iter().map(ends).collect() }
    }

    /// The next route of a template's flows, from the next client or from this one.
    #[inline]
    pub(crate) fn route(&mut self, template: u16, from: Option<IpAddr>, random: &mut SplitMix) -> Route {
        let ends = &mut self.templates[usize::from(template)];
        if ends.pair.is_none()
            && from.is_none()
            && let Some((pair, port)) = ends.ahead.pop_front()
        {
            ends.pair = Some(pair);
            return ends.between(pair, port);
        }
        let pair = match ends.pair {
            Some(pair) => pair,
            None => ends.pair(from, random),
        };
        ends.pair = Some(pair);
        let port = ends.ports.take(pair.position);
        ends.between(pair, port)
    }

    /// Draws the next `count` routes of a template's flows beforehand, if none is drawn. Returns those.
    pub(crate) fn draw(
        &mut self,
        template: u16,
        count: u32,
        random: &mut SplitMix,
    ) -> impl Iterator<Item = Route> + '_ {
        let ends = &mut self.templates[usize::from(template)];
        let count = if ends.ahead.is_empty() { count } else { 0 };
        for _ in 0..count {
            let pair = ends.pair(None, random);
            let port = ends.ports.take(pair.position);
            ends.ahead.push_back((pair, port));
        }
        let ends = &*ends;
        ends.ahead.iter().take(count as usize).map(|(pair, port)| ends.between(*pair, *port))
    }

    /// The last route was good: the next flow has another one.
    #[inline]
    pub(crate) fn routed(&mut self, template: u16) {
        self.templates[usize::from(template)].pair = None;
    }
}
