//! The bytes of a response, computed wherever they are asked for.
//!
//! A [`Reply`] is sixteen bytes that say what is answered; [`Reply::fill`] writes any part of it. So a response of any size
//! waits in no buffer, and a part that was lost on the way is made again.

/// Where bodies come from: the same line of text over and over, so that byte `n` of every body is byte `n % 64` of the line.
#[derive(Debug)]
pub(crate) struct Template(Box<[u8]>);

/// The line.
const LINE: &[u8; 64] = b"overfly 0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopq\n";
/// Bytes that one copy takes at most: a segment's payload and more.
const STRETCH: usize = 64 * 1024;

impl Default for Template {
    fn default() -> Self {
        Template(LINE.iter().copied().cycle().take(STRETCH + LINE.len()).collect())
    }
}

impl Template {
    /// Writes the body's bytes from `position` on.
    #[inline]
    fn fill(&self, position: u64, buffer: &mut [u8]) {
        let from = (position % LINE.len() as u64) as usize;
        // A stretch is a whole number of lines: each begins at the same place in the template.
        for part in buffer.chunks_mut(STRETCH) {
            part.copy_from_slice(&self.0[from..from + part.len()]);
        }
    }
}

/// How the body is framed, or spoilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// After a Content-Length.
    Whole,
    /// In chunks of [`CHUNK`] bytes.
    Chunked,
    /// Without a length, until the connection ends (HTTP/1.0).
    UntilClose,
    /// The answer to HEAD: the head says what the body would be.
    Absent,
    /// Half of what the head promises; of an empty body, half the head.
    Half,
    /// [`EXCESS`] bytes more than the head promises.
    Excess,
    /// No HTTP at all.
    Garbage,
}

/// Status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// 100: the head alone, and the response follows.
    Continue,
    /// 200.
    Ok,
    /// 400.
    BadRequest,
    /// 404.
    NotFound,
}

impl Status {
    fn line(self) -> &'static [u8] {
        match self {
            Status::Continue => b"HTTP/1.1 100 Continue\r\n",
            Status::Ok => b"HTTP/1.1 200 OK\r\n",
            Status::BadRequest => b"HTTP/1.1 400 Bad Request\r\n",
            Status::NotFound => b"HTTP/1.1 404 Not Found\r\n",
        }
    }
}

/// What the head says of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Nothing: it persists (HTTP/1.1).
    Implied,
    /// That it persists (HTTP/1.0).
    KeepAlive,
    /// That it ends.
    Close,
}

/// Bytes of a chunk.
const CHUNK: u64 = 0x4000;
const CHUNK_HEAD: &[u8] = b"4000\r\n";
const CHUNK_TAIL: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// A whole chunk with what frames it.
const FRAMED: u64 = CHUNK_HEAD.len() as u64 + CHUNK + CHUNK_TAIL.len() as u64;
/// What a lying server sends beyond what it said.
const EXCESS: u64 = 16;
/// Longest head, with some to spare.
const HEAD_MAX: usize = 128;
/// Bytes of an answer that is no HTTP.
const GARBAGE: u64 = 64;

/// One response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Bytes of content that the head speaks of.
    pub(crate) size: u64,
    /// Its status.
    pub(crate) status: Status,
    /// Its body.
    pub(crate) body: Body,
    /// What it says of the connection.
    pub(crate) persistence: Persistence,
}

/// A text of a few bytes.
struct Short<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Short<N> {
    const fn new() -> Self {
        Short { bytes: [0; N], length: 0 }
    }

    fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    /// A number, without leading zeros.
    fn push_number(&mut self, mut number: u64, base: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(number % base) as usize];
            number /= base;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Copies what lies in `buffer` of a `part` that begins at `from`, where `buffer` begins at `at`.
fn overlay(part: &[u8], from: u64, at: u64, buffer: &mut [u8]) {
    let begin = from.max(at);
    let end = (from + part.len() as u64).min(at + buffer.len() as u64);
    if begin < end {
        buffer[(begin - at) as usize..(end - at) as usize]
            .copy_from_slice(&part[(begin - from) as usize..(end - from) as usize]);
    }
}

impl Reply {
    /// Leave to send a body.
    pub(crate) const CONTINUE: Reply =
        Reply { size: 0, status: Status::Continue, body: Body::Absent, persistence: Persistence::Implied };
    /// The answer to what is no request.
    pub(crate) const BAD_REQUEST: Reply =
        Reply { size: 0, status: Status::BadRequest, body: Body::Whole, persistence: Persistence::Close };

