//! Frames of several segments: they arrive whole and in their flow's order, beside those of AF_XDP; and whoever has the socket that
//! sends them reaches nothing but the interface.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use overfly_lab::{CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::{StackSockets, XdpLink};
use overfly_steer::{Attachment, Options};
use overfly_testing::Random;
use overfly_wire::{FrameSink, MacAddr, Promised, Promises, Unfinished, ethernet, ipv4, tcp};
use rustix::io::Errno;

const HEADERS: usize = 54;
/// Payload of a segment.
const SEGMENT: usize = 1400;
const PATIENCE: Duration = Duration::from_secs(20);

/// An attachment to the server's end, and the sockets of a stack.
fn attach(lab: &Lab, options: Options) -> (Attachment, StackSockets) {
    lab.server.within(|| {
        let mut attachment = Attachment::attach(INTERFACE, options).unwrap();
        let sockets = attachment.add_stack().unwrap();
        (attachment, sockets)
    })
}

/// The byte of a flow's stream.
fn byte(flow: u16, offset: u32) -> u8 {
    ((offset ^ u32::from(flow) << 24).wrapping_mul(0x9e37_79b9) >> 21) as u8
}

/// Writes a segment of a flow, with its whole checksum or that of the pseudo-header only. Returns the frame's length.
fn write(
    frame: &mut [u8],
    [to, from]: [MacAddr; 2],
    flow: u16,
    offset: u32,
    payload: usize,
    partial: bool,
) -> usize {
    ethernet::Header { destination: to, source: from, ethertype: ethernet::ETHERTYPE_IPV4 }.emit(frame);
    ipv4::Header {
        source: SERVER,
        destination: CLIENT,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: (20 + payload) as u16,
    }
    .emit(&mut frame[14..]);
    tcp::Header {
        source_port: 80,
        destination_port: flow,
        sequence: offset,
        acknowledgment: 0,
        flags: tcp::Flags::ACK,
        window: 0,
        options: tcp::Options::default(),
    }
    .emit(&mut frame[34..]);
    for (at, to) in frame[HEADERS..HEADERS + payload].iter_mut().enumerate() {
        *to = byte(flow, offset + at as u32);
    }
    let segment = &mut frame[34..HEADERS + payload];
    if partial {
        tcp::write_partial_checksum(segment, SERVER, CLIENT);
    } else {
        tcp::write_checksum(segment, SERVER, CLIENT);
    }
    HEADERS + payload
}

/// Payloads that were promised, each cut in two.
struct Payloads(Vec<(Vec<u8>, usize)>);

impl Promises for Payloads {
    fn pieces(&self, promised: Promised) -> (&[u8], &[u8]) {
        let (payload, cut) = &self.0[promised.flow];
        payload.split_at(*cut)
    }
}

/// A packet socket on the other end, which sees everything that arrives there.
fn watch(lab: &Lab) -> OwnedFd {
    lab.client.within(|| {
        // SAFETY: a new socket, which nobody else has.
        let socket = unsafe {
            let number = libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                i32::from((libc::ETH_P_ALL as u16).to_be()),
            );
            assert!(number >= 0);
            std::os::fd::FromRawFd::from_raw_fd(number)
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(64_i32 << 20)).unwrap();
        socket
    })
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> Result<(), Errno> {
    // SAFETY: the value is alive and as long as stated.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    rustix::net::recv(socket, buffer, rustix::net::RecvFlags::empty()).ok().map(|(length, _)| length)
}

/// Commits a frame: a long one with its payload, or with a promise of it.
fn send(
    link: &mut XdpLink,
    macs: [MacAddr; 2],
    flow: u16,
    offset: u32,
    payload: usize,
    payloads: &mut Payloads,
    random: &mut Random,
) {
    let wanted = HEADERS + payload;
    let is_full = if payload > SEGMENT { link.long_frame(wanted).is_none() } else { link.frame().is_none() };
    if is_full {
        // What is promised makes room only here.
        link.redeem(payloads);
        payloads.0.clear();
        link.flush();
    }
    if payload > SEGMENT {
        let frame = link.long_frame(wanted).expect("room for a long frame");
        let length = write(frame, macs, flow, offset, payload, true);
        let left = Unfinished { checksum_from: 34, segment_len: SEGMENT as u16, headers_len: HEADERS as u16 };
        if random.below(2) == 0 {
            let promise = Promised { flow: payloads.0.len(), offset: 0, length: payload };
            payloads.0.push((frame[HEADERS..length].to_vec(), random.below(payload as u64 + 1) as usize));
            frame[HEADERS..].fill(0xee);
            link.commit_promised(left, promise);
        } else {
            link.commit_unfinished(length, left);
        }
    } else {
        let frame = link.frame().expect("room for a frame");
        let length = write(frame, macs, flow, offset, payload, false);
        link.commit(length);
    }
}

