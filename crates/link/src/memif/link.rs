//! The data path of one ring pair.

pub(super) mod pulse;
mod woken;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_wire::FrameSink;

use super::doorbell::Registered;
use super::interrupt::Ringer;
use super::region::Region;
use super::ring::{Buffers, Descriptor, NEXT, Ring};
use super::{FRAME_LEN_MAX, Pair, Registry, RingEnd, Role, Settings, rendezvous, sleep};
use crate::Error;
use crate::counters::counters;

/// Entries written before they are shown to the peer, if nobody flushes earlier.
const PUBLISH_BATCH: u16 = 32;
/// Entries taken before their places are given back, if `receive` does not end earlier.
const RELEASE_BATCH: u16 = 64;
/// Frames ahead of the one that is handed over, whose memory is being fetched from the other core.
const PREFETCH_AHEAD: u16 = 4;
/// Entries of chains that one call of `receive` walks through, before it leaves the rest to the next: a frame of the peer's
/// making may have as many as the ring, and bring no bytes.
const CHAIN_ENTRIES_A_CALL: u32 = 1 << 14;
/// Calls of `receive` in a row that find nothing before the control socket is asked whether the peer lives: some milliseconds.
const EMPTY_RECEIVES: u32 = 1 << 16;

counters! {
    /// What a [`MemifLink`] has done, and every reason for which it did not.
    Counters {
        /// Frames handed to the caller of [`MemifLink::receive`].
        received_frames,
        /// Their bytes.
        received_bytes,
        /// Frames dropped because a descriptor points out of the shared memory.
        receive_invalid,
        /// Frames dropped because they are longer than any frame may be.
        receive_too_long,
        /// Frames dropped because their last descriptor says that they go on.
        receive_unfinished,
        /// Frames committed.
        sent_frames,
        /// Their bytes.
        sent_bytes,
        /// Frames that took several buffers.
        sent_chained,
        /// Frames that were written elsewhere first, because the buffers for them are not one after the other.
        sent_copied,
        /// [`FrameSink::frame`] had no free buffer: the peer does not keep up.
        transmit_full,
        /// [`FrameSink::frame`] was asked after the peer had gone.
        transmit_down,
        /// Frames dropped because the peer's buffers turned out to be too short for them.
        transmit_no_room,
        /// Interrupts sent: the peer was asleep.
        interrupts,
        /// Interrupts received.
        wakeups,
    }
}

/// Whether a link can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It can.
    Up,
    /// The peer has hung up or died.
    PeerGone,
    /// The peer broke the protocol's rules, as said. Nothing of it is looked at any more.
    PeerBroken(&'static str),
}

/// One ring pair's data path: [`MemifLink::receive`], then write frames ([`FrameSink`]), then [`MemifLink::flush`].
///
/// A received frame is copied once, into memory of this process, before anybody looks at it: the peer can write the shared
/// memory at any time, and a frame is read more than once (lengths are checked and then used). A frame to send is written
/// straight into the shared memory: nothing is decided by reading it again, so a peer that changes it harms its own frames only.
///
/// Nobody is woken for this end while it polls. To sleep, call [`MemifLink::arm`] after a `receive` that returned 0; if it
/// returns true, sleep on [`MemifLink::descriptors`].
pub struct MemifLink {
    role: Role,
    transmit: Transmit,
    receive: Receive,
    /// After the rings in it: fields are dropped in order.
    regions: Vec<Region>,
    /// Wakes the peer, and is written by the peer to wake this end.
    interrupt: Registered,
    wakeup: Registered,
    control: Registered,
    ringer: Ringer,
    state: LinkState,
    /// This end asked to be woken.
    armed: bool,
    empty_receives: u32,
    mtu: u16,
    offload: bool,
    /// Frames that there had been at the last wake-up, and wake-ups in a row that brought none.
    frames_at_wakeup: u64,
    idle_wakeups: u32,
    counters: Counters,
}

