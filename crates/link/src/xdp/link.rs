//! The data path of one stack.

mod counted;
mod idle;
mod kick;
mod renewal;
mod written;

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overfly_wire::{FrameSink, Promised, Promises, Unfinished};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XdpDesc};
use rustix::process::{Pid, getpid};
use rustix::thread::sched_yield;

use self::idle::Idle;
use super::StackSockets;
use super::counters::{Counters, KernelCounters};
use super::fill::{Batch, Outcome, Turn};
use super::late::LateSyns;
use super::memory::{Memory, PoolLayout};
use super::pieces::{Flaw, Pieces, is_continued};
use super::pool::shared_rings;
use super::pulse::Pulse;
use super::rings::{Consumer, Producer, Ring};
use super::socket;
use super::turn_wait::TurnWait;
use crate::packet::{self, LongFrames};
use crate::{Each, Error, Link, each_of};

/// Frames sent before their completions are looked at: half of a stack's smallest number of frames.
const REAP_BATCH: u32 = 32;
/// Tries of a turn that another stack has before the work is left for later (about 2 µs).
const TURN_ATTEMPTS: u32 = 64;
/// Rounds of that many before a stack that is about to sleep leaves the work all the same: longer than any turn can take.
const SETTLE_ATTEMPTS: u32 = 10_000;
struct Queue {
    receive: Consumer<XdpDesc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    memory: Memory,
    pieces: Pieces,
    turn_wait: TurnWait,
    /// A frame has come from here: the socket knows its device queue's NAPI.
    carries_traffic: bool,
    socket: OwnedFd,
    /// Open as long as the link, although the mapping would live without it: until then its number is no other file's.
    _pool: OwnedFd,
}

/// One stack's data path over its AF_XDP sockets: [`Link::receive`], then write frames ([`FrameSink`]), then
/// [`Link::flush`].
///
/// It is safe to sleep on [`XdpLink::descriptors`] after a `receive` that returned 0.
pub struct XdpLink {
    queues: Vec<Queue>,
    stack: u16,
    layout: PoolLayout,
    zero_copy: bool,
    idle: Idle,
    /// The process that owns the stack; a forked child must not use or close it.
    process: Pid,
    /// Where `receive` begins, so that no queue starves another.
    first_queue: usize,

    transmit: Producer<XdpDesc>,
    transmit_queue: usize,
    tx_base: u32,
    /// Where the search for a free frame begins, counted from `tx_base`.
    cursor: u32,
    /// Frames committed since the completion ring was last looked at.
    unreaped: u32,
    /// The kernel maintains the transmit ring's wakeup flag (it was seen set): only then its absence means anything.
    wakeup_flag_seen: bool,
    /// The device took nothing at the last kick: there is none until it has finished with a frame, or the stack has looked for
    /// what came. Whoever is to empty the device's queue may need this processor.
    is_stuck: bool,
    /// Frames written when a kick was refused, as the interface is down or gone: there is none until there are more.
    refused_at: Option<u32>,
    /// Frames written when [`Link::post`] last asked for a kick.
    asked: u32,
    /// How the XDP program knows that this stack looks for what came.
    pulse: Option<Pulse>,
    /// Looks are not shown.
    unseen: bool,
    /// The process was stopped, and these frames waited.
    late: Option<LateSyns>,
    /// Where frames of several segments leave.
    long_frames: Option<LongFrames>,

    counters: Counters,
}

