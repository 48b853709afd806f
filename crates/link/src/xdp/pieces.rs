//! Packets of several descriptors (`XDP_PKT_CONTD`): their pieces are put together in memory of the link's own, since each lies
//! in a frame of the pool, with a gap before it.
//!
//! The kernel shows a packet's descriptors all at once, or none of them (net/xdp/xsk.c, `__xsk_rcv`, `xsk_flush`). Whatever else
//! is in the ring is dropped as a whole: what follows a packet that was given up, up to its end, is never taken for a packet, or a
//! peer could say what stands in one that nobody has steered.
//!
//! Source: Documentation/networking/af_xdp.rst, "Multi-Buffer Support".

use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::memory::Memory;

/// Bytes of the longest packet: IP's longest, and an Ethernet header.
pub const PACKET_LEN_MAX: usize = 65_535 + 14;
/// Descriptors of a packet, at most: more than a packet of that length has in frames of the pool.
const PIECES_MAX: usize = 64;

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The ring ends before the packet does.
    CutShort,
    /// It has more bytes, or more descriptors, than a packet can have.
    TooLong,
    /// A descriptor points out of the pool, or out of its frame, or says what nobody has defined.
    Invalid,
    /// This is the rest of a packet that was given up, and was counted then.
    Rest,
}

/// Where the pieces are put together.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// A packet was given up, and its end has not come.
    gives_up: bool,
}

impl Pieces {
    /// The next descriptor belongs to a packet that was given up.
    #[inline]
    pub(crate) const fn is_giving_up(&self) -> bool {
        self.gives_up
    }

    /// The packet that begins with `first`, of which `next` takes the other descriptors.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline(never)]
    pub(crate) fn gather(
        &mut self,
        first: XdpDesc,
        memory: &Memory,
        mut next: impl FnMut() -> Option<XdpDesc>,
    ) -> Result<&[u8], Flaw> {
        let mut flaw = self.gives_up.then_some(Flaw::Rest);
        self.bytes.clear();
        let mut piece = first;
        for _ in 0..PIECES_MAX {
            if flaw.is_none() {
                flaw = self.add(&piece, memory).err();
            }
            if !is_continued(&piece) {
                self.gives_up = false;
                return flaw.map_or(Ok(&self.bytes), Err);
            }
            let Some(following) = next() else {
                self.gives_up = true;
                return Err(flaw.unwrap_or(Flaw::CutShort));
            };
            piece = following;
        }
        // `piece` is one more, and has been taken.
        self.gives_up = is_continued(&piece);
        Err(flaw.unwrap_or(Flaw::TooLong))
    }