/// The buffers of a ring where they are known to be one for each entry, one after the other, for ever: a client knows that of
/// its own, a server of an Overfly client's.
#[derive(Clone, Copy)]
struct Area {
    base: NonNull<u8>,
    buffers: Buffers,
}

impl Area {
    fn new(buffers: Buffers, ring: &Ring, regions: &[Region]) -> Option<Area> {
        let length = buffers.length.checked_mul(u32::from(ring.size()))?;
        Some(Area { base: regions.first()?.at(buffers.offset, length)?, buffers })
    }

    /// What an Overfly client's ring says about its buffers. Their length is not in the descriptors of frames.
    fn learned(ring: &Ring, regions: &[Region]) -> Option<Area> {
        let first = ring.read(0);
        let length =
            if ring.size() == 1 { first.length } else { ring.read(1).offset.checked_sub(first.offset)? };
        let area = Area::new(Buffers { offset: first.offset, length }, ring, regions)?;
        let as_expected = |slot: u16| {
            let (read, expected) = (ring.read(slot), area.buffers.descriptor(slot));
            (read.region, read.offset) == (expected.region, expected.offset)
        };
        (0..ring.size()).all(as_expected).then_some(area)
    }

    #[inline]
    fn at(&self, slot: u16) -> NonNull<u8> {
        // SAFETY: `new` found all of the ring's buffers to lie inside a region, and `slot` is less than their number.
        unsafe { self.base.add(usize::from(slot) * self.buffers.length as usize) }
    }
}

/// The ring that this end sends over.
struct Transmit {
    ring: Ring,
    role: Role,
    area: Option<Area>,
    /// The entry that the next frame begins with.
    next: u16,
    /// Entries before this one are the peer's to see.
    published: u16,
    /// Entries before this one may be written.
    limit: u16,
    /// Bytes of the longest frame.
    frame_len: u32,
    /// The last length of a buffer, and how many such the longest frame takes.
    entries_for: (u32, u16),
    /// What `frame` gave last.
    offer: Option<Offer>,
    /// Where a frame is written that is copied then. Empty until it is needed.
    scratch: Vec<u8>,
}

/// The place of a frame that is being written.
#[derive(Clone, Copy)]
struct Offer {
    first: Descriptor,
    copied: bool,
}

/// The ring that this end receives over.
struct Receive {
    ring: Ring,
    role: Role,
    area: Option<Area>,
    /// The peer wants to read in the descriptors what it is offered again.
    rewrite: bool,
    /// The entry that the next frame begins with.
    next: u16,
    /// Entries before this one have been given back.
    released: u16,
    /// The peer's index as it was last read.
    seen: u16,
    /// Entries of chains that were walked through in this call.
    walked: u32,
    /// The frame that is being handed over.
    inbox: Box<[u8]>,
}

/// What became of a received frame.
enum Taken {
    Frame(usize),
    Nothing,
    Dropped(fn(&mut Counters)),
}

// SAFETY: the pointers of its areas lead into its regions, which it owns and which may be used from any thread.
unsafe impl Send for MemifLink {}

impl MemifLink {
    /// Maps everything of a pair, which may come from another process.
    ///
    /// # Errors
    /// [`Error::MemifProtocol`] if the rings do not lie inside the regions, or what the kernel said about mapping them.
    pub fn open(pair: Pair) -> Result<MemifLink, Error> {
        MemifLink::open_registered(pair, None)
    }