#[test]
fn frames_of_both_ways_arrive_whole_and_in_their_flows_order() {
    const FLOWS: u16 = 40;
    const FRAMES: u32 = 20_000;
    let lab = Lab::new(1);
    let (attachment, sockets) = attach(&lab, Options::default());
    assert_eq!(attachment.long_frames(), Ok(()));
    let mut link = XdpLink::open(sockets).unwrap();
    assert_eq!(link.segment_offload(), 65_435);
    let watcher = watch(&lab);
    let macs = [lab.client.mac(), attachment.interface().mac];
    let mut random = Random::seeded();
    let mut payloads = Payloads(Vec::new());
    let mut sent: BTreeMap<u16, u32> = BTreeMap::new();
    let mut arrived: BTreeMap<u16, u32> = BTreeMap::new();
    let mut buffer = vec![0; 70_000];
    let mut take = |arrived: &mut BTreeMap<u16, u32>| {
        while let Some(length) = receive(&watcher, &mut buffer) {
            let Ok((link, packet)) = ethernet::Header::parse(&buffer[..length]) else { continue };
            let Ok(packet) = ipv4::Packet::parse(packet) else { continue };
            let Ok(segment) = tcp::Segment::parse(packet.payload()) else { continue };
            // What the client's kernel answers is seen, too.
            if segment.source_port() != 80 || link.source != macs[1] {
                continue;
            }
            let next = arrived.entry(segment.destination_port()).or_default();
            assert_eq!(segment.sequence(), *next, "flow {}", segment.destination_port());
            let flow = segment.destination_port();
            let good = segment.payload().iter().zip(*next..).all(|(&its, at)| its == byte(flow, at));
            assert!(good, "the bytes of flow {flow} from {next} on");
            *next += segment.payload().len() as u32;
        }
    };
    for _ in 0..FRAMES {
        let flow = 1000 + random.below(u64::from(FLOWS)) as u16;
        let offset = sent.entry(flow).or_default();
        let payload = match random.below(3) {
            0 => 2 * SEGMENT + random.below(60_000 - 2 * SEGMENT as u64) as usize,
            1 => 2 * SEGMENT + random.below(9_000) as usize,
            _ => random.below(SEGMENT as u64 + 1) as usize,
        };
        send(&mut link, macs, flow, *offset, payload, &mut payloads, &mut random);
        *offset += payload as u32;
        if random.below(20) == 0 {
            link.redeem(&payloads);
            payloads.0.clear();
            link.flush();
            link.retry();
            take(&mut arrived);
        }
    }
    link.redeem(&payloads);
    let end = Instant::now() + PATIENCE;
    while arrived.iter().ne(sent.iter()) {
        link.retry();
        link.flush();
        take(&mut arrived);
        assert!(Instant::now() < end, "{:?} {:?}", link.counters(), link.long_frame_counters());
    }
    let counters = link.long_frame_counters();
    assert!(counters.frames > 10_000 && counters.followers > 100, "{counters:?}");
    assert!(counters.in_place > 3_000 && counters.in_place < counters.frames, "{counters:?}");
    assert!(counters.calls < counters.frames, "several leave in one call: {counters:?}");
    assert!(!link.is_busy());
    assert_eq!((counters.dropped, counters.failed, counters.interface_down), (0, 0, 0));
}

