//! Bodies (RFC 9112 section 6.3), and the framing around chunks (section 7.1).

use super::{Framing, Malformed, Message, Part, Rules};

/// Longest trailer section, in bytes.
const TRAILERS_LIMIT: u32 = 16 * 1024;

impl<R: Rules> Message<R> {
    /// The head is over: what comes next is framed so.
    #[inline]
    pub(crate) fn begin_body(&mut self, framing: Framing) {
        self.begin_chunk_size();
        match framing {
            Framing::Length(length) => {
                self.number = length;
                self.part = Part::Body;
            }
            Framing::Chunked => {}
            Framing::UntilClose => self.part = Part::UntilClose,
        }
    }

    /// Reads on in a body, and shows `content` what is in it. Returns the bytes used, and whether the body is complete.
    #[inline]
    pub(crate) fn body(
        &mut self,
        data: &[u8],
        mut content: impl FnMut(&[u8]),
    ) -> Result<(usize, bool), Malformed> {
        match self.part {
            Part::Body => {
                let taken = self.take(data);
                content(&data[..taken]);
                Ok((taken, self.number == 0))
            }
            Part::UntilClose => {
                content(data);
                Ok((data.len(), false))
            }
            _ => self.chunks(data, content),
        }
    }

    /// How much of `data` is in this body or chunk.
    #[inline]
    fn take(&mut self, data: &[u8]) -> usize {
        let taken = self.number.min(data.len() as u64);
        self.number -= taken;
        taken as usize
    }

    fn chunks(&mut self, data: &[u8], mut content: impl FnMut(&[u8])) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        while at < data.len() {
            if self.part == Part::ChunkData {
                let start = at;
                at += self.take(&data[at..]);
                content(&data[start..at]);
                if self.number == 0 {
                    self.part = Part::ChunkDataEnd;
                }
                continue;
            }
            let byte = data[at];
            at += 1;
            self.line_bytes += 1;
            if self.part < Part::ChunkSizeEnd {
                if self.line_bytes > R::CHUNK_LINE_LIMIT {
                    return Err(Malformed::TooLong);
                }
                self.size_byte(byte)?;
            } else {
                if self.line_bytes > TRAILERS_LIMIT {
                    return Err(Malformed::TooLong);
                }
                if self.framing_byte(byte)? {
                    return Ok((at, true));
                }
            }
        }
        Ok((at, false))
    }

    /// One byte of a chunk-size line.
    #[inline]
    fn size_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.part == Part::ChunkSize {
            if byte.is_ascii_hexdigit() {
                let digit = if byte <= b'9' { byte - b'0' } else { (byte | 0x20) - b'a' + 10 };
                if self.number >> 60 != 0 {
                    return Err(Malformed::ChunkSize);
                }
                self.number = self.number << 4 | u64::from(digit);
                self.word.len = 1;
                return Ok(());
            }
            if self.word.len == 0 {
                return Err(Malformed::ChunkSize);
            }
        }
        match byte {
            b'\r' => self.part = Part::ChunkSizeEnd,
            b'\n' => self.begin_chunk(),
            0 if R::STRICT => return Err(Malformed::ChunkSize),
            _ if self.part == Part::ChunkExtension => {}
            b';' => self.part = Part::ChunkExtension,
            b' ' | b'\t' => self.part = Part::ChunkSizeBlank,
            _ => return Err(Malformed::ChunkSize),
        }
        Ok(())
    }

    /// One byte of what else is around chunks. True when the last one and its trailers are over.
    #[inline]
    fn framing_byte(&mut self, byte: u8) -> Result<bool, Malformed> {
        match (self.part, byte) {
            (Part::ChunkSizeEnd, b'\n') => self.begin_chunk(),
            (Part::ChunkSizeEnd, _) => return Err(Malformed::ChunkSize),
            (Part::ChunkDataEnd, b'\r') => self.part = Part::ChunkDataLineFeed,
            (Part::ChunkDataEnd | Part::ChunkDataLineFeed, b'\n') => self.begin_chunk_size(),
            (Part::ChunkDataEnd | Part::ChunkDataLineFeed, _) => return Err(Malformed::ChunkEnd),
            (Part::TrailerStart | Part::TrailersEnd, b'\n') => return Ok(true),
            (Part::TrailersEnd, _) => return Err(Malformed::HeaderName),
            (Part::TrailerStart, b'\r') => self.part = Part::TrailersEnd,
            // Trailers are dropped unread.
            (Part::Trailer, b'\n') => self.part = Part::TrailerStart,
            (_, 0) if R::STRICT => return Err(Malformed::HeaderValue),
            _ => self.part = Part::Trailer,
        }
        Ok(false)
    }

    fn begin_chunk(&mut self) {
        self.line_bytes = 0;
        self.part = if self.number == 0 { Part::TrailerStart } else { Part::ChunkData };
    }

    fn begin_chunk_size(&mut self) {
        self.part = Part::ChunkSize;
        self.word.len = 0;
        self.number = 0;
        self.line_bytes = 0;
    }
}
