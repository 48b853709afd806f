//! Redis's protocol (RESP), as far as a generator of GETs needs it: the request, and an incremental parser of replies that keeps no
//! bytes.
//!
//! A reply is seen as a response: a value has the status 200, no value 404, an error 500; the value is the content.
//!
//! Source: the Redis serialization protocol specification, version 2.

use crate::replies::{self, Framing, Part, Reply};
use crate::response::Malformed;

/// Longest value that a server sends (`proto-max-bulk-len`), in bytes.
const VALUE_LIMIT: u64 = 512 * 1024 * 1024;

/// `GET key`.
pub(crate) fn get(key: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RespFraming {
    /// The byte that says what follows.
    Kind,
    /// A line of text, to its end.
    Line,
    /// The digits of a value's length, of which some are there or not.
    Length {
        some: bool,
    },
    /// After the minus sign: `1`.
    Minus,
    /// The CR after `-1`.
    Null,
    /// LF must follow.
    NullEnd,
    LengthEnd,
    Value,
    ValueCr,
    ValueLf,
}

/// The state of one connection's current reply.
pub(crate) type Parser = replies::Parser<RespFraming>;

impl Framing for RespFraming {
    const BEGIN: Self = Self::Kind;
    const AFTER_VALUE: Self = Self::ValueCr;
    const STATUS: u16 = 200;

    #[inline]
    fn part(self) -> Part {
        match self {
            Self::Value => Part::Value,
            Self::Line => Part::Line,
            _ => Part::Framing,
        }
    }

    #[inline]
    fn byte(self, byte: u8, reply: &mut Reply) -> Result<Option<Self>, Malformed> {
        Ok(Some(match (self, byte) {
            (RespFraming::Kind, b'$') => RespFraming::Length { some: false },
            (RespFraming::Kind, b'+' | b':') => RespFraming::Line,
            (RespFraming::Kind, b'-') => {
                reply.status = 500;
                RespFraming::Line
            }
            (RespFraming::Kind, _) => return Err(Malformed::StatusLine),
            (RespFraming::Length { .. }, b'0'..=b'9') => {
                reply.digit(byte, VALUE_LIMIT)?;
                RespFraming::Length { some: true }
            }
            (RespFraming::Length { some: true }, b'\r') => RespFraming::LengthEnd,
            (RespFraming::Length { some: false }, b'-') => RespFraming::Minus,
            (RespFraming::Minus, b'1') => RespFraming::Null,
            (RespFraming::Null, b'\r') => RespFraming::NullEnd,
            (RespFraming::LengthEnd, b'\n') if reply.remaining == 0 => RespFraming::ValueCr,
            (RespFraming::LengthEnd, b'\n') => RespFraming::Value,
            (RespFraming::NullEnd, b'\n') => {
                reply.status = 404;
                return Ok(None);
            }
            (RespFraming::ValueCr, b'\r') => RespFraming::ValueLf,
            (RespFraming::ValueLf, b'\n') => return Ok(None),
            (RespFraming::ValueCr | RespFraming::ValueLf, _) => return Err(Malformed::ChunkEnd),
            _ => return Err(Malformed::ContentLength),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], step: usize) -> (Vec<(u16, u64)>, Option<Malformed>) {
        replies::in_steps::<RespFraming>(text, step)
    }

    #[test]
    fn replies_may_be_cut_anywhere() {
        let text = b"$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n+OK\r\n:12\r\n-ERR no\r\n$12\r\nabcdefghijkl\r\n";
        let replies = [(200, 5), (200, 0), (404, 0), (200, 0), (200, 0), (500, 0), (200, 12)];
        for step in 1..=text.len() {
            assert_eq!(read(text, step), (replies.to_vec(), None), "{step} bytes at a time");
        }
        assert_eq!(read(b"$5\r\nabcd", 3), (Vec::new(), None));
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        for (text, malformed) in [
            (&b"HTTP/1.1 200 OK\r\n"[..], Malformed::StatusLine),
            (b"$\r\n", Malformed::ContentLength),
            (b"$x\r\n", Malformed::ContentLength),
            (b"$1\n", Malformed::ContentLength),
            (b"$-2\r\n", Malformed::ContentLength),
            (b"$536870913\r\n", Malformed::ContentLength),
            (b"$1\r\nab\r\n", Malformed::ChunkEnd),
            (b"$1\r\na\r\r", Malformed::ChunkEnd),
            (&[b'+'; 70_000], Malformed::TooLong),
        ] {
            for step in [1, text.len()] {
                assert_eq!(read(text, step), (Vec::new(), Some(malformed)));
            }
        }
    }

    #[test]
    fn a_key_is_sent_with_its_length() {
        assert_eq!(get("key:1"), b"*2\r\n$3\r\nGET\r\n$5\r\nkey:1\r\n");
    }
}
