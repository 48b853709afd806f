//! A low-rate latency probe beside the flows: echo requests (RFC 792, RFC 4443) that whatever stands at the servers' addresses
//! answers. They are written below the stack and taken out before it, so that it measures the way there and back.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET_LEN};
use overfly_wire::{FrameSink, MacAddr, icmpv4, icmpv6, ipv4, ipv6};

use super::ear::Ear;
use crate::error::Error;

/// A reply that takes longer is lost.
const PATIENCE_US: u64 = 1_000_000;
const DATA_LEN: usize = 16;

/// What one probe has found out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProbeTimes {
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Not answered within a second.
    pub(crate) lost: u64,
    pub(crate) min_us: u64,
    pub(crate) max_us: u64,
    pub(crate) sum_us: u64,
    /// RFC 3550 section 6.4.1's estimate over the round trips, µs.
    pub(crate) jitter_us: f64,
    last_us: Option<u64>,
}

impl ProbeTimes {
    fn new((client, server): (IpAddr, IpAddr)) -> ProbeTimes {
        ProbeTimes {
            client,
            server,
            sent: 0,
            received: 0,
            lost: 0,
            min_us: 0,
            max_us: 0,
            sum_us: 0,
            jitter_us: 0.0,
            last_us: None,
        }
    }

    /// The mean round trip, µs.
    pub(crate) fn mean_us(&self) -> f64 {
        if self.received == 0 { 0.0 } else { self.sum_us as f64 / self.received as f64 }
    }

    fn took(&mut self, us: u64) {
        self.min_us = if self.received == 0 { us } else { self.min_us.min(us) };
        self.max_us = self.max_us.max(us);
        self.sum_us += us;
        self.received += 1;
        if let Some(last) = self.last_us.replace(us) {
            self.jitter_us += (us.abs_diff(last) as f64 - self.jitter_us) / 16.0;
        }
    }
}

/// One client and one server.
#[derive(Debug)]
struct Line {
    times: ProbeTimes,
    sequence: u16,
    /// Not answered yet: their sequence numbers, and when they left.
    waiting: VecDeque<(u16, u64)>,
}

/// All probes of a run.
#[derive(Debug)]
pub(crate) struct Probe {
    lines: Vec<Line>,
    interval_us: u64,
    next_us: u64,
    now_us: u64,
    identifier: u16,
    data: [u8; DATA_LEN],
    /// Our hardware address, and the next hop's: those of a frame that came.
    link: Option<(MacAddr, MacAddr)>,
    /// Where answers are the kernel's.
    ear: Option<Ear>,
}

impl Probe {
    /// So many a second for each of the pairs of clients and servers. `secret` marks them as this run's.
    pub(crate) fn new(pairs: &[(IpAddr, IpAddr)], per_s: f64, secret: u64) -> Probe {
        let mut data = *b"overfly-12345678";
        data[8..].copy_from_slice(&secret.to_be_bytes());
        Probe {
            lines: pairs
                .iter()
                .map(|pair| Line { times: ProbeTimes::new(*pair), sequence: 0, waiting: VecDeque::new() })
                .collect(),
            interval_us: (1e6 / per_s) as u64,
            next_us: 0,
            now_us: 0,
            identifier: (secret >> 48) as u16,
            data,
            link: None,
            ear: None,
        }
    }

    /// The answers go to the kernel: they are heard there.
    ///
    /// # Errors
    /// As [`Ear::new`].
    pub(crate) fn listen(&mut self) -> Result<(), Error> {
        self.ear = Some(Ear::new(self.lines.iter().map(|line| line.times.server))?);
        Ok(())
    }

    /// Time has gone on: sends what is due, and gives up what was not answered. No more are sent once `ends`.
    pub(crate) fn at(&mut self, now_us: u64, ends: bool, sink: &mut impl FrameSink) {
        self.now_us = now_us;
        let Some(link) = self.link else { return };
        self.hear();
        if now_us < self.next_us {
            return;
        }
        for line in &mut self.lines {
            while line.waiting.front().is_some_and(|(_, at_us)| now_us - at_us > PATIENCE_US) {
                line.waiting.pop_front();
                line.times.lost += 1;
            }
        }
        // Late ones are not made up for: they would come in bursts.
        self.next_us = now_us.max(self.next_us + self.interval_us);
        if self.next_us - now_us < self.interval_us / 2 {
            self.next_us = now_us + self.interval_us;
        }
        if ends {
            return;
        }
        for line in &mut self.lines {
            let Some(frame) = sink.frame() else { return };
            let (identifier, sequence) = (self.identifier, line.sequence);
            let echo = icmpv6::Echo { kind: icmpv4::Kind::Request, identifier, sequence, data: &self.data };
            let Some(length) = write(frame, link, (line.times.client, line.times.server), &echo) else {
                continue;
            };
            sink.commit(length);
            line.waiting.push_back((line.sequence, now_us));
            line.sequence = line.sequence.wrapping_add(1);
            line.times.sent += 1;
        }
    }