    /// As [`MemifLink::open`], with descriptors that `registry` watches over.
    ///
    /// # Errors
    /// As [`MemifLink::open`].
    pub fn open_registered(pair: Pair, registry: Option<Registry>) -> Result<MemifLink, Error> {
        let Pair { role, regions, to_server, to_client, control, mtu, offload } = pair;
        // From here on whatever fails releases them.
        let end = |end: RingEnd| (end.place, end.buffers, Registered::by(registry, end.interrupt));
        let control = Registered::by(registry, control);
        let (to_server, to_client) = (end(to_server), end(to_client));
        let broken = |what: &str| Error::MemifProtocol(what.to_owned());
        let own = role == Role::Client;
        let regions: Vec<Region> = (regions.iter())
            .map(|(descriptor, size)| Region::map(descriptor, *size, own))
            .collect::<Result<_, _>>()?;
        let (sending, receiving) = match role {
            Role::Client => (to_server, to_client),
            Role::Server => (to_client, to_server),
        };
        let ring = |place: &super::RingPlace| {
            (regions.get(usize::from(place.region)))
                .and_then(|region| region.ring(place.offset, place.log2_size))
                .filter(Ring::has_cookie)
                .ok_or_else(|| broken("a ring outside its region, or without its cookie"))
        };
        let (send_ring, receive_ring) = (ring(&sending.0)?, ring(&receiving.0)?);
        let area = |ring: &Ring, buffers: Option<Buffers>| match buffers {
            Some(buffers) => Area::new(buffers, ring, &regions).map(Some),
            None if offload => Area::learned(ring, &regions).map(Some),
            None => Some(None),
        };
        let areas = area(&send_ring, sending.1).zip(area(&receive_ring, receiving.1));
        let (send_area, receive_area) =
            areas.ok_or_else(|| broken("buffers that are not where they should be"))?;
        let ringer = Ringer::of_this_process()?;
        sleep::poll(receive_ring.flags());
        let frame_len = if offload { FRAME_LEN_MAX as u32 } else { u32::from(mtu) + 14 };
        let receive = Receive::new(receive_ring, role, receive_area, !offload);
        if role == Role::Client {
            // The server has buffers only now: perhaps it sleeps because there were none.
            ringer.ring(sending.2.as_fd());
        }
        Ok(MemifLink {
            role,
            transmit: Transmit::new(send_ring, role, send_area, frame_len),
            receive,
            regions,
            interrupt: sending.2,
            wakeup: receiving.2,
            control,
            ringer,
            state: LinkState::Up,
            armed: false,
            empty_receives: 0,
            mtu,
            offload,
            frames_at_wakeup: 0,
            idle_wakeups: 0,
            counters: Counters::default(),
        })
    }

    /// A new link to whoever has the other end of `channel`, a `SOCK_SEQPACKET` Unix socket, and calls [`MemifLink::take`].
    /// Frames can be sent at once.
    ///
    /// # Errors
    /// [`Error::MemifGone`], or what the kernel said.
    pub fn offer(channel: &OwnedFd) -> Result<MemifLink, Error> {
        MemifLink::open(rendezvous::offer(channel, &Settings::default(), 0)?)
    }

    /// The link that was offered at the other end of `channel`.
    ///
    /// # Errors
    /// [`Error::MemifProtocol`] if it makes no sense, [`Error::MemifGone`] if there is none, or what the kernel said.
    pub fn take(channel: impl AsFd, registry: Registry) -> Result<MemifLink, Error> {
        let offer = rendezvous::take_offer(channel)?;
        let (pair, _) = offer.ok_or(Error::MemifGone { during: "an offer", errno: None })?;
        MemifLink::open_registered(pair, Some(registry))
    }

