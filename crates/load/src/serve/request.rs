//! An incremental HTTP/1.x request parser that keeps no bytes.
//!
//! [`Parser::feed`] takes whatever a segment or a `recv` brought, in any split. The state machine itself carries a head on
//! that is cut anywhere, so that a client which sends one byte an hour holds no more memory than any other. Bodies are
//! counted off and dropped. A head that came in one piece is remembered ([`HeadCache`]): the same bytes again cost one
//! comparison.
//!
//! Sources: RFC 9112 (message syntax and framing), RFC 9110 (methods, fields, Expect).

mod part;

use memchr::memchr3;

use self::part::RequestPart;

/// Longest request line with its header block, and longest trailer section, in bytes.
const HEAD_LIMIT: u32 = 16 * 1024;
/// Longest chunk-size line, in bytes.
const CHUNK_LINE_LIMIT: u32 = 1024;
/// Longest head that is remembered, in bytes.
const CACHED_HEAD: usize = 1024;
/// Largest body that a path can ask for, in bytes.
const SIZE_LIMIT: u64 = 1_000_000_000_000;

/// What is wrong with a request. The client is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// No method, or a byte in it that no token has.
    Method,
    /// An empty target, or a byte that no target has.
    Target,
    /// Not `HTTP/1.0`, `HTTP/1.1` or another minor version of it.
    Version,
    /// A header name is empty, holds a byte that no token has, or its line has no colon or is folded.
    HeaderName,
    /// A header value holds a NUL or a carriage return of its own.
    HeaderValue,
    /// HTTP/1.1 without a Host (RFC 9112 section 3.2).
    NoHost,
    /// Content-Length is no number, is too large, or comes twice with different values.
    ContentLength,
    /// A Transfer-Encoding other than `chunked`, or in HTTP/1.0, or beside a Content-Length (RFC 9112 section 6.1).
    TransferEncoding,
    /// A chunk-size line is no hexadecimal number or is too large.
    ChunkSize,
    /// The bytes after a chunk are not a line end.
    ChunkEnd,
    /// The head, a chunk-size line or the trailers do not end within their limit.
    TooLong,
}

impl Malformed {
    /// Every kind, in the order of its index.
    pub const ALL: [Malformed; 11] = [
        Malformed::Method,
        Malformed::Target,
        Malformed::Version,
        Malformed::HeaderName,
        Malformed::HeaderValue,
        Malformed::NoHost,
        Malformed::ContentLength,
        Malformed::TransferEncoding,
        Malformed::ChunkSize,
        Malformed::ChunkEnd,
        Malformed::TooLong,
    ];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Malformed::Method => "method",
            Malformed::Target => "target",
            Malformed::Version => "version",
            Malformed::HeaderName => "header_name",
            Malformed::HeaderValue => "header_value",
            Malformed::NoHost => "no_host",
            Malformed::ContentLength => "content_length",
            Malformed::TransferEncoding => "transfer_encoding",
            Malformed::ChunkSize => "chunk_size",
            Malformed::ChunkEnd => "chunk_end",
            Malformed::TooLong => "too_long",
        }
    }
}

/// A complete request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// Bytes of content that the path asks for; `None` if it names no size.
    pub(crate) size: Option<u64>,
    /// HEAD: the answer is a head alone.
    pub(crate) head_only: bool,
    /// HTTP/1.0: no chunks, and connections that persist say so.
    pub(crate) old: bool,
    /// Whether the connection may carry another request (RFC 9112 section 9.3).
    pub(crate) keep_alive: bool,
}

/// What a stretch of bytes amounted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The head is complete, and the client waits for leave to send the body (RFC 9110 section 10.1.1).
    Expecting,
    /// The request is complete, its body included.
    Request(Request),
}