    fn add(&mut self, piece: &XdpDesc, memory: &Memory) -> Result<(), Flaw> {
        if !piece.options.difference(XdpDescOptions::XDP_PKT_CONTD).is_empty() {
            return Err(Flaw::Invalid);
        }
        let bytes = memory.received(piece).ok_or(Flaw::Invalid)?;
        if self.bytes.len() + bytes.len() > PACKET_LEN_MAX {
            return Err(Flaw::TooLong);
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(PACKET_LEN_MAX);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// Whether the packet goes on with the next descriptor.
#[inline]
pub(crate) fn is_continued(descriptor: &XdpDesc) -> bool {
    descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::memory::{FRAME_LEN, PoolLayout, RECEIVED_FRAME_LEN_MAX};
    use super::*;

    const LAYOUT: PoolLayout = PoolLayout {
        rx_frames: 128,
        rx_ring: 64,
        tx_frames: 64,
        tx_queues: 1,
        stacks: 1,
        frame_buffers: 1,
        tx_metadata: false,
    };
    const CONTINUED: XdpDescOptions = XdpDescOptions::XDP_PKT_CONTD;
    const LAST: XdpDescOptions = XdpDescOptions::empty();

    /// A pool in which each byte of a frame is the frame's number and its place, mixed.
    fn memory() -> Memory {
        let file = memfd_create("pieces", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LAYOUT.memory_len() as u64).unwrap();
        let bytes: Vec<u8> = (0..LAYOUT.rx_frames as usize * FRAME_LEN).map(byte).collect();
        rustix::io::pwrite(&file, &bytes, 0).unwrap();
        Memory::map(file.as_fd(), LAYOUT).unwrap()
    }

    fn byte(at: usize) -> u8 {
        ((at as u32).wrapping_mul(0x9e37_79b9) >> 23) as u8
    }

    fn piece(frame: u64, length: usize, options: XdpDescOptions) -> XdpDesc {
        XdpDesc { addr: frame * FRAME_LEN as u64 + 256, len: length as u32, options }
    }

    /// What becomes of descriptors, as a link takes them.
    fn take_all(memory: &Memory, pieces: &mut Pieces, ring: &[XdpDesc]) -> Vec<Result<Vec<u8>, Flaw>> {
        let mut ring: VecDeque<XdpDesc> = ring.iter().copied().collect();
        let mut taken = Vec::new();
        while let Some(first) = ring.pop_front() {
            taken.push(pieces.gather(first, memory, || ring.pop_front()).map(<[u8]>::to_vec));
        }
        taken
    }

    fn bytes_of(descriptors: &[XdpDesc]) -> Vec<u8> {
        let places = |descriptor: &XdpDesc| {
            let begin = descriptor.addr as usize;
            begin..begin + descriptor.len as usize
        };
        descriptors.iter().flat_map(places).map(byte).collect()
    }

    #[test]
    fn pieces_of_any_lengths_are_one_packet() {
        let memory = memory();
        let mut pieces = Pieces::default();
        for lengths in [&[1792, 1][..], &[0, 60], &[60, 0], &[1792; 36], &[1792, 1792, 1792, 7], &[3; 64]] {
            let mut ring: Vec<XdpDesc> = (0..)
                .zip(lengths)
                .map(|(frame, &length)| piece((frame * 7) % 128, length, CONTINUED))
                .collect();
            ring.last_mut().unwrap().options = LAST;
            assert_eq!(take_all(&memory, &mut pieces, &ring), [Ok(bytes_of(&ring))], "{lengths:?}");
        }
    }

    #[test]
    fn a_packet_that_is_cut_short_is_dropped_with_whatever_comes_of_it_later() {
        let memory = memory();
        let mut pieces = Pieces::default();
        let cut = take_all(&memory, &mut pieces, &[piece(1, 1792, CONTINUED), piece(2, 1792, CONTINUED)]);
        assert_eq!(cut, [Err(Flaw::CutShort)]);
        assert!(pieces.is_giving_up());
        // A peer could have written a packet of its own into what would be taken for the next one.
        let rest = [piece(3, 1792, CONTINUED), piece(4, 80, LAST), piece(5, 60, LAST)];
        let taken = take_all(&memory, &mut pieces, &rest);
        assert_eq!(taken, [Err(Flaw::Rest), Ok(bytes_of(&rest[2..]))]);
        assert!(!pieces.is_giving_up());
    }

    #[test]
    fn a_packet_of_too_many_descriptors_or_bytes_is_dropped_as_a_whole() {
        let memory = memory();
        let mut pieces = Pieces::default();
        for (count, length) in [(65, 10), (66, 10), (200, 10), (64 + 65, 1), (37, 1792), (64, 1792)] {
            let mut ring: Vec<XdpDesc> =
                (0..count).map(|frame| piece(frame % 128, length, CONTINUED)).collect();
            ring.last_mut().unwrap().options = LAST;
            ring.push(piece(9, 60, LAST));
            let taken = take_all(&memory, &mut pieces, &ring);
            assert_eq!(taken[0], Err(Flaw::TooLong), "{count} of {length}");
            let (last, between) = taken[1..].split_last().unwrap();
            assert_eq!(*last, Ok(bytes_of(&ring[ring.len() - 1..])), "{count} of {length}");
            assert!(
                between.iter().all(|taken| *taken == Err(Flaw::Rest)),
                "{count} of {length}: {between:?}"
            );
        }
    }

    #[test]
    fn descriptors_that_lie_are_dropped_with_their_packet() {
        let memory = memory();
        let mut pieces = Pieces::default();
        let unknown = XdpDescOptions::from_bits_retain(1 << 9);
        let lies = [
            piece(127, 1793, CONTINUED),
            piece(128, 10, CONTINUED),
            piece(1, u32::MAX as usize, CONTINUED),
            XdpDesc { addr: u64::MAX, len: 10, options: CONTINUED },
            piece(1, 10, CONTINUED | unknown),
        ];
        for lie in lies {
            for place in 0..3 {
                let mut ring = vec![piece(2, 100, CONTINUED), piece(3, 100, CONTINUED), piece(4, 100, LAST)];
                ring.insert(place, lie);
                ring.push(piece(5, 60, LAST));
                let taken = take_all(&memory, &mut pieces, &ring);
                assert_eq!(taken, [Err(Flaw::Invalid), Ok(bytes_of(&ring[4..]))], "{lie:?} at {place}");
            }
        }
    }

    /// Rings of random descriptors, cut at random places, against a plain model: nothing but whole, honest packets come out.
    #[test]
    fn random_rings_give_whole_packets_and_nothing_else() {
        let memory = memory();
        let seed = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
        println!("OVERFLY_SEED={seed}");
        let mut state = seed;
        let mut below = |end: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % end
        };
        let mut pieces = Pieces::default();
        for _ in 0..2000 {
            let count = below(150) as usize;
            let ends = 1 + below(40);
            let ring: Vec<XdpDesc> = (0..count)
                .map(|_| {
                    let options = if below(ends) == 0 { LAST } else { CONTINUED };
                    let frames = if below(50) == 0 { 200 } else { 128 };
                    let frame = below(frames);
                    piece(frame, below(RECEIVED_FRAME_LEN_MAX as u64 + 1) as usize, options)
                })
                .collect();
            let was_giving_up = pieces.is_giving_up();
            let good: Vec<Vec<u8>> = take_all(&memory, &mut pieces, &ring).into_iter().flatten().collect();
            let mut whole: Vec<&[XdpDesc]> = ring.split_inclusive(|piece| !is_continued(piece)).collect();
            whole.retain(|packet| !is_continued(&packet[packet.len() - 1]));
            if was_giving_up && !whole.is_empty() {
                whole.remove(0);
            }
            whole.retain(|packet| {
                let length: usize = packet.iter().map(|piece| piece.len as usize).sum();
                let inside = packet.iter().all(|piece| piece.addr < 128 * FRAME_LEN as u64);
                packet.len() <= PIECES_MAX && length <= PACKET_LEN_MAX && inside
            });
            assert_eq!(good, whole.into_iter().map(bytes_of).collect::<Vec<_>>());
            assert_eq!(pieces.is_giving_up(), ring.last().map_or(was_giving_up, is_continued));
        }
    }
}
