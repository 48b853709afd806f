//! Listeners and their backlogs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::BTreeMap;

use crate::owner::{Error, ListenerId};

/// What a listener's connections begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    /// Payload of a segment at most, options not deducted.
    pub(crate) max_segment: u16,
    pub(crate) traffic_class: u8,
    /// Of connections of IPv4, and of IPv6. 0: as the configuration has it.
    pub(crate) hop_limit: u8,
    pub(crate) hop_limit6: u8,
}

impl Inherited {
    const NONE: Self = Self { max_segment: u16::MAX, traffic_class: 0, hop_limit: 0, hop_limit6: 0 };
}

#[derive(Debug)]
pub(crate) struct Listener {
    local: SocketAddr,
    backlog: u32,
    inherited: Inherited,
    /// SYN received, handshake not finished.
    half_open: u32,
    /// Established and not yet accepted by the owner.
    unaccepted: u32,
    /// How many of those there may be, if the owner said so.
    max_fast_open: Option<u32>,
    /// Half-open and known to the owner, because its SYN brought data (RFC 7413 section 5.1's PendingFastOpenRequests).
    fast_open: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_id: BTreeMap<u32, Listener>,
    by_address: BTreeMap<SocketAddr, u32>,
    next: u32,
}

impl Listeners {
    pub(crate) fn open(&mut self, local: SocketAddr, backlog: u32) -> Result<ListenerId, Error> {
        if self.by_address.contains_key(&local) {
            return Err(Error::AddressInUse);
        }
        let id = self.next;
        self.next += 1;
        self.by_address.insert(local, id);
        self.by_id.insert(
            id,
            Listener {
                local,
                backlog,
                inherited: Inherited::NONE,
                half_open: 0,
                unaccepted: 0,
                max_fast_open: None,
                fast_open: 0,
            },
        );
        Ok(ListenerId(id))
    }

    pub(crate) fn close(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.remove(&id.0) {
            self.by_address.remove(&listener.local);
        }
    }

    /// What the listener's connections begin with; what any does if it has been closed.
    pub(crate) fn inherited(&self, id: u32) -> Inherited {
        self.by_id.get(&id).map_or(Inherited::NONE, |listener| listener.inherited)
    }

    pub(crate) fn inherited_mut(&mut self, id: ListenerId) -> Option<&mut Inherited> {
        self.by_id.get_mut(&id.0).map(|listener| &mut listener.inherited)
    }

    pub(crate) fn is_open(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Handshakes under way.
    pub(crate) fn half_open(&self, id: ListenerId) -> u32 {
        self.by_id.get(&id.0).map_or(0, |listener| listener.half_open)
    }

    /// Handshakes under way, and connections that were not accepted yet.
    pub(crate) fn pending(&self, id: ListenerId) -> u32 {
        self.by_id.get(&id.0).map_or(0, |listener| listener.half_open + listener.unaccepted)
    }

    /// The listener for a SYN to `local`: the exact address before the wildcard.
    pub(crate) fn find(&self, local: SocketAddr) -> Option<u32> {
        let any = match local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let any = SocketAddr::new(any, local.port());
        self.by_address.get(&local).or_else(|| self.by_address.get(&any)).copied()
    }

    /// A listener has this very address.
    pub(crate) fn has_exact(&self, local: SocketAddr) -> bool {
        self.by_address.contains_key(&local)
    }

    /// As many connections wait for the owner as its backlog allows: one more than it says, as sk_acceptq_is_full() in Linux's
    /// include/net/sock.h has it.
    pub(crate) fn accept_queue_is_full(&self, id: u32) -> bool {
        self.by_id.get(&id).is_none_or(|listener| listener.unaccepted > listener.backlog)
    }

    /// As many connections are half-open as the listener holds.
    pub(crate) fn syn_queue_is_full(&self, id: u32, least: u32) -> bool {
        self.by_id.get(&id).is_none_or(|listener| listener.half_open >= listener.backlog.max(least))
    }

    /// What the owner said of Fast Open.
    pub(crate) fn set_fast_open(&mut self, id: ListenerId, max: u32) {
        if let Some(listener) = self.by_id.get_mut(&id.0) {
            listener.max_fast_open = Some(max);
        }
    }

    /// Half-open connections that may have brought data: what the owner said, else `default`.
    pub(crate) fn max_fast_open(&self, id: u32, default: u32) -> u32 {
        self.by_id.get(&id).and_then(|listener| listener.max_fast_open).unwrap_or(default)
    }

    /// Takes one of `max` places for half-open connections that brought data. False if there is none.
    pub(crate) fn fast_opened(&mut self, id: u32, max: u32) -> bool {
        match self.by_id.get_mut(&id) {
            Some(listener) if listener.fast_open < max => {
                listener.fast_open += 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn fast_open_ended(&mut self, id: u32) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.fast_open -= 1;
        }
    }

    pub(crate) fn half_opened(&mut self, id: u32) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.half_open += 1;
        }
    }

    pub(crate) fn half_open_ended(&mut self, id: u32) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.half_open -= 1;
        }
    }

    pub(crate) fn established(&mut self, id: u32) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.unaccepted += 1;
        }
    }

    pub(crate) fn accepted(&mut self, id: u32) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.unaccepted -= 1;
        }
    }
}
