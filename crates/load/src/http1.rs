//! What HTTP/1 requests and responses have in common: field lines, how a body is framed, and bodies.
//!
//! A [`Message`] keeps no bytes and allocates nothing: it takes a message in any split, and carries on what a segment boundary
//! cut. A parser reads the start line itself, hands what follows to [`Message::fields`], decides on a [`Framing`] when the head
//! is over, and hands the body to [`Message::body`]. [`Rules`] says how strict it is. A [`HeadCache`] spares it heads that are
//! the one before.
//!
//! Sources: RFC 9112 (message syntax and framing), RFC 9110 (fields).

mod body;
mod cache;
mod fields;
mod malformed;
mod words;

use std::marker::PhantomData;

pub(crate) use self::cache::HeadCache;
use self::fields::Field;
pub(crate) use self::fields::is_in_token;
pub use self::malformed::Malformed;
use self::words::Word;

/// What a version begins with that is read here (RFC 9112 section 2.3).
const VERSION: &[u8] = b"HTTP/1.";

/// What parsers do not agree on.
pub(crate) trait Rules {
    /// Longest start line with its field lines, in bytes.
    const HEAD_LIMIT: u32;
    /// Longest chunk-size line, in bytes.
    const CHUNK_LINE_LIMIT: u32;
    /// Refused are a folded line (RFC 9112 section 5.2), a transfer coding other than `chunked` alone (section 6.1), and a NUL in
    /// a chunk extension or a trailer.
    const STRICT: bool;
}

/// How a body ends (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// What Transfer-Encoding says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// It is not there.
    Absent,
    /// The last coding that it names is `chunked`.
    Chunked,
    /// The last coding is another.
    Other,
}

/// Which part of a message comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Part {
    /// The parser's own.
    StartLine,
    /// A CR ended a line: LF must follow.
    LineEnd,
    LineStart,
    Name,
    Value,
    /// A CR at the start of a line: LF must follow, and ends the head.
    HeadEnd,
    /// `number` bytes of body are to come.
    Body,
    UntilClose,
    ChunkSize,
    ChunkSizeBlank,
    ChunkExtension,
    ChunkSizeEnd,
    /// `number` bytes of this chunk are to come.
    ChunkData,
    ChunkDataEnd,
    ChunkDataLineFeed,
    TrailerStart,
    Trailer,
    TrailersEnd,
}

/// The state of the message under way.
#[derive(Debug, Clone)]
pub(crate) struct Message<R> {
    /// Body: bytes still to come in this body or chunk. Before: the number that is being read.
    number: u64,
    /// Content-Length, once a whole line gave it and `has_length`.
    length: u64,
    /// Bytes of this head, chunk-size line or trailer section.
    line_bytes: u32,
    pub(crate) part: Part,
    /// Of the line that is being read, until it is known not to be folded.
    field: Field,
    /// The name, word or number that is being read.
    word: Word,
    has_length: bool,
    pub(crate) coding: Coding,
    pub(crate) host: bool,
    /// `Expect: 100-continue`.
    pub(crate) expects: bool,
    pub(crate) http_10: bool,
    /// `Connection: close`.
    close: bool,
    /// `Connection: keep-alive`.
    keep_alive: bool,
    rules: PhantomData<R>,
}

impl<R: Rules> Message<R> {
    /// Before the first byte.
    pub(crate) const fn new() -> Self {
        Self {
            number: 0,
            length: 0,
            line_bytes: 0,
            part: Part::StartLine,
            field: Field::BeforeFirst,
            word: Word::NEW,
            has_length: false,
            coding: Coding::Absent,
            host: false,
            expects: false,
            http_10: false,
            close: false,
            keep_alive: false,
            rules: PhantomData,
        }
    }

    /// Whether no byte was counted.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.part == Part::StartLine && self.line_bytes == 0
    }

    #[inline]
    pub(crate) fn is_in_head(&self) -> bool {
        self.part < Part::Body
    }

    /// So many more bytes of the head.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), Malformed> {
        if bytes > (R::HEAD_LIMIT - self.line_bytes) as usize {
            return Err(Malformed::TooLong);
        }
        self.line_bytes += bytes as u32;
        Ok(())
    }

    /// A byte of `HTTP/1.` or the digit after it, with which the version is over: then true. `None`: another byte.
    #[inline]
    pub(crate) fn version_byte(&mut self, byte: u8) -> Option<bool> {
        let expected = VERSION.get(usize::from(self.word.len));
        self.word.len += 1;
        self.http_10 = byte == b'0';
        match expected {
            Some(expected) => (byte == *expected).then_some(false),
            None => byte.is_ascii_digit().then_some(true),
        }
    }

    /// Of a complete head: Content-Length.
    #[inline]
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.has_length.then_some(self.length)
    }

    /// Of a complete head: whether the connection goes on after the message (RFC 9112 section 9.3).
    #[inline]
    pub(crate) fn persists(&self) -> bool {
        !self.close && (!self.http_10 || self.keep_alive)
    }
}
