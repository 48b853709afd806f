//! One client's connection, without anything that carries it: requests in, a stream of responses out.
//!
//! The stream is never written down. [`Session::fill`] computes any part of it that is not acknowledged, from the list of
//! responses that it consists of. Equal responses in a row are one entry, and there is an end to the others: then input waits.

use std::collections::VecDeque;

use super::counts::Counts;
use super::fault::{Dice, Fault};
use super::reply::{Body, Persistence, Reply, Status, Template};
use super::request::{HeadCache, Parsed, Parser, Request};
use crate::http1::Malformed;

/// Different responses in a row that are under way at most.
const RUNS_MAX: usize = 64;

/// What the connections of a thread share.
pub(crate) struct Site {
    /// Bodies in chunks.
    pub(crate) chunked: bool,
    /// Every response is its connection's last.
    pub(crate) close: bool,
    pub(crate) template: Template,
    pub(crate) cache: HeadCache,
    pub(crate) dice: Dice,
    pub(crate) counts: Counts,
    pub(crate) now_ns: u64,
}

/// Equal responses in a row.
#[derive(Debug, Clone, Copy)]
struct Run {
    reply: Reply,
    wire_len: u64,
    head_len: u32,
    count: u32,
}

/// What only clients need that pipeline different requests.
#[derive(Debug, Default)]
struct Overflow {
    /// Runs after the first.
    runs: VecDeque<Run>,
    /// Bytes received that wait until there is room for their answers.
    input: Vec<u8>,
}

/// How the stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It does not, as yet.
    Open,
    /// With the last response.
    Close,
    /// At once.
    Reset,
    /// Not at all: nothing more is said.
    Silence,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    parser: Parser,
    first: Option<Run>,
    /// Where `first` begins in the stream.
    start: u64,
    /// Where the stream ends.
    end: u64,
    overflow: Option<Box<Overflow>>,
    ending: Ending,
}

impl Session {
    pub(crate) const fn new() -> Session {
        Session { parser: Parser::new(), first: None, start: 0, end: 0, overflow: None, ending: Ending::Open }
    }

