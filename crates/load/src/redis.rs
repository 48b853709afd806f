//! Redis's protocol (RESP), as far as a generator of GETs needs it: the request, and an incremental parser of replies that keeps no
//! bytes.
//!
//! A reply is seen as a response: a value has the status 200, no value 404, an error 500; the value is the content.
//!
//! Source: the Redis serialization protocol specification, version 2.

use memchr::memchr;

use crate::response::{HEAD_LIMIT, Malformed, Response, Sink};

/// Longest value that a server sends (`proto-max-bulk-len`), in bytes.
const VALUE_LIMIT: u64 = 512 * 1024 * 1024;

/// `GET key`.
pub(crate) fn get(key: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
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

/// The state of one connection's current reply: no heap.
#[derive(Debug, Clone)]
pub(crate) struct Parser {
    /// Bytes of the value to come; while the length is read, the length.
    remaining: u64,
    value_bytes: u64,
    line_bytes: u32,
    status: u16,
    state: State,
}

impl Parser {
    /// Ready for the first byte of a reply.
    pub(crate) const fn new() -> Parser {
        Parser { remaining: 0, value_bytes: 0, line_bytes: 0, status: 200, state: State::Kind }
    }

    /// Takes the next bytes of the stream: how many of them belong to this reply, and the reply if they complete it.
    ///
    /// # Errors
    /// [`Malformed`]: the connection is of no more use.
    #[inline]
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(usize, Option<Response>), Malformed> {
        let mut at = 0;
        while at < data.len() {
            match self.state {
                State::Value => {
                    let used = (data.len() - at).min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
                    sink.content(&data[at..at + used]);
                    at += used;
                    self.remaining -= used as u64;
                    self.value_bytes += used as u64;
                    if self.remaining == 0 {
                        self.state = State::ValueCr;
                    }
                }
                State::Line => {
                    let end = memchr(b'\n', &data[at..]);
                    let used = end.map_or(data.len() - at, |end| end + 1);
                    at += used;
                    self.line_bytes = self.line_bytes.saturating_add(u32::try_from(used).unwrap_or(u32::MAX));
                    if self.line_bytes > HEAD_LIMIT {
                        return Err(Malformed::TooLong);
                    }
                    if end.is_some() {
                        return Ok((at, Some(self.complete())));
                    }
                }
                _ => {
                    let is_over = self.byte(data[at])?;
                    at += 1;
                    if is_over {
                        return Ok((at, Some(self.complete())));
                    }
                }
            }
        }
        Ok((at, None))
    }

    /// One byte of the framing. True when the reply is over.
    #[inline]
    fn byte(&mut self, byte: u8) -> Result<bool, Malformed> {
        self.state = match (self.state, byte) {
            (State::Kind, b'$') => State::Length { some: false },
            (State::Kind, b'+' | b':') => State::Line,
            (State::Kind, b'-') => {
                self.status = 500;
                State::Line
            }
            (State::Kind, _) => return Err(Malformed::StatusLine),
            (State::Length { .. }, b'0'..=b'9') => {
                self.remaining = self.remaining * 10 + u64::from(byte - b'0');
                if self.remaining > VALUE_LIMIT {
                    return Err(Malformed::ContentLength);
                }
                State::Length { some: true }
            }
            (State::Length { some: true }, b'\r') => State::LengthEnd,
            (State::Length { some: false }, b'-') => State::Minus,
            (State::Minus, b'1') => State::Null,
            (State::Null, b'\r') => State::NullEnd,
            (State::LengthEnd, b'\n') if self.remaining == 0 => State::ValueCr,
            (State::LengthEnd, b'\n') => State::Value,
            (State::NullEnd, b'\n') => {
                self.status = 404;
                return Ok(true);
            }
            (State::ValueCr, b'\r') => State::ValueLf,
            (State::ValueLf, b'\n') => return Ok(true),
            (State::ValueCr | State::ValueLf, _) => return Err(Malformed::ChunkEnd),
            _ => return Err(Malformed::ContentLength),
        };
        Ok(false)
    }

    fn complete(&mut self) -> Response {
        let reply = Response { status: self.status, body_bytes: self.value_bytes, keep_alive: true };
        *self = Parser::new();
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replies in `text`, taken `step` bytes at a time: status and size of each, and what went wrong then.
    fn read(text: &[u8], step: usize) -> (Vec<(u16, u64)>, Option<Malformed>) {
        let (mut parser, mut replies) = (Parser::new(), Vec::new());
        for mut piece in text.chunks(step) {
            while !piece.is_empty() {
                match parser.feed(piece, &mut ()) {
                    Ok((used, reply)) => {
                        assert!(used > 0 && (reply.is_some() || used == piece.len()));
                        replies.extend(reply.map(|reply| (reply.status, reply.body_bytes)));
                        piece = &piece[used..];
                    }
                    Err(malformed) => return (replies, Some(malformed)),
                }
            }
        }
        (replies, None)
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
