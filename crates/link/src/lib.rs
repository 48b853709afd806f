//! How frames move between this machine's interfaces and an engine.
//!
//! * [`xdp`]: AF_XDP sockets. [`xdp::Pool`] is the privileged half (it makes the shared memory and the sockets),
//!   [`xdp::XdpLink`] is the data path, in any process that was handed the sockets.
//! * [`memif`]: shared memory between two processes, in the format of DPDK and VPP. [`memif::Listener`] and
//!   [`memif::connect`] are its two ends, [`memif::MemifLink`] is the data path.
//! * [`tap`]: a tap device, whose other end is this host's kernel.
//! * [`packet`]: a packet socket beside AF_XDP, for frames that the kernel cuts into segments.
//! * [`messages`]: what is said over Unix sockets, with descriptors.
//!
//! What all of them do is [`Link`].
//!
//! System calls go through rustix's raw back end: this crate also runs inside the preloaded library, where libc's and
//! std's socket functions are that library's own hooks.

mod counters;
mod error;
mod finish;
mod link;
mod mapping;
pub mod memif;
pub mod messages;
mod one_of;
pub mod packet;
pub mod tap;
mod virtio;
pub mod xdp;

pub use error::Error;
pub use link::{Each, Gone, Link, each_of};
pub use mapping::Mapping;
