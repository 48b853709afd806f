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

mod part;

use memchr::memchr3;

use self::part::ResponsePart;

/// Longest status line and header block taken, in bytes.
pub const HEAD_LIMIT: u32 = 64 * 1024;
/// Longest chunk-size line, and longest trailer section, in bytes.
const CHUNK_LINE_LIMIT: u32 = 16 * 1024;
/// Longest head that is remembered, in bytes.
const CACHED_HEAD: usize = 1024;
/// Length of an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7).
const DATE_LEN: usize = 29;

/// What is wrong with a response. The server is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The first bytes are not `HTTP/1.`, or the status line does not go on as it should.
    StatusLine,
    /// The status code is not three digits between 100 and 999.
    StatusCode,
    /// A header name holds a byte that no token has, is empty, or the line has no colon.
    HeaderName,
    /// A header value holds a NUL or a carriage return of its own.
    HeaderValue,
    /// Content-Length is no number, is too large, or comes twice with different values.
    ContentLength,
    /// A chunk-size line is no hexadecimal number or is too large.
    ChunkSize,
    /// The bytes after a chunk are not a line end.
    ChunkEnd,
    /// The head, a chunk-size line or the trailers do not end within their limit.
    TooLong,
    /// 101 Switching Protocols, which nobody asked for.
    Upgrade,
    /// Bytes arrived that belong to no request.
    Unsolicited,
}

impl Malformed {
    /// Every kind, in the order of its index.
    pub const ALL: [Malformed; 10] = [
        Malformed::StatusLine,
        Malformed::StatusCode,
        Malformed::HeaderName,
        Malformed::HeaderValue,
        Malformed::ContentLength,
        Malformed::ChunkSize,
        Malformed::ChunkEnd,
        Malformed::TooLong,
        Malformed::Upgrade,
        Malformed::Unsolicited,
    ];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Malformed::StatusLine => "status_line",
            Malformed::StatusCode => "status_code",
            Malformed::HeaderName => "header_name",
            Malformed::HeaderValue => "header_value",
            Malformed::ContentLength => "content_length",
            Malformed::ChunkSize => "chunk_size",
            Malformed::ChunkEnd => "chunk_end",
            Malformed::TooLong => "too_long",
            Malformed::Upgrade => "upgrade",
            Malformed::Unsolicited => "unsolicited",
        }
    }
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

/// How the body ends (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// What a head says, as far as a generator needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

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

/// The last head that arrived in one piece, and what it said. One per thread.
#[derive(Debug)]
pub struct HeadCache {
    bytes: Box<[u8; CACHED_HEAD]>,
    /// 0 while nothing is remembered.
    len: usize,
    /// Where the `Date` value starts; it is `DATE_LEN` long. `len` if there is none.
    date: usize,
    head: Head,
}

impl Default for HeadCache {
    fn default() -> Self {
        HeadCache::new()
    }
}

impl HeadCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> HeadCache {
        let head = Head { status: 0, framing: Framing::UntilClose, keep_alive: false };
        HeadCache { bytes: Box::new([0; CACHED_HEAD]), len: 0, date: 0, head }
    }

    /// The head at the start of `data` and its length, if it is the remembered one.
    ///
    /// The Date value may differ in any byte but NUL, CR and LF: with those excluded no other
    /// byte can change what the head means, so the answer is the state machine's answer.
    #[inline]
    fn lookup(&self, data: &[u8]) -> Option<(Head, usize)> {
        let len = self.len;
        if len == 0 || data.len() < len {
            return None;
        }
        let known = &self.bytes[..len];
        let data = &data[..len];
        if self.date == len {
            return (data == known).then_some((self.head, len));
        }
        let after = self.date + DATE_LEN;
        let date = &data[self.date..after];
        (data[after..] == known[after..]
            && data[..self.date] == known[..self.date]
            && (*date == known[self.date..after] || memchr3(0, b'\r', b'\n', date).is_none()))
        .then_some((self.head, len))
    }

    fn remember(&mut self, bytes: &[u8], head: Head) {
        if bytes.len() > CACHED_HEAD {
            return;
        }
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
        self.date = date_value(bytes).unwrap_or(bytes.len());
        self.head = head;
    }
}

