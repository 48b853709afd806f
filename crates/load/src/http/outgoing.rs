//! What connections send, kept only as far as it cannot be made again.
//!
//! TCP may ask for any byte that the peer has not acknowledged. Where all requests to a server are the same, the byte at
//! some offset is known from the offset. Otherwise each connection keeps its requests until they are acknowledged: a
//! reference where it is a template, the bytes where they were made up.

use std::collections::VecDeque;
use std::rc::Rc;

/// The streams of the connections to one server, all of them the same: one request over and over.
#[derive(Debug, Clone)]
pub(super) struct Repeated {
    request: Rc<[u8]>,
    /// What a connection's last request is instead, and where that begins.
    last: Rc<[u8]>,
    last_at: u64,
}

impl Repeated {
    /// `turns`: requests that a connection carries at most.
    pub(super) fn new(request: Rc<[u8]>, last: Rc<[u8]>, turns: u64) -> Repeated {
        let last_at = (turns - 1).saturating_mul(request.len() as u64);
        Repeated { request, last, last_at }
    }

    #[inline]
    fn from(&self, offset: u64) -> &[u8] {
        match offset.checked_sub(self.last_at) {
            None => {
                // Where the last request's turn comes, this slice ends too: it is a whole number of requests away.
                let length = self.request.len() as u64;
                let at = if offset < length { offset } else { offset % length };
                &self.request[at as usize..]
            }
            Some(at) => self.last.get(at as usize..).unwrap_or_default(),
        }
    }
}

/// One connection's stream: pieces that are not all acknowledged.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Each with its offset in the stream.
    queue: VecDeque<(u64, Rc<[u8]>)>,
    end: u64,
}

impl Pieces {
    /// The stream goes on with `bytes`.
    pub(super) fn push(&mut self, bytes: Rc<[u8]>) {
        let start = self.end;
        self.end += bytes.len() as u64;
        self.queue.push_back((start, bytes));
    }

    /// The bytes from `offset` to the end of their piece.
    pub(super) fn from(&self, offset: u64) -> &[u8] {
        let holder = self.queue.iter().rev().find(|(start, _)| *start <= offset);
        holder.and_then(|(start, bytes)| bytes.get((offset - start) as usize..)).unwrap_or_default()
    }

    /// What is before `offset` is never asked for again.
    pub(super) fn acknowledged(&mut self, offset: u64) {
        while self.queue.front().is_some_and(|(start, bytes)| start + bytes.len() as u64 <= offset) {
            self.queue.pop_front();
        }
    }
}

/// The streams of a thread's connections.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// By server.
    Repeated(Vec<Repeated>),
    /// By connection.
    Stored(Vec<Pieces>),
}

impl Outgoing {
    /// Room for a connection at `slot`, whose stream begins.
    pub(super) fn begin(&mut self, slot: usize) {
        if let Outgoing::Stored(streams) = self {
            if streams.len() <= slot {
                streams.resize_with(slot + 1, Pieces::default);
            }
            streams[slot] = Pieces::default();
        }
    }

    /// The stream of `slot` goes on with `bytes`. Nothing to do where that is known.
    #[inline]
    pub(super) fn push(&mut self, slot: usize, bytes: &Rc<[u8]>) {
        if let Outgoing::Stored(streams) = self {
            streams[slot].push(bytes.clone());
        }
    }

    /// The stream of a connection to `server` from `offset` on: some bytes of it, at least one if there are any.
    #[inline]
    pub(super) fn from(&self, slot: usize, server: usize, offset: u64) -> &[u8] {
        match self {
            Outgoing::Repeated(servers) => servers[server].from(offset),
            Outgoing::Stored(streams) => streams[slot].from(offset),
        }
    }

    /// What is before `offset` is never asked for again.
    #[inline]
    pub(super) fn acknowledged(&mut self, slot: usize, offset: u64) {
        if let Outgoing::Stored(streams) = self {
            streams[slot].acknowledged(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(outgoing: &Outgoing, mut offset: u64, end: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while offset < end {
            let slice = outgoing.from(0, 0, offset);
            let take = slice.len().min((end - offset) as usize);
            assert!(take > 0, "nothing at {offset}");
            bytes.extend_from_slice(&slice[..take]);
            offset += take as u64;
        }
        bytes
    }

    #[test]
    fn a_repeated_request_ends_with_the_last_one() {
        let stream = |turns| {
            Outgoing::Repeated(vec![Repeated::new(
                b"abc".as_slice().into(),
                b"wxyz".as_slice().into(),
                turns,
            )])
        };
        assert_eq!(read(&stream(1), 0, 4), b"wxyz");
        for offset in 0..10 {
            assert_eq!(read(&stream(3), offset, 10), &b"abcabcwxyz"[offset as usize..]);
        }
        assert_eq!(read(&stream(u64::MAX), 3_000_000_000_001, 3_000_000_000_008), b"bcabcab");
    }

    #[test]
    fn pieces_are_there_until_they_are_acknowledged() {
        let mut outgoing = Outgoing::Stored(Vec::new());
        outgoing.begin(0);
        for piece in [&b"one"[..], b"three", b"four"] {
            outgoing.push(0, &piece.into());
        }
        for offset in 0..12 {
            assert_eq!(read(&outgoing, offset, 12), &b"onethreefour"[offset as usize..]);
        }
        outgoing.acknowledged(0, 7);
        assert_eq!(read(&outgoing, 7, 12), b"efour");
        outgoing.acknowledged(0, 8);
        let Outgoing::Stored(streams) = &outgoing else { panic!("made so above") };
        assert_eq!(streams[0].queue.len(), 1);
        outgoing.begin(0);
        outgoing.push(0, &b"new"[..].into());
        assert_eq!(read(&outgoing, 0, 3), b"new");
    }
}
