//! An incremental HTTP/1.x response parser that keeps no bytes.
//!
//! [`Parser::feed`] takes whatever a segment or a `recv` brought, in any split, and says when a
//! response is complete. The body is counted and dropped. Nothing is allocated: a head that is
//! cut by a segment boundary is carried on by the state machine itself.
//!
//! Most responses of a load test have the head of the response before. [`HeadCache`] remembers
//! the last head that came in one piece, and a head with the same bytes (its `Date` value apart)
//! costs one comparison.
//!
//! Sources: RFC 9112 (message syntax and framing), RFC 9110 (fields, status codes).

use memchr::memchr3;

pub use crate::http1::Malformed;
use crate::http1::{self, Coding, Framing, Message, Part, Rules};

/// Longest status line and header block taken, in bytes.
pub const HEAD_LIMIT: u32 = 64 * 1024;

/// What is tolerated in a response: what RFC 9112 lets a recipient tolerate.
#[derive(Debug, Clone)]
enum Lenient {}

impl Rules for Lenient {
    const HEAD_LIMIT: u32 = HEAD_LIMIT;
    const CHUNK_LINE_LIMIT: u32 = 16 * 1024;
    const STRICT: bool = false;
}

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Status code, 100…999 (never 1xx: those are skipped).
    pub status: u16,
    /// Bytes of content, after chunked framing is taken off.
    pub body_bytes: u64,
    /// Whether the connection may carry another request (RFC 9112 section 9.3).
    pub keep_alive: bool,
}

/// What a head says, as far as a generator needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

/// The last head that arrived in one piece, and what it said. One per thread.
pub type HeadCache = http1::HeadCache<Head>;

/// Takes the bytes of a response as they are parsed. The body is counted and dropped by a parser without one.
pub trait Sink {
    /// Some more bytes of a head; line ends and the empty line are among them.
    fn head(&mut self, bytes: &[u8]);
    /// That head was an interim response's (1xx): the next one begins.
    fn head_again(&mut self);
    /// Some more bytes of content; chunked framing is taken off.
    fn content(&mut self, bytes: &[u8]);
}

/// Keeps nothing.
impl Sink for () {
    #[inline]
    fn head(&mut self, _: &[u8]) {}
    #[inline]
    fn head_again(&mut self) {}
    #[inline]
    fn content(&mut self, _: &[u8]) {}
}

/// Which part of a status line comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusLine {
    Version,
    CodeSpace,
    /// `digits` of its digits are there.
    Code,
    CodeEnd,
    Reason,
}

/// The state of one connection's current response: 48 bytes or less, no heap.
#[derive(Debug, Clone)]
pub struct Parser {
    message: Message<Lenient>,
    /// Content bytes seen.
    body_bytes: u64,
    status: u16,
    line: StatusLine,
    /// Digits of the status code.
    digits: u8,
    /// Of a complete head: the connection may go on.
    keep_alive: bool,
    /// The request was HEAD: no content follows, whatever the head says.
    no_content: bool,
}

const _: () = assert!(size_of::<Parser>() <= 48);

impl Default for Parser {
    fn default() -> Self {
        Parser::new()
    }
}

impl Parser {
    /// Ready for the first byte of a response.
    #[must_use]
    pub const fn new() -> Parser {
        Parser {
            message: Message::new(),
            body_bytes: 0,
            status: 0,
            line: StatusLine::Version,
            digits: 0,
            keep_alive: false,
            no_content: false,
        }
    }

    /// Ready for the response to a HEAD request, which has no content (RFC 9112 section 6.3).
    #[must_use]
    pub const fn without_content() -> Parser {
        Parser { no_content: true, ..Parser::new() }
    }

    /// Whether no byte of a response has been seen.
    #[must_use]
    #[inline]
    pub fn is_fresh(&self) -> bool {
        self.message.is_fresh()
    }

    /// Content bytes of the response under way that have been seen.
    #[must_use]
    #[inline]
    pub fn content_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Takes the next bytes of the stream.
    ///
    /// Returns how many of them belong to this response, and the response if they complete it;
    /// the parser is then ready for the next one. Without a response all bytes were taken.
    ///
    /// # Errors
    /// [`Malformed`]: the connection is of no more use; the parser must be made anew.
    #[inline]
    pub fn feed(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
    ) -> Result<(usize, Option<Response>), Malformed> {
        self.feed_into(data, cache, &mut ())
    }

    /// As [`Parser::feed`], and shows `sink` what it reads.
    ///
    /// # Errors
    /// As [`Parser::feed`].
    #[inline]
    pub fn feed_into(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
        sink: &mut impl Sink,
    ) -> Result<(usize, Option<Response>), Malformed> {
        if self.is_fresh()
            && !self.no_content
            && let Some((head, len)) = cache.lookup(data)
        {
            sink.head(&data[..len]);
            if let Framing::Length(length) = head.framing
                && (data.len() - len) as u64 >= length
            {
                let response =
                    Response { status: head.status, body_bytes: length, keep_alive: head.keep_alive };
                let end = len + length as usize;
                sink.content(&data[len..end]);
                return Ok((end, Some(response)));
            }
            self.enter_body(head);
            let (used, response) = self.body(&data[len..], sink)?;
            return Ok((len + used, response));
        }
        self.feed_slowly(data, cache, sink)
    }

