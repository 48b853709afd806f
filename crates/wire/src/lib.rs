//! Packet formats: Ethernet II, ARP, IPv4 and IPv6, ICMP of both with neighbour discovery, UDP and TCP.
//!
//! Reading and writing are kept apart. A *view* ([`ipv4::Packet`], [`tcp::Segment`]) or a `parse` function takes any bytes
//! and checks them once; what it refuses has a name in [`Malformed`]. A *representation* ([`ethernet::Header`],
//! [`ipv4::Header`], [`tcp::Header`]) is plain fields that can only say something valid, and `emit` writes it.
//!
//! Nothing here allocates, keeps state or does I/O, and no input makes a parser panic. `emit` panics only when the caller's
//! buffer is too short for what it asked to have written.
//!
//! TCP and UDP take addresses of either family, or of both: [`checksum::Address`]. [`ip::Packet`] is a packet of either.

#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
mod malformed;
pub mod tcp;
pub mod udp;

pub use ethernet::MacAddr;
pub use malformed::Malformed;

/// Where frames are written to be sent: a transmit ring, or a list in a test.
///
/// Ask for a buffer, write into it, commit it; a buffer that is not committed is given again by the next [`FrameSink::frame`].
pub trait FrameSink {
    /// A free buffer for the next frame, or `None` if the link is full now.
    fn frame(&mut self) -> Option<&mut [u8]>;

    /// The same for a frame of `length` bytes that the link is to cut into segments. Links whose buffers have room for either are
    /// asked for the same one.
    fn long_frame(&mut self, length: usize) -> Option<&mut [u8]> {
        let _ = length;
        self.frame()
    }

    /// Hands over the first `length` bytes of the buffer that [`FrameSink::frame`] gave last.
    fn commit(&mut self, length: usize);

    /// As [`FrameSink::commit`], with what is left for the link to do; with a `segment_len`, of the buffer that
    /// [`FrameSink::long_frame`] gave last. Only links that offer it are asked: who writes frames has been told what the link can
    /// do.
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        let _ = left;
        self.commit(length);
    }

    /// Whether the payload of a [`FrameSink::long_frame`] may be [promised](FrameSink::commit_promised).
    #[inline]
    fn takes_promises(&self) -> bool {
        false
    }

    /// As [`FrameSink::commit_unfinished`], of a frame whose headers alone are written: the link will read the payload where its flow
    /// keeps it ([`Promises`]). Only a link that [takes them](FrameSink::takes_promises) is asked.
    fn commit_promised(&mut self, left: Unfinished, payload: Promised) {
        let _ = (left, payload);
        debug_assert!(false, "this link takes no promises");
    }
}

/// A link that is a [`FrameSink`] by one of its fields: `frames_of!(Port, hub);`.
#[macro_export]
macro_rules! frames_of {
    ($link:ty, $field:ident) => {
        impl $crate::FrameSink for $link {
            #[inline]
            fn frame(&mut self) -> Option<&mut [u8]> {
                $crate::FrameSink::frame(&mut self.$field)
            }

            #[inline]
            fn commit(&mut self, length: usize) {
                $crate::FrameSink::commit(&mut self.$field, length);
            }

            #[inline]
            fn commit_unfinished(&mut self, length: usize, left: $crate::Unfinished) {
                $crate::FrameSink::commit_unfinished(&mut self.$field, length, left);
            }
        }
    };
}

/// Payload that stays where its flow keeps it until the link reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promised {
    /// The position of the flow's state in its owner's vector.
    pub flow: usize,
    /// Where the payload begins in the flow's stream, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub length: usize,
}

/// Who keeps what was promised.
pub trait Promises {
    /// The payload, in order, in one piece or two.
    fn pieces(&self, promised: Promised) -> (&[u8], &[u8]);
}

/// What a frame with a TCP segment still needs (compare `struct virtio_net_hdr` in linux/virtio_net.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// The checksum field holds the folded sum of the pseudo-header ([`tcp::write_partial_checksum`]): the link sums from
    /// `checksum_from` on, the place of the transport header in the frame. 0: the checksum is whole.
    pub checksum_from: u16,
    /// Payload bytes of each segment that the link cuts the frame into. 0: it is one segment.
    pub segment_len: u16,
    /// Bytes of all headers: what every segment begins with.
    pub headers_len: u16,
}