impl XdpLink {
    /// Maps everything. The sockets may come from this process or from the broker.
    ///
    /// # Errors
    /// [`Error::Layout`] if the parts do not fit together, or what the kernel said.
    pub fn open(sockets: StackSockets) -> Result<XdpLink, Error> {
        let StackSockets { stack, queues, layout, zero_copy, busy_poll, pulses, long_frames } = sockets;
        layout.check()?;
        if u32::from(stack) >= layout.stacks {
            return Err(Error::Layout("a stack's number beyond the pool's stacks"));
        }
        let transmit_queue = layout.transmit_queue(stack) as usize;
        let mut transmit = None;
        let mut opened = Vec::with_capacity(queues.len());
        for (index, queue) in queues.into_iter().enumerate() {
            let memory = Memory::map(queue.pool.as_fd(), layout)?;
            let offsets = sockopt::xdp_mmap_offsets(&queue.socket)
                .map_err(|errno| Error::system("XDP_MMAP_OFFSETS", errno))?;
            let receive = Ring::map(queue.socket.as_fd(), XDP_PGOFF_RX_RING, &offsets.rx, layout.rx_ring)?;
            let (fill, completion) = shared_rings(queue.socket.as_fd(), &layout)?;
            if index == transmit_queue {
                transmit = Some(Producer::new(Ring::map(
                    queue.socket.as_fd(),
                    XDP_PGOFF_TX_RING,
                    &offsets.tx,
                    layout.tx_ring(),
                )?));
            }
            opened.push(Queue {
                receive: Consumer::new(receive),
                fill,
                completion,
                memory,
                pieces: Pieces::default(),
                turn_wait: TurnWait::default(),
                carries_traffic: false,
                socket: queue.socket,
                _pool: queue.pool,
            });
        }
        let transmit = transmit.ok_or(Error::Layout("no socket on the stack's transmit queue"))?;
        // Where a policy forbids it (SELinux), the program takes the stack for one that always looks.
        let pulse = pulses.and_then(|array| Pulse::open(array.as_fd(), stack).ok());
        for queue in &opened {
            queue.memory.in_use(stack).store(1, Ordering::Release);
        }
        Ok(XdpLink {
            queues: opened,
            stack,
            layout,
            zero_copy,
            idle: if busy_poll.is_some() { Idle::PollDevice } else { Idle::Return },
            process: getpid(),
            first_queue: 0,
            transmit,
            transmit_queue,
            tx_base: layout.tx_base(stack),
            cursor: 0,
            unreaped: 0,
            wakeup_flag_seen: false,
            is_stuck: false,
            refused_at: None,
            asked: 0,
            pulse,
            unseen: false,
            late: None,
            // A device that does not copy takes frames from its own ring: the others would overtake them.
            long_frames: long_frames.filter(|_| !zero_copy).map(LongFrames::new),
            counters: Counters::default(),
        })
    }

    /// Gives the frames back that are still here because it was another stack's turn: whoever sleeps with them could keep the
    /// kernel from receiving any.
    #[inline]
    fn settle(&mut self) {
        for queue in &mut self.queues {
            if queue.receive.unreleased() > 0 {
                queue.settle(self.stack, &mut self.counters);
            }
        }
    }

    #[inline]
    fn receive_waiting(&mut self, budget: usize, each: &mut impl FnMut(&[u8])) -> usize {
        // Before the rings are looked at: what comes later waits for the next time.
        if self.pulse.as_mut().is_some_and(|pulse| pulse.beat(!self.unseen)) {
            let waiting = self.queues.iter().map(Queue::waiting_frames).sum();
            self.late = Some(LateSyns::new(waiting));
        }
        match self.late.take() {
            None => self.take_frames(budget, each),
            Some(late) => self.take_late(late, budget, each),
        }
    }

    /// Takes frames that have waited for long.
    #[cold]
    fn take_late(&mut self, mut late: LateSyns, budget: usize, each: &mut impl FnMut(&[u8])) -> usize {
        let before = late.waiting();
        let mut dropped = 0;
        let count = self.take_frames(budget.min(before), &mut |frame| {
            if late.is_stale(frame) { dropped += 1 } else { each(frame) }
        });
        self.counters.late_syns += dropped;
        self.late = Some(late).filter(|late| count > 0 && late.waiting() > 0);
        count
    }

    #[inline]
    fn take_frames(&mut self, budget: usize, each: &mut impl FnMut(&[u8])) -> usize {
        let queues = self.queues.len();
        let mut count = 0;
        let mut next = self.first_queue;
        for _ in 0..queues {
            let queue = &mut self.queues[next];
            next = if next + 1 == queues { 0 } else { next + 1 };
            count += queue.receive(budget - count, &mut self.counters, each);
            if queue.receive.unreleased() > 0 {
                queue.return_frames(self.stack, &mut self.counters);
            }
            // A zero-copy driver that ran out of frames to receive into does not look for more by itself.
            if self.zero_copy && queue.fill.needs_wakeup() {
                self.counters.receive_wakeups += 1;
                socket::poll_device(queue.socket.as_fd());
            }
            if count == budget {
                self.first_queue = next;
                break;
            }
        }
        count
    }

    fn send_long_frames(&mut self) {
        if let Some(long) = &mut self.long_frames {
            long.send();
        }
    }

    /// Puts frames of several segments into the ring, in segments, if the device takes no others.
    fn cut_long_frames(&mut self) {
        if let Some(mut long) = self.long_frames.take_if(|long| long.has_no_device()) {
            long.cut(self);
            self.long_frames = Some(long);
        }
    }

