//! Connections of a process that died without ending them. The kernel ends what a dead process had; here nothing is left of a
//! connection but its addresses, which the XDP program or the switch remembers. So each peer is sent two segments, of which one
//! at least is outside of its window, and it answers with an acknowledgment (RFC 9293 3.10.7.4). That is nobody's any more: the
//! host's kernel, or another stack, resets the connection, with the number that the peer has just named.
//!
//! What is remembered may be over: then the peer answers with RST, and nothing has happened. A firewall on the way that follows
//! sequence numbers may drop the two segments; the peer hears then when it next sends something itself.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};
use overfly_link::tap;
use overfly_wire::tcp::{self, Timestamps};
use overfly_wire::{MacAddr, ethernet, ipv4, ipv6};
use rustix::net::{
    AddressFamily, Protocol, RawProtocol, SendFlags, SocketFlags, SocketType, sendto, socket_with, sockopt,
};

use crate::program::{ANSWERED, FlowKey};
use crate::socket_table::SocketTable;

/// Connections whose peers are asked before the device, and whatever else this core does, have their turn.
const BURST: usize = 128;
/// How long that is.
const PAUSE: Duration = Duration::from_millis(1);
/// When they are asked once more. Linux answers a peer whose numbers are wrong twice a second (tcp_invalid_ratelimit).
const AGAIN: Duration = Duration::from_secs(1);
/// No window is as wide as half the numbers (RFC 7323 2.3): of two that are so far apart one is outside.
const SEQUENCES: [u32; 2] = [0, 1 << 31];
/// `IPPROTO_RAW`: packets with their IP headers (raw(7)).
const RAW: u32 = 255;
const HOP_LIMIT: u8 = 64;
/// Bytes of a TCP header with timestamps.
const SEGMENT_LEN: usize = tcp::HEADER_LEN + 12;

/// The packets, IP header first, that have the peer of a TCP connection say where it is. None between two families.
fn questions(local: SocketAddr, remote: SocketAddr) -> impl Iterator<Item = Vec<u8>> {
    SEQUENCES.into_iter().filter_map(move |sequence| question(local, remote, sequence))
}

fn question(local: SocketAddr, remote: SocketAddr, sequence: u32) -> Option<Vec<u8>> {
    let header = tcp::Header {
        source_port: local.port(),
        destination_port: remote.port(),
        sequence,
        flags: tcp::Flags::ACK,
        // Some drop what comes without, where timestamps are in use (RFC 7323 3.2).
        options: tcp::Options { timestamps: Some(Timestamps { value: 0, echo: 0 }), ..tcp::Options::NONE },
        ..tcp::Header::default()
    };
    let payload_len = SEGMENT_LEN as u16;
    match (local.ip(), remote.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = vec![0; ipv4::HEADER_LEN + SEGMENT_LEN];
            let (ip, segment) = packet.split_at_mut(ipv4::HEADER_LEN);
            ipv4::Header {
                source,
                destination,
                protocol: ipv4::PROTOCOL_TCP,
                ttl: HOP_LIMIT,
                tos: 0,
                identification: 0,
                dont_fragment: true,
                payload_len,
            }
            .emit(ip);
            header.emit(segment);
            tcp::write_checksum(segment, source, destination);
            Some(packet)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = vec![0; ipv6::HEADER_LEN + SEGMENT_LEN];
            let (ip, segment) = packet.split_at_mut(ipv6::HEADER_LEN);
            ipv6::Header {
                source,
                destination,
                protocol: ipv4::PROTOCOL_TCP,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
                flow_label: 0,
                payload_len,
            }
            .emit(ip);
            header.emit(segment);
            tcp::write_checksum(segment, source, destination);
            Some(packet)
        }
        _ => None,
    }
}

/// The connections of listeners that the XDP program remembers, each with the mark of its stack.
pub(crate) struct Records {
    map: HashMap<MapData, FlowKey, u32>,
    max: usize,
}

impl Records {
    /// Reads the map, which holds so many.
    pub(crate) fn new(map: OwnedFd, max: usize) -> Result<Records, MapError> {
        let map = HashMap::try_from(Map::LruHashMap(MapData::from_fd(map)?))?;
        Ok(Records { map, max })
    }