/// A frame whose lengths lie is refused by the kernel, and the next one goes.
#[test]
fn frames_that_lie_are_counted_and_harm_nobody() {
    let lab = Lab::new(1);
    let (attachment, sockets) = attach(&lab, Options::default());
    let mut link = XdpLink::open(sockets).unwrap();
    let watcher = watch(&lab);
    let macs = [lab.client.mac(), attachment.interface().mac];
    let good = Unfinished { checksum_from: 34, segment_len: SEGMENT as u16, headers_len: HEADERS as u16 };
    let lies = [
        Unfinished { headers_len: u16::MAX, ..good },
        Unfinished { checksum_from: u16::MAX, ..good },
        Unfinished { headers_len: 1, ..good },
        Unfinished { segment_len: 1, ..good },
        Unfinished { segment_len: u16::MAX, ..good },
        Unfinished { checksum_from: 0, ..good },
    ];
    for (flow, lie) in (2000..).zip(lies) {
        let payload = 4 * SEGMENT;
        let frame = link.long_frame(HEADERS + payload).unwrap();
        let length = write(frame, macs, flow, 0, payload, true);
        link.commit_unfinished(length, lie);
        link.flush();
    }
    assert!(link.long_frame_counters().failed > 0, "{:?}", link.long_frame_counters());
    let frame = link.long_frame(HEADERS + 4 * SEGMENT).unwrap();
    let length = write(frame, macs, 3000, 0, 4 * SEGMENT, true);
    link.commit_unfinished(length, good);
    link.flush();
    let mut buffer = vec![0; 70_000];
    let end = Instant::now() + PATIENCE;
    let arrived = |bytes: &[u8]| bytes.len() == length && bytes[36..38] == 3000_u16.to_be_bytes();
    while !receive(&watcher, &mut buffer).is_some_and(|length| arrived(&buffer[..length])) {
        assert!(Instant::now() < end, "{:?}", link.long_frame_counters());
    }
    assert!(!link.is_busy());
}

/// What is still waiting when the interface goes is dropped and counted, and nobody waits for it.
#[test]
fn an_interface_that_goes_takes_waiting_frames_along() {
    let lab = Lab::new(1);
    let (attachment, sockets) = attach(&lab, Options::default());
    let mut link = XdpLink::open(sockets).unwrap();
    let macs = [lab.client.mac(), attachment.interface().mac];
    let payload = 4 * SEGMENT;
    let length = write(link.long_frame(HEADERS + payload).unwrap(), macs, 2000, 0, payload, true);
    link.commit_unfinished(
        length,
        Unfinished { checksum_from: 34, segment_len: SEGMENT as u16, headers_len: HEADERS as u16 },
    );
    lab.part();
    link.flush();
    assert_eq!(link.long_frame_counters().interface_down, 1);
    assert!(!link.is_busy());
}

#[test]
fn where_it_cannot_be_the_reason_is_said() {
    let lab = Lab::new(1);
    let (attachment, sockets) = attach(&lab, Options { segment_offload: false, ..Options::default() });
    assert_eq!(attachment.long_frames(), Err("switched off"));
    assert!(sockets.long_frames.is_none());
    assert_eq!(XdpLink::open(sockets).unwrap().segment_offload(), 0);
    drop(attachment);
    lab.hold_back();
    let attachment = attach_again(&lab);
    assert!(attachment.long_frames().is_err_and(|reason| reason.contains("tbf")));
}