    /// Hands up to `budget` received frames (Ethernet header first) to `each`. Returns how many.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        if self.armed {
            sleep::poll(self.receive.ring.flags());
            self.armed = false;
        }
        if self.state != LinkState::Up {
            return 0;
        }
        let mut count = 0;
        self.receive.walked = 0;
        // Dropped frames use the budget up too: a peer that sends nothing else keeps nobody here.
        for _ in 0..budget {
            match self.receive.take(&self.regions) {
                Ok(Taken::Frame(length)) => {
                    count += 1;
                    self.counters.received_bytes += length as u64;
                    each(&self.receive.inbox[..length]);
                }
                Ok(Taken::Dropped(reason)) => reason(&mut self.counters),
                Ok(Taken::Nothing) => break,
                Err(what) => {
                    self.state = LinkState::PeerBroken(what);
                    break;
                }
            }
            if self.receive.unreleased() >= RELEASE_BATCH {
                self.receive.release();
            }
            if self.receive.walked >= CHAIN_ENTRIES_A_CALL {
                break;
            }
        }
        if self.receive.unreleased() > 0 {
            self.receive.release();
        }
        if count > 0 {
            self.counters.received_frames += count as u64;
            self.empty_receives = 0;
        } else {
            self.empty_receives += 1;
            if self.empty_receives >= EMPTY_RECEIVES {
                self.check_peer();
            }
        }
        count
    }

    /// Shows all committed frames to the peer, and wakes it if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.transmit.next != self.transmit.published {
            self.publish();
        }
    }

    fn publish(&mut self) {
        if self.transmit.publish() {
            self.counters.interrupts += 1;
            self.ringer.ring(self.interrupt.as_fd());
        }
    }

    /// Asks to be woken when frames arrive. Returns whether it is safe to sleep on [`MemifLink::descriptors`]; otherwise there
    /// is something to receive. The next `receive` ends it. Where the peer is gone the descriptors stay readable.
    ///
    /// Nobody is woken because there is room to send again: after [`FrameSink::frame`] has returned `None`, sleep for a short time only.
    pub fn arm(&mut self) -> bool {
        self.check_peer();
        self.arm_unchecked()
    }

    /// As [`MemifLink::arm`], where no descriptor is readable that was not before: the peer has not gone, and no interrupt has come.
    pub(super) fn arm_unchecked(&mut self) -> bool {
        if self.state != LinkState::Up {
            return true;
        }
        self.armed = true;
        sleep::may_sleep(self.receive.peer_index(), self.receive.ring.flags(), self.receive.next)
    }

    /// Bytes of shared memory that are mapped for it.
    pub(super) fn memory(&self) -> u64 {
        self.regions.iter().map(|region| region.length() as u64).sum()
    }

    /// The peer has taken every frame that it was shown.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.transmit.peers_limit().wrapping_sub(self.transmit.published) == self.transmit.ring.size()
    }

    /// What to sleep on: readable when a frame has arrived after [`MemifLink::arm`], or when the peer has gone.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.wakeup.as_fd(), self.control.as_fd()].into_iter()
    }

    /// Whether the link can be used.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// The longest IP packet, in bytes, of a frame that no [`MemifLink::offload`] applies to.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Both ends are Overfly's and agreed on frames of up to [`FRAME_LEN_MAX`] bytes and unfinished checksums: the frames never
    /// leave memory.
    #[must_use]
    pub fn offload(&self) -> bool {
        self.offload
    }

    /// What this link has done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Transmit {
    fn new(ring: Ring, role: Role, area: Option<Area>, frame_len: u32) -> Transmit {
        let mut transmit = Transmit {
            ring,
            role,
            area,
            next: 0,
            published: 0,
            limit: 0,
            frame_len,
            entries_for: (0, 0),
            offer: None,
            scratch: Vec::new(),
        };
        // Where whoever had this end before stopped, or 0.
        transmit.next = transmit.own_index().load(Ordering::Relaxed);
        (transmit.published, transmit.limit) = (transmit.next, transmit.next);
        transmit
    }

    /// Entries that can be written, looking at the peer's index if there seem to be fewer than `wanted`.
    #[inline]
    fn free(&mut self, wanted: u16) -> Result<u16, &'static str> {
        let free = self.limit.wrapping_sub(self.next);
        if free >= wanted {
            return Ok(free);
        }
        self.limit = self.peers_limit();
        let free = self.limit.wrapping_sub(self.next);
        if free > self.ring.size() {
            return Err("its index of the ring that is sent over is out of range");
        }
        Ok(free)
    }

    /// Entries before this one may be written, as the peer's index says now.
    #[inline]
    fn peers_limit(&self) -> u16 {
        match self.role {
            Role::Client => self.ring.tail().load(Ordering::Acquire).wrapping_add(self.ring.size()),
            Role::Server => self.ring.head().load(Ordering::Acquire),
        }
    }

    /// The buffer of an entry that may be written.
    #[inline]
    fn buffer(&self, index: u16) -> Descriptor {
        match self.area {
            Some(area) => area.buffers.descriptor(index & (self.ring.size() - 1)),
            None => self.ring.read(index),
        }
    }

    /// Where the next frame can be written. `Ok(None)`: nowhere now.
    #[inline]
    fn offer(&mut self, regions: &[Region]) -> Result<Option<(NonNull<u8>, Offer)>, &'static str> {
        if self.free(1)? == 0 {
            return Ok(None);
        }
        let first = self.buffer(self.next);
        let entries = if first.length >= self.frame_len { 1 } else { self.entries(first.length)? };
        if self.free(entries)? < entries {
            return Ok(None);
        }
        let slot = self.next & (self.ring.size() - 1);
        let memory = match self.area {
            Some(area) if entries <= self.ring.size() - slot => area.at(slot),
            None if entries == 1 => (regions.get(usize::from(first.region)))
                .and_then(|region| region.at(first.offset, self.frame_len))
                .ok_or("a buffer outside its region")?,
            _ => return Ok(Some((self.scratch(), Offer { first, copied: true }))),
        };
        Ok(Some((memory, Offer { first, copied: false })))
    }

    #[cold]
    fn scratch(&mut self) -> NonNull<u8> {
        self.scratch.resize(self.frame_len as usize, 0);
        NonNull::from(self.scratch.as_mut_slice()).cast()
    }

    /// How many buffers of a length the longest frame takes.
    fn entries(&mut self, length: u32) -> Result<u16, &'static str> {
        if self.entries_for.0 != length {
            let entries = if length == 0 { u32::MAX } else { self.frame_len.div_ceil(length) };
            let entries = u16::try_from(entries).ok().filter(|&entries| entries <= self.ring.size());
            self.entries_for = (length, entries.ok_or("its buffers are too small for a frame")?);
        }
        Ok(self.entries_for.1)
    }

    /// Hands over a frame that lies in more than one buffer, or is to be copied there. `Ok(false)`: it does not fit.
    #[cold]
    fn commit_chain(&mut self, offer: Offer, length: u32, regions: &[Region]) -> Result<bool, &'static str> {
        let free = self.free(1)?;
        let (mut index, mut written) = (self.next, 0);
        let mut last = (index, offer.first);
        while written < length {
            if index.wrapping_sub(self.next) == free {
                return Ok(false);
            }
            let buffer = self.buffer(index);
            let part = buffer.length.min(length - written);
            if offer.copied {
                let target = (regions.get(usize::from(buffer.region)))
                    .and_then(|region| region.at(buffer.offset, part))
                    .ok_or("a buffer outside its region")?;
                let source = &self.scratch[written as usize..(written + part) as usize];
                // SAFETY: the region has `part` bytes there, which are not the scratch's.
                unsafe { target.copy_from_nonoverlapping(NonNull::from(source).cast(), source.len()) };
            }
            written += part;
            last = (index, Descriptor { length: part, flags: 0, ..buffer });
            self.ring.write(index, Descriptor { flags: NEXT, ..last.1 });
            index = index.wrapping_add(1);
        }
        self.ring.write(last.0, last.1);
        self.next = index;
        Ok(true)
    }

    /// The index that this end writes.
    fn own_index(&self) -> &AtomicU16 {
        match self.role {
            Role::Client => self.ring.head(),
            Role::Server => self.ring.tail(),
        }
    }

    /// Returns whether the peer must be woken.
    #[inline]
    fn publish(&mut self) -> bool {
        self.published = self.next;
        sleep::show(self.own_index(), self.ring.flags(), self.next)
    }
}