/// Names of header fields that mean something here, lower case.
const FIELDS: [&[u8]; 5] = [b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"];
const HOST: u8 = 0;
const CONTENT_LENGTH: u8 = 1;
const TRANSFER_ENCODING: u8 = 2;
const CONNECTION: u8 = 3;
const EXPECT: u8 = 4;
/// A field that means nothing here.
const OTHER: u8 = u8::MAX;

/// Words of values that mean something here, lower case.
const WORDS: [&[u8]; 4] = [b"close", b"keep-alive", b"chunked", b"100-continue"];
const CLOSE: u8 = 0;
const KEEP_ALIVE: u8 = 1;
const CHUNKED: u8 = 2;
const CONTINUE: u8 = 3;

/// Finds a word among a few, byte by byte, in any case of letters.
#[derive(Debug, Clone, Copy)]
struct Matcher {
    /// Words that all bytes so far agree with.
    candidates: u8,
    at: u8,
}

impl Matcher {
    const NEW: Matcher = Matcher { candidates: u8::MAX, at: 0 };

    fn feed(&mut self, words: &[&[u8]], byte: u8) {
        for (index, word) in words.iter().enumerate() {
            if word.get(usize::from(self.at)) != Some(&byte.to_ascii_lowercase()) {
                self.candidates &= !(1 << index);
            }
        }
        self.at = self.at.saturating_add(1);
    }

    /// The word that ended here.
    fn end(self, words: &[&[u8]]) -> u8 {
        let whole =
            |index: &usize| self.candidates & 1 << index != 0 && words[*index].len() == usize::from(self.at);
        (0..words.len()).find(whole).map_or(OTHER, |index| index as u8)
    }
}

const VERSION: &[u8] = b"HTTP/1.";

/// What is known of the request under way.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// The path names a size, so far.
    sized: bool,
    digits: bool,
    head_only: bool,
    old: bool,
    host: bool,
    content_length: bool,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects: bool,
}

/// One connection's parser.
#[derive(Debug, Clone)]
pub(crate) struct Parser {
    /// What `state` says.
    number: u64,
    /// What the path asked for.
    size: u64,
    /// Content-Length, once it has come.
    length: u64,
    /// Bytes of the head, of the chunk-size line, or of the trailers.
    line_bytes: u32,
    state: RequestPart,
    field: u8,
    matcher: Matcher,
    facts: Facts,
}

impl Default for Parser {
    fn default() -> Self {
        Parser::new()
    }
}

impl Parser {
    /// Before the first request.
    #[must_use]
    pub(crate) const fn new() -> Parser {
        Parser {
            number: 0,
            size: 0,
            length: 0,
            line_bytes: 0,
            state: RequestPart::Start,
            field: OTHER,
            matcher: Matcher::NEW,
            facts: Facts {
                sized: false,
                digits: false,
                head_only: false,
                old: false,
                host: false,
                content_length: false,
                chunked: false,
                close: false,
                keep_alive: false,
                expects: false,
            },
        }
    }

