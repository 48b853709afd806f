//! Local ports that many active opens share, each to different peers (EF_TCP_SHARED_LOCAL_PORTS): as many connections as
//! there are ports to each peer, instead of altogether, and no system calls to get one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use overfly_profile::options::Options;

use super::Process;
use crate::kernel;
use crate::sys;
use crate::table::{self, Entry};

/// The shared ports of a process.
pub(crate) struct SharedPorts {
    pools: Vec<Pool>,
}

/// Those of one local address, or of all of a family.
struct Pool {
    address: IpAddr,
    /// Each with the kernel's socket that keeps it from others.
    ports: Vec<(u16, OwnedFd)>,
    /// Whose turn it is.
    turn: usize,
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

fn close(holder: OwnedFd) {
    table::enter(holder.as_raw_fd(), Entry::Kernel);
    sys::close(holder.into_raw_fd());
}

impl SharedPorts {
    pub(crate) const fn new() -> Self {
        Self { pools: Vec::new() }
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
        loop {
            if let Some((port, holder)) = pool.next(&is_free) {
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
        ports.find(|(port, _)| *port == local.port()).map(|(_, holder)| holder.as_raw_fd())
    }

    /// The program has something else at a descriptor's number, past the library.
    pub(crate) fn give_up(&mut self, descriptor: i32) {
        let lost = self.pools.iter_mut().find_map(|pool| pool.remove(descriptor));
        let _ = lost.map(IntoRawFd::into_raw_fd);
    }

    /// The kernel gets those back that are not in use, but so many of each family. Returns whether there were any.
    pub(crate) fn give_back(&mut self, least: usize, is_used: impl Fn(u16) -> bool) -> bool {
        let mut any = false;
        // Of others nobody knows whether they are.
        for pool in self.pools.iter_mut().filter(|pool| pool.address.is_unspecified()) {
            let mut many = pool.ports.len().saturating_sub(least);
            let mut leaves = |port: u16| {
                let leaves = many > 0 && !is_used(port);
                many -= usize::from(leaves);
                leaves
            };
            for (_, holder) in pool.ports.extract_if(.., |(port, _)| leaves(*port)) {
                close(holder);
                any = true;
            }
        }
        any
    }
}

impl Process {
    /// The program wants to bind this port: it is free unless a connection has it. Returns whether it was kept for more.
    pub(crate) fn give_port_back(&mut self, port: u16) -> bool {
        let Some(kept) = &mut self.session.kept else { return false };
        if kept.is_used(port) {
            return false;
        }
        let over = kept.release(port);
        if let Some(client) = &mut self.session.client
            && !over.is_empty()
        {
            // It has the port as well, as long as frames to it come here.
            let _ = client.disconnect_flows(&over);
        }
        self.shared_ports.give_back(0, |other| other != port) || !over.is_empty()
    }

    /// The program has something else at a descriptor's number, past the library.
    pub(crate) fn give_port_up(&mut self, descriptor: i32) {
        self.shared_ports.give_up(descriptor);
    }

    /// The program has no descriptors left: gives it those that keep ports. The broker keeps those that connections have. Returns whether
    /// there were any.
    pub(crate) fn give_ports_back(&mut self) -> bool {
        self.session.kept.is_some() && self.shared_ports.give_back(0, |_| false)
    }
}

impl Pool {
    /// The next port in turn that is free.
    fn next(&mut self, is_free: impl Fn(u16) -> bool) -> Option<(u16, i32)> {
        for _ in 0..self.ports.len() {
            self.turn = (self.turn + 1) % self.ports.len();
            let (port, holder) = &self.ports[self.turn];
            if is_free(*port) {
                return Some((*port, holder.as_raw_fd()));
            }
        }
        None
    }

    /// The holder is none of the library's any more.
    fn remove(&mut self, holder: i32) -> Option<OwnedFd> {
        let place = self.ports.iter().position(|(_, other)| other.as_raw_fd() == holder)?;
        Some(self.ports.remove(place).1)
    }

    /// Takes more ports, up to `most` in all and to a quarter of the descriptors that the program may have: where it has its own no number
    /// is taken from it. False if there is none more.
    fn grow(&mut self, count: usize, most: usize) -> bool {
        let before = self.ports.len();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024) / 4;
        let most = most.min(usize::try_from(limit).unwrap_or(most));
        for _ in before..before.saturating_add(count).min(most) {
            let reserved = kernel::reserve_port(self.address);
            let Ok((port, Some(socket))) = reserved.map(|(port, socket)| (port, kernel::make_aside(socket)))
            else {
                break;
            };
            self.ports.push((port, socket));
        }
        // The newest are tried first.
        self.turn = before.saturating_sub(1);
        self.ports.len() > before
    }
}
