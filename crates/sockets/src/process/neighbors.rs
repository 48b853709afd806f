//! Connections within the host that wait while this process is busy are given to others that listen at the same address.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{IntoRawFd, OwnedFd};

use super::Process;
use super::pairs::{Heir, NOWHERE, Verb};
use crate::socket::{Arrival, Side};
use crate::table::{self, Entry};
use crate::{kernel, numbers, sys};

impl Process {
    /// Asks every other process that listens at `local` whether it would have a connection that waits there. Who would says so later
    /// ([`Process::give_to_willing`]): nobody waits for it, least of all with the lock in his hands.
    pub(super) fn offer_to_neighbors(&mut self, local: SocketAddr) {
        let Some(loopback) = self.loopback() else { return };
        let neighbors = loopback.others_at(local);
        self.within_host.offered.clear();
        for neighbor in neighbors {
            self.within_host.offered.push((neighbor, local));
            self.tell(neighbor, Verb::Offer, NOWHERE, local, &[]);
        }
    }

    /// Neighbours that were asked have threads which wait to accept: each gets the connection that has waited longest there, and is asked
    /// whether it would have another one.
    pub(super) fn give_to_willing(&mut self) {
        for (neighbor, local) in core::mem::take(&mut self.within_host.willing) {
            if self.sleepers.acceptors() == 0 && self.give_oldest(neighbor, local) {
                self.look_at_queues_soon();
                self.tell(neighbor, Verb::Offer, NOWHERE, local, &[]);
            }
        }
    }

    fn give_oldest(&mut self, neighbor: [u8; 6], local: SocketAddr) -> bool {
        if let Some((listener, _)) = self.stack.waiting_arrival(Side::Loopback).filter(|&(_, at)| at == local)
        {
            return self.give_arrival(listener, |process, &Arrival { descriptor, remote }| {
                process.can_tell(neighbor, Verb::Accept, remote, local, &[kernel::borrow(descriptor)])
            });
        }
        let oldest = self.stack.oldest_queued(Side::Loopback).filter(|&(.., at)| at == local);
        let Some((listener, id, _)) = oldest else { return false };
        let gives = self.hand_over_within_host(id, Some(Heir::Neighbor(neighbor, local))).is_ok();
        if gives {
            self.stack.unqueue(listener, id);
            self.statistics.given_away += 1;
        }
        gives
    }

    /// A connection that another process gave, since its own threads are busy.
    pub(super) fn accept_given(&mut self, local: SocketAddr, remote: SocketAddr, socket: OwnedFd) {
        let descriptor = numbers::move_up(socket).into_raw_fd();
        if self.stack.arrive(local, Arrival { descriptor, remote }) {
            // Not the program's until it accepts it.
            table::enter(descriptor, Entry::Internal);
        } else {
            // The listener was closed meanwhile: it is reset, as those that wait there.
            let socket = kernel::borrow(descriptor);
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            sys::close(descriptor);
        }
    }
}