    /// Those of stacks that have or had one of these marks.
    fn of(&self, marks: &[u32]) -> impl Iterator<Item = FlowKey> {
        let theirs =
            |(flow, recorded): (FlowKey, u32)| marks.contains(&(recorded & !ANSWERED)).then_some(flow);
        // An entry that goes while it is read may have the reading begin again.
        self.map.iter().take(2 * self.max).filter_map(Result::ok).filter_map(theirs)
    }
}

/// A stack's, as the XDP program knows them.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// What stands for the stack beside connections of listeners.
    pub(crate) mark: u32,
    /// Connections that it opened, and connected UDP sockets.
    pub(crate) opened: Vec<FlowKey>,
    /// Where they were.
    pub(crate) interface: u32,
}

/// Has the kernel ask the peers of dead stacks, in the network namespace of the thread that calls what is returned.
pub(crate) fn asking(records: Records) -> impl FnMut(&[Orphans]) + Send + 'static {
    move |dead| {
        let Some(&Orphans { interface, .. }) = dead.last() else { return };
        let (raw, mut sockets) = (Raw::open(interface), SocketTable::open());
        let marks: Vec<u32> = dead.iter().map(|dead| dead.mark).collect();
        let opened = dead.iter().flat_map(|dead| dead.opened.iter().copied());
        // The first ones are there for certain.
        let all = opened.chain(records.of(&marks)).filter(|flow| flow.protocol() == ipv4::PROTOCOL_TCP);
        let alone = all.map(|flow| flow.ends()).inspect(|&(local, remote)| {
            if let Ok(sockets) = &mut sockets {
                sockets.end_time_wait(local, remote, interface);
            }
        });
        ask_all(alone.map(|ends| (ends, ())), |packet, to, ()| raw.send(packet, to));
    }
}

/// A connection, local end first, and its peer's hardware address.
pub(crate) type Reached = ((SocketAddr, SocketAddr), MacAddr);

/// Asks the peers of dead stacks by a queue of a tap device; `own` is the program's hardware address.
pub(crate) fn asking_by_tap(queue: OwnedFd, own: MacAddr) -> impl FnMut(&[Vec<Reached>]) + Send + 'static {
    move |dead| {
        ask_all(dead.iter().flatten().copied(), |packet, to, destination| {
            let ethertype = if to.is_ipv4() { ethernet::ETHERTYPE_IPV4 } else { ethernet::ETHERTYPE_IPV6 };
            let mut frame = vec![0; ethernet::HEADER_LEN];
            ethernet::Header { destination, source: own, ethertype }.emit(&mut frame);
            frame.extend(packet);
            tap::send(queue.as_fd(), &frame);
        });
    }
}

