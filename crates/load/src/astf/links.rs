//! What carries the sides: a stack a thread, whatever the link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use overfly_engine::Config;
use overfly_link::tap::TapLink;
use overfly_wire::MacAddr;

use super::opener::{Opener, Ports};
use super::pace::Pace;
use super::plan::{Plan, Role};
use super::probe::Probe;
use super::rig::Single;
use super::run::{Shared, pair, work};
use super::settings::{Ends, Settings};
use super::shard::Shard;
use super::tunnel::{Tunnelled, Tunnels};
use crate::crew::Work;
use crate::error::Error;
use crate::link::alone::{config_of, engine};
use crate::link::{AnyLink, Link, Network, Stack, Wire, boot_key, memif, uptime_ns};
use crate::random::SplitMix;

/// The work of each thread, and what must outlive them.
type Works = (Vec<Work<()>>, Option<Box<dyn Send>>);

/// The next hop where only its hardware address matters (RFC 7600: an address that no host has).
const BEYOND: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The stacks' own IPv6 addresses, by side: for neighbour discovery.
const OWN6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)];
const OWN6_LEN: u8 = 64;
/// Prefixes that an engine answers for at most.
const PREFIXES_MOST: usize = 64;

/// What the threads do.
pub(crate) fn works(settings: &Settings, plan: &Arc<Plan>, shared: &Arc<Shared>) -> Result<Works, Error> {
    let role = match settings.ends {
        Ends::Both => {
            let one = |index| {
                if plan.tunnels.is_empty() {
                    return Ok(work(settings, shared, index, pair(settings, plan, index, |_, end| end)?));
                }
                let wire = |role, end| Tunnelled::new(end, Tunnels::new(&plan.tunnels, role));
                Ok(work(settings, shared, index, pair(settings, plan, index, wire)?))
            };
            return Ok(((0..settings.threads).map(one).collect::<Result<_, Error>>()?, None));
        }
        Ends::Client => Role::Client,
        Ends::Server => Role::Server,
    };
    let carrier = StackParts { settings, plan, shared, role };
    match settings.link.as_ref() {
        Some(Link::Memif(place)) if role == Role::Client => {
            let known = |wire: memif::Dialed| {
                let traits = (wire.mtu(), wire.offload(), None);
                (AnyLink::Dialed(wire), traits)
            };
            let wires = memif::dial(place, settings.threads)?.into_iter().map(known);
            Ok((carrier.works(wires)?, None))
        }
        Some(Link::Memif(place)) => {
            let (wires, acceptor) = memif::accept_at(place, settings.threads)?;
            let known = |wire| (AnyLink::Listening(wire), (u16::MAX, true, None));
            Ok((carrier.works(wires.into_iter().map(known))?, Some(Box::new(acceptor))))
        }
        Some(Link::Tap(name)) => {
            let open =
                |_| TapLink::open(name).map_err(|error| Error::machine(format!("--link tap:{name}"), error));
            let wires: Vec<TapLink> = (0..settings.threads).map(open).collect::<Result<_, Error>>()?;
            // The kernel sends a flow's frames to the queue that it last sent by: each thread has its own addresses.
            let known = |wire: TapLink| {
                let traits = (wire.mtu(), true, Some(wire.peer_mac()));
                (AnyLink::Tap(Box::new(wire)), traits)
            };
            Ok((carrier.works(wires.into_iter().map(known))?, None))
        }
        Some(Link::Xdp) => super::xdp::works(settings, plan, shared, role),
        Some(Link::Kernel) | None => unreachable!("Settings::check refuses it"),
    }
}

/// Of a wire: its MTU, whether it does what a card would, and who is at its other end, where that is known.
type Traits = (u16, bool, Option<MacAddr>);

/// What stacks are made from.
struct StackParts<'a> {
    settings: &'a Settings,
    plan: &'a Arc<Plan>,
    shared: &'a Arc<Shared>,
    role: Role,
}