    fn hear(&mut self) {
        if self.lines.iter().all(|line| line.waiting.is_empty()) {
            return;
        }
        let Some(ear) = self.ear.take() else { return };
        ear.hear(|source, destination, echo| _ = self.matches(source, destination, echo));
        self.ear = Some(ear);
    }

    /// When the next one is due, µs, once there is a way for it.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.link.map(|_| self.next_us)
    }

    /// True: the frame is an answer to a probe, and nobody else's.
    #[inline]
    pub(crate) fn takes(&mut self, frame: &[u8]) -> bool {
        if self.link.is_none() {
            self.learn(frame);
        }
        let is_icmp = match frame.get(12..14) {
            Some([8, 0]) => frame.get(23) == Some(&ipv4::PROTOCOL_ICMP),
            Some([0x86, 0xdd]) => frame.get(20) == Some(&ipv6::PROTOCOL_ICMPV6),
            _ => false,
        };
        is_icmp && self.answered(frame).is_some()
    }

    fn learn(&mut self, frame: &[u8]) {
        let Ok((link, _)) = ethernet::Header::parse(frame) else { return };
        let is_host = |mac: MacAddr| mac.0[0] & 1 == 0;
        if matches!(link.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
            && is_host(link.destination)
            && is_host(link.source)
        {
            self.link = Some((link.destination, link.source));
        }
    }

    fn answered(&mut self, frame: &[u8]) -> Option<()> {
        let (link, bytes) = ethernet::Header::parse(frame).ok()?;
        let (source, destination, echo): (IpAddr, IpAddr, icmpv6::Echo<'_>) =
            if link.ethertype == ETHERTYPE_IPV4 {
                let packet = ipv4::Packet::parse(bytes).ok()?;
                let icmpv4::Echo { kind, identifier, sequence, data } =
                    icmpv4::Echo::parse(packet.payload()).ok()?;
                let echo = icmpv6::Echo { kind, identifier, sequence, data };
                (packet.source().into(), packet.destination().into(), echo)
            } else {
                let packet = ipv6::Packet::parse(bytes).ok()?;
                let (source, destination) = (packet.source(), packet.destination());
                let icmpv6::Message::Echo(echo) =
                    icmpv6::Message::parse(packet.payload(), source, destination).ok()?
                else {
                    return None;
                };
                (source.into(), destination.into(), echo)
            };
        self.matches(source, Some(destination), &echo)
    }

    /// `None`: it answers none of ours.
    fn matches(
        &mut self,
        source: IpAddr,
        destination: Option<IpAddr>,
        echo: &icmpv6::Echo<'_>,
    ) -> Option<()> {
        let is_ours =
            echo.kind == icmpv4::Kind::Reply && echo.identifier == self.identifier && echo.data == self.data;
        let now_us = self.now_us;
        let line = self.lines.iter_mut().filter(|_| is_ours).find(|line| {
            line.times.server == source && destination.is_none_or(|client| line.times.client == client)
        })?;
        // One that was answered already, or given up, counts no more.
        if let Some(at) = line.waiting.iter().position(|(sequence, _)| *sequence == echo.sequence)
            && let Some((_, at_us)) = line.waiting.remove(at)
        {
            line.times.took(now_us - at_us);
        }
        Some(())
    }

    /// What was found out so far.
    pub(crate) fn times(&self) -> impl Iterator<Item = &ProbeTimes> {
        self.lines.iter().map(|line| &line.times)
    }
}

/// Writes an echo; `None` if its ends are of two families.
fn write(
    frame: &mut [u8],
    (source, destination): (MacAddr, MacAddr),
    ends: (IpAddr, IpAddr),
    echo: &icmpv6::Echo<'_>,
) -> Option<usize> {
    let mut link = |ethertype| ethernet::Header { destination, source, ethertype }.emit(&mut frame[..]);
    match ends {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            link(ETHERTYPE_IPV4);
            Some(write_v4(&mut frame[ETHERNET_LEN..], client, server, echo))
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            link(ETHERTYPE_IPV6);
            Some(write_v6(&mut frame[ETHERNET_LEN..], client, server, echo))
        }
        _ => None,
    }
}

fn write_v4(packet: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr, echo: &icmpv6::Echo<'_>) -> usize {
    let icmpv6::Echo { kind, identifier, sequence, data } = *echo;
    let length = icmpv4::Echo { kind, identifier, sequence, data }.emit(&mut packet[ipv4::HEADER_LEN..]);
    ipv4::Header {
        source,
        destination,
        protocol: ipv4::PROTOCOL_ICMP,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: length as u16,
    }
    .emit(packet);
    ETHERNET_LEN + ipv4::HEADER_LEN + length
}

fn write_v6(packet: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr, echo: &icmpv6::Echo<'_>) -> usize {
    let length = echo.emit(&mut packet[ipv6::HEADER_LEN..], source, destination);
    ipv6::Header {
        source,
        destination,
        protocol: ipv6::PROTOCOL_ICMPV6,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: length as u16,
    }
    .emit(packet);
    ETHERNET_LEN + ipv6::HEADER_LEN + length
}
