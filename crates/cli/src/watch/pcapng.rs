//! Writes pcapng (draft-ietf-opsawg-pcapng), which tcpdump, tshark and Wireshark read: one section, one interface for each
//! process, and what was not captured in the statistics at the end.

use std::io::{self, Write};

/// Block types (section 10.1 and 4 of the draft).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// Option codes.
const END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

/// A capture file on its way.
pub(super) struct Writer<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins the section.
    pub(super) fn new(out: W) -> io::Result<Writer<W>> {
        let mut writer = Writer { out, block: Vec::new() };
        writer.write(SECTION_HEADER, |block| {
            block.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
            block.extend(1_u16.to_ne_bytes()); // version 1.0
            block.extend(0_u16.to_ne_bytes());
            block.extend((-1_i64).to_ne_bytes()); // of a length that is not said
            option(block, SHB_USERAPPL, concat!("overfly ", env!("CARGO_PKG_VERSION")).as_bytes());
            option(block, END, &[]);
        })?;
        Ok(writer)
    }

    /// One more interface, numbered from 0; times are microseconds, as they are by default.
    pub(super) fn interface(&mut self, name: &str, description: &str, length_max: u32) -> io::Result<()> {
        self.write(INTERFACE_DESCRIPTION, |block| {
            block.extend(LINKTYPE_ETHERNET.to_ne_bytes());
            block.extend(0_u16.to_ne_bytes());
            block.extend(length_max.to_ne_bytes());
            option(block, IF_NAME, name.as_bytes());
            option(block, IF_DESCRIPTION, description.as_bytes());
            option(block, END, &[]);
        })
    }

    /// A frame of an interface: `bytes` of the `length` that it had.
    pub(super) fn frame(
        &mut self,
        interface: u32,
        time_us: u64,
        outbound: bool,
        length: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.write(ENHANCED_PACKET, |block| {
            block.extend(interface.to_ne_bytes());
            block.extend(((time_us >> 32) as u32).to_ne_bytes());
            block.extend((time_us as u32).to_ne_bytes());
            block.extend((bytes.len() as u32).to_ne_bytes());
            block.extend(length.to_ne_bytes());
            block.extend(bytes);
            pad(block);
            let direction: u32 = if outbound { 2 } else { 1 };
            option(block, EPB_FLAGS, &direction.to_ne_bytes());
            option(block, END, &[]);
        })
    }

    /// What an interface had, and what of it was lost.
    pub(super) fn statistics(
        &mut self,
        interface: u32,
        time_us: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        self.write(INTERFACE_STATISTICS, |block| {
            block.extend(interface.to_ne_bytes());
            block.extend(((time_us >> 32) as u32).to_ne_bytes());
            block.extend((time_us as u32).to_ne_bytes());
            option(block, ISB_IFRECV, &received.to_ne_bytes());
            option(block, ISB_IFDROP, &dropped.to_ne_bytes());
            option(block, END, &[]);
        })
    }

    /// Whoever reads the other end sees everything so far.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn write(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        self.block.extend(kind.to_ne_bytes());
        self.block.extend([0; 4]);
        body(&mut self.block);
        let length = (self.block.len() + 4) as u32;
        self.block[4..8].copy_from_slice(&length.to_ne_bytes());
        self.block.extend(length.to_ne_bytes());
        self.out.write_all(&self.block)
    }
}

fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend(code.to_ne_bytes());
    block.extend((value.len() as u16).to_ne_bytes());
    block.extend(value);
    pad(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_their_length_at_both_ends_and_are_padded() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.interface("eth0", "process 1 (nginx)", 96).unwrap();
        writer.frame(0, 1 << 32 | 5, true, 1514, &[7; 61]).unwrap();
        writer.statistics(0, 9, 3, 2).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut at = 0;
        let mut kinds = Vec::new();
        while at < bytes.len() {
            let length = word(at + 4) as usize;
            assert!(length.is_multiple_of(4) && word(at + length - 4) as usize == length);
            if word(at) == ENHANCED_PACKET {
                assert_eq!((word(at + 12), word(at + 16), word(at + 20), word(at + 24)), (1, 5, 61, 1514));
                assert_eq!(bytes[at + 28..at + 28 + 61], [7; 61]);
            }
            kinds.push(word(at));
            at += length;
        }
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_STATISTICS]);
    }
}