    /// Whether there are frames of several segments to be sent.
    #[inline]
    fn has_long_frames(&self) -> bool {
        self.long_frames.as_ref().is_some_and(|long| !long.is_empty())
    }

    /// Puts committed frames where the kernel can see them. Returns whether it must be told.
    fn show(&mut self) -> bool {
        if self.transmit.unpublished() > 0 {
            self.transmit.publish();
        }
        if self.is_stuck && self.reap() > 0 {
            self.is_stuck = false;
        }
        let is_vain = self.is_stuck || self.refused_at == Some(self.transmit.written());
        self.transmit.outstanding() > 0 && !is_vain && self.needs_kick()
    }

    /// Takes back what the kernel has done with, now and then.
    fn recycle(&mut self) {
        if self.unreaped >= REAP_BATCH {
            self.reap();
            // Where the kernel copies, all is done by now: the same few frames again stay in the cache.
            if self.is_free(0) {
                self.cursor = 0;
            }
        }
    }

    /// Marks frames free that the kernel has finished with. Returns how many, of any stack.
    fn reap(&mut self) -> u32 {
        let queue = &self.queues[self.transmit_queue];
        let own = self.tx_base..self.tx_base + self.layout.tx_frames;
        let reaped = queue.memory.completion_ring(&queue.completion).reap(&own, &mut || ());
        self.unreaped = 0;
        self.counters.completed_frames += u64::from(reaped.freed);
        self.counters.completion_invalid += u64::from(reaped.invalid);
        self.counters.completion_missed += u64::from(reaped.missed);
        reaped.freed
    }

    #[inline]
    fn is_free(&self, frame: u32) -> bool {
        self.queues[self.transmit_queue].memory.busy()[(self.tx_base + frame) as usize].is_free()
    }

    /// Whether there is room for the longest frame where the cursor is.
    #[inline]
    fn has_room_at_cursor(&self) -> bool {
        (self.cursor..self.cursor + self.layout.frame_buffers).all(|frame| self.is_free(frame))
    }

    /// Looks for room for a frame from the cursor on, all around.
    #[cold]
    fn find_free(&mut self) -> bool {
        for _ in 0..self.layout.tx_frames {
            if self.has_room_at_cursor() {
                return true;
            }
            self.cursor = self.place(self.cursor + 1);
        }
        false
    }

    /// Where a frame may begin: there, or at the beginning if the longest one would not end in the stack's range.
    #[inline]
    fn place(&self, frame: u32) -> u32 {
        if frame + self.layout.frame_buffers > self.layout.tx_frames { 0 } else { frame }
    }

    /// Which stack this is.
    #[must_use]
    pub fn stack(&self) -> u16 {
        self.stack
    }

    /// Whether the driver moves frames without copying.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }
}

impl Queue {
    /// Frames that wait in the receive ring.
    #[cold]
    fn waiting_frames(&self) -> usize {
        let next = self.receive.next();
        let ends = |offset: &u32| !is_continued(&self.receive.ring().read(next.wrapping_add(*offset)));
        (0..self.receive.waiting()).filter(ends).count()
    }

    #[inline]
    fn receive(&mut self, budget: usize, counters: &mut Counters, each: &mut impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut bytes = 0;
        while count < budget {
            let Some(descriptor) = self.receive.take() else {
                break;
            };
            if let Some(upcoming) = self.receive.upcoming() {
                prefetch(&self.memory, &upcoming);
            }
            let frame = if descriptor.options.is_empty() && !self.pieces.is_giving_up() {
                self.memory.received(&descriptor).ok_or(Flaw::Invalid)
            } else {
                let receive = &mut self.receive;
                let packet = self.pieces.gather(descriptor, &self.memory, || receive.take());
                counters.received_long_frames += u64::from(packet.is_ok());
                packet
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(flaw) => {
                    counters.drop_received(flaw);
                    continue;
                }
            };
            count += 1;
            bytes += frame.len() as u64;
            each(frame);
        }
        if count > 0 {
            self.carries_traffic = true;
            counters.received_frames += count as u64;
            counters.received_bytes += bytes;
        }
        count
    }

    /// Gives frames back that were handed over; left for the next call if it is another stack's turn.
    #[inline]
    fn return_frames(&mut self, stack: u16, counters: &mut Counters) {
        let ring = self.memory.fill_ring(&self.fill);
        let mut seen = match ring.take(stack, &mut || ()) {
            Ok(held) => return self.give(held, counters),
            Err(seen) => seen,
        };
        for _ in 1..TURN_ATTEMPTS {
            core::hint::spin_loop();
            match ring.take(stack, &mut || ()) {
                Ok(held) => return self.give(held, counters),
                Err(now) => seen = now,
            }
        }
        if self.turn_wait.is_over(seen)
            && let Ok(held) = ring.take_from(seen, stack)
        {
            counters.fill_taken_over += 1;
            return self.give(held, counters);
        }
        counters.fill_deferred += 1;
    }

