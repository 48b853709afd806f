//! Memcached's text protocol, as far as a generator of gets needs it: the request, and an incremental parser of replies that keeps no
//! bytes.
//!
//! A reply is seen as a response: a value has the status 200, no value 404, an error 500; the value is the content.
//!
//! Source: memcached's `doc/protocol.txt`.

use crate::replies::{self, Framing, Part, Reply};
use crate::response::Malformed;

/// Longest value that a server sends (`-I`), in bytes.
const VALUE_LIMIT: u64 = 1024 * 1024 * 1024;
/// How a value begins, and how a reply ends.
const VALUE: &[u8] = b"VALUE ";
const END: &[u8] = b"END\r\n";

/// `get key`.
pub(crate) fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemcachedFraming {
    /// The byte that says what follows.
    Kind,
    /// `E`: `END`, or `ERROR`.
    EndOrError,
    /// So many bytes of `VALUE ` are there.
    Word(u8),
    /// Key and flags, of whose ends so many are there.
    KeyAndFlags(u8),
    /// The digits of a value's length, of which some are there or not.
    Length {
        some: bool,
    },
    /// What follows the length, to the line's end.
    Unique,
    /// LF must follow.
    LengthEnd,
    Value,
    ValueCr,
    ValueLf,
    /// So many bytes of `END` and its line's end are there.
    End(u8),
    /// An error, to its line's end.
    Error,
}

/// The state of one connection's current reply.
pub(crate) type Parser = replies::Parser<MemcachedFraming>;

impl Framing for MemcachedFraming {
    const BEGIN: Self = Self::Kind;
    const AFTER_VALUE: Self = Self::ValueCr;
    const STATUS: u16 = 404;

    #[inline]
    fn part(self) -> Part {
        match self {
            Self::Value => Part::Value,
            Self::Error => Part::Line,
            _ => Part::Framing,
        }
    }

    #[inline]
    fn byte(self, byte: u8, reply: &mut Reply) -> Result<Option<Self>, Malformed> {
        Ok(Some(match (self, byte) {
            (MemcachedFraming::Kind, b'V') => MemcachedFraming::Word(1),
            (MemcachedFraming::Kind, b'E') => MemcachedFraming::EndOrError,
            // CLIENT_ERROR, SERVER_ERROR.
            (MemcachedFraming::Kind, b'C' | b'S') | (MemcachedFraming::EndOrError, b'R') => {
                reply.status = 500;
                MemcachedFraming::Error
            }
            (MemcachedFraming::EndOrError, b'N') => MemcachedFraming::End(2),
            (MemcachedFraming::Word(there), _) if byte == VALUE[usize::from(there)] => {
                reply.status = 200;
                if usize::from(there) + 1 == VALUE.len() {
                    MemcachedFraming::KeyAndFlags(0)
                } else {
                    MemcachedFraming::Word(there + 1)
                }
            }
            (MemcachedFraming::Kind | MemcachedFraming::EndOrError | MemcachedFraming::Word(_), _) => {
                return Err(Malformed::StatusLine);
            }
            (MemcachedFraming::KeyAndFlags(_), b'\r' | b'\n') => return Err(Malformed::ContentLength),
            (MemcachedFraming::KeyAndFlags(0), b' ') => MemcachedFraming::KeyAndFlags(1),
            (MemcachedFraming::KeyAndFlags(_), b' ') => MemcachedFraming::Length { some: false },
            (MemcachedFraming::KeyAndFlags(ends), _) => MemcachedFraming::KeyAndFlags(ends),
            (MemcachedFraming::Length { .. }, b'0'..=b'9') => {
                reply.digit(byte, VALUE_LIMIT)?;
                MemcachedFraming::Length { some: true }
            }
            (MemcachedFraming::Length { some: true }, b'\r') | (MemcachedFraming::Unique, b'\r') => {
                MemcachedFraming::LengthEnd
            }
            (MemcachedFraming::Length { some: true }, b' ') | (MemcachedFraming::Unique, b'0'..=b'9') => {
                MemcachedFraming::Unique
            }
            (MemcachedFraming::LengthEnd, b'\n') if reply.remaining == 0 => MemcachedFraming::ValueCr,
            (MemcachedFraming::LengthEnd, b'\n') => MemcachedFraming::Value,
            (MemcachedFraming::ValueCr, b'\r') => MemcachedFraming::ValueLf,
            (MemcachedFraming::ValueLf, b'\n') => MemcachedFraming::End(0),
            (MemcachedFraming::End(there), _) if byte == END[usize::from(there)] => {
                if usize::from(there) + 1 == END.len() {
                    return Ok(None);
                }
                MemcachedFraming::End(there + 1)
            }
            (MemcachedFraming::ValueCr | MemcachedFraming::ValueLf | MemcachedFraming::End(_), _) => {
                return Err(Malformed::ChunkEnd);
            }
            _ => return Err(Malformed::ContentLength),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], step: usize) -> (Vec<(u16, u64)>, Option<Malformed>) {
        replies::in_steps::<MemcachedFraming>(text, step)
    }

    #[test]
    fn replies_may_be_cut_anywhere() {
        let text = b"VALUE key 0 5\r\na\r\nbc\r\nEND\r\nVALUE k 12 0\r\n\r\nEND\r\nEND\r\nERROR\r\n\
            SERVER_ERROR out of memory\r\nCLIENT_ERROR line\r\nVALUE k 0 4 77\r\nEND\n\r\nEND\r\n";
        let replies = [(200, 5), (200, 0), (404, 0), (500, 0), (500, 0), (500, 0), (200, 4)];
        for step in 1..=text.len() {
            assert_eq!(read(text, step), (replies.to_vec(), None), "{step} bytes at a time");
        }
        assert_eq!(read(b"VALUE k 0 5\r\nabcd", 3), (Vec::new(), None));
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        for (text, malformed) in [
            (&b"HTTP/1.1 200 OK\r\n"[..], Malformed::StatusLine),
            (b"VALVE k 0 1\r\n", Malformed::StatusLine),
            (b"EXISTS\r\n", Malformed::StatusLine),
            (b"VALUE k\r\n", Malformed::ContentLength),
            (b"VALUE k 0 \r\n", Malformed::ContentLength),
            (b"VALUE k 0 x\r\n", Malformed::ContentLength),
            (b"VALUE k 0 1\n", Malformed::ContentLength),
            (b"VALUE k 0 1 x\r\n", Malformed::ContentLength),
            (b"VALUE k 0 1073741825\r\n", Malformed::ContentLength),
            (b"VALUE k 0 1\r\nab\r\n", Malformed::ChunkEnd),
            (b"VALUE k 0 1\r\na\r\nVALUE k 0 1\r\n", Malformed::ChunkEnd),
            (b"END\n", Malformed::ChunkEnd),
            (&[&b"VALUE "[..], &[b'k'; 70_000]].concat(), Malformed::TooLong),
            (&[b'S'; 70_000], Malformed::TooLong),
        ] {
            for step in [1, text.len()] {
                assert_eq!(read(text, step), (Vec::new(), Some(malformed)), "{}", text.escape_ascii());
            }
        }
    }

    #[test]
    fn a_key_is_asked_for() {
        assert_eq!(get("key:1"), b"get key:1\r\n");
    }
}
