//! An incremental HTTP/1.x request parser that keeps no bytes.
//!
//! [`Parser::feed`] takes whatever a segment or a `recv` brought, in any split. The state machine itself carries a head on
//! that is cut anywhere, so that a client which sends one byte an hour holds no more memory than any other. Bodies are
//! counted off and dropped. A head that came in one piece is remembered ([`HeadCache`]): the same bytes again cost one
//! comparison.
//!
//! Sources: RFC 9112 (message syntax and framing), RFC 9110 (methods, fields, Expect).

#[cfg(test)]
mod tests;

use crate::http1::{self, Coding, Framing, Malformed, Message, Part, Rules, is_in_token};

/// Largest body that a path can ask for, in bytes.
const SIZE_LIMIT: u64 = 1_000_000_000_000;

/// What is tolerated in a request: no more than RFC 9112 asks of a server.
#[derive(Debug, Clone)]
enum Strict {}

impl Rules for Strict {
    const HEAD_LIMIT: u32 = 16 * 1024;
    const CHUNK_LINE_LIMIT: u32 = 1024;
    const STRICT: bool = true;
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

/// The last head without a body that arrived in one piece, and what it asked for. One per thread.
pub(crate) type HeadCache = http1::HeadCache<Request>;

/// Which part of a request line comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestLine {
    /// Before a request; empty lines are skipped (RFC 9112 section 2.2).
    Start,
    /// `at` of its bytes have come.
    Method,
    TargetStart,
    /// `http://host` of an absolute target; `at` of its slashes have come.
    Authority,
    /// `at` is 1 once a digit of the size has come.
    Size,
    /// The size was complete with a unit.
    SizeEnd,
    /// Whatever follows the size, or a path that names none.
    Path,
    Version,
    LineEnd,
}

/// One connection's parser.
#[derive(Debug, Clone)]
pub(crate) struct Parser {
    message: Message<Strict>,
    /// What the path asked for.
    size: u64,
    line: RequestLine,
    /// What `line` says, up to 255.
    at: u8,
    /// The path names a size, so far.
    sized: bool,
    /// The method is HEAD, so far.
    head_only: bool,
}