    #[inline]
    fn give(&mut self, held: Turn, counters: &mut Counters) {
        let receive = &self.receive;
        let batch = Batch {
            receive: receive.ring().consumer(),
            receive_target: receive.next(),
            count: receive.unreleased(),
        };
        let released = receive.released();
        let frame = |nth| receive.ring().read(released.wrapping_add(nth)).addr;
        match self.memory.fill_ring(&self.fill).give(held, &batch, frame, &mut || ()) {
            Outcome::Moved => self.receive.note_released(),
            Outcome::TakenOver => counters.fill_lost += 1,
            Outcome::Full => counters.fill_full += 1,
        }
    }

    /// As [`Queue::return_frames`], but waits for the others.
    #[cold]
    fn settle(&mut self, stack: u16, counters: &mut Counters) {
        let full = counters.fill_full;
        for _ in 0..SETTLE_ATTEMPTS {
            if self.receive.unreleased() == 0 || counters.fill_full != full {
                break;
            }
            sched_yield();
            self.return_frames(stack, counters);
        }
    }
}

impl Link for XdpLink {
    /// Gives the frames' memory back to the kernel. A call that finds nothing polls the device once (busy polling), or lets others run for
    /// a while ([`XdpLink::share_processor`]), and looks again.
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        self.retry();
        let count = self.receive_waiting(budget, &mut each);
        if count > 0 {
            return count;
        }
        if !self.wait_idle() {
            self.settle();
            return 0;
        }
        let count = self.receive_waiting(budget, &mut each);
        if count == 0 {
            self.settle();
        }
        count
    }

    /// Shows all committed frames to the kernel and makes it take them. What the device cannot take now stays in the ring
    /// for the next call; [`Link::is_busy`] says so.
    ///
    /// Frames of several segments go last, so that none overtakes what its flow has in the ring.
    fn flush(&mut self) {
        if self.has_long_frames() {
            self.cut_long_frames();
        }
        if self.show() {
            self.kick();
        }
        self.recycle();
        if self.has_long_frames() && self.transmit.outstanding() == 0 {
            self.send_long_frames();
        }
    }

    fn redeem(&mut self, promises: &impl Promises) {
        if !self.long_frames.as_ref().is_some_and(LongFrames::is_promised) {
            return;
        }
        self.flush();
        let may = self.transmit.outstanding() == 0;
        if let Some(long) = &mut self.long_frames {
            long.redeem(promises, may);
        }
    }

    /// If a kick that an earlier call asked for is `underway`, only frames that were published later ask for another one: the kernel shows
    /// that it has taken some when it has taken all.
    ///
    /// Frames of several segments are sent here and now: their memory is written again.
    fn post(&mut self, underway: bool) -> Option<BorrowedFd<'_>> {
        if self.has_long_frames() {
            self.flush();
            return None;
        }
        self.recycle();
        let asked = underway && self.asked == self.transmit.written();
        if !self.show() || asked {
            return None;
        }
        self.asked = self.transmit.written();
        self.counters.kicks += 1;
        Some(self.queues[self.transmit_queue].socket.as_fd())
    }

    /// Counts why.
    #[cold]
    fn kick_failed(&mut self, errno: Errno) {
        match errno {
            // Nothing is wrong: the kernel takes the rest with the next one.
            Errno::AGAIN | Errno::INTR => {}
            // The device's queue is full and it dropped a frame (veth without a queueing discipline). Whoever empties the
            // queue may need this core; the other frames wait for the next call, or they would be dropped as well.
            Errno::BUSY => {
                self.counters.transmit_dropped += 1;
                self.is_stuck = true;
                sched_yield();
            }
            Errno::NOBUFS | Errno::NOMEM => self.counters.transmit_no_memory += 1,
            _ => self.refused(errno),
        }
    }

    fn retry(&mut self) {
        self.is_stuck = false;
        if let Some(long) = &mut self.long_frames {
            long.retry();
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.socket.as_fd())
    }

    fn rest(&mut self, longest: Duration) {
        if matches!(self.idle, Idle::Yield) {
            self.sleep_for_frames(longest);
        }
    }

    fn is_busy(&self) -> bool {
        self.transmit.unpublished() > 0 || self.transmit.outstanding() > 0 || self.has_long_frames()
    }

    fn segment_offload(&self) -> u32 {
        if self.long_frames.is_some() { packet::SEGMENT_OFFLOAD } else { 0 }
    }

    fn checksum_offload(&self) -> bool {
        self.layout.tx_metadata
    }

    /// A buffer takes a segment of an Ethernet, or somewhat more of a longer frame, which has several. Half of that is counted: frames
    /// without data arrive, too.
    #[inline]
    fn room(&self) -> Option<u32> {
        Some(self.layout.rx_ring * (super::FRAME_LEN / 2) as u32)
    }

    fn look_unseen(&mut self, unseen: bool) {
        self.unseen = unseen;
    }

    #[inline]
    fn wait_to_accept(&mut self) {
        if let Some(pulse) = &self.pulse {
            pulse.wait();
        }
    }

    fn others_wait(&self) -> usize {
        self.pulse.as_ref().map_or(0, Pulse::others_wait)
    }

    #[inline]
    fn changes(&self) -> Option<u64> {
        self.pulse.as_ref().map(Pulse::changes)
    }

    fn hold(&self, bytes: u64) -> u64 {
        self.pulse.as_ref().map_or(0, |pulse| pulse.hold(bytes))
    }

    fn each_counter(&self, each: Each<'_>) {
        each_of("now", self.occupancy().named(), each);
        each_of("link", self.counters.named().chain(self.long_frame_counters().named()), each);
    }

    fn each_kernel_counter(&self, each: Each<'_>) {
        each_of("kernel", self.kernel_counters().iter().flat_map(KernelCounters::named), each);
    }
}

