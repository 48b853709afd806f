//! Reads decisions from a fuzzer's bytes.

/// Bytes not yet used.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next byte, if there is one.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// A number of two bytes.
    pub fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A number of four bytes.
    pub fn long(&mut self) -> Option<u32> {
        Some(u32::from(self.word()?) << 16 | u32::from(self.word()?))
    }

    /// Below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> Option<usize> {
        Some(usize::from(self.byte()?) % bound)
    }

    /// So many bytes, or all that are left.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        first
    }
}