const _: () = assert!(size_of::<Parser>() <= 48);

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
            message: Message::new(),
            size: 0,
            line: RequestLine::Start,
            at: 0,
            sized: false,
            head_only: true,
        }
    }

    /// Between two requests.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.line == RequestLine::Start
    }

    /// In a request's head: what a body brings counts as progress, what a head brings does not.
    #[must_use]
    pub(crate) fn is_in_head(&self) -> bool {
        !self.is_idle() && !matches!(self.message.part, Part::Body | Part::ChunkData)
    }

    /// Takes bytes up to the next thing that is to be known. Returns how many; all of them if nothing came up.
    ///
    /// # Errors
    /// [`Malformed`]: the connection cannot go on.
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
    ) -> Result<(usize, Option<Parsed>), Malformed> {
        let is_whole = self.is_idle();
        if is_whole && let Some((request, len)) = cache.lookup(data) {
            return Ok((len, Some(Parsed::Request(request))));
        }
        let mut at = 0;
        if self.message.is_in_head() {
            at = self.request_line(data)?;
            let (used, is_complete) = self.message.fields(&data[at..])?;
            at += used;
            if !is_complete {
                return Ok((at, None));
            }
            if let Some(parsed) = self.conclude()? {
                if let Parsed::Request(request) = parsed
                    && is_whole
                    && self.message.content_length().is_none()
                {
                    cache.remember(&data[..at], request);
                }
                return Ok((at, Some(parsed)));
            }
        }
        let (used, is_complete) = self.message.body(&data[at..], |_| {})?;
        Ok((at + used, is_complete.then(|| Parsed::Request(self.finish()))))
    }

    /// The request is complete: the next may begin.
    fn finish(&mut self) -> Request {
        self.message.part = Part::StartLine;
        self.line = RequestLine::Start;
        Request {
            size: self.sized.then_some(self.size),
            head_only: self.head_only,
            old: self.message.http_10,
            keep_alive: self.message.persists(),
        }
    }

    /// Reads on in the request line, if it is not over (RFC 9112 section 3). Returns the bytes used.
    fn request_line(&mut self, data: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < data.len() && self.message.part == Part::StartLine {
            let byte = data[at];
            at += 1;
            if self.line == RequestLine::Start {
                if matches!(byte, b'\r' | b'\n') {
                    continue;
                }
                *self = Parser { line: RequestLine::Method, ..Parser::new() };
            } else {
                self.message.count(1)?;
            }
            match self.line {
                RequestLine::Start | RequestLine::Method => self.method_byte(byte)?,
                RequestLine::Version => {
                    if self.message.version_byte(byte).ok_or(Malformed::Version)? {
                        self.line = RequestLine::LineEnd;
                    }
                }
                RequestLine::LineEnd => match byte {
                    b'\r' => {}
                    b'\n' => self.message.part = Part::LineStart,
                    _ => return Err(Malformed::Version),
                },
                _ => self.target_byte(byte)?,
            }
        }
        Ok(at)
    }

    fn method_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        /// Methods are case-sensitive (RFC 9110 section 9.1).
        const HEAD: &[u8] = b"HEAD";
        let at = usize::from(self.at);
        if byte == b' ' && at > 0 {
            self.head_only &= at == HEAD.len();
            self.line = RequestLine::TargetStart;
        } else if is_in_token(byte) {
            self.head_only &= HEAD.get(at) == Some(&byte);
            self.at = self.at.saturating_add(1);
        } else {
            return Err(Malformed::Method);
        }
        Ok(())
    }

    /// A size is the path's first part: digits and a unit, then nothing, `/…` or `?…`.
    fn target_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        if byte == b' ' && self.line != RequestLine::TargetStart {
            // http://host without a path asks for the root.
            self.sized &= self.line != RequestLine::Authority || self.at >= 2;
            self.line = RequestLine::Version;
            return Ok(());
        }
        if !byte.is_ascii_graphic() {
            return Err(Malformed::Target);
        }
        match (self.line, byte) {
            (RequestLine::TargetStart, _) => {
                self.sized = true;
                self.at = 0;
                self.line = match byte {
                    b'/' => RequestLine::Size,
                    b'*' => RequestLine::Path,
                    _ => RequestLine::Authority,
                };
            }
            (RequestLine::Authority, b'/') if self.at == 2 => {
                self.at = 0;
                self.line = RequestLine::Size;
            }
            (RequestLine::Authority, b'/') => self.at += 1,
            (RequestLine::Size, b'0'..=b'9') => {
                self.at = 1;
                self.scale(10, u64::from(byte - b'0'));
            }
            (RequestLine::Size, b'k' | b'K') if self.at > 0 => self.unit(1_000),
            (RequestLine::Size, b'm' | b'M') if self.at > 0 => self.unit(1_000_000),
            (RequestLine::Size, b'g' | b'G') if self.at > 0 => self.unit(1_000_000_000),
            (RequestLine::Size | RequestLine::SizeEnd, b'?' | b'/') => self.line = RequestLine::Path,
            (RequestLine::Size | RequestLine::SizeEnd, _) => {
                self.sized = false;
                self.line = RequestLine::Path;
            }
            _ => {}
        }
        Ok(())
    }

    fn unit(&mut self, factor: u64) {
        self.scale(factor, 0);
        self.line = RequestLine::SizeEnd;
    }

    fn scale(&mut self, factor: u64, more: u64) {
        self.size = self.size.saturating_mul(factor).saturating_add(more);
        if self.size > SIZE_LIMIT {
            self.sized = false;
            self.size = SIZE_LIMIT + 1;
        }
    }

    /// The head is complete: what is to be known of it, if that is anything.
    fn conclude(&mut self) -> Result<Option<Parsed>, Malformed> {
        let Message { coding, http_10, host, expects, .. } = self.message;
        let length = self.message.content_length();
        if !http_10 && !host {
            return Err(Malformed::NoHost);
        }
        let is_chunked = coding != Coding::Absent;
        if is_chunked && (http_10 || length.is_some()) {
            return Err(Malformed::TransferEncoding);
        }
        match length {
            Some(length @ 1..) => self.message.begin_body(Framing::Length(length)),
            None if is_chunked => self.message.begin_body(Framing::Chunked),
            _ => return Ok(Some(Parsed::Request(self.finish()))),
        }
        Ok((expects && !http_10).then_some(Parsed::Expecting))
    }
}