    fn head(&self) -> Short<HEAD_MAX> {
        let mut head = Short::new();
        if self.body == Body::Garbage {
            return head;
        }
        head.push(self.status.line());
        match self.body {
            Body::Chunked => head.push(b"Transfer-Encoding: chunked\r\n"),
            Body::UntilClose => {}
            _ if self.status == Status::Continue => {}
            _ => {
                head.push(b"Content-Length: ");
                head.push_number(self.size, 10);
                head.push(b"\r\n");
            }
        }
        match self.persistence {
            Persistence::Implied => {}
            Persistence::KeepAlive => head.push(b"Connection: keep-alive\r\n"),
            Persistence::Close => head.push(b"Connection: close\r\n"),
        }
        head.push(b"\r\n");
        if self.body == Body::Half && self.size == 0 {
            head.length /= 2;
        }
        head
    }

    /// Bytes on the wire, head included.
    #[must_use]
    pub(crate) fn wire_len(&self) -> u64 {
        let body = match self.body {
            Body::Whole | Body::UntilClose => self.size,
            Body::Absent => 0,
            Body::Half => self.size / 2,
            Body::Excess => self.size + EXCESS,
            Body::Garbage => GARBAGE,
            Body::Chunked => {
                let rest = self.last_piece().length as u64;
                let rest = if rest > 0 { rest + self.size % CHUNK + CHUNK_TAIL.len() as u64 } else { 0 };
                self.size / CHUNK * FRAMED + rest + LAST_CHUNK.len() as u64
            }
        };
        self.head().length as u64 + body
    }

    /// The size line of the last chunk that holds anything, if that is no whole one.
    fn last_piece(&self) -> Short<8> {
        let mut line = Short::new();
        if !self.size.is_multiple_of(CHUNK) {
            line.push_number(self.size % CHUNK, 16);
            line.push(b"\r\n");
        }
        line
    }

    /// Bytes of the head.
    #[must_use]
    pub(crate) fn head_len(&self) -> u64 {
        self.head().length as u64
    }

    /// Writes the response's bytes from `at` on; `buffer` ends within the response. `head_len` is
    /// [`Reply::head_len`], which most calls need and the caller keeps.
    pub(crate) fn fill(&self, head_len: u64, at: u64, buffer: &mut [u8], template: &Template) {
        if at < head_len {
            overlay(self.head().text(), 0, at, buffer);
        }
        let skipped = (head_len.saturating_sub(at) as usize).min(buffer.len());
        let body = &mut buffer[skipped..];
        let at = (at + skipped as u64) - head_len.min(at + skipped as u64);
        if self.body == Body::Chunked {
            self.fill_chunks(at, body, template);
        } else {
            template.fill(at, body);
        }
    }