    /// Between two requests.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.state == RequestPart::Start
    }

    /// In a request's head: what a body brings counts as progress, what a head brings does not.
    #[must_use]
    pub(crate) fn is_in_head(&self) -> bool {
        !matches!(self.state, RequestPart::Start | RequestPart::Body | RequestPart::Chunk)
    }

    /// Takes bytes up to the next thing that is to be known. Returns how many; all of them if nothing came up.
    ///
    /// # Errors
    /// [`Malformed`]: the connection cannot go on.
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
    ) -> (usize, Result<Option<Parsed>, Malformed>) {
        if self.state == RequestPart::Start
            && let Some((request, length)) = cache.lookup(data)
        {
            return (length, Ok(Some(Parsed::Request(request))));
        }
        let whole = self.state == RequestPart::Start;
        let mut at = 0;
        while at < data.len() {
            let rest = &data[at..];
            match self.state {
                RequestPart::Body | RequestPart::Chunk => {
                    let taken = self.number.min(rest.len() as u64);
                    self.number -= taken;
                    at += taken as usize;
                    if self.number == 0 && self.state == RequestPart::Body {
                        return (at, Ok(Some(Parsed::Request(self.finish()))));
                    } else if self.number == 0 {
                        self.state = RequestPart::ChunkEnd;
                    }
                    continue;
                }
                RequestPart::Value if self.field == OTHER => {
                    let skipped = memchr3(b'\r', b'\n', 0, rest).unwrap_or(rest.len());
                    self.line_bytes += skipped as u32;
                    if self.line_bytes > HEAD_LIMIT {
                        return (at, Err(Malformed::TooLong));
                    }
                    at += skipped;
                    if skipped == rest.len() {
                        break;
                    }
                }
                _ => {}
            }
            let byte = data[at];
            at += 1;
            match self.step(byte) {
                Ok(None) => {}
                Ok(Some(Parsed::Request(request))) => {
                    if whole && !self.facts.content_length && !self.facts.chunked {
                        cache.remember(&data[..at], request);
                    }
                    return (at, Ok(Some(Parsed::Request(request))));
                }
                other => return (at, other),
            }
        }
        (at, Ok(None))
    }

    /// The request is complete: the next may begin.
    fn finish(&mut self) -> Request {
        self.state = RequestPart::Start;
        let facts = self.facts;
        Request {
            size: facts.sized.then_some(self.size),
            head_only: facts.head_only,
            old: facts.old,
            keep_alive: if facts.old { facts.keep_alive && !facts.close } else { !facts.close },
        }
    }

    fn step(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        self.line_bytes += 1;
        let in_chunk_line = matches!(
            self.state,
            RequestPart::ChunkSizeStart | RequestPart::ChunkSize | RequestPart::ChunkExtension
        );
        if self.line_bytes > if in_chunk_line { CHUNK_LINE_LIMIT } else { HEAD_LIMIT } {
            return Err(Malformed::TooLong);
        }
        match self.state {
            RequestPart::Start => {
                self.line_bytes = 0;
                if !matches!(byte, b'\r' | b'\n') {
                    *self = Parser { state: RequestPart::Method, ..Parser::new() };
                    return self.method(byte);
                }
            }
            RequestPart::Method => return self.method(byte),
            RequestPart::TargetStart
            | RequestPart::Authority
            | RequestPart::Size
            | RequestPart::SizeEnd
            | RequestPart::Path
            | RequestPart::Version => return self.request_line(byte),
            RequestPart::LineEnd => match byte {
                b'\r' => {}
                b'\n' => self.state = RequestPart::HeaderStart,
                _ => return Err(Malformed::Version),
            },
            RequestPart::HeaderStart
            | RequestPart::HeaderName
            | RequestPart::ValueStart
            | RequestPart::Value
            | RequestPart::ValueEnd
            | RequestPart::HeadEnd => return self.header(byte),
            RequestPart::ChunkSizeStart
            | RequestPart::ChunkSize
            | RequestPart::ChunkExtension
            | RequestPart::ChunkSizeEnd
            | RequestPart::ChunkEnd
            | RequestPart::ChunkLineFeed => self.chunk_line(byte)?,
            RequestPart::TrailerStart | RequestPart::Trailer | RequestPart::TrailersEnd => {
                return self.trailer(byte);
            }
            RequestPart::Body | RequestPart::Chunk => {}
        }
        Ok(None)
    }

    fn method(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        const METHODS: [&[u8]; 1] = [b"head"];
        if byte == b' ' && self.matcher.at > 0 {
            self.facts.head_only = self.matcher.end(&METHODS) == 0;
            self.state = RequestPart::TargetStart;
        } else if is_token(byte) {
            self.matcher.feed(&METHODS, byte);
            // Methods are case-sensitive (RFC 9110 section 9.1).
            if byte.is_ascii_lowercase() {
                self.matcher.candidates = 0;
            }
        } else {
            return Err(Malformed::Method);
        }
        Ok(None)
    }

    /// Target and version. A size is the path's first part: digits and a unit, then nothing, `/…` or `?…`.
    fn request_line(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        if self.state == RequestPart::Version {
            return self.version(byte);
        }
        if byte == b' ' && self.state != RequestPart::TargetStart {
            // http://host without a path asks for the root.
            self.facts.sized &= self.state != RequestPart::Authority || self.number >= 2;
            self.number = 0;
            self.state = RequestPart::Version;
            return Ok(None);
        }
        if !byte.is_ascii_graphic() {
            return Err(Malformed::Target);
        }
        match (self.state, byte) {
            (RequestPart::TargetStart, b'/') => (self.state, self.facts.sized) = (RequestPart::Size, true),
            (RequestPart::TargetStart, b'*') => (self.state, self.facts.sized) = (RequestPart::Path, true),
            (RequestPart::TargetStart, _) => {
                (self.state, self.facts.sized) = (RequestPart::Authority, true);
                self.number = 0;
            }
            (RequestPart::Authority, b'/') if self.number == 2 => self.state = RequestPart::Size,
            (RequestPart::Authority, b'/') => self.number += 1,
            (RequestPart::Authority, _) => {}
            (RequestPart::Size, b'0'..=b'9') => {
                self.facts.digits = true;
                self.scale(10, u64::from(byte - b'0'));
            }
            (RequestPart::Size, b'k' | b'K') if self.facts.digits => self.unit(1_000),
            (RequestPart::Size, b'm' | b'M') if self.facts.digits => self.unit(1_000_000),
            (RequestPart::Size, b'g' | b'G') if self.facts.digits => self.unit(1_000_000_000),
            (RequestPart::Size | RequestPart::SizeEnd, b'?' | b'/') => self.state = RequestPart::Path,
            (RequestPart::Size | RequestPart::SizeEnd, _) => {
                self.facts.sized = false;
                self.state = RequestPart::Path;
            }
            _ => {}
        }
        Ok(None)
    }

    fn unit(&mut self, factor: u64) {
        self.scale(factor, 0);
        self.state = RequestPart::SizeEnd;
    }

    fn scale(&mut self, factor: u64, more: u64) {
        self.size = self.size.saturating_mul(factor).saturating_add(more);
        if self.size > SIZE_LIMIT {
            self.facts.sized = false;
            self.size = SIZE_LIMIT + 1;
        }
    }

    fn version(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        match VERSION.get(self.number as usize) {
            Some(expected) if byte == *expected => self.number += 1,
            None if byte.is_ascii_digit() => {
                self.facts.old = byte == b'0';
                self.state = RequestPart::LineEnd;
            }
            _ => return Err(Malformed::Version),
        }
        Ok(None)
    }

    fn header(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        match (self.state, byte) {
            (RequestPart::HeaderStart, b'\r') => self.state = RequestPart::HeadEnd,
            (RequestPart::HeaderStart | RequestPart::HeadEnd, b'\n') => return self.head_is_complete(),
            (RequestPart::HeadEnd, _) => return Err(Malformed::HeaderName),
            (RequestPart::HeaderName, b':') => {
                self.field = self.matcher.end(&FIELDS);
                self.state = RequestPart::ValueStart;
                self.begin_value()?;
            }
            (RequestPart::HeaderStart | RequestPart::HeaderName, _) if is_token(byte) => {
                if self.state == RequestPart::HeaderStart {
                    self.matcher = Matcher::NEW;
                    self.state = RequestPart::HeaderName;
                }
                self.matcher.feed(&FIELDS, byte);
            }
            (RequestPart::HeaderStart | RequestPart::HeaderName, _) => return Err(Malformed::HeaderName),
            (RequestPart::ValueStart, b' ' | b'\t') => {}
            (RequestPart::ValueStart | RequestPart::Value, b'\r') => self.state = RequestPart::ValueEnd,
            (RequestPart::ValueStart | RequestPart::Value | RequestPart::ValueEnd, b'\n') => {
                self.end_value()?;
                self.state = RequestPart::HeaderStart;
            }
            (RequestPart::ValueEnd, _) | (_, 0) => return Err(Malformed::HeaderValue),
            _ => {
                self.state = RequestPart::Value;
                self.value(byte)?;
            }
        }
        Ok(None)
    }

    fn begin_value(&mut self) -> Result<(), Malformed> {
        self.number = 0;
        self.facts.digits = false;
        self.matcher = Matcher::NEW;
        match self.field {
            HOST => self.facts.host = true,
            // Twice is a list, and a list ends with chunked only once.
            TRANSFER_ENCODING if self.facts.chunked => return Err(Malformed::TransferEncoding),
            _ => {}
        }
        Ok(())
    }

    fn value(&mut self, byte: u8) -> Result<(), Malformed> {
        match self.field {
            CONTENT_LENGTH => match byte {
                b'0'..=b'9' if self.matcher.at == 0 => {
                    self.facts.digits = true;
                    self.number = (self.number.checked_mul(10))
                        .and_then(|number| number.checked_add(u64::from(byte - b'0')))
                        .ok_or(Malformed::ContentLength)?;
                }
                // Only more blanks may follow.
                b' ' | b'\t' => self.matcher.at = 1,
                _ => return Err(Malformed::ContentLength),
            },
            TRANSFER_ENCODING | EXPECT if matches!(byte, b' ' | b'\t') => {}
            CONNECTION if matches!(byte, b',' | b' ' | b'\t') => self.end_word(),
            TRANSFER_ENCODING | EXPECT | CONNECTION => self.matcher.feed(&WORDS, byte),
            _ => {}
        }
        Ok(())
    }

    /// A word of a Connection field.
    fn end_word(&mut self) {
        match self.matcher.end(&WORDS) {
            CLOSE => self.facts.close = true,
            KEEP_ALIVE => self.facts.keep_alive = true,
            _ => {}
        }
        self.matcher = Matcher::NEW;
    }

    fn end_value(&mut self) -> Result<(), Malformed> {
        match self.field {
            CONTENT_LENGTH => {
                let differs = self.facts.content_length && self.length != self.number;
                if differs || !self.facts.digits {
                    return Err(Malformed::ContentLength);
                }
                self.facts.content_length = true;
                self.length = self.number;
            }
            TRANSFER_ENCODING if self.matcher.end(&WORDS) == CHUNKED => self.facts.chunked = true,
            TRANSFER_ENCODING => return Err(Malformed::TransferEncoding),
            CONNECTION => self.end_word(),
            EXPECT if self.matcher.end(&WORDS) == CONTINUE => self.facts.expects = true,
            _ => {}
        }
        Ok(())
    }

    fn head_is_complete(&mut self) -> Result<Option<Parsed>, Malformed> {
        let facts = self.facts;
        if !facts.old && !facts.host {
            return Err(Malformed::NoHost);
        }
        if facts.chunked && (facts.old || facts.content_length) {
            return Err(Malformed::TransferEncoding);
        }
        let expecting = (facts.expects && !facts.old).then_some(Parsed::Expecting);
        if facts.chunked {
            self.begin_chunk_line();
            return Ok(expecting);
        }
        if facts.content_length && self.length > 0 {
            self.number = self.length;
            self.state = RequestPart::Body;
            return Ok(expecting);
        }
        Ok(Some(Parsed::Request(self.finish())))
    }

    fn begin_chunk_line(&mut self) {
        self.state = RequestPart::ChunkSizeStart;
        self.number = 0;
        self.line_bytes = 0;
    }

    fn chunk_line(&mut self, byte: u8) -> Result<(), Malformed> {
        match (self.state, byte) {
            (
                RequestPart::ChunkSizeStart | RequestPart::ChunkSize,
                b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F',
            ) => {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                self.number = (self.number.checked_mul(16))
                    .and_then(|number| number.checked_add(u64::from(digit)))
                    .ok_or(Malformed::ChunkSize)?;
                self.state = RequestPart::ChunkSize;
            }
            (RequestPart::ChunkSize, b';' | b' ' | b'\t') => self.state = RequestPart::ChunkExtension,
            (RequestPart::ChunkSize | RequestPart::ChunkExtension, b'\r') => {
                self.state = RequestPart::ChunkSizeEnd;
            }
            (RequestPart::ChunkSize | RequestPart::ChunkExtension | RequestPart::ChunkSizeEnd, b'\n') => {
                self.line_bytes = 0;
                self.state = if self.number == 0 { RequestPart::TrailerStart } else { RequestPart::Chunk };
            }
            (RequestPart::ChunkExtension, 1..) => {}
            (RequestPart::ChunkEnd, b'\r') => self.state = RequestPart::ChunkLineFeed,
            (RequestPart::ChunkEnd | RequestPart::ChunkLineFeed, b'\n') => self.begin_chunk_line(),
            (RequestPart::ChunkEnd | RequestPart::ChunkLineFeed, _) => return Err(Malformed::ChunkEnd),
            _ => return Err(Malformed::ChunkSize),
        }
        Ok(())
    }

    /// Trailers are dropped unread.
    fn trailer(&mut self, byte: u8) -> Result<Option<Parsed>, Malformed> {
        match (self.state, byte) {
            (RequestPart::TrailerStart, b'\r') => self.state = RequestPart::TrailersEnd,
            (RequestPart::TrailerStart | RequestPart::TrailersEnd, b'\n') => {
                return Ok(Some(Parsed::Request(self.finish())));
            }
            (RequestPart::TrailersEnd, _) => return Err(Malformed::HeaderName),
            (_, b'\n') => self.state = RequestPart::TrailerStart,
            (_, 0) => return Err(Malformed::HeaderValue),
            _ => self.state = RequestPart::Trailer,
        }
        Ok(None)
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The last head without a body that arrived in one piece, and what it asked for. One per thread.
#[derive(Debug)]
pub(crate) struct HeadCache {
    bytes: Vec<u8>,
    request: Request,
}

impl Default for HeadCache {
    fn default() -> Self {
        HeadCache::new()
    }
}

impl HeadCache {
    /// An empty cache.
    #[must_use]
    pub(crate) fn new() -> HeadCache {
        let request = Request { size: None, head_only: false, old: false, keep_alive: false };
        HeadCache { bytes: Vec::with_capacity(CACHED_HEAD), request }
    }

    #[inline]
    fn lookup(&self, data: &[u8]) -> Option<(Request, usize)> {
        (!self.bytes.is_empty() && data.starts_with(&self.bytes)).then_some((self.request, self.bytes.len()))
    }

    fn remember(&mut self, head: &[u8], request: Request) {
        if head.len() <= CACHED_HEAD {
            self.bytes.clear();
            self.bytes.extend_from_slice(head);
            self.request = request;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Outcome = Result<Vec<Parsed>, (usize, Malformed)>;

    /// Everything that comes out of `pieces`, one after the other.
    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, cache: &mut HeadCache) -> (Outcome, bool) {
        let mut parser = Parser::new();
        let mut parsed = Vec::new();
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                match parser.feed(&piece[at..], cache) {
                    (used, Ok(found)) => {
                        assert!(used > 0);
                        assert!(found.is_some() || used == piece.len() - at);
                        at += used;
                        parsed.extend(found);
                    }
                    (_, Err(malformed)) => return (Err((parsed.len(), malformed)), false),
                }
            }
        }
        (Ok(parsed), parser.is_idle())
    }

    fn requests(text: &str) -> Outcome {
        parse([text.as_bytes()], &mut HeadCache::new()).0
    }

    fn one(text: &str) -> Request {
        match requests(text).as_deref() {
            Ok([Parsed::Request(request)]) => *request,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn get(target: &str) -> Request {
        one(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
    }

    #[test]
    fn the_path_names_the_size() {
        for (target, size) in [
            ("/", Some(0)),
            ("/0", Some(0)),
            ("/1024", Some(1024)),
            ("/10k", Some(10_000)),
            ("/1M", Some(1_000_000)),
            ("/1g", Some(1_000_000_000)),
            ("/1000G", Some(1_000_000_000_000)),
            ("/10M/17", Some(10_000_000)),
            ("/10M?x=1", Some(10_000_000)),
            ("/?x", Some(0)),
            ("http://a/1k", Some(1000)),
            ("http://a:80", Some(0)),
            ("*", Some(0)),
            ("/1001G", None),
            ("/99999999999999999999999", None),
            ("/1kk", None),
            ("/k", None),
            ("/index.html", None),
            ("/1x", None),
            ("a:1", None),
        ] {
            assert_eq!(get(target).size, size, "{target}");
        }
    }

    #[test]
    fn which_connections_persist() {
        let ask = |version: &str, field: &str| {
            one(&format!("GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n")).keep_alive
        };
        assert!(ask("1.1", ""));
        assert!(ask("1.1", "Connection: upgrade\r\n"));
        assert!(!ask("1.1", "connection:close\r\n"));
        assert!(!ask("1.1", "Connection: x, Close \r\n"));
        assert!(!ask("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
        assert!(!ask("1.0", ""));
        assert!(ask("1.0", "Connection: Keep-Alive\r\n"));
        assert!(!ask("1.0", "Connection: keep-alive, close\r\n"));
        assert!(one("GET / HTTP/1.0\n\n").old);
        assert!(one("HEAD /5 HTTP/1.1\r\nHost: a\r\n\r\n").head_only);
        assert!(!one("head /5 HTTP/1.1\r\nHost: a\r\n\r\n").head_only);
    }

    #[test]
    fn bodies_are_counted_off() {
        let body = "POST /7 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5 \r\n\r\nGET /";
        assert_eq!(one(body).size, Some(7));
        let chunked = "POST /7 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
                       5;x=y\r\nGET /\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        assert_eq!(one(chunked).size, Some(7));
        let several = format!("\r\n{body}\r\n{chunked}GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(requests(&several).unwrap().len(), 3);
        let expects = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx";
        let both = requests(expects).unwrap();
        assert_eq!(both[0], Parsed::Expecting);
        assert!(matches!(both[1..], [Parsed::Request(_)]));
        assert_eq!(one("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").size, Some(0));
    }

    #[test]
    fn what_is_no_request() {
        let fields = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let chunks = |chunks: &str| fields(&format!("Transfer-Encoding: chunked\r\n\r\n{chunks}"));
        for (text, malformed) in [
            (" GET / HTTP/1.1\r\n".to_string(), Malformed::Method),
            ("GE\u{1}T / HTTP/1.1\r\n".to_string(), Malformed::Method),
            ("\u{16}\u{3}\u{1}".to_string(), Malformed::Method),
            ("GET\r\n".to_string(), Malformed::Method),
            ("GET  HTTP/1.1\r\n".to_string(), Malformed::Target),
            ("GET /\r\n".to_string(), Malformed::Target),
            ("GET /a\u{7f} HTTP/1.1\r\n".to_string(), Malformed::Target),
            ("GET / HTTP/2.0\r\n".to_string(), Malformed::Version),
            ("GET / http/1.1\r\n".to_string(), Malformed::Version),
            ("GET / HTTP/1.1 \r\n".to_string(), Malformed::Version),
            ("GET / HTTP/1.1\r\n\r\n".to_string(), Malformed::NoHost),
            (fields(" folded: x"), Malformed::HeaderName),
            (fields("no colon"), Malformed::HeaderName),
            (fields("name : x"), Malformed::HeaderName),
            (fields(": x"), Malformed::HeaderName),
            (fields("x: a\rb"), Malformed::HeaderValue),
            (fields("x: a\0b"), Malformed::HeaderValue),
            (fields("Content-Length: 1x"), Malformed::ContentLength),
            (fields("Content-Length: 1 1"), Malformed::ContentLength),
            (fields("Content-Length: -1"), Malformed::ContentLength),
            (fields("Content-Length: "), Malformed::ContentLength),
            (fields("Content-Length: 1\r\nContent-Length: 2"), Malformed::ContentLength),
            (fields("Content-Length: 99999999999999999999"), Malformed::ContentLength),
            (fields("Transfer-Encoding: gzip"), Malformed::TransferEncoding),
            (fields("Transfer-Encoding: gzip, chunked"), Malformed::TransferEncoding),
            (fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Malformed::TransferEncoding),
            (fields("Transfer-Encoding: chunked\r\nContent-Length: 1"), Malformed::TransferEncoding),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_string(), Malformed::TransferEncoding),
            (chunks("x\r\n"), Malformed::ChunkSize),
            (chunks("\r\n"), Malformed::ChunkSize),
            (chunks("11111111111111111\r\n"), Malformed::ChunkSize),
            (chunks("1\r\nab\r\n"), Malformed::ChunkEnd),
            (chunks(&format!("1;{}\r\n", "x".repeat(2000))), Malformed::TooLong),
            (fields(&format!("x: {}", "y".repeat(20_000))), Malformed::TooLong),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), Malformed::TooLong),
            (chunks(&format!("0\r\n{}", "x: y\r\n".repeat(4000))), Malformed::TooLong),
        ] {
            assert_eq!(requests(&text), Err((0, malformed)), "{text:?}");
        }
    }

    /// Requests of all kinds, some of them spoilt.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let request = prop_oneof![
            Just("GET /1024 HTTP/1.1\r\nHost: a\r\nUser-Agent: b c\r\n\r\n".to_string()),
            Just("GET / HTTP/1.0\r\n\r\n".to_string()),
            Just("HEAD http://a/5k HTTP/1.1\nHost: a\nConnection: close\n\n".to_string()),
            Just("POST /1 HTTP/1.1\r\nhost:\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nabcd".into()),
            Just("PUT /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n".into()),
        ];
        (prop::collection::vec(request, 1..6), prop::option::of((any::<prop::sample::Index>(), any::<u8>())))
            .prop_map(|(requests, spoilt)| {
                let mut bytes = requests.concat().into_bytes();
                if let Some((index, byte)) = spoilt {
                    let index = index.index(bytes.len());
                    bytes[index] = byte;
                }
                bytes
            })
    }

    proptest! {
        /// However the stream is cut, and whatever was remembered from others, the same comes out.
        #[test]
        fn splits_and_caches_change_nothing(
            stream in streams(),
            warm in streams(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect();
            let expected = parse(stream.chunks(1), &mut HeadCache::new());
            let mut cache = HeadCache::new();
            let _ = parse([&warm[..]], &mut cache);
            prop_assert_eq!(parse(pieces, &mut cache), expected.clone());
            prop_assert_eq!(parse([&stream[..]], &mut cache), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse([&bytes[..]], &mut HeadCache::new());
        }
    }
}
