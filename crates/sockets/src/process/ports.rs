//! Local ports that many active opens share, each to different peers (EF_TCP_SHARED_LOCAL_PORTS): as many connections as
//! there are ports to each peer, instead of altogether, and no system calls to get one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use overfly_profile::options::Options;

use crate::kernel;

/// Ports that are tried before the pool grows, or a connection takes a port of its own: as many as cost less than that.
const TRIES: usize = 64;

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
        // They are taken in turn: where so many are in use, as in TIME-WAIT, those behind them mostly are as well.
        let tries = if options.tcp_shared_local_ports_no_fallback == 0 { TRIES } else { usize::MAX };
        loop {
            if let Some((port, holder)) = pool.next(tries, &is_free) {
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
}

impl Pool {
    /// The next port in turn that is free, of so many at most.
    fn next(&mut self, tries: usize, is_free: impl Fn(u16) -> bool) -> Option<(u16, i32)> {
        for _ in 0..self.ports.len().min(tries) {
            self.turn = (self.turn + 1) % self.ports.len();
            let (port, holder) = &self.ports[self.turn];
            if is_free(*port) {
                return Some((*port, holder.as_raw_fd()));
            }
        }
        None
    }

    /// Takes more ports, up to `most` in all and to a quarter of the descriptors that the program may have. False if there
    /// is none more.
    fn grow(&mut self, count: usize, most: usize) -> bool {
        let before = self.ports.len();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024) / 4;
        let most = most.min(usize::try_from(limit).unwrap_or(most));
        for _ in before..before.saturating_add(count).min(most) {
            let Ok((port, socket)) = kernel::reserve_port(self.address) else { break };
            self.ports.push((port, kernel::make_internal(socket)));
        }
        // The newest are tried first.
        self.turn = before.saturating_sub(1);
        self.ports.len() > before
    }
}
