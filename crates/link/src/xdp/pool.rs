//! The privileged half: one queue's memory, its rings, and sockets on it for the stacks.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::fill::{Batch, Outcome, Turn};
use super::memory::{FRAME_LEN, Memory, PoolLayout, STACKS_MAX, page_len};
use super::metadata::{METADATA_LEN, UMEM_HAS_METADATA};
use super::rings::Ring;
use super::socket::{self, BusyPoll};
use super::turn_wait::TurnWait;
use crate::Error;
use crate::mapping::Mapping;

/// The number of whoever owns the pool, where a stack's would be.
const OWNER: u16 = STACKS_MAX;
/// Turns that the owner loses before it gives up. It loses one if it does not run for [`super::turn_wait::TURN_MAX`].
const TURNS_LOST_MAX: u32 = 100;
/// How long a queue may be taken by a pool that has just been closed: the work queue that lets go of it may have to wait for a processor.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// How frames get between driver and pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy if the driver can, otherwise copy.
    #[default]
    Best,
    /// Copy, also where the driver could do without.
    Copy,
}

/// Whether a pool's memory is made of huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// It is not.
    #[default]
    No,
    /// Where the machine has enough of them set aside (`vm.nr_hugepages`); else of those that it can put together, which are not
    /// called so: each process that has a stack maps the whole pool, and of small pages that takes milliseconds.
    Try,
    /// It is, or there is no pool.
    Insist,
}

/// What was left in the rings of a stack that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Received frames that nobody had read; they are the kernel's again.
    pub received_frames: u32,
    /// Frames that could not be taken back: the stack had corrupted its ring, or others the fill ring.
    pub lost_frames: u32,
}

/// One queue's UMEM, fill ring and completion ring, with the socket that registered them.
///
/// Needs CAP_NET_RAW (the sockets) and, for pools beyond `ulimit -l`, CAP_IPC_LOCK.
pub struct Pool {
    interface: u32,
    queue: u32,
    /// Holds the UMEM. It has a receive ring only because a socket needs one ring to be bound; nothing is sent to it.
    root: OwnedFd,
    descriptor: OwnedFd,
    memory: Memory,
    fill: Ring<u64>,
    completion: Ring<u64>,
    zero_copy: bool,
    huge_pages: bool,
}

/// Whether this kernel's AF_XDP sockets take packets of several descriptors (`XDP_USE_SG`, Linux 6.6).
#[must_use]
pub fn knows_long_packets() -> bool {
    // Flags are looked at before the interface, which there is not (`xsk_bind` in net/xdp/xsk.c).
    let nowhere = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_SG, i32::MAX as u32, 0);
    af_xdp_socket().is_ok_and(|socket| bind(&socket, &nowhere) == Err(Errno::NODEV))
}