/// Where the value of a `Date` line of the usual shape starts. `head` is a valid head.
fn date_value(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\ndate: ";
    const LINE: usize = NAME.len() + DATE_LEN + 1;
    let start = head.windows(LINE).position(|line| {
        line[..NAME.len()].eq_ignore_ascii_case(NAME)
            && line[LINE - 1] == b'\r'
            && memchr3(0, b'\r', b'\n', &line[NAME.len()..LINE - 1]).is_none()
    })?;
    Some(start + NAME.len())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Other,
    ContentLength,
    TransferEncoding,
    Connection,
}

/// Names that matter, in the order of their bit in `candidates`.
const NAMES: [(&[u8], Field); 3] = [
    (b"content-length", Field::ContentLength),
    (b"transfer-encoding", Field::TransferEncoding),
    (b"connection", Field::Connection),
];
const CHUNKED: [&[u8]; 1] = [b"chunked"];
const CONNECTION: [&[u8]; 2] = [b"close", b"keep-alive"];

const VERSION: &[u8] = b"HTTP/1.";

/// The state of one connection's current response: 48 bytes or less, no heap.
#[derive(Debug, Clone)]
pub struct Parser {
    /// Body: bytes still to come in this body or chunk. Head: the Content-Length being read.
    remaining: u64,
    /// Content bytes seen.
    body_bytes: u64,
    /// Content-Length, once a whole field line gave it and `has_length`.
    length: u64,
    /// Bytes of this head, chunk-size line or trailer section.
    line_bytes: u32,
    status: u16,
    /// Bytes of the token, name or number that is being read.
    position: u8,
    /// Which of the names or tokens still fit: one bit each.
    candidates: u8,
    state: ResponsePart,
    field: Field,
    minor: u8,
    /// The value's token or number is over: only blanks may follow before a comma or the end.
    blank_after: bool,
    /// A header line has begun, so that a folded line has something to go on with.
    field_seen: bool,
    has_length: bool,
    has_encoding: bool,
    /// The last transfer coding named is `chunked`.
    chunked: bool,
    close: bool,
    keep_alive: bool,
    /// The request was HEAD: no content follows, whatever the head says.
    no_content: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Parser::new()
    }
}

/// RFC 9110 section 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token(byte as u8);
        byte += 1;
    }
    table
};

