//! A peer that writes whatever it likes into the rings, and goes, while a link works.

use std::os::fd::OwnedFd;

use overfly_link::memif::{Buffers, FRAME_LEN_MAX, LinkState, MemifLink, Pair, RingEnd, RingPlace, Role};
use overfly_testing::bytes::Bytes;
use overfly_wire::FrameSink;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{fcntl_dupfd_cloexec, pread};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{DESCRIPTOR_LEN, DESCRIPTORS, HEAD, TAIL, memory, write, write_ring};

/// Where the second ring begins, and the buffers. Rings have 64 entries at most.
const RING: u64 = 2048;
const BUFFERS: u64 = 2 * RING;
/// Behind the region, in its last page: nobody may write there.
const GUARD: [u8; 48] = [0xa5; 48];
const MTU: u16 = 1500;

/// The first bytes say what the link is like; each that follows is one thing that the peer or the link's owner does.
pub fn memif_rings(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(shape) = bytes.byte() else { return };
    let role = if shape & 1 == 0 { Role::Server } else { Role::Client };
    let (offload, log2_size) = (shape & 2 != 0, shape >> 2 & 7);
    let log2_size = log2_size.min(6);
    let buffer_len = [64, 192, 2048, 65_600][usize::from(shape >> 5 & 3)];
    let ring_bytes = u64::from(buffer_len) << log2_size;
    let size = BUFFERS + 2 * ring_bytes + 8;
    let memory = memory(size + GUARD.len() as u64);
    write(&memory, size, &GUARD);
    let mut ends = Vec::new();
    for ring in 0..2 {
        let buffers = BUFFERS + ring * ring_bytes;
        write_ring(&memory, ring * RING, log2_size, buffers, buffer_len);
        let buffers = Buffers { offset: buffers as u32, length: buffer_len };
        ends.push(RingEnd {
            place: RingPlace { region: 0, offset: (ring * RING) as u32, log2_size },
            interrupt: eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            buffers: (role == Role::Client).then_some(buffers),
        });
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (control, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
    let mut theirs = Some(theirs);
    let shared = fcntl_dupfd_cloexec(&memory, 0).expect("a descriptor");
    let [to_server, to_client] = <[RingEnd; 2]>::try_from(ends).expect("two rings");
    let regions = vec![(shared, size)];
    let mut link = MemifLink::open(Pair { role, regions, to_server, to_client, control, mtu: MTU, offload })
        .expect("a good client's memory");
    let longest = if offload { FRAME_LEN_MAX } else { usize::from(MTU) + 14 };
    while let Some(decision) = bytes.byte() {
        let before = link.state();
        match decision % 10 {
            0..=2 => scribble(&memory, log2_size, size, &mut bytes),
            3 => peer_moves(&memory, role, &mut bytes),
            4 => {
                let budget = bytes.below(100).unwrap_or_default();
                let count = link.receive(budget, |frame| assert!(frame.len() <= FRAME_LEN_MAX));
                assert!(count <= budget);
                assert!(before == LinkState::Up || count == 0, "it believes the peer again");
            }
            5 | 6 => {
                let length = usize::from(bytes.word().unwrap_or_default());
                if let Some(frame) = link.frame() {
                    assert!(frame.len() == longest && before == LinkState::Up);
                    frame[..length.min(longest)].fill(decision);
                    if decision & 16 != 0 {
                        scribble(&memory, log2_size, size, &mut bytes);
                    }
                    link.commit(length.min(longest));
                }
            }
            7 => link.flush(),
            8 => {
                link.arm();
            }
            _ if decision & 16 == 0 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&memory, punch, 0, size & !4095).expect("a hole");
            }
            _ if decision & 32 == 0 => theirs = None,
            _ => {
                link.check_peer();
            }
        }
        assert!(before == LinkState::Up || link.state() == before, "{before:?} was the end");
    }
    drop(theirs);
    let mut guard = [0; GUARD.len()];
    assert_eq!((pread(&memory, &mut guard, size), guard), (Ok(GUARD.len()), GUARD), "beside the region");
}

/// One value that may mean something where it does, or any bytes anywhere.
fn scribble(memory: &OwnedFd, log2_size: u8, size: u64, bytes: &mut Bytes<'_>) {
    let (Some(what), Some(value)) = (bytes.byte(), bytes.word()) else { return };
    let ring = RING * u64::from(what & 1);
    let slot = u64::from(what >> 4) & ((1 << log2_size) - 1);
    let descriptor = ring + DESCRIPTORS + slot * DESCRIPTOR_LEN;
    let interesting = [0, 1, 3, 64, 2048, 0x7fff, 0x8000, 0xffff][usize::from(value & 7)];
    let value = if value & 8 == 0 { interesting } else { value };
    let at = match what >> 1 & 7 {
        0 => ring + HEAD,
        1 => ring + TAIL,
        2 => ring + 4,
        3 => descriptor,
        4 => descriptor + 2,
        5 => descriptor + 4 + 2 * u64::from(value & 1),
        6 => descriptor + 8 + 2 * u64::from(value & 1),
        _ => {
            let at = u64::from(bytes.word().unwrap_or_default()) % (size - 16);
            return write(memory, at, bytes.take(16));
        }
    };
    write(memory, at, &value.to_le_bytes());
}

/// The peer's indices go on by some entries, as a good peer's do.
fn peer_moves(memory: &OwnedFd, role: Role, bytes: &mut Bytes<'_>) {
    let by = u16::from(bytes.byte().unwrap_or_default() & 31);
    // The client writes both heads, the server both tails.
    let field = if role == Role::Server { HEAD } else { TAIL };
    for ring in [0, RING] {
        let mut index = [0; 2];
        pread(memory, &mut index, ring + field).expect("two bytes");
        let index = u16::from_le_bytes(index).wrapping_add(by);
        write(memory, ring + field, &index.to_le_bytes());
    }
}
