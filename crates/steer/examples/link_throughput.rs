//! What a frame costs over veth, and how many get across.
//!
//! `cargo run --release -p overfly-steer --example link_throughput [SECONDS]` (as root). Two namespaces, one queue.
//!
//! The costs are those of the fastest tenth of many short rounds on one core, so that other work on the machine (also on the
//! other hyperthread of the core) does not show. On veth the sender
//! pays for the receiver's kernel side: its softirq runs inside `sendto`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use overfly_lab::{CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol, ReceiveOffload};
use overfly_wire::{FrameSink, ethernet, ipv4, tcp};
use rustix::thread::{CpuSet, sched_setaffinity};

/// In the driver, as the generator's own end is.
fn attach() -> Attachment {
    let options = Options { receive_offload: ReceiveOffload::Packets, ..Options::default() };
    Attachment::attach(INTERFACE, options).expect("attach")
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |text| text.parse().expect("SECONDS is a number"));
    let duration = Duration::from_secs_f64(seconds);
    println!("One core, ns a frame, fastest tenth of the rounds:");
    println!("frame  batch  write  flush (to a stack)  flush (to the kernel, dropped there)  receive");
    for length in [64, 1514] {
        for batch in [1, 8, 32, 128] {
            cost(length, batch, duration);
        }
    }
    println!(
        "\nXDP program, ns a frame (kernel.bpf_stats_enabled; some 20 ns of it are the clock's own), fastest tenth:"
    );
    program_costs(duration);
    println!("\nTwo cores, both ends at full speed:");
    println!("frame  qdisc  sent/s  received/s  frames a sendto  lost or refused");
    for length in [64, 1514] {
        for qdisc in [false, true] {
            throughput(length, qdisc, duration);
        }
    }
    println!("\nOne 64-byte frame there and back, both ends spinning:");
    ping_pong(duration);
}

/// Two stacks that get every TCP frame for the other's address.
struct Pair {
    near: Attachment,
    far: Attachment,
    sender: XdpLink,
    receiver: XdpLink,
    lab: Lab,
}

impl Pair {
    fn new() -> Pair {
        let lab = Lab::new(1);
        let mut near = lab.client.within(attach);
        let mut far = lab.server.within(attach);
        let sender = lab.client.within(|| claim_everything(&mut near));
        let receiver = lab.server.within(|| claim_everything(&mut far));
        Pair { near, far, sender, receiver, lab }
    }
}

fn claim_everything(attachment: &mut Attachment) -> XdpLink {
    let address = attachment.interface().addresses[0].0;
    let sockets = attachment.add_stack().expect("a stack");
    let stack = sockets.stack;
    attachment.claim_ports(Protocol::Tcp, address, 0..=u16::MAX, stack, 1).expect("a claim");
    XdpLink::open(sockets).expect("a link")
}

/// A TCP frame of that length; of another protocol, if the kernel is to drop it.
fn template(length: usize, from: &Attachment, to: &Attachment, tcp_frame: bool) -> Vec<u8> {
    let mut frame = vec![0; length];
    ethernet::Header {
        destination: to.interface().mac,
        source: from.interface().mac,
        ethertype: ethernet::ETHERTYPE_IPV4,
    }
    .emit(&mut frame);
    ipv4::Header {
        source: CLIENT,
        destination: SERVER,
        protocol: if tcp_frame { ipv4::PROTOCOL_TCP } else { 253 }, // for experiments (RFC 3692)
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: (length - 34) as u16,
    }
    .emit(&mut frame[14..]);
    tcp::Header {
        source_port: 1000,
        destination_port: 2000,
        sequence: 1,
        acknowledgment: 1,
        flags: tcp::Flags::ACK,
        window: 0,
        options: tcp::Options::default(),
    }
    .emit(&mut frame[34..]);
    frame
}

