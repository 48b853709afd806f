//! The streams of one thread, without anything that carries them.
//!
//! A carrier (the user-level stack in `shard.rs`, kernel sockets in `kernel.rs`) tells a [`Player`] what happened to a stream's
//! connection, and carries out its [`Order`]s. Both number streams from 0 on; a stream outlives its connections, because
//! a server may close one between two responses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::{Buffer, Shape, Tick};
use super::counts::{Counts, Loss};
use crate::random::SplitMix;
use crate::response::{HeadCache, Parser, Response};

/// What a carrier is to do for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Make a connection; there is none.
    Connect(usize),
    /// The stream of requests has so many more bytes: [`Player::fill`] writes them.
    Send(usize, usize),
    /// Read on; so many bytes that were delivered and not taken are taken now.
    Read(usize, u64),
    /// Let the connection end.
    Close(usize),
    /// Reset it.
    Reset(usize),
}

/// What all streams of a run have in common.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) shape: Shape,
    pub(crate) tick_ns: u64,
    /// One request for each block.
    pub(crate) requests: Arc<[Box<[u8]>]>,
    /// Times that a connection is tried before the stream has failed.
    pub(crate) attempts: u8,
    pub(crate) seed: u64,
}

/// Between two attempts to connect.
const RETRY_NS: u64 = 100_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection; another attempt comes later.
    Waiting,
    Connecting,
    /// A response is under way.
    Receiving,
    /// The response is complete, and another may be asked for.
    Ready,
    /// The connection carries no other request; the next one needs another.
    Spent,
    Over,
}

/// What a stream counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Connecting,
    Filling,
    Streaming,
    Lost,
}

#[derive(Debug, Clone)]
struct Stream {
    buffer: Buffer,
    parser: Parser,
    /// The last request: where it begins in the connection's stream, and for which block.
    asked_at: u64,
    block: u32,
    /// Where the next one begins.
    ask_next_at: u64,
    phase: Phase,
    counted: Counted,
    attempts: u8,
}

/// One thread's streams.
pub(crate) struct Player {
    script: Script,
    streams: Vec<Stream>,
    cache: HeadCache,
    random: SplitMix,
    /// Streams that drain, the one due next first: all have one period.
    ticks: VecDeque<(u64, u32)>,
    /// Streams that connect again, the one due next first.
    retries: VecDeque<(u64, u32)>,
    pub(crate) orders: Vec<Order>,
    pub(crate) counts: Counts,
    now_ns: u64,
    /// What happened to buffers, in order: a model is computed from it.
    #[cfg(test)]
    pub(crate) trace: Vec<(usize, Traced)>,
}

/// One thing that happened to a buffer.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traced {
    Arrived(u64),
    Ticked,
}

impl Player {
    pub(crate) fn new(script: Script) -> Player {
        Player {
            random: SplitMix::new(script.seed),
            script,
            streams: Vec::new(),
            cache: HeadCache::new(),
            ticks: VecDeque::new(),
            retries: VecDeque::new(),
            orders: Vec::new(),
            counts: Counts::default(),
            now_ns: 0,
            #[cfg(test)]
            trace: Vec::new(),
        }
    }