impl Pool {
    /// Makes the pool of one queue and gives the kernel frames to receive into. With `long_packets` its sockets take packets of
    /// several descriptors, where [`knows_long_packets`] says so.
    ///
    /// # Errors
    /// [`Error::NoPrivilege`], [`Error::NoAfXdp`], [`Error::QueueTaken`], [`Error::Layout`], or what the kernel said.
    pub fn create(
        interface: u32,
        queue: u32,
        layout: PoolLayout,
        mode: Mode,
        pages: HugePages,
        long_packets: bool,
    ) -> Result<Pool, Error> {
        layout.check()?;
        let system = Error::system;
        let ((descriptor, memory), huge_pages) = match pages {
            HugePages::No => (allocate(layout, MemfdFlags::empty(), false)?, false),
            HugePages::Try => match allocate(layout, MemfdFlags::HUGETLB, false) {
                Ok(memory) => (memory, true),
                Err(_) => (allocate(layout, MemfdFlags::empty(), true)?, false),
            },
            HugePages::Insist => {
                let length = layout.memory_len();
                let memory = allocate(layout, MemfdFlags::HUGETLB, false);
                (memory.map_err(|_| Error::NoHugePages { length })?, true)
            }
        };
        let root = af_xdp_socket()?;
        sockopt::set_xdp_umem_reg(
            &root,
            XdpUmemReg {
                addr: memory.base().as_ptr() as u64,
                len: layout.umem_len() as u64,
                chunk_size: FRAME_LEN as u32,
                headroom: 0,
                flags: if layout.tx_metadata { UMEM_HAS_METADATA } else { XdpUmemRegFlags::empty() },
                tx_metadata_len: if layout.tx_metadata { METADATA_LEN } else { 0 },
            },
        )
        .map_err(|errno| match errno {
            Errno::NOBUFS | Errno::NOMEM => Error::NoPrivilege {
                operation: "pinning a pool's memory (more than `ulimit -l` allows)",
                capability: "CAP_IPC_LOCK",
            },
            errno => system("XDP_UMEM_REG", errno),
        })?;
        sockopt::set_xdp_umem_fill_ring_size(&root, layout.fill_ring())
            .map_err(|errno| system("XDP_UMEM_FILL_RING", errno))?;
        sockopt::set_xdp_umem_completion_ring_size(&root, layout.completion_ring())
            .map_err(|errno| system("XDP_UMEM_COMPLETION_RING", errno))?;
        sockopt::set_xdp_rx_ring_size(&root, 2).map_err(|errno| system("XDP_RX_RING", errno))?;
        let (fill, completion) = shared_rings(root.as_fd(), &layout)?;
        let ring = memory.fill_ring(&fill);
        for (slot, frame) in ring.slots.iter().zip(0..layout.rx_ring) {
            slot.store(u64::from(frame) * FRAME_LEN as u64, Ordering::Relaxed);
        }
        ring.reserve.store(layout.rx_ring, Ordering::Relaxed);
        ring.turn.store(Turn::free(layout.rx_ring, OWNER, 0).word(), Ordering::Release);
        ring.producer.store(layout.rx_ring, Ordering::Release);

        // Neither XDP_COPY nor XDP_ZEROCOPY: the kernel tries zero-copy and falls back (net/xdp/xsk_buff_pool.c).
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_COPY, mode == Mode::Copy);
        // The sockets that share the pool have it from this one.
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, long_packets);
        let address = SocketAddrXdp::new(flags, interface, queue);
        let begin = Instant::now();
        loop {
            match bind(&root, &address) {
                Ok(()) => break,
                // A closed pool lets go of its queue a little later (xp_release_deferred).
                Err(Errno::BUSY) if begin.elapsed() < RELEASE_WAIT => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::BUSY) => return Err(Error::QueueTaken { queue }),
                Err(errno) => return Err(system("bind of an AF_XDP socket", errno)),
            }
        }
        let zero_copy = sockopt::xdp_options(&root)
            .map_err(|errno| system("XDP_OPTIONS", errno))?
            .contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(Pool { interface, queue, root, descriptor, memory, fill, completion, zero_copy, huge_pages })
    }

    /// Whether the driver moves frames without copying.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether its memory is made of huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Whether sockets of this pool can poll the device themselves. Needs CAP_NET_ADMIN to find out.
    #[must_use]
    pub fn can_busy_poll(&self) -> bool {
        // Before Linux 6.14 a zero-copy socket learns its NAPI when it first polls.
        if self.zero_copy && socket::enable_busy_poll(self.root.as_fd(), BusyPoll::default()).is_ok() {
            socket::poll_device(self.root.as_fd());
        }
        socket::knows_napi(self.root.as_fd())
    }

    /// The memory, to be handed to the stacks.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Makes a stack's socket on this queue; with a transmit ring if this is the queue that the stack sends on.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub fn open_socket(&self, stack: u16, busy_poll: Option<BusyPoll>) -> Result<OwnedFd, Error> {
        let layout = self.memory.layout();
        let socket = af_xdp_socket()?;
        sockopt::set_xdp_rx_ring_size(&socket, layout.rx_ring)
            .map_err(|errno| Error::system("XDP_RX_RING", errno))?;
        if layout.transmit_queue(stack) == self.queue {
            sockopt::set_xdp_tx_ring_size(&socket, layout.tx_ring())
                .map_err(|errno| Error::system("XDP_TX_RING", errno))?;
            // In copy mode every frame on its way counts against the send buffer, with the kernel's overhead.
            sockopt::set_socket_send_buffer_size_force(&socket, layout.tx_frames as usize * 2 * FRAME_LEN)
                .map_err(|errno| match errno {
                    Errno::PERM => {
                        Error::NoPrivilege { operation: "SO_SNDBUFFORCE", capability: "CAP_NET_ADMIN" }
                    }
                    errno => Error::system("SO_SNDBUFFORCE", errno),
                })?;
            socket::raise_transmit_budget(socket.as_fd(), layout.tx_ring());
        }
        bind(
            &socket,
            &SocketAddrXdpWithSharedUmem {
                addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, self.interface, self.queue),
                shared_umem_fd: self.root.as_fd(),
            },
        )
        .map_err(|errno| Error::system("bind of a shared AF_XDP socket", errno))?;
        if let Some(busy_poll) = busy_poll {
            socket::enable_busy_poll(socket.as_fd(), busy_poll)?;
        }
        Ok(socket)
    }

    /// Prepares the stack's place for a new owner.
    pub fn prepare(&self, stack: u16) {
        self.memory.in_use(stack).store(0, Ordering::Relaxed);
        self.memory.journal(stack).reset();
    }

    /// Whether a process has the stack's rings open, as far as it said: a killed one cannot say that it has not.
    #[must_use]
    pub fn is_in_use(&self, stack: u16) -> bool {
        self.memory.in_use(stack).load(Ordering::Acquire) != 0
    }

    /// Takes back what a stack held that is gone: ends the turn in which it was killed, and gives its received frames to
    /// the kernel. Nothing may arrive at `socket` any more, and nobody else may use it.
    ///
    /// # Errors
    /// What the kernel said about mapping the rings.
    pub fn reclaim(&self, stack: u16, socket: BorrowedFd<'_>) -> Result<Reclaimed, Error> {
        let layout = *self.memory.layout();
        let offsets =
            sockopt::xdp_mmap_offsets(socket).map_err(|errno| Error::system("XDP_MMAP_OFFSETS", errno))?;
        let receive: Ring<XdpDesc> = Ring::map(socket, XDP_PGOFF_RX_RING, &offsets.rx, layout.rx_ring)?;
        let mut reclaimed = Reclaimed::default();
        let recovered =
            self.memory.fill_ring(&self.fill).recover(stack, receive.consumer(), receive.capacity());
        reclaimed.lost_frames += u32::from(recovered.is_err());
        let first = receive.consumer().load(Ordering::Acquire);
        let filled = receive.filled();
        let frames: Vec<u64> = (0..filled)
            .map(|offset| receive.read(first.wrapping_add(offset)))
            .filter(|descriptor| self.memory.received(descriptor).is_some())
            .map(|descriptor| descriptor.addr)
            .collect();
        let batch = Batch {
            receive: receive.consumer(),
            receive_target: first.wrapping_add(filled),
            count: frames.len() as u32,
        };
        if self.give(&batch, &frames) {
            reclaimed.received_frames += batch.count;
            reclaimed.lost_frames += filled - batch.count;
        } else {
            reclaimed.lost_frames += filled;
        }
        self.reap();
        self.free_transmit_frames(stack, socket)?;
        Ok(reclaimed)
    }

    /// Gives frames to the kernel, in turn with the stacks.
    fn give(&self, batch: &Batch<'_>, frames: &[u64]) -> bool {
        let ring = self.memory.fill_ring(&self.fill);
        let mut wait = TurnWait::default();
        for _ in 0..TURNS_LOST_MAX {
            let held = loop {
                match ring.take(OWNER, &mut || ()) {
                    Ok(held) => break held,
                    Err(seen) => match wait.is_over(seen).then(|| ring.take_from(seen, OWNER)) {
                        Some(Ok(held)) => break held,
                        _ => std::thread::yield_now(),
                    },
                }
            };
            match ring.give(held, batch, |nth| frames[nth as usize], &mut || ()) {
                Outcome::Moved => return true,
                Outcome::Full => return false,
                Outcome::TakenOver => {}
            }
        }
        false
    }

    /// Marks completed frames free on behalf of stacks that are idle or gone.
    pub fn reap(&self) {
        self.memory.completion_ring(&self.completion).reap(&(0..0), &mut || ());
    }

    /// Frees the frames of a gone stack, but for those that the kernel took and has not completed: these become free when it
    /// does. Whatever was committed and not taken, or was lost with the process, is in neither state.
    fn free_transmit_frames(&self, stack: u16, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let layout = self.memory.layout();
        if layout.transmit_queue(stack) != self.queue {
            return Ok(());
        }
        let offsets =
            sockopt::xdp_mmap_offsets(socket).map_err(|errno| Error::system("XDP_MMAP_OFFSETS", errno))?;
        let ring: Ring<XdpDesc> = Ring::map(socket, XDP_PGOFF_TX_RING, &offsets.tx, layout.tx_ring())?;
        let first = u64::from(layout.rx_frames + layout.tx_base(stack)) * FRAME_LEN as u64;
        let mut taken = vec![false; layout.tx_frames as usize];
        let end = ring.consumer().load(Ordering::Acquire);
        for back in 1..=ring.capacity().min(end) {
            let address = ring.read(end.wrapping_sub(back)).addr;
            let frame = address.wrapping_sub(first) / FRAME_LEN as u64;
            if let Some(taken) = usize::try_from(frame).ok().and_then(|frame| taken.get_mut(frame)) {
                *taken = true;
            }
        }
        let own = self.memory.own(stack);
        for (busy, _) in (self.memory.busy()[own.start as usize..own.end as usize].iter())
            .zip(&taken)
            .filter(|(_, taken)| !**taken)
        {
            busy.end_for();
        }
        Ok(())
    }

    /// Frames that could be received into: those in the fill ring and those in reserve. Together with those in the stacks'
    /// receive rings and in the driver's hands they are all of `rx_frames`.
    #[must_use]
    pub fn free_frames(&self) -> u32 {
        let reserved = self.memory.fill_ring(&self.fill).reserve.load(Ordering::Relaxed);
        self.fill.filled() + self.memory.layout().rx_frames.saturating_sub(reserved)
    }
}