/// Writes frames without flushing; how many had room.
fn write(link: &mut XdpLink, frame: &[u8], count: usize) -> usize {
    for written in 0..count {
        let Some(buffer) = link.frame() else {
            return written;
        };
        buffer[..frame.len()].copy_from_slice(frame);
        link.commit(frame.len());
    }
    count
}

/// The value that a tenth of them do not exceed.
fn fastest(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 10).copied().unwrap_or(f64::NAN)
}

fn cost(length: usize, batch: usize, duration: Duration) {
    let mut pair = Pair::new();
    pin(0);
    let to_stack = template(length, &pair.near, &pair.far, true);
    let to_kernel = template(length, &pair.near, &pair.far, false);
    let (mut writes, mut flushes, mut kernel, mut receives) = (vec![], vec![], vec![], vec![]);
    let each = |from: Instant, to: Instant| (to - from).as_nanos() as f64 / batch as f64;
    let end = Instant::now() + duration / 2;
    while Instant::now() < end {
        let begin = Instant::now();
        write(&mut pair.sender, &to_stack, batch);
        let written = Instant::now();
        pair.sender.flush();
        let flushed = Instant::now();
        let mut sum = 0_u64;
        let received = pair.receiver.receive(batch, |frame| sum += u64::from(frame[37]));
        let done = Instant::now();
        std::hint::black_box(sum);
        if received == batch {
            writes.push(each(begin, written));
            flushes.push(each(written, flushed));
            receives.push(each(flushed, done));
        }
        write(&mut pair.sender, &to_kernel, batch);
        let written = Instant::now();
        pair.sender.flush();
        kernel.push(each(written, Instant::now()));
    }
    println!(
        "{length:5}  {batch:5}  {:5.0}  {:18.0}  {:36.0}  {:7.0}",
        fastest(writes),
        fastest(flushes),
        fastest(kernel),
        fastest(receives),
    );
}

/// What the program at the far end needs for frames that end at different of its steps.
fn program_costs(duration: Duration) {
    let before: Vec<u32> = programs().iter().map(ProgramInfo::id).collect();
    let lab = Lab::new(1);
    pin(0);
    let _stats = enable_stats(Stats::RunTime).expect("bpf statistics");
    let mut far = lab.server.within(attach);
    let program = programs().into_iter().find(|program| !before.contains(&program.id())).expect("a program");
    let program = program.fd().expect("its descriptor");
    let mut near = lab.client.within(attach);
    let mut sender = XdpLink::open(lab.client.within(|| near.add_stack()).expect("a stack")).expect("a link");
    let sockets = lab.server.within(|| far.add_stack()).expect("a stack");
    let stack = sockets.stack;
    let mut receiver = XdpLink::open(sockets).expect("a link");
    let tcp_frame = template(64, &near, &far, true);
    let mut opening = tcp_frame.clone();
    opening[47] = 0x02; // SYN alone
    let mut measure = |name: &str, frame: &[u8]| {
        let (mut costs, end) = (Vec::new(), Instant::now() + duration / 4);
        while Instant::now() < end {
            let (time_before, count_before) = run_time(program.as_fd());
            for _ in 0..20 {
                write(&mut sender, frame, 32);
                sender.flush();
                receiver.receive(64, |_| ());
            }
            let (time, count) = run_time(program.as_fd());
            costs.push((time - time_before) as f64 / (count - count_before).max(1) as f64);
        }
        println!("{name:40}  {:5.0}", fastest(costs));
    };
    measure("nothing asked for: the kernel's", &tcp_frame);
    far.listen(stack, Protocol::Tcp, SocketAddr::new(SERVER.into(), 2000), true).expect("a listener");
    measure("SYN for a listener", &opening);
    measure("connection of a listener", &tcp_frame);
    let mut other_port = tcp_frame.clone();
    other_port[37] ^= 1;
    measure("listeners, but another port: the kernel's", &other_port);
    let (local, remote) = (SocketAddr::new(SERVER.into(), 2001), SocketAddr::new(CLIENT.into(), 1000));
    let connected = lab.server.within(|| far.connect_flow(stack, Protocol::Tcp, local, remote));
    connected.expect("a connection");
    measure("connection that a stack opened", &other_port);
    measure("connection of a listener beside it", &tcp_frame);
}

