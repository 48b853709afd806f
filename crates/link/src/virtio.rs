//! What the kernel is told of a frame that it is to finish: `struct virtio_net_hdr` (linux/virtio_net.h), before each frame of a
//! tap device and of a packet socket.

use overfly_wire::Unfinished;
use zerocopy::byteorder::native_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    flags: u8,
    segmentation: u8,
    headers_len: U16,
    segment_len: U16,
    checksum_from: U16,
    checksum_offset: U16,
}

/// Its bytes.
pub(crate) const HEADER_LEN: usize = size_of::<Header>();
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6`, `_ECN`.
const SEGMENT_TCP_V4: u8 = 1;
const SEGMENT_TCP_V6: u8 = 4;
const SEGMENT_ECN: u8 = 0x80;
/// Where the checksum is in a TCP header, and the flags; the flag CWR.
const TCP_CHECKSUM: u16 = 16;
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

impl Header {
    /// What is left of `frame` (Ethernet header first) for the kernel to do.
    pub(crate) fn new(frame: &[u8], left: Unfinished) -> Header {
        if left.checksum_from == 0 {
            return Header::default();
        }
        let mut header = Header {
            flags: NEEDS_CHECKSUM,
            headers_len: left.headers_len.into(),
            checksum_from: left.checksum_from.into(),
            checksum_offset: TCP_CHECKSUM.into(),
            ..Header::default()
        };
        if left.segment_len != 0 {
            let is_v4 = frame.get(14).is_some_and(|first| first >> 4 == 4);
            let flags = frame.get(usize::from(left.checksum_from) + TCP_FLAGS).copied().unwrap_or_default();
            header.segmentation = if is_v4 { SEGMENT_TCP_V4 } else { SEGMENT_TCP_V6 };
            header.segmentation |= if flags & CWR != 0 { SEGMENT_ECN } else { 0 };
            header.segment_len = left.segment_len.into();
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_virtio_net() {
        let mut frame = [0_u8; 100];
        frame[14] = 0x45;
        frame[34 + TCP_FLAGS] = CWR;
        let left = Unfinished { checksum_from: 34, segment_len: 1448, headers_len: 66 };
        let header = Header::new(&frame, left);
        let words = [[66, 1448], [34, 16]].concat().into_iter().flat_map(u16::to_ne_bytes);
        assert_eq!(header.as_bytes(), [1, 0x81].into_iter().chain(words).collect::<Vec<u8>>());
        frame[14] = 0x60;
        let header = Header::new(&frame, Unfinished { segment_len: 0, ..left });
        assert_eq!(header.as_bytes()[..2], [1, 0]);
        assert_eq!(Header::new(&frame, Unfinished::default()).as_bytes(), [0; 10]);
    }
}