    /// Bytes of the stream so far.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn ending(&self) -> Ending {
        self.ending
    }

    /// Nothing is asked for, and everything acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.first.is_none() && self.parser.is_idle()
    }

    /// Some of the stream is not acknowledged.
    pub(crate) fn is_answering(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn is_in_head(&self) -> bool {
        self.parser.is_in_head()
    }

    /// The client is not going to send more: whether it left a request unfinished.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.ending == Ending::Open && !self.parser.is_idle()
    }

    /// Takes what the client sent. Returns how many of the bytes are done with; the others are kept until
    /// [`Session::resume`].
    pub(crate) fn receive(&mut self, data: &[u8], site: &mut Site) -> usize {
        site.counts.bytes_in += data.len() as u64;
        let used = if self.is_blocked() { 0 } else { self.parse(data, site) };
        if used < data.len() {
            self.overflow.get_or_insert_default().input.extend_from_slice(&data[used..]);
        }
        used
    }

    /// Input waits for room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.overflow.as_ref().is_some_and(|overflow| !overflow.input.is_empty())
    }

    /// Goes on with input that waited. Returns how many of its bytes are done with now.
    pub(crate) fn resume(&mut self, site: &mut Site) -> usize {
        let Some(overflow) = &mut self.overflow else {
            return 0;
        };
        let mut input = std::mem::take(&mut overflow.input);
        let used = self.parse(&input, site);
        if let Some(overflow) = &mut self.overflow
            && used < input.len()
        {
            input.drain(..used);
            overflow.input = input;
        }
        used
    }

    fn has_room(&self) -> bool {
        self.overflow.as_ref().is_none_or(|overflow| overflow.runs.len() < RUNS_MAX)
    }

    fn parse(&mut self, data: &[u8], site: &mut Site) -> usize {
        let mut used = 0;
        while used < data.len() && self.ending == Ending::Open {
            if !self.has_room() {
                return used;
            }
            match self.parser.feed(&data[used..], &mut site.cache) {
                Ok((taken, parsed)) => {
                    used += taken;
                    match parsed {
                        None => {}
                        Some(Parsed::Expecting) => self.push(Reply::CONTINUE),
                        Some(Parsed::Request(request)) => self.answer(request, site),
                    }
                }
                Err(malformed) => self.refuse(malformed, site),
            }
        }
        // What comes after the last request is nobody's.
        data.len()
    }

    fn refuse(&mut self, malformed: Malformed, site: &mut Site) {
        site.counts.malformed[malformed as usize] += 1;
        self.push(Reply::BAD_REQUEST);
        self.ending = Ending::Close;
    }

    fn answer(&mut self, request: Request, site: &mut Site) {
        site.counts.requests += 1;
        site.counts.not_found += u64::from(request.size.is_none());
        if site.counts.first_ns == 0 {
            site.counts.first_ns = site.now_ns;
        }
        site.counts.last_ns = site.now_ns;

        let mut reply = reply_to(request, site);
        let mut ending = if reply.persistence == Persistence::Close { Ending::Close } else { Ending::Open };
        if let Some(fault) = site.dice.throw() {
            site.counts.faults[fault as usize] += 1;
            match fault {
                Fault::Reset => {
                    self.ending = Ending::Reset;
                    return;
                }
                Fault::Stall => (reply.body, ending) = (Body::Half, Ending::Silence),
                Fault::Short => (reply.body, ending) = (Body::Half, Ending::Close),
                Fault::Garbage => (reply.body, ending) = (Body::Garbage, Ending::Close),
                Fault::Lie => reply.body = Body::Excess,
            }
        }
        self.push(reply);
        self.ending = ending;
    }

    fn push(&mut self, reply: Reply) {
        let run = Run { reply, wire_len: reply.wire_len(), head_len: reply.head_len() as u32, count: 1 };
        self.end += run.wire_len;
        let last = match &mut self.overflow {
            Some(overflow) if !overflow.runs.is_empty() => overflow.runs.back_mut(),
            _ => self.first.as_mut(),
        };
        match last {
            Some(last) if last.reply == reply && last.count < u32::MAX => last.count += 1,
            Some(_) => self.overflow.get_or_insert_default().runs.push_back(run),
            None => self.first = Some(run),
        }
    }

    /// Stream bytes below `offset` are not asked for again.
    pub(crate) fn acknowledged(&mut self, offset: u64) {
        while let Some(run) = &mut self.first {
            let whole = ((offset - self.start) / run.wire_len).min(u64::from(run.count));
            self.start += whole * run.wire_len;
            run.count -= whole as u32;
            if run.count > 0 {
                return;
            }
            self.first = self.overflow.as_mut().and_then(|overflow| overflow.runs.pop_front());
            if self.first.is_none() && !self.is_blocked() {
                self.overflow = None;
            }
        }
    }

    /// Writes the stream's bytes from `offset` on; they are not acknowledged and were promised.
    #[inline]
    pub(crate) fn fill(&self, offset: u64, mut buffer: &mut [u8], template: &Template) {
        let mut at = offset - self.start;
        let later = self.overflow.iter().flat_map(|overflow| &overflow.runs);
        for run in self.first.iter().chain(later) {
            let run_len = run.wire_len * u64::from(run.count);
            while at < run_len {
                let within = at % run.wire_len;
                let take = (run.wire_len - within).min(buffer.len() as u64);
                let (now, rest) = buffer.split_at_mut(take as usize);
                run.reply.fill(u64::from(run.head_len), within, now, template);
                (buffer, at) = (rest, at + take);
                if buffer.is_empty() {
                    return;
                }
            }
            at -= run_len;
        }
    }
}

