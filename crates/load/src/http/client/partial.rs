//! Responses that are not complete. Most come in one piece and never stand here, so that a million idle connections cost
//! no parsers.

use ring::digest::{Context, SHA256};

use super::super::script::Interest;
use crate::response::{HeadCache, Malformed, Parser, Response, Sink};

/// What some bytes of a response did for it.
pub(super) enum Progress {
    /// More must come.
    More,
    /// `used` of the bytes completed it.
    Complete { used: usize, response: Response },
}

/// What is kept of a response's bytes.
struct Capture {
    digest: Option<Context>,
    interest: Interest,
    head: Vec<u8>,
    content: Vec<u8>,
}

impl Sink for Capture {
    fn head(&mut self, bytes: &[u8]) {
        if self.interest >= Interest::Head {
            self.head.extend_from_slice(bytes);
        }
    }

    fn head_again(&mut self) {
        self.head.clear();
    }

    fn content(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        if self.interest == Interest::Content {
            self.content.extend_from_slice(bytes);
        }
    }
}

struct Partial {
    parser: Parser,
    first_byte_ns: u64,
    capture: Capture,
}

/// A thread's partial responses. A connection knows the place of its own.
pub(super) struct Partials {
    places: Vec<Partial>,
    free: Vec<u32>,
    expected: Option<[u8; 32]>,
    interest: Interest,
}

impl Partials {
    /// No place: nothing of a response has come.
    pub(super) const NONE: u32 = u32::MAX;

    /// `expected`: the content's SHA-256 digest, if it is to be compared.
    pub(super) fn new(expected: Option<[u8; 32]>, interest: Interest) -> Partials {
        Partials { places: Vec::new(), free: Vec::new(), expected, interest }
    }

    /// Takes bytes of the response of a connection that knows `place`.
    #[inline]
    pub(super) fn feed(
        &mut self,
        place: &mut u32,
        data: &[u8],
        no_content: bool,
        now_ns: u64,
        cache: &mut HeadCache,
    ) -> Result<Progress, Malformed> {
        let captures = self.interest >= Interest::Head || self.expected.is_some();
        let fresh = || if no_content { Parser::without_content() } else { Parser::new() };
        let (used, response) = if *place == Partials::NONE && !captures {
            let mut parser = fresh();
            let fed = parser.feed(data, cache)?;
            if fed.1.is_none() {
                *place = self.add(parser, now_ns);
            }
            fed
        } else {
            if *place == Partials::NONE {
                *place = self.add(fresh(), now_ns);
            }
            let Partial { parser, capture, .. } = &mut self.places[*place as usize];
            if captures { parser.feed_into(data, cache, capture)? } else { parser.feed(data, cache)? }
        };
        Ok(match response {
            None => Progress::More,
            Some(response) => Progress::Complete { used, response },
        })
    }

    fn add(&mut self, parser: Parser, first_byte_ns: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            let interest = self.interest;
            let capture = Capture { digest: None, interest, head: Vec::new(), content: Vec::new() };
            self.places.push(Partial { parser: Parser::new(), first_byte_ns, capture });
            (self.places.len() - 1) as u32
        });
        let partial = &mut self.places[place as usize];
        partial.parser = parser;
        partial.first_byte_ns = first_byte_ns;
        partial.capture.digest = self.expected.map(|_| Context::new(&SHA256));
        partial.capture.head.clear();
        partial.capture.content.clear();
        place
    }

    /// The response is over, one way or another.
    #[inline]
    pub(super) fn release(&mut self, place: &mut u32) {
        if *place != Partials::NONE {
            self.free.push(*place);
            *place = Partials::NONE;
        }
    }

    /// When the first byte came, if that was not now.
    #[inline]
    pub(super) fn first_byte_ns(&self, place: u32) -> Option<u64> {
        self.places.get(place as usize).map(|partial| partial.first_byte_ns)
    }

    /// The stream has ended: the response whose content ends there, if that is what this is.
    pub(super) fn finish(&mut self, place: u32) -> Option<Response> {
        self.places.get_mut(place as usize)?.parser.finish()
    }

    /// Of a complete response: whether its content is the expected one.
    #[inline]
    pub(super) fn is_right_content(&mut self, place: u32) -> bool {
        let Some(expected) = self.expected else { return true };
        let digest = self.places.get_mut(place as usize).and_then(|partial| partial.capture.digest.take());
        digest.is_some_and(|digest| digest.finish().as_ref() == expected)
    }

    /// Head and content of a complete response, if they were kept.
    pub(super) fn content(&self, place: u32) -> (&[u8], &[u8]) {
        let capture = self.places.get(place as usize).map(|partial| &partial.capture);
        capture.map_or((&[], &[]), |capture| (&capture.head, &capture.content))
    }
}