    fn fill_chunks(&self, mut at: u64, mut buffer: &mut [u8], template: &Template) {
        let whole = self.size / CHUNK;
        while !buffer.is_empty() && at < whole * FRAMED {
            let (chunk, within) = (at / FRAMED, at % FRAMED);
            let take = ((FRAMED - within) as usize).min(buffer.len());
            let (now, later) = buffer.split_at_mut(take);
            fill_chunk(CHUNK_HEAD, chunk * CHUNK, CHUNK, within, now, template);
            (buffer, at) = (later, at + take as u64);
        }
        if buffer.is_empty() {
            return;
        }
        let at = at - whole * FRAMED;
        let line = self.last_piece();
        let mut end = 0;
        if line.length > 0 {
            let rest = self.size % CHUNK;
            end = line.length as u64 + rest + CHUNK_TAIL.len() as u64;
            let take = (end.saturating_sub(at) as usize).min(buffer.len());
            fill_chunk(line.text(), whole * CHUNK, rest, at, &mut buffer[..take], template);
        }
        overlay(LAST_CHUNK, end, at, buffer);
    }
}

/// Writes a part of one chunk that holds the body's bytes from `position` on. `at` counts from the chunk's size line.
fn fill_chunk(line: &[u8], position: u64, length: u64, at: u64, buffer: &mut [u8], template: &Template) {
    let line_len = line.len() as u64;
    overlay(line, 0, at, buffer);
    overlay(CHUNK_TAIL, line_len + length, at, buffer);
    let begin = at.max(line_len);
    let end = (at + buffer.len() as u64).min(line_len + length);
    if begin < end {
        template.fill(position + begin - line_len, &mut buffer[(begin - at) as usize..(end - at) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(reply: &Reply) -> Vec<u8> {
        let mut bytes = vec![0; reply.wire_len() as usize];
        reply.fill(reply.head_len(), 0, &mut bytes, &Template::default());
        bytes
    }

    fn reply(size: u64, body: Body) -> Reply {
        Reply { size, status: Status::Ok, body, persistence: Persistence::Implied }
    }

    #[test]
    fn heads() {
        let text = |reply: &Reply| String::from_utf8(bytes(reply)).unwrap();
        assert_eq!(text(&reply(0, Body::Whole)), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(text(&reply(8, Body::Whole)), "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\noverfly ");
        assert_eq!(text(&reply(12_345, Body::Absent)), "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n");
        assert_eq!(text(&Reply::CONTINUE), "HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(
            text(&Reply::BAD_REQUEST),
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            text(&Reply { persistence: Persistence::KeepAlive, ..reply(1, Body::Whole) }),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\no"
        );
        assert_eq!(text(&reply(4, Body::UntilClose)), "HTTP/1.1 200 OK\r\n\r\nover");
        assert_eq!(
            text(&reply(3, Body::Chunked)),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nove\r\n0\r\n\r\n"
        );
        let longest = Reply {
            size: u64::MAX,
            status: Status::BadRequest,
            body: Body::Whole,
            persistence: Persistence::KeepAlive,
        };
        assert!(longest.head().length <= HEAD_MAX);
    }

    #[test]
    fn spoilt_ones() {
        let text = |reply: &Reply| String::from_utf8(bytes(reply)).unwrap();
        assert_eq!(text(&reply(8, Body::Half)), "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nover");
        assert!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n".starts_with(&text(&reply(0, Body::Half))));
        assert_eq!(
            text(&reply(8, Body::Excess)),
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\noverfly 0123456789 ABCDE"
        );
        assert!(text(&reply(8, Body::Garbage)).starts_with("overfly "));
    }

    /// What the response parser of the clients makes of it.
    fn content_length(reply: &Reply) -> u64 {
        use crate::response::{HeadCache, Parser};
        let mut parser = Parser::new();
        let bytes = bytes(reply);
        match parser.feed(&bytes, &mut HeadCache::new()) {
            Ok((used, Some(response))) => {
                assert_eq!(used, bytes.len());
                response.body_bytes
            }
            Ok((_, None)) => parser.finish().unwrap().body_bytes,
            Err(malformed) => panic!("{malformed:?}"),
        }
    }

    #[test]
    fn bodies_have_their_size() {
        for size in [0, 1, 63, 64, 65, 0x3fff, 0x4000, 0x4001, 0x8000, 100_000, 200_000] {
            for body in [Body::Whole, Body::Chunked, Body::UntilClose] {
                assert_eq!(content_length(&reply(size, body)), size, "{body:?}");
            }
        }
    }

    #[test]
    fn a_chunked_body_is_the_plain_one() {
        let whole = bytes(&reply(100_000, Body::Whole));
        let mut rest = &bytes(&reply(100_000, Body::Chunked))[..];
        let line_end = |rest: &[u8]| rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
        while !rest.starts_with(b"\r\n") {
            rest = &rest[line_end(rest) + 2..];
        }
        rest = &rest[2..];
        let mut body = Vec::new();
        loop {
            let line = line_end(rest);
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            rest = &rest[line + 2..];
            if size == 0 {
                break;
            }
            body.extend_from_slice(&rest[..size]);
            rest = &rest[size + 2..];
        }
        assert_eq!(rest, b"\r\n");
        assert!(whole.ends_with(&body) && body.len() == 100_000);
    }

    proptest! {
        /// Any part of it, written by itself, is that part of the whole.
        #[test]
        fn parts_are_parts_of_the_whole(
            size in 0..70_000_u64,
            body in prop::sample::select(vec![
                Body::Whole, Body::Chunked, Body::UntilClose, Body::Absent, Body::Half, Body::Excess, Body::Garbage,
            ]),
            ends in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let reply = reply(size, body);
            let whole = bytes(&reply);
            let (one, other) = (ends.0.index(whole.len() + 1), ends.1.index(whole.len() + 1));
            let (from, until) = (one.min(other), one.max(other));
            let mut part = vec![0; until - from];
            reply.fill(reply.head_len(), from as u64, &mut part, &Template::default());
            prop_assert!(part == whole[from..until]);
        }
    }
}
