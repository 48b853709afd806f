//! What every link does, whatever its frames go over.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use overfly_wire::{FrameSink, Promises};
use rustix::io::Errno;

/// Takes counters: of which group each is, its name and its value.
pub type Each<'a> = &'a mut dyn FnMut(&'static str, &'static str, u64);

/// Hands out counters of one group.
pub fn each_of(group: &'static str, named: impl Iterator<Item = (&'static str, u64)>, each: Each<'_>) {
    named.for_each(|(name, value)| each(group, name, value));
}

/// Peers that have gone. Others may come in their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// All that were there.
    Everybody,
    /// Those with these hardware addresses.
    Those(Vec<[u8; 6]>),
}

impl Gone {
    /// Those, if there are any.
    #[must_use]
    pub fn those(macs: Vec<[u8; 6]>) -> Option<Gone> {
        (!macs.is_empty()).then_some(Gone::Those(macs))
    }

    /// Whether who had this hardware address has gone.
    #[must_use]
    pub fn includes(&self, mac: [u8; 6]) -> bool {
        match self {
            Gone::Everybody => true,
            Gone::Those(those) => those.contains(&mac),
        }
    }
}

/// One stack's data path: [`Link::receive`], then write frames ([`FrameSink`]), then [`Link::flush`]. What a link says of itself that others
/// do not, it leaves to the defaults.
pub trait Link: FrameSink {
    /// Hands up to `budget` received frames (Ethernet header first) to `each`. Returns how many.
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize;

    /// Gets committed frames on their way, those included that an earlier call could not. Cheap when there are none.
    fn flush(&mut self);

    /// Sends what was committed with its payload promised ([`FrameSink::commit_promised`]), as `flush` does those that are whole. To be
    /// called when the engine has written its frames, before anything else happens to their flows.
    fn redeem(&mut self, _promises: &impl Promises) {}

    /// As `flush`, but leaves a system call that may take long to the caller: [`crate::xdp::kick`] on the descriptor that is returned, if
    /// there is something for the kernel to take. If such a kick is `underway`, or still to come, it serves all that was posted before it
    /// began.
    fn post(&mut self, _underway: bool) -> Option<BorrowedFd<'_>> {
        self.flush();
        None
    }

    /// What such a kick had to say.
    fn kick_failed(&mut self, _errno: Errno) {}

    /// A device that took nothing just now is tried again at the next `flush`.
    fn retry(&mut self) {}

    /// Before a sleep, after a `receive` that returned 0: frames that come from now on end it. Returns false if there are some already.
    fn arm(&mut self) -> bool {
        true
    }

    /// What to sleep on: readable when a frame has arrived. The same ones as long as the link lives.
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::empty()
    }

    /// A descriptor was readable: for frames, or for who wants to exchange some.
    fn rang(&mut self) {}

    /// Sleeps until a frame has arrived, `longest` at most, if it is a thread of the kernel's on this processor that receives for the
    /// link ([`crate::xdp::XdpLink::share_processor`]). Else it returns at once.
    fn rest(&mut self, _longest: Duration) {}

    /// There is something that nobody wakes this end for: sleep for a short time only.
    fn is_busy(&self) -> bool {
        false
    }

    /// Bytes that may arrive between two looks without a frame being lost for want of room; `None` where none is.
    #[inline]
    fn room(&self) -> Option<u32> {
        None
    }

    /// Who is known to have gone since this was last asked.
    #[inline]
    fn take_gone(&mut self) -> Option<Gone> {
        None
    }

    /// TCP payload bytes of a frame that the link cuts into segments though it completes no other checksums, 0 if it cuts none
    /// (`segment_offload` of `overfly_engine::Config`).
    fn segment_offload(&self) -> u32 {
        0
    }

    /// Whether TCP checksums may be left to the link (`checksum_offload` of `overfly_engine::Config`).
    fn checksum_offload(&self) -> bool {
        false
    }

    /// Whether the stack listens.
    fn set_accepting(&mut self, _accepting: bool) {}

    /// From now on nobody sees that this stack looks for frames, or everybody again: new connections go to who is seen to look.
    fn look_unseen(&mut self, _unseen: bool) {}

    /// A thread waits to accept since the last look, and no connection is under way to it: until the next look new ones come here before
    /// any stack in which none waits.
    #[inline]
    fn wait_to_accept(&mut self) {}

    /// How many other stacks have said so since their last look, and can be given a connection.
    fn others_wait(&self) -> usize {
        0
    }

    /// The process holds so many bytes for its connections. Returns what those of the link's other stacks hold, where somebody says.
    fn hold(&self, _bytes: u64) -> u64 {
        0
    }

    /// Another number each time that the broker has heard of a change, after which it may not grant what it has granted; `None` where it
    /// does not say.
    #[inline]
    fn changes(&self) -> Option<u64> {
        None
    }

    /// How full it is (`now`), what it has done, and every reason for which it did not (`link`, or another group of its own).
    fn each_counter(&self, each: Each<'_>);

    /// What the kernel has counted for it (`kernel`). Costs system calls.
    fn each_kernel_counter(&self, _each: Each<'_>) {}
}