impl core::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("interface", &self.interface)
            .field("queue", &self.queue)
            .field("zero_copy", &self.zero_copy)
            .finish_non_exhaustive()
    }
}

/// A pool's memory, from pages that `flags` say, which are put together to huge ones if that is wished and can be done; and this
/// process's view of it.
fn allocate(layout: PoolLayout, flags: MemfdFlags, gathered: bool) -> Result<(OwnedFd, Memory), Error> {
    let descriptor = memfd_create("overfly-pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)
        .map_err(|errno| Error::system("memfd_create", errno))?;
    let length = layout.memory_len().next_multiple_of(page_len(descriptor.as_fd())?);
    ftruncate(&descriptor, length as u64).map_err(|errno| Error::system("ftruncate of a pool", errno))?;
    // Nobody who shares the pool can cut the memory off under the others.
    fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| Error::system("sealing of a pool", errno))?;
    if gathered {
        // Small ones do as well.
        let _ = Mapping::gather(descriptor.as_fd(), length);
    }
    let memory = Memory::map(descriptor.as_fd(), layout)?;
    Ok((descriptor, memory))
}

pub(crate) fn af_xdp_socket() -> Result<OwnedFd, Error> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(
        |errno| match errno {
            Errno::PERM => {
                Error::NoPrivilege { operation: "creating an AF_XDP socket", capability: "CAP_NET_RAW" }
            }
            Errno::AFNOSUPPORT => Error::NoAfXdp,
            errno => Error::system("creating an AF_XDP socket", errno),
        },
    )
}