/// What a request is answered with if nothing goes wrong.
fn reply_to(request: Request, site: &Site) -> Reply {
    let status = if request.size.is_some() { Status::Ok } else { Status::NotFound };
    let body = if request.head_only {
        Body::Absent
    } else if site.chunked && request.old {
        Body::UntilClose
    } else if site.chunked {
        Body::Chunked
    } else {
        Body::Whole
    };
    let persistence = if site.close || !request.keep_alive || body == Body::UntilClose {
        Persistence::Close
    } else if request.old {
        Persistence::KeepAlive
    } else {
        Persistence::Implied
    };
    Reply { size: request.size.unwrap_or(0), status, body, persistence }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::serve::fault::Chances;

    /// A thread's, with these faults.
    pub(in super::super) fn site(faults: &[&str]) -> Site {
        let mut chances = Chances::default();
        faults.iter().for_each(|fault| chances.add(fault).unwrap());
        Site {
            chunked: false,
            close: false,
            template: Template::default(),
            cache: HeadCache::new(),
            dice: Dice::new(chances, 1),
            counts: Counts::default(),
            now_ns: 1,
        }
    }

    fn stream(session: &Session, site: &Site) -> Vec<u8> {
        let mut bytes = vec![0; (session.end - session.start) as usize];
        session.fill(session.start, &mut bytes, &site.template);
        bytes
    }

    fn ask(target: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
    }

    fn answer(text: &str, faults: &[&str]) -> (String, Ending, Site) {
        let (mut session, mut site) = (Session::new(), site(faults));
        assert_eq!(session.receive(text.as_bytes(), &mut site), text.len());
        (String::from_utf8(stream(&session, &site)).unwrap(), session.ending(), site)
    }

    const OK: &str = "HTTP/1.1 200 OK\r\n";

    #[test]
    fn answers() {
        let (text, ending, site) = answer(&(ask("/2") + &ask("/none")), &[]);
        let not_found = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(text, format!("{OK}Content-Length: 2\r\n\r\nov{not_found}"));
        assert_eq!((ending, site.counts.requests, site.counts.not_found), (Ending::Open, 2, 1));

        let (text, ending, _) = answer("HEAD /2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &[]);
        assert_eq!(text, format!("{OK}Content-Length: 2\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(ending, Ending::Open);

        let (text, ending, site) = answer(&("GET /2 HTTP/1.0\r\n\r\n".to_string() + &ask("/")), &[]);
        assert_eq!(text, format!("{OK}Content-Length: 2\r\nConnection: close\r\n\r\nov"));
        assert_eq!((ending, site.counts.requests), (Ending::Close, 1));

        let (text, ending, site) = answer(&(ask("/") + "rubbish"), &[]);
        assert!(text.starts_with(&format!("{OK}Content-Length: 0\r\n\r\n")) && ending == Ending::Open);
        assert_eq!(site.counts.malformed_total(), 0, "it may be a method");
        let (text, ending, site) = answer(&(ask("/") + "rubb\u{1}sh" + &ask("/")), &[]);
        assert!(text.ends_with("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        assert_eq!((ending, site.counts.malformed_total(), site.counts.requests), (Ending::Close, 1, 1));

        let expects = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
        assert_eq!(answer(expects, &[]).0, "HTTP/1.1 100 Continue\r\n\r\n");
    }

    #[test]
    fn faults() {
        let whole = format!("{OK}Content-Length: 8\r\n\r\n");
        let fault = |name: &str| {
            let (text, ending, site) = answer(&ask("/8"), &[name]);
            assert_eq!(site.counts.faults.iter().sum::<u64>(), 1);
            (text, ending)
        };
        assert_eq!(fault("reset"), (String::new(), Ending::Reset));
        assert_eq!(fault("stall"), (format!("{whole}over"), Ending::Silence));
        assert_eq!(fault("short"), (format!("{whole}over"), Ending::Close));
        assert_eq!(fault("lie"), (format!("{whole}overfly 0123456789 ABCDE"), Ending::Open));
        let (text, ending) = fault("garbage");
        assert!(!text.starts_with("HTTP") && ending == Ending::Close);
    }

    #[test]
    fn a_million_equal_requests_are_one_entry() {
        let (mut session, mut site) = (Session::new(), site(&[]));
        let thousand = ask("/1G").repeat(1000);
        for _ in 0..1000 {
            assert_eq!(session.receive(thousand.as_bytes(), &mut site), thousand.len());
        }
        assert!(session.overflow.is_none());
        assert!(session.end() > 1_000_000 * 1_000_000_000);
        let mut part = [0; 5];
        session.fill(session.end() - 5, &mut part, &site.template);
        session.acknowledged(session.end());
        assert!(session.is_idle());
    }

    #[test]
    fn input_waits_while_too_many_different_answers_are_under_way() {
        let (mut session, mut site) = (Session::new(), site(&[]));
        let requests: String = (0..500).map(|size| ask(&format!("/{size}"))).collect();
        let mut done = session.receive(requests.as_bytes(), &mut site);
        assert!(done < requests.len() && session.is_blocked());
        let more = ask("/0");
        assert_eq!(session.receive(more.as_bytes(), &mut site), 0, "order is kept");
        let mut turns = 0;
        while session.is_blocked() {
            assert!(site.counts.requests <= 66 * (turns + 1));
            session.acknowledged(session.end());
            done += session.resume(&mut site);
            turns += 1;
        }
        assert_eq!((done, site.counts.requests), (requests.len() + more.len(), 501));
        session.acknowledged(session.end());
        assert!(session.is_idle() && session.overflow.is_none());
    }

    proptest! {
        /// Whatever was acknowledged, what is left of the stream is what it was.
        #[test]
        fn what_is_not_acknowledged_stays(
            sizes in prop::collection::vec(0..4_u64, 1..40),
            acknowledged in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            part in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let (mut session, mut site) = (Session::new(), site(&[]));
            for size in &sizes {
                let request = ask(&format!("/{}", size * 300));
                session.receive(request.as_bytes(), &mut site);
            }
            let whole = stream(&session, &site);
            let mut below = 0;
            for index in acknowledged {
                below = below.max(index.index(whole.len() + 1));
                session.acknowledged(below as u64);
                let (a, b) = (part.0.index(whole.len() - below + 1), part.1.index(whole.len() - below + 1));
                let (from, until) = (below + a.min(b), below + a.max(b));
                let mut bytes = vec![0; until - from];
                session.fill(from as u64, &mut bytes, &site.template);
                prop_assert!(bytes == whole[from..until]);
            }
        }
    }
}
