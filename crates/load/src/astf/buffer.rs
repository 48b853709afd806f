//! Payload: each buffer once for all flows. A frame's share of it is copied when the frame is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use overfly_wire::checksum::{Sum, Template};

use super::form;

/// A buffer that is no longer than this is kept whole.
const WHOLE_MOST: usize = 4 << 20;
/// The pattern of a longer one is kept at least so often over.
const PATTERN_LEAST: usize = 64 << 10;

/// What one `send` sends.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: u32,
    /// The beginning, or all of it.
    head: Template,
    /// What follows the head over and over.
    pattern: Vec<u8>,
}

impl Buffer {
    /// Makes it out of the form's.
    ///
    /// # Errors
    /// It is no base64.
    pub(crate) fn new(form: &form::Buffer) -> Result<Buffer, String> {
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| error.to_string());
        let mut head = decode(&form.base64)?;
        head.truncate(form.bytes as usize);
        let mut fill = form.fill_base64.as_deref().map(decode).transpose()?.unwrap_or_default();
        if fill.is_empty() {
            fill.push(0);
        }
        let rest = form.bytes as usize - head.len();
        if form.bytes as usize <= WHOLE_MOST {
            head.extend(fill.iter().copied().cycle().take(rest));
            return Ok(Buffer { bytes: form.bytes, head: Template::new(head), pattern: Vec::new() });
        }
        let times = PATTERN_LEAST.div_ceil(fill.len());
        Ok(Buffer { bytes: form.bytes, head: Template::new(head), pattern: fill.repeat(times) })
    }

    pub(crate) fn len(&self) -> u32 {
        self.bytes
    }

    /// All of it, if it is kept whole: datagrams are.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        (self.head.bytes().len() == self.bytes as usize).then(|| self.head.bytes())
    }

    /// Writes its bytes from `offset` on.
    #[inline]
    pub(crate) fn copy(&self, offset: u32, to: &mut [u8]) {
        let offset = offset as usize;
        let head = self.head.bytes();
        match head.get(offset..offset + to.len()) {
            Some(part) => to.copy_from_slice(part),
            None => self.copy_pattern(offset, to),
        }
    }

    /// As [`Buffer::copy`], with the sum of what was written, where that is known.
    #[inline]
    pub(crate) fn copy_and_sum(&self, offset: u32, to: &mut [u8]) -> Option<Sum> {
        if offset as usize + to.len() <= self.head.bytes().len() {
            return Some(self.head.copy_and_sum(offset as usize, to));
        }
        self.copy_pattern(offset as usize, to);
        None
    }

    #[cold]
    fn copy_pattern(&self, mut offset: usize, mut to: &mut [u8]) {
        let head = self.head.bytes();
        while !to.is_empty() {
            let from = match head.get(offset..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &self.pattern[(offset - head.len()) % self.pattern.len()..],
            };
            let take = from.len().min(to.len());
            to[..take].copy_from_slice(&from[..take]);
            to = &mut to[take..];
            offset += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(head: &[u8], fill: Option<&[u8]>, bytes: u32) -> Buffer {
        let form = form::Buffer {
            base64: STANDARD.encode(head),
            bytes,
            fill_base64: fill.map(|fill| STANDARD.encode(fill)),
        };
        Buffer::new(&form).unwrap()
    }

    #[test]
    fn any_part_is_what_the_whole_would_have_there() {
        for (head, fill, bytes) in [
            (&b"GET /"[..], None, 5),
            (b"GET /", Some(&b"abc"[..]), 1000),
            (b"", Some(b"0123456789"), 5_000_003),
            (b"head", None, 4_200_000),
            (b"much", None, 2),
        ] {
            let buffer = buffer(head, fill, bytes);
            let fill = fill.unwrap_or(&[0]);
            let expected: Vec<u8> =
                head.iter().copied().chain(fill.iter().copied().cycle()).take(bytes as usize).collect();
            assert_eq!(buffer.len(), bytes);
            assert_eq!(buffer.whole().is_some(), bytes <= 4 << 20);
            for (offset, length) in
                [(0, 5), (3, 700), (bytes as usize / 2, 1448), (bytes as usize - 1, 1), (65_530, 1448)]
            {
                let Some(part) = expected.get(offset..(offset + length).min(expected.len())) else {
                    continue;
                };
                let mut got = vec![1; part.len()];
                buffer.copy(offset as u32, &mut got);
                assert_eq!(got, part, "{bytes} bytes from {offset}");
                got.fill(1);
                let sum = buffer.copy_and_sum(offset as u32, &mut got);
                assert_eq!(got, part, "{bytes} bytes from {offset}");
                assert!(sum.is_none_or(|sum| sum.finish() == Sum::new().bytes(part).finish()));
            }
        }
    }
}