    /// The stream has ended: the response whose body ends there, if that is what this is.
    #[must_use]
    pub fn finish(&mut self) -> Option<Response> {
        (self.message.part == Part::UntilClose).then(|| self.complete())
    }

    fn feed_slowly(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
        sink: &mut impl Sink,
    ) -> Result<(usize, Option<Response>), Malformed> {
        let mut at = 0;
        while self.message.is_in_head() {
            let whole = self.is_fresh();
            let (used, head) = self.head(&data[at..])?;
            let start = at;
            at += used;
            sink.head(&data[start..at]);
            let Some(head) = head else {
                return Ok((at, None));
            };
            if head.status == 101 {
                return Err(Malformed::Upgrade);
            }
            if head.status < 200 {
                // RFC 9110 section 15.2: any number of 1xx may come before the final response.
                *self = Parser { no_content: self.no_content, ..Parser::new() };
                sink.head_again();
                continue;
            }
            if whole && !self.no_content {
                cache.remember(&data[start..at], head);
            }
            self.enter_body(head);
        }
        let (used, response) = self.body(&data[at..], sink)?;
        Ok((at + used, response))
    }

    #[inline]
    fn enter_body(&mut self, head: Head) {
        self.status = head.status;
        self.keep_alive = head.keep_alive;
        self.message.begin_body(head.framing);
    }

    #[inline]
    fn complete(&mut self) -> Response {
        let response =
            Response { status: self.status, body_bytes: self.body_bytes, keep_alive: self.keep_alive };
        *self = Parser::new();
        response
    }

    /// Reads on in a head. Returns the bytes used, and the head once it is complete.
    fn head(&mut self, data: &[u8]) -> Result<(usize, Option<Head>), Malformed> {
        let at = self.status_line(data)?;
        let (used, is_complete) = self.message.fields(&data[at..])?;
        Ok((at + used, is_complete.then(|| self.conclude())))
    }

    /// Reads on in the status line, if it is not over (RFC 9112 section 4). Returns the bytes used.
    fn status_line(&mut self, data: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < data.len() && self.message.part == Part::StartLine {
            if self.line == StatusLine::Reason {
                let skipped = memchr3(b'\r', b'\n', 0, &data[at..]).unwrap_or(data.len() - at);
                self.message.count(skipped)?;
                at += skipped;
                if at == data.len() {
                    break;
                }
            }
            self.message.count(1)?;
            self.status_line_byte(data[at])?;
            at += 1;
        }
        Ok(at)
    }

    #[inline]
    fn status_line_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        match (self.line, byte) {
            (StatusLine::Version, _) => {
                if self.message.version_byte(byte).ok_or(Malformed::StatusLine)? {
                    self.line = StatusLine::CodeSpace;
                }
            }
            (StatusLine::CodeSpace, b' ') => self.line = StatusLine::Code,
            (StatusLine::Code, b'0'..=b'9') => {
                self.status = self.status * 10 + u16::from(byte - b'0');
                self.digits += 1;
                if self.digits == 3 {
                    if self.status < 100 {
                        return Err(Malformed::StatusCode);
                    }
                    self.line = StatusLine::CodeEnd;
                }
            }
            (StatusLine::Code, _) | (StatusLine::CodeEnd, b'0'..=b'9') => return Err(Malformed::StatusCode),
            (StatusLine::CodeEnd, b' ') => self.line = StatusLine::Reason,
            // The blank before an empty reason is often left out.
            (StatusLine::CodeEnd | StatusLine::Reason, b'\r') => self.message.part = Part::LineEnd,
            (StatusLine::CodeEnd | StatusLine::Reason, b'\n') => self.message.part = Part::LineStart,
            (StatusLine::Reason, 1..) => {}
            _ => return Err(Malformed::StatusLine),
        }
        Ok(())
    }

    /// RFC 9112 section 6.3, in its order.
    fn conclude(&self) -> Head {
        let Message { coding, http_10, .. } = self.message;
        let length = self.message.content_length();
        let mut keep_alive = self.message.persists();
        let framing = if self.no_content || self.status < 200 || matches!(self.status, 204 | 304) {
            Framing::Length(0)
        } else if coding != Coding::Absent {
            // Both lengths given, or an encoding in HTTP/1.0: the framing is suspect, and the
            // connection must not be used again (sections 6.1 and 6.3).
            keep_alive &= length.is_none() && !http_10;
            if coding == Coding::Chunked { Framing::Chunked } else { Framing::UntilClose }
        } else {
            length.map_or(Framing::UntilClose, Framing::Length)
        };
        keep_alive &= framing != Framing::UntilClose;
        Head { status: self.status, framing, keep_alive }
    }

    /// Reads on in a body.
    fn body(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<(usize, Option<Response>), Malformed> {
        let body_bytes = &mut self.body_bytes;
        let (used, is_complete) = self.message.body(data, |content| {
            *body_bytes += content.len() as u64;
            sink.content(content);
        })?;
        Ok((used, is_complete.then(|| self.complete())))
    }
}
