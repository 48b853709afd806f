//! What a process is given for its stack, by what carries its frames.

use overfly_link::memif::Address;
use overfly_link::xdp::{BusyPoll, PoolLayout};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Reply;
use crate::Error;

/// Says which of the broker's messages this is.
const STACK_PART: u16 = 3;
const MEMIF_PART: u16 = 5;
const TAP_PART: u16 = 8;

/// Longer than the address of any Unix socket.
const PLACE_LEN: usize = 128;

/// A stack's socket on one queue; its descriptors come beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StackPart {
    message: U16,
    stack: U16,
    queue: U16,
    queues: U16,
    zero_copy: U16,
    busy_poll: U16,
    busy_poll_duration_us: U32,
    busy_poll_budget: U32,
    rx_frames: U32,
    rx_ring: U32,
    tx_frames: U32,
    tx_queues: U32,
    stacks: U32,
    frame_buffers: U32,
    tx_metadata: U32,
}

/// A [`StackPart`] in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which stack.
    pub stack: u16,
    /// Which of its queues this is.
    pub queue: u16,
    /// How many there are.
    pub queues: u16,
    /// As in [`overfly_link::xdp::StackSockets`].
    pub zero_copy: bool,
    /// As in [`overfly_link::xdp::StackSockets`].
    pub busy_poll: Option<BusyPoll>,
    /// As in [`overfly_link::xdp::StackSockets`].
    pub layout: PoolLayout,
}

impl StackPart {
    /// What to say.
    #[must_use]
    pub fn new(part: &Part) -> StackPart {
        let busy_poll = part.busy_poll.unwrap_or(BusyPoll { duration_us: 0, budget: 0 });
        StackPart {
            message: U16::new(STACK_PART),
            stack: U16::new(part.stack),
            queue: U16::new(part.queue),
            queues: U16::new(part.queues),
            zero_copy: U16::new(u16::from(part.zero_copy)),
            busy_poll: U16::new(u16::from(part.busy_poll.is_some())),
            busy_poll_duration_us: U32::new(busy_poll.duration_us),
            busy_poll_budget: U32::new(busy_poll.budget),
            rx_frames: U32::new(part.layout.rx_frames),
            rx_ring: U32::new(part.layout.rx_ring),
            tx_frames: U32::new(part.layout.tx_frames),
            tx_queues: U32::new(part.layout.tx_queues),
            stacks: U32::new(part.layout.stacks),
            frame_buffers: U32::new(part.layout.frame_buffers),
            tx_metadata: U32::new(u32::from(part.layout.tx_metadata)),
        }
    }

    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Part, Error> {
        let Some(part) =
            (StackPart::read_from_bytes(bytes).ok()).filter(|part| part.message.get() == STACK_PART)
        else {
            Reply::parse(bytes)?;
            return Err(Error::Protocol("a yes instead of a stack"));
        };
        Ok(Part {
            stack: part.stack.get(),
            queue: part.queue.get(),
            queues: part.queues.get(),
            zero_copy: part.zero_copy.get() != 0,
            busy_poll: (part.busy_poll.get() != 0).then_some(BusyPoll {
                duration_us: part.busy_poll_duration_us.get(),
                budget: part.busy_poll_budget.get(),
            }),
            layout: PoolLayout {
                rx_frames: part.rx_frames.get(),
                rx_ring: part.rx_ring.get(),
                tx_frames: part.tx_frames.get(),
                tx_queues: part.tx_queues.get(),
                stacks: part.stacks.get(),
                frame_buffers: part.frame_buffers.get(),
                tx_metadata: part.tx_metadata.get() != 0,
            },
        })
    }
}

/// A stack over memif; the socket to accept its clients at comes beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MemifPart {
    message: U16,
    place: [u8; PLACE_LEN],
}

impl MemifPart {
    /// What to say.
    #[must_use]
    pub fn new(address: &Address) -> MemifPart {
        let mut place = [0; PLACE_LEN];
        let text = address.to_string();
        place[..text.len()].copy_from_slice(text.as_bytes());
        MemifPart { message: U16::new(MEMIF_PART), place }
    }

    /// `None` if it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Address> {
        let part = MemifPart::read_from_bytes(bytes).ok().filter(|part| part.message.get() == MEMIF_PART)?;
        let length = part.place.iter().position(|&byte| byte == 0)?;
        core::str::from_utf8(&part.place[..length]).ok()?.parse().ok()
    }
}

/// A stack over a tap device. Beside it come the queue to write frames to, and a channel for [`overfly_link::memif::MemifLink::take`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TapPart {
    message: U16,
}

impl TapPart {
    /// What to say.
    #[must_use]
    pub fn new() -> TapPart {
        TapPart { message: U16::new(TAP_PART) }
    }

    /// Whether it is one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> bool {
        TapPart::read_from_bytes(bytes).is_ok_and(|part| part.message.get() == TAP_PART)
    }
}

impl Default for TapPart {
    fn default() -> TapPart {
        TapPart::new()
    }
}
