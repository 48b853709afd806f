//! Stacks that leave: what the kernel takes long for, others do not wait for.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier};

use super::{Attachment, Slot};
use crate::device;
use crate::error::Error;

/// Sockets that are being closed. The kernel takes 7 to 16 ms for each that a packet may be at (`synchronize_net`).
#[derive(Debug, Default)]
pub(crate) struct Departures(Vec<JoinHandle<()>>);

impl Departures {
    /// Closes them in a thread of their own; at once where there can be none.
    pub(crate) fn close(&mut self, sockets: impl Send + 'static) {
        self.0.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().spawn(move || drop(sockets));
        self.0.extend(thread);
    }
}

impl Drop for Departures {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A core may be at a frame for a stack that has just been detached: until it is not. The barrier is a synchronize_rcu
/// (kernel/sched/membarrier.c), of 8 to 16 ms; where it is refused (nohz_full), wait for longer than a softirq runs.
pub(crate) fn wait_for_softirqs() {
    if membarrier(MembarrierCommand::Global).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Attachment {
    /// The second half of [`Attachment::remove_stack`], once [`wait_for_softirqs`] has returned since [`Attachment::detach_stack`].
    pub(crate) fn take_back(&mut self, stack: u16) -> Result<(), Error> {
        let place = self.stacks.get_mut(usize::from(stack)).ok_or(Error::UnknownStack(stack))?;
        let sockets = match std::mem::replace(place, Slot::Free(Some(Instant::now()))) {
            Slot::Detached(sockets) | Slot::Open(sockets) => sockets,
            free @ Slot::Free(_) => {
                *place = free;
                return Err(Error::UnknownStack(stack));
            }
        };
        let mut result = Ok(());
        for (pool, socket) in self.pools.iter().zip(&sockets) {
            match pool.reclaim(stack, socket.as_fd()) {
                Ok(frames) => {
                    self.reclaimed.received_frames += frames.received_frames;
                    self.reclaimed.lost_frames += frames.lost_frames;
                }
                Err(error) => result = result.and(Err(error.into())),
            }
        }
        self.departures.close((sockets, self.packet_sockets.remove(&stack)));
        result
    }

    /// Closes all at the same time: one after the other, each would wait for the kernel anew.
    fn close_sockets(&mut self) {
        for place in std::mem::take(&mut self.stacks) {
            if let Slot::Open(sockets) | Slot::Detached(sockets) = place {
                self.departures.close(sockets);
            }
        }
        for socket in std::mem::take(&mut self.packet_sockets).into_values() {
            self.departures.close(socket);
        }
        self.departures.close(std::mem::replace(&mut self.confined, Err(String::new())));
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.close_sockets();
        if let Some(before) = self.deferral_before {
            // The interface may be gone, and its settings with it.
            let _ = device::set_deferral(&self.interface.name, before);
        }
    }
}
