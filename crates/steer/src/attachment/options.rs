//! How an interface is attached to.

use overfly_link::xdp::{HugePages, PoolLayout};

use crate::long_packets::{ChecksumOffload, ReceiveOffload, Shape};

/// How to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Use only the first queues of the interface; frames that arrive on the others are the kernel's. `None`: all.
    pub queues: Option<u32>,
    /// Stacks poll the device themselves, and the device is told to wait for them: `napi_defer_hard_irqs` and
    /// `gro_flush_timeout` are set until the attachment is dropped. Where the kernel cannot (see
    /// [`overfly_link::xdp::BusyPoll`]) all stays as it is; [`super::Attachment::busy_poll`] says so.
    pub busy_poll: bool,
    /// Do not even try zero-copy.
    pub force_copy: bool,
    /// Stacks at most, at any time: 1 to 64. Each costs `tx_frames` of memory whether it is used or not.
    pub stacks: u16,
    /// Frames (2 KiB) to receive into, for each queue.
    pub rx_frames: u32,
    /// Entries of a stack's receive ring on each queue, a power of two.
    pub rx_ring: u32,
    /// Frames (2 KiB) to send from, for each stack; a multiple of 64.
    pub tx_frames: u32,
    /// TCP connections of listeners that are remembered; older ones are found by their hash.
    pub flows: u32,
    /// Frames to receive into that must be free on each queue for a new stack.
    pub min_free_frames: u32,
    /// What the frames' memory is made of.
    pub huge_pages: HugePages,
    /// The host's firewall is heeded: whom its rules do not let through for certain, the kernel serves.
    pub heed_firewall: bool,
    /// A peer must be where the kernel would answer it; else the kernel serves it. Without, answers go to the hardware address that
    /// a frame came from: for a server that no kernel socket stands behind.
    pub judge_senders: bool,
    /// Stacks get a way for frames of several segments, where that can be had ([`super::Attachment::long_frames`]).
    pub segment_offload: bool,
    /// What may arrive, where that can be had ([`super::Attachment::long_packets`], [`super::Attachment::segments_arrive_together`]).
    pub receive_offload: ReceiveOffload,
    /// Who completes the TCP checksums of what stacks send, where that can be had ([`super::Attachment::checksums_are_completed`]).
    pub checksum_offload: ChecksumOffload,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: None,
            busy_poll: false,
            force_copy: false,
            stacks: 32,
            rx_frames: 8192,
            rx_ring: 1024,
            tx_frames: 512,
            flows: 262_144,
            min_free_frames: 0,
            huge_pages: HugePages::No,
            heed_firewall: true,
            judge_senders: true,
            segment_offload: true,
            receive_offload: ReceiveOffload::default(),
            checksum_offload: ChecksumOffload::default(),
        }
    }
}

impl Options {
    /// The sizes of the pools behind an interface of that shape, which sends on so many queues.
    pub(super) fn layout(&self, shape: &Shape, tx_queues: u32) -> PoolLayout {
        PoolLayout {
            rx_frames: self.rx_frames,
            rx_ring: self.rx_ring,
            tx_frames: self.tx_frames,
            tx_queues,
            stacks: u32::from(self.stacks),
            frame_buffers: shape.frame_buffers,
            tx_metadata: shape.checksums.is_ok(),
        }
    }
}