/// The fill and completion ring behind a socket: its own before it is bound, its pool's afterwards.
pub(crate) fn shared_rings(
    socket: BorrowedFd<'_>,
    layout: &PoolLayout,
) -> Result<(Ring<u64>, Ring<u64>), Error> {
    let offsets =
        sockopt::xdp_mmap_offsets(socket).map_err(|errno| Error::system("XDP_MMAP_OFFSETS", errno))?;
    Ok((
        Ring::map(socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, layout.fill_ring())?,
        Ring::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, layout.completion_ring())?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a mapping, in KiB.
    fn of_mapping(memory: &Memory, what: &str) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", memory.base().as_ptr() as usize);
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&begin));
        let number = lines.filter_map(|line| line.strip_prefix(what)).next().unwrap();
        number.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn each_process_maps_a_pool_in_huge_pages_where_they_can_be_put_together() {
        let layout = PoolLayout {
            rx_frames: 8192,
            rx_ring: 1024,
            tx_frames: 512,
            tx_queues: 2,
            stacks: 32,
            frame_buffers: 5,
            tx_metadata: false,
        };
        let (descriptor, _memory) = allocate(layout, MemfdFlags::empty(), true).unwrap();
        let another = Memory::map(descriptor.as_fd(), layout).unwrap();
        assert!(of_mapping(&another, "Rss") * 1024 >= layout.memory_len() as u64);
        if Mapping::gather(descriptor.as_fd(), layout.memory_len()) {
            let huge = of_mapping(&another, "ShmemPmdMapped");
            assert!(huge * 1024 >= layout.memory_len() as u64 - (4 << 20), "{huge} KiB");
        }
    }
}
