//! Sides over AF_XDP: the kernel's addresses are theirs, and its program brings their frames.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use overfly_steer::Protocol;

use super::address::Range;
use super::form::Transport;
use super::links::shard;
use super::plan::{Plan, Role};
use super::rig::Single;
use super::run::{Shared, work};
use super::settings::Settings;
use crate::crew::Work;
use crate::error::Error;
use crate::link::sources::Sources;
use crate::link::{AnyStack, xdp};

/// Server addresses at most: the engine remembers each one's next hop.
const SERVERS_MOST: u64 = 65_536;
/// Connections of a thread that the rings are made for.
const RINGS_FOR: usize = 1024;

type Works = (Vec<Work<()>>, Option<Box<dyn Send>>);

/// What the threads do.
pub(crate) fn works(
    settings: &Settings,
    plan: &Arc<Plan>,
    shared: &Arc<Shared>,
    role: Role,
) -> Result<Works, Error> {
    if !plan.tunnels.is_empty() {
        return Err(Error::usage(
            "--link",
            "xdp",
            "memif or tap for a profile with tunnels: the kernel's program knows no tunnel",
        ));
    }
    let (stacks, attachment) = match role {
        Role::Client => client(settings, plan)?,
        Role::Server => server(settings, plan)?,
    };
    let stride = if role == Role::Client { settings.threads as u16 } else { 1 };
    let mut works = Vec::new();
    for (index, stack) in stacks.into_iter().enumerate() {
        let rig = Single(shard(settings, plan, role, stack, index, stride)?);
        works.push(work(settings, shared, index, rig));
    }
    Ok((works, Some(Box::new(attachment))))
}

type Stacks = (Vec<AnyStack>, overfly_steer::Attachment);

fn protocols(plan: &Plan) -> Vec<Protocol> {
    let has = |transport| plan.templates.iter().any(|template| template.transport == transport);
    let tcp = has(Transport::Tcp).then_some(Protocol::Tcp);
    tcp.into_iter().chain(has(Transport::Udp).then_some(Protocol::Udp)).collect()
}

/// Opens flows from the clients' addresses, which are the interface's.
fn client(settings: &Settings, plan: &Plan) -> Result<Stacks, Error> {
    let ranges: Vec<(Range, Range)> =
        plan.templates.iter().map(|template| (template.clients.0, template.servers.0)).collect();
    let clients = union(ranges.iter().map(|(clients, _)| *clients));
    let servers: u64 = ranges.iter().map(|(_, servers)| servers.count).sum();
    if servers > SERVERS_MOST {
        return Err(Error::usage(
            "PROFILE",
            servers,
            format!("{SERVERS_MOST} server addresses at most over xdp"),
        ));
    }
    let Some(clients) = clients else {
        return Err(Error::usage(
            "PROFILE",
            &plan.name,
            "one range of client addresses over xdp: the program is told of it",
        ));
    };
    let sources = Sources::of_range(clients.first, clients.count)?;
    let first = SocketAddr::new(ranges[0].1.first, plan.templates[0].port);
    let (mut stacks, mut attachment) = xdp::open(&xdp::Wanted {
        servers: &[first],
        url: &plan.name,
        interface: settings.interface.as_deref(),
        receive_offload: settings.receive_offload,
        threads: settings.threads,
        cpus: &settings.cpus,
        connections: RINGS_FOR,
        ports: settings.ports.clone(),
        sources: Some(&sources),
        protocols: &protocols(plan),
        configure: &|config| {
            plan.configure(
                Role::Client,
                overfly_engine::Config {
                    max_flows: settings.flows,
                    max_time_wait: settings.flows,
                    time_wait: settings.time_wait,
                    // Packets are what is counted.
                    segment_offload: 0,
                    ..config
                },
            )
        },
    })?;
    // All servers are behind the first one's next hop.
    let hop = attachment
        .route(first.ip())
        .map_err(|error| Error::machine(format!("the way to {}", first.ip()), error))?
        .next_hop;
    for stack in &mut stacks {
        for (_, servers) in &ranges {
            (0..servers.count).for_each(|index| stack.engine.set_neighbor(servers.at(index), hop));
        }
    }
    Ok((stacks, attachment))
}

/// The range that all of them are, if they are one.
fn union(mut ranges: impl Iterator<Item = Range>) -> Option<Range> {
    let first = ranges.next()?;
    ranges.all(|range| range == first).then_some(first)
}

/// Listens at the profile's ports on all addresses that the kernel has.
fn server(settings: &Settings, plan: &Plan) -> Result<Stacks, Error> {
    let first = plan.templates[0].servers.0.first;
    let any: IpAddr = if first.is_ipv4() {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    };
    let at = |protocol, port: &u16| (protocol, SocketAddr::new(any, *port));
    let tcp = plan.tcp_ports.keys().map(|port| at(Protocol::Tcp, port));
    let places: Vec<_> = tcp.chain(plan.udp_ports.keys().map(|port| at(Protocol::Udp, port))).collect();
    xdp::listen(&xdp::Listening {
        address: SocketAddr::new(first, 0),
        places: &places,
        interface: settings.interface.as_deref(),
        threads: settings.threads,
        cpus: &settings.cpus,
        connections: settings.flows as usize / 2,
        configure: &|config| {
            let time_wait = settings.time_wait;
            plan.configure(Role::Server, overfly_engine::Config { time_wait, segment_offload: 0, ..config })
        },
    })
}