impl Receive {
    /// The peer has shown no frame that has not been taken.
    fn is_empty(&self) -> bool {
        self.peer_index().load(Ordering::Acquire) == self.next
    }

    fn new(ring: Ring, role: Role, area: Option<Area>, rewrite: bool) -> Receive {
        // A server goes on where whoever had this end before stopped. A client is the first to look at the ring: the server
        // has written nothing, since no buffer has been offered to it.
        let next = ring.tail().load(Ordering::Relaxed);
        let inbox = vec![0; FRAME_LEN_MAX].into_boxed_slice();
        let mut receive =
            Receive { ring, role, area, rewrite, next, released: next, seen: next, walked: 0, inbox };
        receive.release();
        receive
    }

    /// The index that the peer writes.
    #[inline]
    fn peer_index(&self) -> &AtomicU16 {
        match self.role {
            Role::Client => self.ring.tail(),
            Role::Server => self.ring.head(),
        }
    }

    #[inline]
    fn unreleased(&self) -> u16 {
        self.next.wrapping_sub(self.released)
    }

    /// The memory of an entry, as far as it is the shared memory's.
    #[inline]
    fn memory(&self, index: u16, descriptor: Descriptor, regions: &[Region]) -> Option<NonNull<u8>> {
        match self.area {
            // Whatever the peer made of the descriptor, the buffer is where it always is.
            Some(area) => {
                let fits = descriptor.length <= area.buffers.length;
                fits.then(|| area.at(index & (self.ring.size() - 1)))
            }
            None => regions.get(usize::from(descriptor.region))?.at(descriptor.offset, descriptor.length),
        }
    }

