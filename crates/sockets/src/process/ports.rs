//! Local ports that many active opens share, each to different peers (EF_TCP_SHARED_LOCAL_PORTS): as many connections as
//! there are ports to each peer, instead of altogether, and no system calls to get one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::HashSet;
use std::os::fd::IntoRawFd;

use overfly_engine::Instant;
use overfly_profile::options::Options;

use super::Process;
use super::session::Session;
use crate::descriptors;
use crate::kernel::{self, now};
use crate::numbers;

/// How many ports are looked at for one that is free before there is another one, or a connection takes a port of its own: as many as cost
/// less than that. They are taken in turn: where so many are in use, as in TIME-WAIT, those behind them mostly are as well.
pub(super) const LOOKS: usize = 16;
/// How often it is looked for ports that nobody needs any more.
const SWEEP: Duration = Duration::from_millis(100);

/// The shared ports of a process.
pub(crate) struct SharedPorts {
    pools: Vec<Pool>,
    swept: Option<Instant>,
}

/// Those of one local address, or of all of a family.
struct Pool {
    address: IpAddr,
    /// Each with the kernel's socket that keeps it from others.
    ports: Vec<(u16, Holder)>,
    /// Whose turn it is.
    turn: usize,
}

/// The kernel's socket that keeps a port from others.
struct Holder(i32);

impl Drop for Holder {
    fn drop(&mut self) {
        descriptors::close(self.0);
    }
}

/// What [`SharedPorts::choose`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SharedPort {
    /// This port is free to the peer, and this is the descriptor that keeps it from others.
    Chosen(u16, i32),
    /// All are in use to this peer, and there cannot be more.
    Exhausted,
    /// Such a connection takes a port of its own.
    NotMeant,
}

impl SharedPorts {
    pub(crate) const fn new() -> Self {
        Self { pools: Vec::new(), swept: None }
    }

    /// A shared port for a connection from `from` (unspecified: the route says where from), over IPv4 or IPv6, that
    /// `is_free` agrees to.
    pub(crate) fn choose(
        &mut self,
        options: &Options,
        from: IpAddr,
        v4: bool,
        is_free: impl Fn(u16) -> bool,
    ) -> SharedPort {
        if options.tcp_shared_local_ports == 0
            || (!from.is_unspecified() && options.tcp_shared_local_ports_per_ip == 0)
        {
            return SharedPort::NotMeant;
        }
        let any = if v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let address = if from.is_unspecified() { any } else { from };
        let most = match options.tcp_shared_local_ports_per_ip_max {
            limit if limit > 0 && !from.is_unspecified() => limit,
            _ => options.tcp_shared_local_ports_max,
        };
        let most = usize::try_from(most.max(options.tcp_shared_local_ports)).unwrap_or(usize::MAX);
        let pool = match self.pools.iter().position(|pool| pool.address == address) {
            Some(index) => &mut self.pools[index],
            None => {
                self.pools.push(Pool { address, ports: Vec::new(), turn: 0 });
                let last = self.pools.len() - 1;
                self.pools[last].grow(options.tcp_shared_local_ports as usize, most);
                &mut self.pools[last]
            }
        };
        let looks = if options.tcp_shared_local_ports_no_fallback != 0 { usize::MAX } else { LOOKS };
        loop {
            if let Some((port, holder)) = pool.next(looks, &is_free) {
                return SharedPort::Chosen(port, holder);
            }
            if !pool.grow(options.tcp_shared_local_ports_step as usize, most) {
                return SharedPort::Exhausted;
            }
        }
    }
}

impl SharedPorts {
    /// The descriptor that keeps a port from others, if it is one of these.
    pub(crate) fn holder(&self, local: SocketAddr) -> Option<i32> {
        let pools = self.pools.iter().filter(|pool| {
            pool.address == local.ip()
                || pool.address.is_unspecified() && pool.address.is_ipv4() == local.is_ipv4()
        });
        let mut ports = pools.flat_map(|pool| &pool.ports);
        ports.find(|(port, _)| *port == local.port()).map(|(_, holder)| holder.0)
    }

