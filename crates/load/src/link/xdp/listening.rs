//! Listeners over AF_XDP: the XDP program chooses a stack for each connection by its hash.

use std::net::SocketAddr;

use overfly_engine::{Config, Engine};
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};

use super::{attach, config_of, interface_to, no_interface, receive_beside};
use crate::error::Error;
use crate::link::{AnyLink, AnyStack, Ports, Stack};

/// Frames to receive into for each stack: a server's clients are many, and their requests small.
const RX_RING: u32 = 4096;

/// What a server over the link needs.
pub(crate) struct Listening<'a> {
    /// Bound in the kernel already, which so arbitrates the port.
    pub(crate) address: SocketAddr,
    /// Where to listen: there, or at several places of its family.
    pub(crate) places: &'a [(Protocol, SocketAddr)],
    /// `None`: the one on whose network the address is.
    pub(crate) interface: Option<&'a str>,
    pub(crate) threads: usize,
    /// Where the threads run; empty: anywhere.
    pub(crate) cpus: &'a [usize],
    /// Most connections of a thread.
    pub(crate) connections: usize,
    /// What the stacks are to be otherwise.
    pub(crate) configure: &'a dyn Fn(Config) -> Config,
}

/// One stack a thread, all of them listening, and what must outlive them. The engines do not listen yet.
pub(crate) fn listen(listening: &Listening<'_>) -> Result<(Vec<AnyStack>, Attachment), Error> {
    let address = listening.address.ip().to_canonical();
    let scope = if let SocketAddr::V6(address) = listening.address { address.scope_id() } else { 0 };
    let name = match listening.interface {
        Some(name) => name.to_string(),
        None => interface_to(address, scope).ok_or_else(|| {
            Error::usage(
                "--interface",
                "",
                format!("the name of the interface that {address} is for: no route leads there"),
            )
        })?,
    };
    let options = Options {
        // As for active opens.
        busy_poll: false,
        stacks: listening.threads as u16,
        // The kernel could only refuse whom it does not know yet: it has nothing at these ports.
        judge_senders: false,
        rx_ring: RX_RING,
        rx_frames: 2 * RX_RING * listening.threads as u32,
        flows: (listening.connections * listening.threads * 2).clamp(65_536, 1 << 22) as u32,
        ..Options::default()
    };
    let refused = |error: overfly_steer::Error| match error {
        overfly_steer::Error::NoInterface { .. } => no_interface(&name),
        overfly_steer::Error::NotLocal(_) => Error::usage("--address", address, error.to_string()),
        error => Error::machine(format!("--link xdp on {name}"), error),
    };
    let mut attachment = attach(&name, options).map_err(refused)?;
    let interface = attachment.interface().clone();
    let family = |address: &std::net::IpAddr| address.is_ipv4() == listening.address.is_ipv4();
    let own = interface.addresses.iter().map(|(address, _)| *address).find(family);
    let own = if address.is_unspecified() { own.unwrap_or(address) } else { address };
    let (mut engines, mut wires) = (Vec::new(), Vec::new());
    for _ in 0..listening.threads {
        let sockets = attachment.add_stack().map_err(refused)?;
        for (protocol, place) in listening.places {
            attachment.listen(sockets.stack, *protocol, *place, false).map_err(refused)?;
        }
        let wire = XdpLink::open(sockets).map_err(|error| refused(error.into()))?;
        let flows = listening.connections as u32;
        let config = Config {
            // Those in TIME-WAIT have a place of their own.
            max_flows: 2 * flows,
            max_time_wait: flows,
            ..config_of(&interface, &wire, own)
        };
        let engine = Engine::new((listening.configure)(config))
            .map_err(|error| Error::machine(format!("the stack of {name}"), error))?;
        engines.push(engine);
        wires.push(wire);
    }
    receive_beside(&mut attachment, listening.cpus, wires.iter_mut());
    let stack = |(engine, wire)| {
        let (wire, ports) = (AnyLink::Xdp(wire), Ports::none());
        Stack::new(engine, wire, own, ports)
    };
    Ok((engines.into_iter().zip(wires).map(stack).collect(), attachment))
}