    /// Copies the next frame into the inbox.
    #[inline]
    fn take(&mut self, regions: &[Region]) -> Result<Taken, &'static str> {
        if self.next == self.seen {
            self.seen = self.peer_index().load(Ordering::Acquire);
            let count = self.seen.wrapping_sub(self.next);
            if count == 0 {
                return Ok(Taken::Nothing);
            }
            if count > self.ring.size() {
                return Err("its index of the ring that is received over is out of range");
            }
            for ahead in 0..PREFETCH_AHEAD {
                self.prefetch(ahead, regions);
            }
        }
        self.prefetch(PREFETCH_AHEAD, regions);
        let descriptor = self.ring.read(self.next);
        if descriptor.flags & NEXT != 0 {
            return Ok(self.take_chain(regions));
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        Ok(match self.copy(index, descriptor, 0, regions) {
            Ok(length) => Taken::Frame(length),
            Err(reason) => Taken::Dropped(reason),
        })
    }

    /// Copies an entry's bytes to a place in the inbox. Returns where they end.
    #[inline]
    fn copy(
        &mut self,
        index: u16,
        descriptor: Descriptor,
        at: usize,
        regions: &[Region],
    ) -> Result<usize, fn(&mut Counters)> {
        let Some(source) = self.memory(index, descriptor, regions) else {
            return Err(|counters| counters.receive_invalid += 1);
        };
        let end = at + descriptor.length as usize;
        let Some(target) = self.inbox.get_mut(at..end) else {
            return Err(|counters| counters.receive_too_long += 1);
        };
        // SAFETY: `source` was found to have that many bytes in a mapping, which is not the inbox. The peer may be writing
        // them: then the copy holds some mixture, which is as good as any other bytes, and nothing reads the source again.
        unsafe { NonNull::from(target).cast().copy_from_nonoverlapping(source, descriptor.length as usize) };
        Ok(end)
    }