impl Parser {
    /// Ready for the first byte of a response.
    #[must_use]
    pub const fn new() -> Parser {
        Parser {
            remaining: 0,
            body_bytes: 0,
            length: 0,
            line_bytes: 0,
            status: 0,
            position: 0,
            candidates: 0,
            state: ResponsePart::Version,
            field: Field::Other,
            minor: 0,
            blank_after: false,
            field_seen: false,
            has_length: false,
            has_encoding: false,
            chunked: false,
            close: false,
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
        self.state == ResponsePart::Version && self.line_bytes == 0
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
            self.status = head.status;
            self.keep_alive = head.keep_alive;
            if let Framing::Length(length) = head.framing
                && (data.len() - len) as u64 >= length
            {
                let response =
                    Response { status: head.status, body_bytes: length, keep_alive: head.keep_alive };
                let end = len + length as usize;
                sink.content(&data[len..end]);
                *self = Parser::new();
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
        (self.state == ResponsePart::UntilClose).then(|| self.complete())
    }

    fn feed_slowly(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
        sink: &mut impl Sink,
    ) -> Result<(usize, Option<Response>), Malformed> {
        let mut at = 0;
        while self.in_head() {
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
    fn in_head(&self) -> bool {
        (self.state as u8) < ResponsePart::Body as u8
    }

    #[inline]
    fn enter_body(&mut self, head: Head) {
        self.status = head.status;
        self.keep_alive = head.keep_alive;
        self.line_bytes = 0;
        self.position = 0;
        self.remaining = 0;
        match head.framing {
            Framing::Length(length) => {
                self.remaining = length;
                self.state = ResponsePart::Body;
            }
            Framing::Chunked => self.state = ResponsePart::ChunkSize,
            Framing::UntilClose => self.state = ResponsePart::UntilClose,
        }
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
        let mut at = 0;
        while at < data.len() {
            if matches!(self.state, ResponsePart::Reason | ResponsePart::Value) && self.field == Field::Other
            {
                // Nothing to learn before the end of the line.
                let skipped = memchr3(b'\r', b'\n', 0, &data[at..]).unwrap_or(data.len() - at);
                self.count(skipped)?;
                at += skipped;
                if at == data.len() {
                    break;
                }
            }
            let byte = data[at];
            at += 1;
            self.count(1)?;
            if let Some(head) = self.head_byte(byte)? {
                return Ok((at, Some(head)));
            }
        }
        Ok((at, None))
    }

    #[inline]
    fn count(&mut self, bytes: usize) -> Result<(), Malformed> {
        let room = (HEAD_LIMIT - self.line_bytes) as usize;
        if bytes > room {
            return Err(Malformed::TooLong);
        }
        self.line_bytes += bytes as u32;
        Ok(())
    }

    #[inline]
    fn head_byte(&mut self, byte: u8) -> Result<Option<Head>, Malformed> {
        match self.state {
            ResponsePart::Version => {
                if byte != VERSION[usize::from(self.position)] {
                    return Err(Malformed::StatusLine);
                }
                self.position += 1;
                if usize::from(self.position) == VERSION.len() {
                    self.state = ResponsePart::Minor;
                }
            }
            ResponsePart::Minor => {
                if !byte.is_ascii_digit() {
                    return Err(Malformed::StatusLine);
                }
                self.minor = byte - b'0';
                self.state = ResponsePart::CodeSpace;
            }
            ResponsePart::CodeSpace => {
                if byte != b' ' {
                    return Err(Malformed::StatusLine);
                }
                self.position = 0;
                self.state = ResponsePart::Code;
            }
            ResponsePart::Code => {
                if !byte.is_ascii_digit() {
                    return Err(Malformed::StatusCode);
                }
                self.status = self.status * 10 + u16::from(byte - b'0');
                self.position += 1;
                if self.position == 3 {
                    if self.status < 100 {
                        return Err(Malformed::StatusCode);
                    }
                    self.state = ResponsePart::CodeEnd;
                }
            }
            ResponsePart::CodeEnd => match byte {
                b' ' => self.state = ResponsePart::Reason,
                // The blank before an empty reason is often left out.
                b'\r' => self.state = ResponsePart::LineEnd,
                b'\n' => self.state = ResponsePart::LineStart,
                b'0'..=b'9' => return Err(Malformed::StatusCode),
                _ => return Err(Malformed::StatusLine),
            },
            ResponsePart::Reason => match byte {
                b'\r' => self.state = ResponsePart::LineEnd,
                b'\n' => self.state = ResponsePart::LineStart,
                0 => return Err(Malformed::StatusLine),
                _ => {}
            },
            ResponsePart::LineEnd => {
                if byte != b'\n' {
                    return Err(Malformed::HeaderValue);
                }
                self.state = ResponsePart::LineStart;
            }
            ResponsePart::LineStart => return self.line_start(byte),
            ResponsePart::Name => self.name_byte(byte)?,
            ResponsePart::Value => self.value_byte(byte)?,
            ResponsePart::HeadEnd => {
                if byte != b'\n' {
                    return Err(Malformed::HeaderName);
                }
                return Ok(Some(self.conclude()));
            }
            _ => {}
        }
        Ok(None)
    }

    fn line_start(&mut self, byte: u8) -> Result<Option<Head>, Malformed> {
        if matches!(byte, b' ' | b'\t') {
            // RFC 9112 section 5.2: a folded line goes on with the value before it.
            if !self.field_seen {
                return Err(Malformed::HeaderName);
            }
            self.state = ResponsePart::Value;
            self.value_byte(b' ')?;
            return Ok(None);
        }
        self.end_value()?;
        match byte {
            b'\r' => self.state = ResponsePart::HeadEnd,
            b'\n' => return Ok(Some(self.conclude())),
            _ => {
                self.field_seen = true;
                self.position = 0;
                self.candidates = (1 << NAMES.len()) - 1;
                self.state = ResponsePart::Name;
                self.name_byte(byte)?;
            }
        }
        Ok(None)
    }

    fn name_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        if byte == b':' {
            if self.position == 0 {
                return Err(Malformed::HeaderName);
            }
            self.field = Field::Other;
            for (bit, (name, field)) in NAMES.iter().enumerate() {
                if self.candidates & (1 << bit) != 0 && name.len() == usize::from(self.position) {
                    self.field = *field;
                }
            }
            self.begin_element();
            self.remaining = 0;
            self.state = ResponsePart::Value;
            return Ok(());
        }
        if !TOKEN[usize::from(byte)] {
            return Err(Malformed::HeaderName);
        }
        if self.candidates != 0 {
            let position = usize::from(self.position);
            for (bit, (name, _)) in NAMES.iter().enumerate() {
                if name.get(position) != Some(&byte.to_ascii_lowercase()) {
                    self.candidates &= !(1 << bit);
                }
            }
        }
        self.position = self.position.saturating_add(1);
        Ok(())
    }

    fn begin_element(&mut self) {
        self.position = 0;
        self.candidates = u8::MAX;
        self.blank_after = false;
    }

    fn value_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        match byte {
            b'\r' => self.state = ResponsePart::LineEnd,
            b'\n' => self.state = ResponsePart::LineStart,
            0 => return Err(Malformed::HeaderValue),
            b' ' | b'\t' => self.blank_after = self.position > 0,
            _ => match self.field {
                Field::Other => {}
                Field::ContentLength => {
                    if !byte.is_ascii_digit() || self.blank_after {
                        return Err(Malformed::ContentLength);
                    }
                    self.remaining = self
                        .remaining
                        .checked_mul(10)
                        .and_then(|value| value.checked_add(u64::from(byte - b'0')))
                        .ok_or(Malformed::ContentLength)?;
                    self.position = 1;
                }
                Field::TransferEncoding if byte == b',' => self.end_element(),
                Field::Connection if byte == b',' => self.end_element(),
                Field::TransferEncoding => self.element_byte(&CHUNKED, byte),
                Field::Connection => self.element_byte(&CONNECTION, byte),
            },
        }
        Ok(())
    }

    fn element_byte(&mut self, tokens: &[&[u8]], byte: u8) {
        let position = usize::from(self.position);
        for (bit, token) in tokens.iter().enumerate() {
            if self.blank_after || token.get(position) != Some(&byte.to_ascii_lowercase()) {
                self.candidates &= !(1 << bit);
            }
        }
        self.position = self.position.saturating_add(1);
    }

    fn end_element(&mut self) {
        let position = usize::from(self.position);
        if position > 0 {
            let is = |bit: u8, token: &[u8]| self.candidates & (1 << bit) != 0 && token.len() == position;
            if self.field == Field::TransferEncoding {
                self.chunked = is(0, CHUNKED[0]);
                self.has_encoding = true;
            } else {
                let (close, keep_alive) = (is(0, CONNECTION[0]), is(1, CONNECTION[1]));
                self.close |= close;
                self.keep_alive |= keep_alive;
            }
        }
        self.begin_element();
    }

    /// The value before this line is over: it is not folded.
    fn end_value(&mut self) -> Result<(), Malformed> {
        match self.field {
            Field::Other => {}
            Field::ContentLength => {
                if self.position == 0 || self.has_length && self.length != self.remaining {
                    return Err(Malformed::ContentLength);
                }
                self.has_length = true;
                self.length = self.remaining;
            }
            Field::TransferEncoding | Field::Connection => self.end_element(),
        }
        self.field = Field::Other;
        Ok(())
    }

    /// RFC 9112 section 6.3, in its order.
    fn conclude(&self) -> Head {
        let http_10 = self.minor == 0;
        let mut keep_alive = !self.close && (!http_10 || self.keep_alive);
        let framing = if self.no_content || self.status < 200 || matches!(self.status, 204 | 304) {
            Framing::Length(0)
        } else if self.has_encoding {
            // Both lengths given, or an encoding in HTTP/1.0: the framing is suspect, and the
            // connection must not be used again (sections 6.1 and 6.3).
            keep_alive &= !self.has_length && !http_10;
            if self.chunked { Framing::Chunked } else { Framing::UntilClose }
        } else if self.has_length {
            Framing::Length(self.length)
        } else {
            Framing::UntilClose
        };
        keep_alive &= framing != Framing::UntilClose;
        Head { status: self.status, framing, keep_alive }
    }

    /// Reads on in a body.
    fn body(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<(usize, Option<Response>), Malformed> {
        match self.state {
            ResponsePart::Body => {
                let used = (data.len() as u64).min(self.remaining);
                self.remaining -= used;
                self.body_bytes += used;
                sink.content(&data[..used as usize]);
                let response = (self.remaining == 0).then(|| self.complete());
                Ok((used as usize, response))
            }
            ResponsePart::UntilClose => {
                self.body_bytes += data.len() as u64;
                sink.content(data);
                Ok((data.len(), None))
            }
            _ => self.chunks(data, sink),
        }
    }

    /// RFC 9112 section 7.1.
    fn chunks(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<(usize, Option<Response>), Malformed> {
        let mut at = 0;
        while at < data.len() {
            if self.state == ResponsePart::ChunkData {
                let used = ((data.len() - at) as u64).min(self.remaining);
                self.remaining -= used;
                self.body_bytes += used;
                sink.content(&data[at..at + used as usize]);
                at += used as usize;
                if self.remaining == 0 {
                    self.state = ResponsePart::ChunkDataCr;
                }
                continue;
            }
            let byte = data[at];
            at += 1;
            self.line_bytes += 1;
            if self.line_bytes > CHUNK_LINE_LIMIT {
                return Err(Malformed::TooLong);
            }
            if self.chunk_byte(byte)? {
                return Ok((at, Some(self.complete())));
            }
        }
        Ok((at, None))
    }

    /// One byte of the framing around chunks. True when the last one is over.
    fn chunk_byte(&mut self, byte: u8) -> Result<bool, Malformed> {
        match self.state {
            ResponsePart::ChunkSize => match byte {
                b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => {
                    let digit = match byte {
                        b'0'..=b'9' => byte - b'0',
                        _ => (byte | 0x20) - b'a' + 10,
                    };
                    if self.remaining >> 60 != 0 {
                        return Err(Malformed::ChunkSize);
                    }
                    self.remaining = self.remaining << 4 | u64::from(digit);
                    self.position = 1;
                }
                _ if self.position == 0 => return Err(Malformed::ChunkSize),
                b' ' | b'\t' => self.state = ResponsePart::ChunkSizeSpace,
                b';' => self.state = ResponsePart::ChunkExtension,
                b'\r' => self.state = ResponsePart::ChunkSizeEnd,
                b'\n' => self.begin_chunk(),
                _ => return Err(Malformed::ChunkSize),
            },
            ResponsePart::ChunkSizeSpace => match byte {
                b' ' | b'\t' => {}
                b';' => self.state = ResponsePart::ChunkExtension,
                b'\r' => self.state = ResponsePart::ChunkSizeEnd,
                b'\n' => self.begin_chunk(),
                _ => return Err(Malformed::ChunkSize),
            },
            ResponsePart::ChunkExtension => match byte {
                b'\r' => self.state = ResponsePart::ChunkSizeEnd,
                b'\n' => self.begin_chunk(),
                _ => {}
            },
            ResponsePart::ChunkSizeEnd => {
                if byte != b'\n' {
                    return Err(Malformed::ChunkSize);
                }
                self.begin_chunk();
            }
            ResponsePart::ChunkDataCr => match byte {
                b'\r' => self.state = ResponsePart::ChunkDataLf,
                b'\n' => self.begin_size(),
                _ => return Err(Malformed::ChunkEnd),
            },
            ResponsePart::ChunkDataLf => {
                if byte != b'\n' {
                    return Err(Malformed::ChunkEnd);
                }
                self.begin_size();
            }
            ResponsePart::TrailerStart => match byte {
                b'\r' => self.state = ResponsePart::TrailerEnd,
                b'\n' => return Ok(true),
                _ => self.state = ResponsePart::Trailer,
            },
            ResponsePart::Trailer if byte == b'\n' => self.state = ResponsePart::TrailerStart,
            ResponsePart::TrailerEnd => {
                if byte != b'\n' {
                    return Err(Malformed::ChunkEnd);
                }
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    fn begin_size(&mut self) {
        self.state = ResponsePart::ChunkSize;
        self.position = 0;
        self.remaining = 0;
        self.line_bytes = 0;
    }

    fn begin_chunk(&mut self) {
        self.line_bytes = 0;
        self.state = if self.remaining == 0 { ResponsePart::TrailerStart } else { ResponsePart::ChunkData };
    }
}
