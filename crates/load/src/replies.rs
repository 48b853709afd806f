//! An incremental parser of a store's replies that keeps no bytes: what Redis' and memcached's protocols have in common. Each reply is a
//! line, or a value between lines.

use memchr::memchr;

use crate::response::{HEAD_LIMIT, Malformed, Response, Sink};

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A byte of the framing.
    Framing,
    /// A value's bytes, as many as [`Reply::remaining`] says.
    Value,
    /// A line of text, with which the reply ends.
    Line,
}

/// Where a protocol is in a reply.
pub(crate) trait Framing: Copy {
    /// Before the first byte.
    const BEGIN: Self;
    /// After a value's last byte.
    const AFTER_VALUE: Self;
    /// The status of a reply that says nothing else.
    const STATUS: u16;

    /// What comes next.
    fn part(self) -> Part;

    /// One byte of the framing: where it leads, and `None` if the reply is over.
    ///
    /// # Errors
    /// [`Malformed`]: the byte may not be here.
    fn byte(self, byte: u8, reply: &mut Reply) -> Result<Option<Self>, Malformed>;
}

/// What is known of a reply.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Bytes of the value to come; while the length is read, the length.
    pub(crate) remaining: u64,
    pub(crate) status: u16,
    value_bytes: u64,
    line_bytes: u32,
}

impl Reply {
    /// A digit of the value's length, which may be `most`.
    #[inline]
    pub(crate) fn digit(&mut self, byte: u8, most: u64) -> Result<(), Malformed> {
        self.remaining = self.remaining * 10 + u64::from(byte - b'0');
        if self.remaining > most { Err(Malformed::ContentLength) } else { Ok(()) }
    }

    /// So many more bytes of lines.
    #[inline]
    fn count(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.line_bytes = self.line_bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.line_bytes > HEAD_LIMIT { Err(Malformed::TooLong) } else { Ok(()) }
    }
}

/// The state of one connection's current reply: no heap.
#[derive(Debug, Clone)]
pub(crate) struct Parser<F> {
    reply: Reply,
    state: F,
}

impl<F: Framing> Parser<F> {
    /// Ready for the first byte of a reply.
    pub(crate) const fn new() -> Self {
        let reply = Reply { remaining: 0, status: F::STATUS, value_bytes: 0, line_bytes: 0 };
        Self { reply, state: F::BEGIN }
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
        let Self { reply, state } = self;
        let mut at = 0;
        while at < data.len() {
            let is_over = match state.part() {
                Part::Value => {
                    let used = (data.len() - at).min(usize::try_from(reply.remaining).unwrap_or(usize::MAX));
                    sink.content(&data[at..at + used]);
                    at += used;
                    reply.remaining -= used as u64;
                    reply.value_bytes += used as u64;
                    if reply.remaining == 0 {
                        *state = F::AFTER_VALUE;
                    }
                    false
                }
                Part::Line => {
                    let end = memchr(b'\n', &data[at..]);
                    let used = end.map_or(data.len() - at, |end| end + 1);
                    at += used;
                    reply.count(used)?;
                    end.is_some()
                }
                Part::Framing => {
                    reply.count(1)?;
                    let next = state.byte(data[at], reply)?;
                    at += 1;
                    *state = next.unwrap_or(*state);
                    next.is_none()
                }
            };
            if is_over {
                return Ok((at, Some(self.complete())));
            }
        }
        Ok((at, None))
    }

    fn complete(&mut self) -> Response {
        let Reply { status, value_bytes, .. } = self.reply;
        *self = Self::new();
        Response { status, body_bytes: value_bytes, keep_alive: true }
    }
}

/// The replies in `text`, fed `step` bytes at a time: status and size of each, and what went wrong then.
#[cfg(test)]
pub(crate) fn in_steps<F: Framing>(text: &[u8], step: usize) -> (Vec<(u16, u64)>, Option<Malformed>) {
    let (mut parser, mut replies) = (Parser::<F>::new(), Vec::new());
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