fn programs() -> Vec<ProgramInfo> {
    let named = |program: &ProgramInfo| program.name_as_str() == Some("overfly_steer");
    loaded_programs().filter_map(Result::ok).filter(named).collect()
}

/// Nanoseconds and runs since the program was loaded (Documentation/bpf: `fdinfo` of a program).
fn run_time(program: BorrowedFd<'_>) -> (u64, u64) {
    let shown =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).expect("fdinfo");
    let value = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name)).expect("a field of fdinfo");
        line.trim().parse().expect("a number")
    };
    (value("run_time_ns:"), value("run_cnt:"))
}

fn throughput(length: usize, qdisc: bool, duration: Duration) {
    let Pair { near, far, mut sender, mut receiver, lab } = Pair::new();
    if qdisc {
        // With any queueing discipline a full veth says so (EAGAIN) instead of dropping.
        lab.client.command("tc", &["qdisc", "replace", "dev", INTERFACE, "root", "pfifo"]);
    }
    let frame = template(length, &near, &far, true);
    let (stop, start) = (AtomicBool::new(false), Barrier::new(2));
    let (sent, sending, received) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            pin(1);
            start.wait();
            let mut received = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                received += receiver.receive(64, |frame| {
                    std::hint::black_box(frame[37]);
                }) as u64;
            }
            received
        });
        let sending = scope.spawn(|| {
            pin(0);
            start.wait();
            let (begin, mut sent) = (Instant::now(), 0);
            while begin.elapsed() < duration {
                sent += write(&mut sender, &frame, 32);
                sender.flush();
            }
            (sent, begin.elapsed())
        });
        let (sent, sending) = sending.join().expect("sender");
        std::thread::sleep(Duration::from_millis(5));
        stop.store(true, Ordering::Relaxed);
        (sent, sending, receiving.join().expect("receiver"))
    });
    let kernel = receiver.kernel_counters().expect("statistics");
    let counters = sender.counters();
    println!(
        "{length:5}  {:5}  {:6.0}  {:10.0}  {:15.1}  veth dropped {}, refused {}; receive ring full {}, no frame {}",
        if qdisc { "pfifo" } else { "none" },
        sent as f64 / sending.as_secs_f64(),
        received as f64 / sending.as_secs_f64(),
        counters.sent_frames as f64 / counters.kicks.max(1) as f64,
        counters.transmit_dropped,
        counters.transmit_again,
        kernel.receive_ring_full,
        kernel.receive_dropped,
    );
}

fn ping_pong(duration: Duration) {
    let Pair { near, far, sender: mut here, receiver: mut there, lab: _lab } = Pair::new();
    let (ping, pong) = (template(64, &near, &far, true), template(64, &far, &near, true));
    let stop = AtomicBool::new(false);
    let mut round_trips_us = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                if there.receive(64, |_| ()) > 0 {
                    write(&mut there, &pong, 1);
                    there.flush();
                }
            }
        });
        pin(0);
        let (begin, mut round_trips_us) = (Instant::now(), Vec::new());
        while begin.elapsed() < duration {
            let turn = Instant::now();
            write(&mut here, &ping, 1);
            here.flush();
            while here.receive(64, |_| ()) == 0 && turn.elapsed() < Duration::from_millis(10) {}
            round_trips_us.push(turn.elapsed().as_nanos() as f64 / 1000.0);
        }
        stop.store(true, Ordering::Relaxed);
        round_trips_us
    });
    round_trips_us.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| round_trips_us[(round_trips_us.len() as f64 * share) as usize];
    println!("{} round trips, median {:.1} us, p99 {:.1} us", round_trips_us.len(), at(0.5), at(0.99));
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // Where there is only one core, both ends share it.
    let _ = sched_setaffinity(None, &set);
}