impl FrameSink for XdpLink {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        if self.has_long_frames() && !self.has_room_to_follow() {
            self.counters.transmit_full += 1;
            return None;
        }
        if !self.transmit.has_room(self.layout.frame_buffers) {
            // Somebody else's kick has not ended: this one does when that has.
            self.flush();
            if !self.transmit.has_room(self.layout.frame_buffers) {
                self.counters.transmit_full += 1;
                return None;
            }
        }
        if !self.has_room_at_cursor() {
            if self.reap() == 0 {
                // The kernel has not even been shown them, perhaps.
                self.flush();
                self.reap();
            }
            if !self.find_free() {
                self.counters.transmit_full += 1;
                return None;
            }
        }
        let frame = self.tx_base + self.cursor;
        let memory = &mut self.queues[self.transmit_queue].memory;
        // SAFETY: the places lie in this stack's range, and their busy bytes say that the kernel has finished with them.
        Some(unsafe { memory.transmit_frame(frame) })
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.put(length, Unfinished::default());
    }

    fn long_frame(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.long_frames.as_mut().is_none_or(|long| long.frame(length).is_none()) {
            self.flush();
        }
        let frame = self.long_frames.as_mut().and_then(|long| long.frame(length));
        if frame.is_none() {
            self.counters.transmit_full += 1;
        }
        frame
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        match self.long_frames.as_mut().filter(|_| left.segment_len > 0) {
            Some(long) => long.commit(length, left),
            None => self.put(length, left),
        }
    }

    #[inline]
    fn takes_promises(&self) -> bool {
        self.long_frames.as_ref().is_some_and(|long| !long.has_no_device())
    }

    fn commit_promised(&mut self, left: Unfinished, payload: Promised) {
        if let Some(long) = &mut self.long_frames {
            long.commit_promised(left, payload);
        }
    }
}

/// Starts loading the first lines of a frame that comes next.
#[inline]
fn prefetch(memory: &Memory, descriptor: &XdpDesc) {
    #[cfg(target_arch = "x86_64")]
    if let Some(frame) = memory.received(descriptor) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let pointer = frame.as_ptr().cast::<i8>();
        // SAFETY: a prefetch reads nothing that a program can see and cannot fault, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(pointer);
            _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (memory, descriptor);
}

impl Drop for XdpLink {
    fn drop(&mut self) {
        // In a forked child the memory is not mapped, and the stack is the parent's.
        if getpid() != self.process {
            return;
        }
        for queue in &self.queues {
            queue.memory.in_use(self.stack).store(0, Ordering::Release);
        }
    }
}

impl core::fmt::Debug for XdpLink {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("XdpLink")
            .field("stack", &self.stack)
            .field("queues", &self.queues.len())
            .field("zero_copy", &self.zero_copy)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