    /// As [`Receive::take`], of a frame in several buffers.
    #[cold]
    fn take_chain(&mut self, regions: &[Region]) -> Taken {
        let mut copied: Result<usize, fn(&mut Counters)> = Ok(0);
        while self.next != self.seen {
            let descriptor = self.ring.read(self.next);
            copied = copied.and_then(|at| self.copy(self.next, descriptor, at, regions));
            self.next = self.next.wrapping_add(1);
            self.walked += 1;
            if descriptor.flags & NEXT == 0 {
                return copied.map_or_else(Taken::Dropped, Taken::Frame);
            }
        }
        Taken::Dropped(|counters| counters.receive_unfinished += 1)
    }

    /// Gives the places of all taken entries back to the peer.
    #[inline]
    fn release(&mut self) {
        match (self.role, self.area) {
            (Role::Client, Some(area)) => {
                while self.rewrite && self.released != self.next {
                    let slot = self.released & (self.ring.size() - 1);
                    self.ring.write(slot, area.buffers.descriptor(slot));
                    self.released = self.released.wrapping_add(1);
                }
                self.ring.head().store(self.next.wrapping_add(self.ring.size()), Ordering::Release);
            }
            _ => self.ring.tail().store(self.next, Ordering::Release),
        }
        self.released = self.next;
    }

    /// Starts loading the first lines of a frame that comes later.
    #[inline]
    fn prefetch(&self, ahead: u16, regions: &[Region]) {
        if ahead >= self.seen.wrapping_sub(self.next) {
            return;
        }
        let index = self.next.wrapping_add(ahead);
        let memory = match self.area {
            Some(area) => Some(area.at(index & (self.ring.size() - 1))),
            None => self.memory(index, self.ring.read(index), regions),
        };
        if let Some(memory) = memory {
            prefetch(memory);
        }
    }
}

#[inline]
fn prefetch(memory: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let pointer = memory.as_ptr().cast_const().cast::<i8>();
        // SAFETY: a prefetch reads nothing that a program can see and cannot fault, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(pointer);
            _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = memory;
}

impl FrameSink for MemifLink {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        if self.state != LinkState::Up {
            self.counters.transmit_down += 1;
            return None;
        }
        match self.transmit.offer(&self.regions) {
            Ok(Some((memory, offer))) => {
                self.transmit.offer = Some(offer);
                let length = self.transmit.frame_len as usize;
                // SAFETY: `offer` found the bytes inside a region, or made the scratch as long; both live as long as `self`,
                // and nobody here touches them while the slice does. The peer may, against the rules: what is written is
                // only read again to be summed, and a wrong sum is the peer's loss.
                Some(unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), length) })
            }
            Ok(None) => {
                self.flush();
                self.counters.transmit_full += 1;
                None
            }
            Err(what) => {
                self.state = LinkState::PeerBroken(what);
                None
            }
        }
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        let Some(offer) = self.transmit.offer.take() else {
            debug_assert!(false, "a commit without a frame");
            return;
        };
        let transmit = &mut self.transmit;
        let bytes = (length as u32).min(transmit.frame_len);
        if !offer.copied && bytes <= offer.first.length {
            transmit.ring.write(transmit.next, Descriptor { flags: 0, length: bytes, ..offer.first });
            transmit.next = transmit.next.wrapping_add(1);
        } else {
            match transmit.commit_chain(offer, bytes, &self.regions) {
                Ok(true) => {}
                Ok(false) => {
                    self.counters.transmit_no_room += 1;
                    return;
                }
                Err(what) => {
                    self.state = LinkState::PeerBroken(what);
                    return;
                }
            }
            self.counters.sent_chained += u64::from(bytes > offer.first.length);
            self.counters.sent_copied += u64::from(offer.copied);
        }
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += u64::from(bytes);
        if self.transmit.next.wrapping_sub(self.transmit.published) >= PUBLISH_BATCH {
            self.publish();
        }
    }
}

impl core::fmt::Debug for MemifLink {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("MemifLink")
            .field("role", &self.role)
            .field("state", &self.state)
            .field("offload", &self.offload)
            .field("transmit", &self.transmit.ring)
            .field("receive", &self.receive.ring)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
