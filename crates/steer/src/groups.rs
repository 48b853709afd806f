//! Which stacks accept new connections at which address: what was asked for, and what the XDP program must be told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::program::Group;

/// The stacks behind one address that somebody listens at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    /// Those that accept, in the order they came.
    accepting: Vec<u16>,
    /// Those that no longer accept and may still have connections.
    former: BTreeSet<u16>,
    /// Whether connections may exist that do not belong to `accepting[0]`.
    changed: bool,
}

/// All listeners of an attachment.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    asked: BTreeMap<SocketAddrV4, Members>,
}

impl Groups {
    /// The stack accepts there from now on. False if it did already.
    pub(crate) fn listen(&mut self, stack: u16, address: SocketAddrV4) -> bool {
        let members = self.asked.entry(address).or_default();
        if members.accepting.contains(&stack) {
            return false;
        }
        members.changed |= !members.accepting.is_empty() || !members.former.is_empty();
        members.former.remove(&stack);
        members.accepting.push(stack);
        true
    }

    /// The stack accepts no more there; its connections stay its own.
    pub(crate) fn unlisten(&mut self, stack: u16, address: SocketAddrV4) {
        if let Some(members) = self.asked.get_mut(&address)
            && let Some(place) = members.accepting.iter().position(|&member| member == stack)
        {
            members.accepting.remove(place);
            members.former.insert(stack);
            members.changed = true;
        }
    }

    /// As if the stack had never listened there: it cannot have had a connection.
    pub(crate) fn withdraw(&mut self, stack: u16, address: SocketAddrV4) {
        if let Some(members) = self.asked.get_mut(&address) {
            members.accepting.retain(|&member| member != stack);
            if members.accepting.is_empty() && members.former.is_empty() {
                self.asked.remove(&address);
            }
        }
    }

    /// The stack is gone with all its connections.
    pub(crate) fn remove(&mut self, stack: u16) {
        self.asked.retain(|_, members| {
            let before = members.accepting.len();
            members.accepting.retain(|&member| member != stack);
            members.changed |= members.accepting.len() != before;
            members.former.remove(&stack);
            !members.accepting.is_empty() || !members.former.is_empty()
        });
    }

    /// What the program must know, given the interface's addresses. A listener at an address takes precedence over one at
    /// all addresses, as in the kernel; connections of the latter's former stacks still find home.
    pub(crate) fn expand(&self, local: &[Ipv4Addr]) -> BTreeMap<SocketAddrV4, Group> {
        let mut expanded = BTreeMap::new();
        let ports: BTreeSet<u16> = self.asked.keys().map(SocketAddrV4::port).collect();
        for port in ports {
            let everywhere = self.asked.get(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
            for &address in local {
                let here = self.asked.get(&SocketAddrV4::new(address, port));
                let Some(accepting) = [here, everywhere]
                    .into_iter()
                    .flatten()
                    .find(|members| !members.accepting.is_empty())
                    .or(here)
                    .or(everywhere)
                else {
                    continue;
                };
                // Where both kinds exist, either may have had the other's connections before.
                let changed = accepting.changed || (here.is_some() && everywhere.is_some());
                expanded.insert(SocketAddrV4::new(address, port), Group::new(&accepting.accepting, changed));
            }
        }
        expanded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn at(address: Ipv4Addr) -> SocketAddrV4 {
        SocketAddrV4::new(address, 80)
    }

    #[test]
    fn one_stack_alone_never_changed() {
        let mut groups = Groups::default();
        groups.listen(3, at(A));
        groups.listen(3, at(A));
        assert_eq!(groups.expand(&[A, B]), [(at(A), Group::new(&[3], false))].into());
        groups.remove(3);
        assert!(groups.expand(&[A, B]).is_empty());
    }

    #[test]
    fn a_listener_everywhere_covers_each_local_address_except_where_a_closer_one_is() {
        let mut groups = Groups::default();
        groups.listen(1, at(Ipv4Addr::UNSPECIFIED));
        assert_eq!(
            groups.expand(&[A, B]),
            [(at(A), Group::new(&[1], false)), (at(B), Group::new(&[1], false))].into()
        );
        groups.listen(2, at(B));
        assert_eq!(
            groups.expand(&[A, B]),
            [(at(A), Group::new(&[1], false)), (at(B), Group::new(&[2], true))].into()
        );
        groups.unlisten(2, at(B));
        assert_eq!(groups.expand(&[B]), [(at(B), Group::new(&[1], true))].into());
    }

    #[test]
    fn a_group_that_nobody_accepts_for_stays_while_connections_may_live() {
        let mut groups = Groups::default();
        groups.listen(1, at(A));
        groups.listen(2, at(A));
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[1, 2], true));
        groups.unlisten(1, at(A));
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[2], true));
        groups.unlisten(2, at(A));
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[], true));
        groups.remove(1);
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[], true));
        groups.remove(2);
        assert!(groups.expand(&[A]).is_empty());
    }
}