    /// The program has something else at a descriptor's number, past the library.
    fn give_up(&mut self, descriptor: i32) {
        for pool in &mut self.pools {
            for (_, holder) in pool.ports.extract_if(.., |(_, holder)| holder.0 == descriptor) {
                core::mem::forget(holder);
            }
        }
    }

    /// Gives up all but the first `least` of each address that are not `needed`. True if there were any.
    fn retain(&mut self, least: usize, is_needed: &dyn Fn(u16) -> bool) -> bool {
        let mut any = false;
        for pool in &mut self.pools {
            let (before, mut left) = (pool.ports.len(), pool.ports.len());
            pool.ports.retain(|(port, _)| {
                let goes = left > least && !is_needed(*port);
                left -= usize::from(goes);
                !goes
            });
            pool.turn = 0;
            any |= pool.ports.len() < before;
        }
        any
    }
}

impl Process {
    /// From time to time, and where nothing is kept any more, the kernel gets shared ports back that no connection has and nothing is kept
    /// for.
    pub(super) fn sweep_ports(&mut self, rests: bool) {
        let now = now();
        if rests || self.shared_ports.swept.is_none_or(|swept| now >= swept + SWEEP) {
            self.shared_ports.swept = Some(now);
            self.give_ports_back();
        }
    }

    /// The program needs descriptors: the kernel gets back what only waits for another connection. True if there was any.
    pub(crate) fn give_back_descriptors(&mut self) -> bool {
        let Session { client, kept, .. } = &mut self.session;
        if let (Some(client), Some(kept)) = (client, kept) {
            let over: Vec<_> = core::iter::from_fn(|| kept.expired(now(), true)).collect();
            if !over.is_empty() {
                let _ = client.disconnect_flows(&over);
            }
        }
        let any = self.descriptors.give_back();
        // The broker keeps those that connections have.
        let ports = self.session.kept.is_some() && self.shared_ports.retain(0, &|_| false);
        ports || any
    }

    /// The program wants to bind this port: it is free unless a connection has it. Returns whether it was kept for more.
    pub(crate) fn give_port_back(&mut self, port: u16) -> bool {
        let Session { client, kept, .. } = &mut self.session;
        let Some(kept) = kept.as_mut().filter(|kept| !kept.is_used(port)) else { return false };
        let over = kept.release(port);
        if let Some(client) = client
            && !over.is_empty()
        {
            // It has the port as well, as long as frames to it come here.
            let _ = client.disconnect_flows(&over);
        }
        self.shared_ports.retain(0, &|other| other != port) || !over.is_empty()
    }

    /// The program has something else at a descriptor's number, past the library.
    pub(crate) fn give_port_up(&mut self, descriptor: i32) {
        self.shared_ports.give_up(descriptor);
    }

    fn give_ports_back(&mut self) {
        let least = self.options.tcp_shared_local_ports as usize;
        if self.shared_ports.pools.iter().all(|pool| pool.ports.len() <= least) {
            return;
        }
        let mut needed: HashSet<u16> = self.stack.ports_of_active_opens().collect();
        needed.extend(self.session.kept.iter().flat_map(|kept| kept.ports()));
        self.shared_ports.retain(least, &|port| needed.contains(&port));
    }
}

impl Pool {
    /// The next port in turn that is free, of so many at most.
    fn next(&mut self, looks: usize, is_free: impl Fn(u16) -> bool) -> Option<(u16, i32)> {
        for _ in 0..self.ports.len().min(looks) {
            self.turn = (self.turn + 1) % self.ports.len();
            let (port, holder) = &self.ports[self.turn];
            if is_free(*port) {
                return Some((*port, holder.0));
            }
        }
        None
    }

    /// Takes more ports, up to `most` in all and as long as there are descriptors to spare. False if there is none more.
    fn grow(&mut self, count: usize, most: usize) -> bool {
        let before = self.ports.len();
        if before >= most {
            return false;
        }
        let most = most.min(usize::try_from(numbers::to_spare()).unwrap_or(most));
        for _ in before..before.saturating_add(count).min(most) {
            let Ok((port, socket)) = kernel::reserve_port(self.address) else { break };
            self.ports.push((port, Holder(numbers::make_internal(socket).into_raw_fd())));
        }
        // The newest are tried first.
        self.turn = before.saturating_sub(1);
        self.ports.len() > before
    }
}