impl StackParts<'_> {
    /// Each thread's work on its wire.
    fn works(&self, wires: impl Iterator<Item = (AnyLink, Traits)>) -> Result<Vec<Work<()>>, Error> {
        let own = self.plan.addresses(self.role);
        if own.len() > PREFIXES_MOST {
            return Err(Error::usage(
                "PROFILE",
                &self.plan.name,
                format!(
                    "address ranges that {PREFIXES_MOST} prefixes hold, such as 16.0.0.0 to 16.0.255.255; these are {}",
                    own.len()
                ),
            ));
        }
        let work_on = |(index, (wire, traits)): (usize, (AnyLink, Traits))| {
            if self.plan.tunnels.is_empty() {
                return self.work_on(wire, index, traits);
            }
            let tunnels = Tunnels::new(&self.plan.tunnels, self.role);
            let (mtu, _, peer) = traits;
            // What is inside is complete: no link completes it.
            let traits = (mtu - tunnels.overhead() as u16, false, peer);
            self.work_on(Tunnelled::new(wire, tunnels), index, traits)
        };
        wires.enumerate().map(work_on).collect()
    }

    fn work_on<W: Wire + Send + 'static>(
        &self,
        wire: W,
        index: usize,
        traits: Traits,
    ) -> Result<Work<()>, Error> {
        let stack = self.stack(wire, index, traits)?;
        let rig = Single(shard(self.settings, self.plan, self.role, stack, index, 1)?);
        Ok(work(self.settings, self.shared, index, rig))
    }

    fn stack<W: Wire>(&self, wire: W, index: usize, (mtu, offload, peer): Traits) -> Result<Stack<W>, Error> {
        let settings = self.settings;
        let (own, other) = match self.role {
            Role::Client => (Network::default(), Network::SERVER),
            Role::Server => (Network::SERVER, Network::default()),
        };
        let network = settings.network.unwrap_or(own);
        let gateway = settings.gateway.unwrap_or(match peer {
            Some(_) => BEYOND.into(),
            None => other.address,
        });
        let other6 = OWN6[1 - self.role as usize];
        let config = Config {
            gateway: if let IpAddr::V4(gateway) = gateway { Some(gateway) } else { None },
            address6: Some(OWN6[self.role as usize]),
            prefix6_len: OWN6_LEN,
            gateway6: Some(if let IpAddr::V6(gateway) = gateway { gateway } else { other6 }),
            own_prefixes: self.plan.addresses(self.role),
            // As the profile says, whatever the link takes: packets are what is counted.
            mtu: mtu.min((self.plan.largest_segment() + 60).max(1500)),
            segment_offload: 0,
            max_flows: settings.flows,
            max_time_wait: settings.flows,
            time_wait: settings.time_wait,
            ..config_of(network, index, offload)
        };
        let mut engine = engine(self.plan.configure(self.role, config))?;
        if let Some(peer) = peer {
            engine.set_neighbor(gateway, peer);
            engine.set_neighbor(other6, peer);
        }
        let ports = crate::link::Ports::none();
        Ok(Stack::new(engine, wire, network.address, ports))
    }
}

/// One thread's side on its stack.
pub(crate) fn shard<W: Wire>(
    settings: &Settings,
    plan: &Arc<Plan>,
    role: Role,
    stack: Stack<W>,
    index: usize,
    stride: u16,
) -> Result<Shard<W>, Error> {
    let flows = settings.flows as usize;
    // Far apart: threads draw different numbers.
    let seed = settings.seed.wrapping_add((index as u64) << 32);
    if role == Role::Server {
        return Shard::server(stack, plan, flows, !seed);
    }
    let first = settings.ports.start();
    let offset = (index as u16 + stride - first % stride) % stride;
    let ports = Ports { range: first + offset..=*settings.ports.end(), stride };
    let opener = Opener::new(plan, index, settings.threads, &ports);
    let pace = Pace::new(plan, index, settings.threads);
    let probe = if index == 0 { probe(settings, plan)? } else { None };
    Ok(Shard::client(stack, plan, (opener, pace, probe), flows, seed))
}

/// The latency probe of a run's first thread: between the pairs that the profile names, else its first client and server.
pub(crate) fn probe(settings: &Settings, plan: &Plan) -> Result<Option<Probe>, Error> {
    let first = [(plan.templates[0].clients.0.first, plan.templates[0].servers.0.first)];
    let pairs: &[_] = if plan.probes.is_empty() { &first } else { &plan.probes };
    let Some(per_s) = settings.probe_per_s.or((!plan.probes.is_empty()).then_some(1.0)) else {
        return Ok(None);
    };
    let [low, high] =
        [0, 8].map(|at| boot_key()[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let mut probe = Probe::new(pairs, per_s, SplitMix::new(low ^ high ^ uptime_ns()).next());
    if settings.link == Some(Link::Xdp) {
        probe.listen()?;
    }
    Ok(Some(probe))
}
