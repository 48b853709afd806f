//! Responses that are not complete. Most come in one piece and never stand here, so that a million idle connections cost
//! no parsers.

use ring::digest::{Context, SHA256};

use super::super::script::Interest;
use super::super::target::Store;
use crate::response::{HeadCache, Malformed, Parser, Response, Sink};
use crate::{memcached, redis};

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

/// What reads the responses of the servers' protocol.
enum Reader {
    Http(Parser),
    Redis(redis::Parser),
    Memcached(memcached::Parser),
}

impl Reader {
    #[inline]
    fn feed_into(
        &mut self,
        data: &[u8],
        cache: &mut HeadCache,
        sink: &mut impl Sink,
    ) -> Result<(usize, Option<Response>), Malformed> {
        match self {
            Reader::Http(parser) => parser.feed_into(data, cache, sink),
            Reader::Redis(parser) => parser.feed(data, sink),
            Reader::Memcached(parser) => parser.feed(data, sink),
        }
    }

    fn finish(&mut self) -> Option<Response> {
        match self {
            Reader::Http(parser) => parser.finish(),
            Reader::Redis(_) | Reader::Memcached(_) => None,
        }
    }
}

struct Partial {
    reader: Reader,
    first_byte_ns: u64,
    capture: Capture,
}

/// A thread's partial responses. A connection knows the place of its own.
pub(super) struct Partials {
    places: Vec<Partial>,
    free: Vec<u32>,
    expected: Option<[u8; 32]>,
    interest: Interest,
    store: Option<Store>,
}

impl Partials {
    /// No place: nothing of a response has come.
    pub(super) const NONE: u32 = u32::MAX;

    /// `expected`: the content's SHA-256 digest, if it is to be compared. `store`: what the servers are, if they are no web servers.
    pub(super) fn new(expected: Option<[u8; 32]>, interest: Interest, store: Option<Store>) -> Partials {
        Partials { places: Vec::new(), free: Vec::new(), expected, interest, store }
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
        let store = self.store;
        let fresh = || match store {
            Some(Store::Redis) => Reader::Redis(redis::Parser::new()),
            Some(Store::Memcached) => Reader::Memcached(memcached::Parser::new()),
            None if no_content => Reader::Http(Parser::without_content()),
            None => Reader::Http(Parser::new()),
        };
        let (used, response) = if *place == Partials::NONE && !captures {
            let mut reader = fresh();
            let fed = reader.feed_into(data, cache, &mut ())?;
            if fed.1.is_none() {
                *place = self.add(reader, now_ns);
            }
            fed
        } else {
            if *place == Partials::NONE {
                *place = self.add(fresh(), now_ns);
            }
            let Partial { reader, capture, .. } = &mut self.places[*place as usize];
            if captures {
                reader.feed_into(data, cache, capture)?
            } else {
                reader.feed_into(data, cache, &mut ())?
            }
        };
        Ok(match response {
            None => Progress::More,
            Some(response) => Progress::Complete { used, response },
        })
    }

    fn add(&mut self, reader: Reader, first_byte_ns: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            let interest = self.interest;
            let capture = Capture { digest: None, interest, head: Vec::new(), content: Vec::new() };
            self.places.push(Partial { reader: Reader::Http(Parser::new()), first_byte_ns, capture });
            (self.places.len() - 1) as u32
        });
        let partial = &mut self.places[place as usize];
        partial.reader = reader;
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
        self.places.get_mut(place as usize)?.reader.finish()
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
