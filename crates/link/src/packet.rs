//! A packet socket (AF_PACKET) for frames that the kernel cuts into segments: AF_XDP takes none of those.
//!
//! [`PacketSocket`] is the privileged half: it makes the socket, for one interface, fit to be given away. [`LongFrames`] is the data
//! path: frames are written one after the other, and leave together in one system call.
//!
//! Sources: packet(7), net/packet/af_packet.c.

mod device;
mod long_frames;
mod socket;

pub use device::takes_segments;
pub(crate) use long_frames::LongFrames;
pub use long_frames::{Counters, SEGMENT_OFFLOAD};
pub use socket::PacketSocket;
