//! Address resolution for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{MacAddr, Malformed, ethernet};

/// Bytes of a packet.
pub const LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const OPERATION_REQUEST: u16 = 1;
const OPERATION_REPLY: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: MacAddr,
    sender_ip: [u8; 4],
    target_mac: MacAddr,
    target_ip: [u8; 4],
}

/// What a packet asks or tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Who has the target's IP address?
    Request,
    /// The sender's IP address is at the sender's MAC address.
    Reply,
}

/// A request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: MacAddr,
    /// IP address of the sender; 0.0.0.0 in a probe (RFC 5227 section 1.1).
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target: without meaning in a request.
    pub target_mac: MacAddr,
    /// IP address of the target.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Reads the payload of an ARP frame; padding may follow.
    ///
    /// # Errors
    /// [`Malformed::ArpShort`], [`Malformed::ArpKind`].
    pub fn parse(bytes: &[u8]) -> Result<Packet, Malformed> {
        let (layout, _padding) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::ArpShort)?;
        let kind = (layout.hardware.into(), layout.protocol.into(), layout.hardware_len, layout.protocol_len);
        if kind != (HARDWARE_ETHERNET, ethernet::ETHERTYPE_IPV4, 6, 4) {
            return Err(Malformed::ArpKind);
        }
        let operation = match layout.operation.into() {
            OPERATION_REQUEST => Operation::Request,
            OPERATION_REPLY => Operation::Reply,
            _ => return Err(Malformed::ArpKind),
        };
        Ok(Packet {
            operation,
            sender_mac: layout.sender_mac,
            sender_ip: layout.sender_ip.into(),
            target_mac: layout.target_mac,
            target_ip: layout.target_ip.into(),
        })
    }

    /// Writes the packet into the first [`LEN`] bytes of `buffer`, and says that it took so many.
    ///
    /// # Panics
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let operation = match self.operation {
            Operation::Request => OPERATION_REQUEST,
            Operation::Reply => OPERATION_REPLY,
        };
        let layout = Layout {
            hardware: HARDWARE_ETHERNET.into(),
            protocol: ethernet::ETHERTYPE_IPV4.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: operation.into(),
            sender_mac: self.sender_mac,
            sender_ip: self.sender_ip.octets(),
            target_mac: self.target_mac,
            target_ip: self.target_ip.octets(),
        };
        buffer[..LEN].copy_from_slice(layout.as_bytes());
        LEN
    }
}
