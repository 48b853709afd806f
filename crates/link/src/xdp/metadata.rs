//! What the kernel is told of a frame to send, before its first byte: where its checksum is to be completed.
//!
//! Source: `struct xsk_tx_metadata` in include/uapi/linux/if_xdp.h, Documentation/networking/xsk-tx-metadata.rst (Linux 6.8).
//! In copy mode the kernel makes an skb of it that asks for its checksum as the kernel's own do (CHECKSUM_PARTIAL), with zero-copy the
//! driver tells the device.

use overfly_wire::Unfinished;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::sockopt;
use rustix::net::xdp::{XdpDescOptions, XdpUmemReg, XdpUmemRegFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::memory::FRAME_LEN;
use super::pool::af_xdp_socket;

/// `XDP_UMEM_TX_METADATA_LEN`: `tx_metadata_len` says something.
pub(crate) const UMEM_HAS_METADATA: XdpUmemRegFlags = XdpUmemRegFlags::from_bits_retain(1 << 2);
/// `XDP_TX_METADATA`: there is something before this frame.
pub(crate) const HAS_METADATA: XdpDescOptions = XdpDescOptions::from_bits_retain(1 << 1);
/// `XDP_TXMD_FLAGS_CHECKSUM`
const CHECKSUM: u64 = 1 << 1;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM: u16 = 16;

/// `struct xsk_tx_metadata`, in the machine's byte order. Older kernels know the first 16 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Metadata {
    flags: u64,
    checksum_start: u16,
    checksum_offset: u16,
    _unused: u32,
    _launch_time: u64,
}

/// Bytes that the kernel looks at.
pub(crate) const METADATA_LEN: u32 = size_of::<Metadata>() as u32;

impl Metadata {
    /// The checksum of a TCP segment is to be completed.
    pub(crate) const fn of(left: Unfinished) -> Metadata {
        Metadata {
            flags: CHECKSUM,
            checksum_start: left.checksum_from,
            checksum_offset: TCP_CHECKSUM,
            _unused: 0,
            _launch_time: 0,
        }
    }

    /// Writes it where the kernel looks: at the end of the room before the frame.
    #[inline]
    pub(crate) fn write(&self, room: &mut [u8]) {
        if let Some(place) = room.last_chunk_mut::<{ METADATA_LEN as usize }>() {
            place.copy_from_slice(self.as_bytes());
        }
    }
}

/// Whether this kernel's AF_XDP sockets take a frame whose checksum is to be completed (Linux 6.8).
#[must_use]
pub fn knows_checksums() -> bool {
    const LENGTH: usize = 2 * FRAME_LEN;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a mapping of its own, which nothing else has.
    let Ok(memory) = (unsafe { mmap_anonymous(core::ptr::null_mut(), LENGTH, protection, flags) }) else {
        return false;
    };
    let registration = XdpUmemReg {
        addr: memory as u64,
        len: LENGTH as u64,
        chunk_size: FRAME_LEN as u32,
        headroom: 0,
        flags: UMEM_HAS_METADATA,
        tx_metadata_len: METADATA_LEN,
    };
    // Flags that it does not know are an error (xsk_setsockopt in net/xdp/xsk.c).
    let knows = af_xdp_socket().is_ok_and(|socket| sockopt::set_xdp_umem_reg(&socket, registration).is_ok());
    // SAFETY: nothing points into it; the kernel has its pages for itself as long as it needs them.
    let _ = unsafe { munmap(memory, LENGTH) };
    knows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_finds_it_right_before_the_frame() {
        let mut room = [0xff; 64];
        Metadata::of(Unfinished { checksum_from: 34, ..Unfinished::default() }).write(&mut room);
        let expected = [2_u64.to_ne_bytes(), (34_u64 | 16 << 16).to_le_bytes(), [0; 8]].concat();
        assert_eq!(room[..40], [0xff; 40]);
        if cfg!(target_endian = "little") {
            assert_eq!(room[40..], expected);
        }
    }
}
