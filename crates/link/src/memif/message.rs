//! The messages of the control socket: 128 bytes each, little-endian, of a fixed layout.
//!
//! | from | message | with a descriptor |
//! |---|---|---|
//! | server | [`Message::Hello`] | |
//! | client | [`Message::Init`] | |
//! | client | [`Message::AddRegion`], one for each region | the region's memfd |
//! | client | [`Message::AddRing`], one for each ring | the ring's eventfd |
//! | client | [`Message::Connect`] | |
//! | server | [`Message::Connected`] | |
//! | both | [`Message::Disconnect`] | |
//!
//! Each of the client's messages but the last is answered by [`Message::Ack`]. Source: memif.h in VPP (src/plugins/memif) and
//! DPDK (drivers/net/memif).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every message.
pub(crate) const MESSAGE_LEN: usize = 128;
/// Version 2.0.
pub(crate) const VERSION: u16 = 0x0200;
/// Bytes of a name.
const NAME_LEN: usize = 32;
/// Bytes of the reason in [`Message::Disconnect`].
const REASON_LEN: usize = 96;
/// Frames are Ethernet frames.
pub(crate) const MODE_ETHERNET: u8 = 0;

/// Which way a ring's frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The last one was understood.
    Ack,
    /// What the server can do.
    Hello {
        name: String,
        min_version: u16,
        max_version: u16,
        /// The last region, counted from 0.
        max_region: u16,
        /// The last ring of each direction, counted from 0.
        max_to_client_ring: u16,
        max_to_server_ring: u16,
        max_log2_ring_size: u8,
    },
    /// Which of the server's interfaces the client wants.
    Init { version: u16, id: u32, mode: u8, name: String },
    /// A piece of memory.
    AddRegion { index: u16, size: u64 },
    /// A ring in one of them.
    AddRing { direction: Direction, index: u16, region: u16, offset: u32, log2_ring_size: u8 },
    /// All is said.
    Connect { name: String },
    /// All is well.
    Connected { name: String },
    /// It is over.
    Disconnect { code: u32, reason: String },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloBody {
    name: [u8; NAME_LEN],
    min_version: U16,
    max_version: U16,
    max_region: U16,
    max_to_client_ring: U16,
    max_to_server_ring: U16,
    max_log2_ring_size: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InitBody {
    version: U16,
    id: U32,
    mode: u8,
    secret: [u8; 24],
    name: [u8; NAME_LEN],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddRegionBody {
    index: U16,
    size: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddRingBody {
    flags: U16,
    index: U16,
    region: U16,
    offset: U32,
    log2_ring_size: u8,
    private_header_len: U16,
}

/// In [`AddRingBody::flags`].
const RING_TO_SERVER: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DisconnectBody {
    code: U32,
    reason: [u8; REASON_LEN],
}

impl Message {
    /// Its name in memif.h, for complaints.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello { .. } => "HELLO",
            Message::Init { .. } => "INIT",
            Message::AddRegion { .. } => "ADD_REGION",
            Message::AddRing { .. } => "ADD_RING",
            Message::Connect { .. } => "CONNECT",
            Message::Connected { .. } => "CONNECTED",
            Message::Disconnect { .. } => "DISCONNECT",
        }
    }

    /// As it goes over the socket.
    pub(crate) fn to_bytes(&self) -> [u8; MESSAGE_LEN] {
        match self {
            Message::Ack => assemble(1, &[]),
            Message::Hello {
                name,
                min_version,
                max_version,
                max_region,
                max_to_client_ring,
                max_to_server_ring,
                max_log2_ring_size,
            } => {
                let body = HelloBody {
                    name: text(name),
                    min_version: U16::new(*min_version),
                    max_version: U16::new(*max_version),
                    max_region: U16::new(*max_region),
                    max_to_client_ring: U16::new(*max_to_client_ring),
                    max_to_server_ring: U16::new(*max_to_server_ring),
                    max_log2_ring_size: *max_log2_ring_size,
                };
                assemble(2, body.as_bytes())
            }
            Message::Init { version, id, mode, name } => {
                let body = InitBody {
                    version: U16::new(*version),
                    id: U32::new(*id),
                    mode: *mode,
                    secret: [0; 24],
                    name: text(name),
                };
                assemble(3, body.as_bytes())
            }
            Message::AddRegion { index, size } => {
                let body = AddRegionBody { index: U16::new(*index), size: U64::new(*size) };
                assemble(4, body.as_bytes())
            }
            Message::AddRing { direction, index, region, offset, log2_ring_size } => {
                let to_server = *direction == Direction::ToServer;
                let body = AddRingBody {
                    flags: U16::new(if to_server { RING_TO_SERVER } else { 0 }),
                    index: U16::new(*index),
                    region: U16::new(*region),
                    offset: U32::new(*offset),
                    log2_ring_size: *log2_ring_size,
                    private_header_len: U16::new(0),
                };
                assemble(5, body.as_bytes())
            }
            Message::Connect { name } => assemble(6, &text::<NAME_LEN>(name)),
            Message::Connected { name } => assemble(7, &text::<NAME_LEN>(name)),
            Message::Disconnect { code, reason } => {
                let body = DisconnectBody { code: U32::new(*code), reason: text(reason) };
                assemble(8, body.as_bytes())
            }
        }
    }

    /// `None` if it is none, whatever the bytes and their number.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE_LEN] = bytes.try_into().ok()?;
        let (kind, body) = U16::read_from_prefix(bytes).ok()?;
        Some(match kind.get() {
            1 => Message::Ack,
            2 => {
                let (hello, _) = HelloBody::read_from_prefix(body).ok()?;
                Message::Hello {
                    name: words(&hello.name),
                    min_version: hello.min_version.get(),
                    max_version: hello.max_version.get(),
                    max_region: hello.max_region.get(),
                    max_to_client_ring: hello.max_to_client_ring.get(),
                    max_to_server_ring: hello.max_to_server_ring.get(),
                    max_log2_ring_size: hello.max_log2_ring_size,
                }
            }
            3 => {
                let (init, _) = InitBody::read_from_prefix(body).ok()?;
                Message::Init {
                    version: init.version.get(),
                    id: init.id.get(),
                    mode: init.mode,
                    name: words(&init.name),
                }
            }
            4 => {
                let (region, _) = AddRegionBody::read_from_prefix(body).ok()?;
                Message::AddRegion { index: region.index.get(), size: region.size.get() }
            }
            5 => {
                let (ring, _) = AddRingBody::read_from_prefix(body).ok()?;
                let to_server = ring.flags.get() & RING_TO_SERVER != 0;
                Message::AddRing {
                    direction: if to_server { Direction::ToServer } else { Direction::ToClient },
                    index: ring.index.get(),
                    region: ring.region.get(),
                    offset: ring.offset.get(),
                    log2_ring_size: ring.log2_ring_size,
                }
            }
            6 => Message::Connect { name: words(&body[..NAME_LEN]) },
            7 => Message::Connected { name: words(&body[..NAME_LEN]) },
            8 => {
                let (end, _) = DisconnectBody::read_from_prefix(body).ok()?;
                Message::Disconnect { code: end.code.get(), reason: words(&end.reason) }
            }
            _ => return None,
        })
    }
}