/// Has `send` ask the peer of each connection, local end first, in bursts.
fn ask_all<T: Copy>(
    connections: impl IntoIterator<Item = ((SocketAddr, SocketAddr), T)>,
    mut send: impl FnMut(&[u8], SocketAddr, T),
) {
    for (number, ((local, remote), way)) in (1..).zip(connections) {
        questions(local, remote).for_each(|packet| send(&packet, remote, way));
        if number % BURST == 0 {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Sends packets the way that the kernel has to their addresses, by an interface.
struct Raw {
    interface: u32,
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl Raw {
    /// In the network namespace of the calling thread. Needs CAP_NET_RAW, as every AF_XDP socket does.
    fn open(interface: u32) -> Raw {
        let open = |family| {
            let protocol = RawProtocol::new(RAW).map(Protocol::from_raw);
            let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol).ok()?;
            // What a full device has no room for is as lost as on the way.
            sockopt::set_socket_send_buffer_size(&socket, 1 << 20).ok()?;
            Some(socket)
        };
        Raw { interface, v4: open(AddressFamily::INET), v6: open(AddressFamily::INET6) }
    }

    fn send(&self, packet: &[u8], mut to: SocketAddr) {
        // Raw sockets have no ports.
        to.set_port(0);
        let socket = match &mut to {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(to) => {
                if to.ip().is_unicast_link_local() {
                    to.set_scope_id(self.interface);
                }
                &self.v6
            }
        };
        if let Some(socket) = socket {
            let _ = sendto(socket, packet, SendFlags::DONTWAIT, &to);
        }
    }
}

type Work<J> = Box<dyn FnMut(&[J]) + Send>;

/// A thread that has the peers of dead processes told, begun when the first one dies: twice, since a frame may be lost. Dropping
/// it waits until all have been told once.
pub(crate) struct Teller<J> {
    work: Option<Work<J>>,
    thread: Option<(Sender<J>, JoinHandle<()>)>,
}

impl<J: Send + 'static> Teller<J> {
    /// `work` is done in the thread, with what has been told since it was done last, and what was told then.
    pub(crate) fn new(work: impl FnMut(&[J]) + Send + 'static) -> Teller<J> {
        Teller { work: Some(Box::new(work)), thread: None }
    }

    /// False if there is no thread to be had.
    pub(crate) fn tell(&mut self, job: J) -> bool {
        if let Some(work) = self.work.take() {
            let (sender, jobs) = channel();
            let thread = std::thread::Builder::new().name("overfly-orphans".to_owned());
            self.thread = thread.spawn(move || run(&jobs, work)).ok().map(|thread| (sender, thread));
        }
        self.thread.as_ref().is_some_and(|(sender, _)| sender.send(job).is_ok())
    }
}

fn run<J>(jobs: &Receiver<J>, mut work: Work<J>) {
    let mut told = Vec::new();
    loop {
        let first = if told.is_empty() {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            jobs.recv_timeout(AGAIN)
        };
        let new: Vec<J> = match first {
            Ok(first) => std::iter::once(first).chain(jobs.try_iter()).collect(),
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let again = told.len();
        told.extend(new);
        work(&told);
        told.drain(..again);
    }
}

impl<J> Drop for Teller<J> {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use overfly_wire::ip::Packet;

    use super::*;

    #[test]
    fn of_two_questions_one_is_outside_of_any_window() {
        let ends = [("10.0.0.1:80", "10.0.0.2:4000"), ("[fd00::1]:80", "[fd00::2]:4000")];
        for (local, remote) in ends.map(|(local, remote)| (local.parse().unwrap(), remote.parse().unwrap())) {
            let packets: Vec<Vec<u8>> = questions(local, remote).collect();
            let sequences = packets.iter().map(|packet| {
                let packet = match local.ip() {
                    IpAddr::V4(_) => Packet::V4(ipv4::Packet::parse(packet).unwrap()),
                    IpAddr::V6(_) => Packet::V6(ipv6::Packet::parse(packet).unwrap()),
                };
                assert_eq!((packet.source(), packet.destination()), (local.ip(), remote.ip()));
                let segment = tcp::Segment::parse(packet.payload()).unwrap();
                assert_eq!((segment.source_port(), segment.destination_port()), (80, 4000));
                assert_eq!(segment.flags(), tcp::Flags::ACK);
                assert!(segment.options().unwrap().timestamps.is_some());
                let holds = match (packet.source(), packet.destination()) {
                    (IpAddr::V4(source), IpAddr::V4(destination)) => {
                        segment.checksum_holds(source, destination)
                    }
                    (IpAddr::V6(source), IpAddr::V6(destination)) => {
                        segment.checksum_holds(source, destination)
                    }
                    _ => false,
                };
                assert!(holds);
                segment.sequence()
            });
            let sequences: Vec<u32> = sequences.collect();
            // The widest window is 65,535 << 14.
            assert!(sequences[1].wrapping_sub(sequences[0]) > 65_535 << 14);
            assert!(sequences[0].wrapping_sub(sequences[1]) > 65_535 << 14);
        }
        assert_eq!(questions("10.0.0.1:80".parse().unwrap(), "[fd00::2]:1".parse().unwrap()).count(), 0);
    }

    #[test]
    fn all_are_told_twice_or_before_the_end() {
        let (told, heard) = channel();
        let mut teller = Teller::new(move |jobs: &[i32]| told.send(jobs.to_vec()).unwrap());
        assert!(teller.tell(0));
        // Once more, and then no more.
        assert_eq!([heard.recv(), heard.recv()], [Ok(vec![0]), Ok(vec![0])]);
        for job in 1..=3 {
            assert!(teller.tell(job));
        }
        drop(teller);
        let rest: BTreeSet<i32> = heard.iter().flatten().collect();
        assert_eq!(rest, BTreeSet::from([1, 2, 3]));
    }
}