    /// A number for the carrier's own choices, of the same seed.
    pub(crate) fn random(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Streams begun, lost ones included.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Begins one more stream.
    pub(crate) fn open(&mut self) {
        let index = self.streams.len();
        self.streams.push(Stream {
            buffer: Buffer::EMPTY,
            parser: Parser::new(),
            asked_at: 0,
            block: 0,
            ask_next_at: 0,
            phase: Phase::Connecting,
            counted: Counted::Connecting,
            attempts: 0,
        });
        self.counts.standing.opened += 1;
        self.counts.standing.connecting += 1;
        self.orders.push(Order::Connect(index));
    }

    /// Tells the time: drains what is due, and tries again what failed.
    pub(crate) fn tell(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        while let Some(&(due_ns, index)) = self.ticks.front()
            && due_ns <= now_ns
        {
            self.ticks.pop_front();
            self.counts.tick_late_ns_max = self.counts.tick_late_ns_max.max(now_ns - due_ns);
            if self.tick(index as usize) {
                self.ticks.push_back((due_ns + self.script.tick_ns, index));
            }
        }
        while let Some(&(due_ns, index)) = self.retries.front()
            && due_ns <= now_ns
        {
            self.retries.pop_front();
            let stream = &mut self.streams[index as usize];
            if stream.phase == Phase::Waiting {
                stream.phase = Phase::Connecting;
                self.orders.push(Order::Connect(index as usize));
            }
        }
    }

    /// When [`Player::tell`] has something to do at the latest.
    pub(crate) fn next_ns(&self) -> u64 {
        let due = |queue: &VecDeque<(u64, u32)>| queue.front().map_or(u64::MAX, |(due_ns, _)| *due_ns);
        due(&self.ticks).min(due(&self.retries))
    }

    /// One tick of one stream. False if the stream is over.
    fn tick(&mut self, index: usize) -> bool {
        let stream = &mut self.streams[index];
        if stream.phase == Phase::Over {
            return false;
        }
        #[cfg(test)]
        self.trace.push((index, Traced::Ticked));
        match stream.buffer.tick(&self.script.shape) {
            Tick::Quiet => {}
            Tick::Hungry { taken } => {
                self.orders.push(Order::Read(index, taken));
                self.ask(index);
            }
            Tick::Underrun => {
                self.lose(index, Loss::Underrun);
                self.orders.push(Order::Reset(index));
                return false;
            }
        }
        let level = self.streams[index].buffer.level();
        self.counts.level_min = Some(self.counts.level_min.map_or(level, |least| least.min(level)));
        true
    }

    /// The connection is there.
    pub(crate) fn connected(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        stream.phase = Phase::Ready;
        stream.parser = Parser::new();
        stream.ask_next_at = 0;
        stream.attempts = 0;
        stream.buffer.lose_waiting();
        self.counts.connections += 1;
        if stream.counted == Counted::Connecting {
            self.count_as(index, Counted::Filling);
        }
        self.ask(index);
    }

    /// Asks for another block if the buffer wants one, over a connection that can.
    fn ask(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if !stream.buffer.is_reading() {
            return;
        }
        match stream.phase {
            Phase::Ready => {
                stream.block = self.random.below(self.script.requests.len() as u64) as u32;
                let length = self.script.requests[stream.block as usize].len();
                stream.asked_at = stream.ask_next_at;
                stream.ask_next_at += length as u64;
                stream.phase = Phase::Receiving;
                self.counts.requests += 1;
                self.orders.push(Order::Send(index, length));
            }
            Phase::Spent => {
                stream.phase = Phase::Connecting;
                stream.attempts = 0;
                self.orders.push(Order::Close(index));
                self.orders.push(Order::Connect(index));
            }
            _ => {}
        }
    }

    /// Writes the connection's stream of requests from `offset` on.
    pub(crate) fn fill(&self, index: usize, offset: u64, buffer: &mut [u8]) {
        let stream = &self.streams[index];
        let request = &self.script.requests[stream.block as usize];
        // Earlier requests were answered, and so have arrived.
        let at = offset.saturating_sub(stream.asked_at) as usize;
        buffer.copy_from_slice(&request[at..at + buffer.len()]);
    }

    /// How many bytes of content would be read now.
    pub(crate) fn room(&self, index: usize) -> u64 {
        self.streams[index].buffer.room(&self.script.shape)
    }

    /// Bytes arrived. Returns how many of them are taken at once; an [`Order::Read`] takes the others.
    pub(crate) fn received(&mut self, index: usize, data: &[u8]) -> usize {
        let stream = &mut self.streams[index];
        match stream.phase {
            Phase::Receiving => {}
            Phase::Ready => {
                self.fail(index, Loss::Malformed);
                return data.len();
            }
            _ => return data.len(),
        }
        let before = stream.parser.content_bytes();
        let (used, response) = match stream.parser.feed(data, &mut self.cache) {
            Ok(parsed) => parsed,
            Err(_) => {
                self.fail(index, Loss::Malformed);
                return data.len();
            }
        };
        let seen = response.map_or(stream.parser.content_bytes(), |response| response.body_bytes);
        let content = seen.saturating_sub(before);
        let (taken, filled) = stream.buffer.receive(content, &self.script.shape);
        #[cfg(test)]
        self.trace.push((index, Traced::Arrived(content)));
        self.counts.standing.bytes += content;
        if filled {
            self.count_as(index, Counted::Streaming);
            self.ticks.push_back((self.now_ns + self.script.tick_ns, index as u32));
        }
        if let Some(response) = response {
            if used < data.len() {
                self.fail(index, Loss::Malformed);
                return data.len();
            }
            self.complete(index, response);
        }
        data.len() - (content - taken) as usize
    }

    fn complete(&mut self, index: usize, response: Response) {
        if !(200..300).contains(&response.status) {
            return self.fail(index, Loss::WrongStatus);
        }
        self.streams[index].phase = if response.keep_alive { Phase::Ready } else { Phase::Spent };
        self.ask(index);
    }

    /// The server has closed; all it sent has been delivered.
    pub(crate) fn ended(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        match stream.phase {
            Phase::Receiving => match stream.parser.finish() {
                Some(response) => self.complete(index, Response { keep_alive: false, ..response }),
                None => self.fail(index, Loss::ClosedEarly),
            },
            Phase::Ready => {
                stream.phase = Phase::Spent;
                self.ask(index);
            }
            _ => {}
        }
    }

    /// The connection is gone, or was never made.
    pub(crate) fn broken(&mut self, index: usize, loss: Loss) {
        let stream = &mut self.streams[index];
        match stream.phase {
            Phase::Connecting => {
                self.counts.connects_failed += 1;
                stream.attempts += 1;
                if stream.attempts >= self.script.attempts {
                    return self.lose(index, loss);
                }
                stream.phase = Phase::Waiting;
                self.retries.push_back((self.now_ns + RETRY_NS, index as u32));
            }
            Phase::Receiving => self.lose(index, loss),
            Phase::Ready | Phase::Spent => {
                stream.phase = Phase::Spent;
                stream.buffer.lose_waiting();
                self.ask(index);
            }
            Phase::Waiting | Phase::Over => {}
        }
    }

    fn fail(&mut self, index: usize, loss: Loss) {
        self.lose(index, loss);
        self.orders.push(Order::Reset(index));
    }

    fn lose(&mut self, index: usize, loss: Loss) {
        self.streams[index].phase = Phase::Over;
        self.counts.lose(loss);
        self.count_as(index, Counted::Lost);
    }

    fn count_as(&mut self, index: usize, counted: Counted) {
        let before = std::mem::replace(&mut self.streams[index].counted, counted);
        for (place, more) in [(before, false), (counted, true)] {
            let standing = &mut self.counts.standing;
            let count = match place {
                Counted::Connecting => &mut standing.connecting,
                Counted::Filling => &mut standing.filling,
                Counted::Streaming => &mut standing.streaming,
                Counted::Lost => continue,
            };
            *count = if more { *count + 1 } else { *count - 1 };
        }
    }

    /// The stream's buffer.
    #[cfg(test)]
    pub(crate) fn buffer(&self, index: usize) -> Buffer {
        self.streams[index].buffer
    }
}
