//! Memcached's text protocol, as far as a generator of gets needs it: the request, and an incremental parser of replies that keeps no
//! bytes.
//!
//! A reply is seen as a response: a value has the status 200, no value 404, an error 500; the value is the content.
//!
//! Source: memcached's `doc/protocol.txt`.

use memchr::memchr;

use crate::response::{HEAD_LIMIT, Malformed, Response, Sink};

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
enum State {
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
        Parser { remaining: 0, value_bytes: 0, line_bytes: 0, status: 404, state: State::Kind }
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
                State::Error => {
                    let end = memchr(b'\n', &data[at..]);
                    let used = end.map_or(data.len() - at, |end| end + 1);
                    at += used;
                    self.count(used)?;
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

    /// So many more bytes of a line.
    fn count(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.line_bytes = self.line_bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.line_bytes > HEAD_LIMIT { Err(Malformed::TooLong) } else { Ok(()) }
    }

    /// One byte of the framing. True when the reply is over.
    #[inline]
    fn byte(&mut self, byte: u8) -> Result<bool, Malformed> {
        self.count(1)?;
        self.state = match (self.state, byte) {
            (State::Kind, b'V') => State::Word(1),
            (State::Kind, b'E') => State::EndOrError,
            // CLIENT_ERROR, SERVER_ERROR.
            (State::Kind, b'C' | b'S') | (State::EndOrError, b'R') => {
                self.status = 500;
                State::Error
            }
            (State::EndOrError, b'N') => State::End(2),
            (State::Word(there), _) if byte == VALUE[usize::from(there)] => {
                self.status = 200;
                if usize::from(there) + 1 == VALUE.len() {
                    State::KeyAndFlags(0)
                } else {
                    State::Word(there + 1)
                }
            }
            (State::Kind | State::EndOrError | State::Word(_), _) => return Err(Malformed::StatusLine),
            (State::KeyAndFlags(_), b'\r' | b'\n') => return Err(Malformed::ContentLength),
            (State::KeyAndFlags(0), b' ') => State::KeyAndFlags(1),
            (State::KeyAndFlags(_), b' ') => State::Length { some: false },
            (State::KeyAndFlags(ends), _) => State::KeyAndFlags(ends),
            (State::Length { .. }, b'0'..=b'9') => {
                self.remaining = self.remaining * 10 + u64::from(byte - b'0');
                if self.remaining > VALUE_LIMIT {
                    return Err(Malformed::ContentLength);
                }
                State::Length { some: true }
            }
            (State::Length { some: true }, b'\r') | (State::Unique, b'\r') => State::LengthEnd,
            (State::Length { some: true }, b' ') | (State::Unique, b'0'..=b'9') => State::Unique,
            (State::LengthEnd, b'\n') if self.remaining == 0 => State::ValueCr,
            (State::LengthEnd, b'\n') => State::Value,
            (State::ValueCr, b'\r') => State::ValueLf,
            (State::ValueLf, b'\n') => State::End(0),
            (State::End(there), _) if byte == END[usize::from(there)] => {
                if usize::from(there) + 1 == END.len() {
                    return Ok(true);
                }
                State::End(there + 1)
            }
            (State::ValueCr | State::ValueLf | State::End(_), _) => return Err(Malformed::ChunkEnd),
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