/// The queues of the one before are free a little later.
fn attach_again(lab: &Lab) -> Attachment {
    let end = Instant::now() + PATIENCE;
    lab.server.within(|| {
        loop {
            match Attachment::attach(INTERFACE, Options::default()) {
                Ok(attachment) => return attachment,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}

/// What a process can do with the socket that it was given, if it has no privilege.
#[test]
fn its_holder_reaches_nothing_but_the_interface_and_reads_nothing() {
    let lab = Lab::new(1);
    // Another interface of the host's, and one of the same wire.
    lab.server.run("link add other type veth peer name another");
    lab.server.run("link set other up");
    lab.server.run(&format!("link add link {INTERFACE} name sibling type macvlan mode bridge"));
    lab.server.run("link set sibling up");
    let (attachment, sockets) = attach(&lab, Options::default());
    let socket = sockets.long_frames.expect("a packet socket");
    let everybody = lab.client.within(|| std::net::UdpSocket::bind((CLIENT, 0)).unwrap());
    everybody.set_broadcast(true).unwrap();
    let reached = lab.server.within(|| std::net::UdpSocket::bind("0.0.0.0:9").unwrap());
    reached.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
            // Interfaces that it can be bound to: the one that it has, and a loopback that is down.
            let bind = |index: i32| {
                // SAFETY: zeros are a valid address, and it is alive during the call.
                let result = unsafe {
                    let mut address: libc::sockaddr_ll = std::mem::zeroed();
                    address.sll_family = libc::AF_PACKET as u16;
                    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
                    address.sll_ifindex = index;
                    libc::bind(
                        socket.as_raw_fd(),
                        (&raw const address).cast(),
                        size_of::<libc::sockaddr_ll>() as libc::socklen_t,
                    )
                };
                if result == 0 { Ok(()) } else { Err(last_error()) }
            };
            let there: Vec<i32> = (1..200).filter(|&index| bind(index) != Err(Errno::NODEV)).collect();
            assert_eq!(there.len(), 2, "{there:?}");
            bind(there[0]).unwrap_or(());
            let sent = rustix::net::send(&socket, &[0; 80], rustix::net::SendFlags::empty());
            assert!(matches!(sent, Err(Errno::NETDOWN | Errno::NXIO)), "{sent:?}");
            bind(there[1]).unwrap();
            // It is bound to all protocols now, and frames for everybody come.
            let mut frame = [0xff; 10 + 60];
            frame[..10].fill(0);
            for _ in 0..20 {
                everybody.send_to(b"for everybody", "10.99.0.255:9").unwrap();
                // The kernel hands a frame to packet sockets before it looks for a UDP socket.
                reached.recv(&mut [0; 20]).expect("the frame comes to the interface");
            }
            assert_eq!(receive(&socket, &mut frame), None, "it receives");
            // The filter stays, and no memory of the kernel's is to be had.
            assert_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0), Err(Errno::PERM));
            let ring = libc::tpacket_req {
                tp_block_size: 1 << 20,
                tp_block_nr: 64,
                tp_frame_size: 2048,
                tp_frame_nr: 32_768,
            };
            let none =
                libc::tpacket_req { tp_block_size: 0, tp_block_nr: 0, tp_frame_size: 0, tp_frame_nr: 0 };
            for option in [libc::PACKET_RX_RING, libc::PACKET_TX_RING] {
                for request in [&ring, &none] {
                    let answer = set(&socket, libc::SOL_PACKET, option, request);
                    assert_eq!(answer, Err(Errno::BUSY), "{option} {}", request.tp_block_nr);
                }
            }
            // SIOCGSKNS (include/uapi/linux/sockios.h): the namespace of the socket, to enter it.
            // SAFETY: the request takes no argument.
            let namespace = unsafe { libc::ioctl(socket.as_raw_fd(), 0x894c) };
            assert!(namespace < 0 && last_error() == Errno::PERM);
        });
    });
    drop(attachment);
}

/// The kernel says nothing of its own by what we made: every frame that leaves has the interface's address.
#[test]
fn nothing_else_is_heard_on_the_wire() {
    let lab = Lab::new(1);
    let watcher = watch(&lab);
    let (attachment, _sockets) = attach(&lab, Options::default());
    let (own, theirs) = (attachment.interface().mac, lab.client.mac());
    let end = Instant::now() + Duration::from_secs(3);
    let mut buffer = vec![0; 70_000];
    while Instant::now() < end {
        while let Some(length) = receive(&watcher, &mut buffer) {
            let (link, _) = ethernet::Header::parse(&buffer[..length]).unwrap();
            assert!(link.source == own || link.source == theirs, "{:x?}", &buffer[..length]);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Namespace and macvlan go with the last socket.
#[test]
fn nothing_is_left_behind() {
    let lab = Lab::new(1);
    let promiscuous =
        || lab.server.command("ip", &["-d", "link", "show", INTERFACE]).contains("promiscuity 1");
    let (attachment, sockets) = attach(&lab, Options::default());
    let link = XdpLink::open(sockets).unwrap();
    assert!(promiscuous(), "the macvlan is there");
    drop((link, attachment));
    let end = Instant::now() + PATIENCE;
    while promiscuous() {
        assert!(Instant::now() < end, "the macvlan stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}