fn assemble(kind: u16, body: &[u8]) -> [u8; MESSAGE_LEN] {
    let mut bytes = [0; MESSAGE_LEN];
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    bytes[2..2 + body.len()].copy_from_slice(body);
    bytes
}

/// Text that ends with a zero byte, cut where it is too long.
fn text<const LENGTH: usize>(words: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let length = words.floor_char_boundary(LENGTH - 1);
    bytes[..length].copy_from_slice(&words.as_bytes()[..length]);
    bytes
}

/// What a peer says, without what would command a terminal.
fn words(bytes: &[u8]) -> String {
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..length]);
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memif::tests::Random;

    fn one_of_each() -> Vec<Message> {
        vec![
            Message::Ack,
            Message::Hello {
                name: "a server".to_owned(),
                min_version: 0x100,
                max_version: VERSION,
                max_region: 255,
                max_to_client_ring: 3,
                max_to_server_ring: 4,
                max_log2_ring_size: 14,
            },
            Message::Init { version: VERSION, id: 0x0102_0304, mode: 1, name: "a client".to_owned() },
            Message::AddRegion { index: 2, size: 1 << 33 },
            Message::AddRing {
                direction: Direction::ToServer,
                index: 1,
                region: 2,
                offset: 0x8000_0080,
                log2_ring_size: 10,
            },
            Message::AddRing {
                direction: Direction::ToClient,
                index: 0,
                region: 0,
                offset: 128,
                log2_ring_size: 1,
            },
            Message::Connect { name: "memif0".to_owned() },
            Message::Connected { name: String::new() },
            Message::Disconnect { code: 7, reason: "ID not found".to_owned() },
        ]
    }

    #[test]
    fn what_is_said_is_heard() {
        for message in one_of_each() {
            assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        }
    }

    /// Byte for byte what memif.h says.
    #[test]
    fn the_layout_is_that_of_memif_h() {
        let [_, hello, init, region, ring, ..] = &one_of_each()[..] else { unreachable!() };
        let bytes = hello.to_bytes();
        assert_eq!(bytes[..4], [2, 0, b'a', b' ']);
        assert_eq!(bytes[34..45], [0, 1, 0, 2, 255, 0, 3, 0, 4, 0, 14]);
        let bytes = init.to_bytes();
        assert_eq!(bytes[..9], [3, 0, 0, 2, 4, 3, 2, 1, 1]);
        assert_eq!(bytes[33..41], *b"a client");
        assert_eq!(region.to_bytes()[..12], [4, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(ring.to_bytes()[..13], [5, 0, 1, 0, 1, 0, 2, 0, 0x80, 0, 0, 0x80, 10]);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = "é".repeat(40);
        let Some(Message::Connect { name: heard }) = Message::parse(&Message::Connect { name }.to_bytes())
        else {
            panic!("no CONNECT");
        };
        assert_eq!(heard, "é".repeat(15));
    }

    #[test]
    fn a_peer_s_words_do_not_command_a_terminal() {
        let reason = "\x1b]0;owned\x07\u{9b}2J no\n".to_owned();
        let said = Message::Disconnect { code: 0, reason }.to_bytes();
        let Some(Message::Disconnect { reason, .. }) = Message::parse(&said) else { panic!("no DISCONNECT") };
        assert_eq!(reason, "\u{fffd}]0;owned\u{fffd}\u{fffd}2J no\u{fffd}");
    }

    #[test]
    fn bad_messages_are_refused() {
        let mut random = Random::seeded();
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            let mut bytes = [0; MESSAGE_LEN + 1];
            for byte in &mut bytes {
                *byte = random.next() as u8;
            }
            bytes[..2].copy_from_slice(&((random.next() % 12) as u16).to_le_bytes());
            let length = (random.next() % (MESSAGE_LEN as u64 + 2)) as usize;
            let parsed = Message::parse(&bytes[..length]);
            assert!(parsed.is_none() || length == MESSAGE_LEN);
        }
    }
}
