//! Which connections a side's kernel goes on with, by what comes to it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use overfly_bench::lab::{CLIENT, Lab, SERVER};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

/// ETH_P_ALL (include/uapi/linux/if_ether.h), as the network has it: what is sent is shown to no other protocol.
const EVERYTHING: u32 = 3u16.to_be() as u32;
const SYN: u8 = 2;
const RST: u8 = 4;

/// Does `work`, and counts the connections between the two sides whose segments came to the server side's kernel meanwhile, though it had not
/// opened them. What Overfly has is not shown to a packet socket: it leaves the device's driver by AF_XDP.
///
/// # Panics
/// If the kernel gives no packet socket.
pub(crate) fn handed_over<T>(lab: &Lab, work: impl FnOnce() -> T) -> (T, u64) {
    let socket = lab.within("server", packet_socket).expect("the server's side").expect("a packet socket");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&socket, &is_done));
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        (result, watcher.join().expect("what watches the kernel"))
    })
}

fn packet_socket() -> Result<OwnedFd, Errno> {
    let protocol = NonZeroU32::new(EVERYTHING).map(Protocol::from_raw);
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(20)))?;
    set_socket_recv_buffer_size_force(&socket, 16 << 20)?;
    Ok(socket)
}

fn watch(socket: &OwnedFd, is_done: &AtomicBool) -> u64 {
    let (mut opened, mut sent, mut received) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    // The headers: the rest is cut off.
    let mut frame = [0; 128];
    loop {
        match recv(socket, &mut frame, RecvFlags::empty()) {
            Ok((length, _)) => {
                let Some(segment) = Segment::of(&frame[..length]) else { continue };
                let of = match (segment.flags & SYN != 0, segment.flags & RST != 0, segment.is_sent) {
                    (true, ..) => &mut opened,
                    // All that the kernel says of a connection that it knows nothing of.
                    (_, true, _) => continue,
                    (_, _, true) => &mut sent,
                    (_, _, false) => &mut received,
                };
                of.insert(segment.ports);
            }
            Err(Errno::INTR) => {}
            Err(_) if is_done.load(Ordering::Relaxed) => {
                return received
                    .iter()
                    .filter(|ports| sent.contains(*ports) && !opened.contains(*ports))
                    .count() as u64;
            }
            Err(_) => {}
        }
    }
}

/// A TCP segment between the two sides.
struct Segment {
    /// By the server's side. Those that Overfly sends together are seen here as well.
    is_sent: bool,
    /// The server side's first.
    ports: [[u8; 2]; 2],
    flags: u8,
}

impl Segment {
    fn of(frame: &[u8]) -> Option<Segment> {
        let (ethernet, packet) = frame.split_at_checked(14)?;
        let (header, _) = packet.split_at_checked(20)?;
        let segment = packet.get(usize::from(header[0] & 0xf) * 4..)?;
        let (from, to) = (&header[12..16], &header[16..]);
        let is_sent = from == SERVER.octets() && to == CLIENT.octets();
        let is_between = is_sent || (from == CLIENT.octets() && to == SERVER.octets());
        (ethernet[12..] == [8, 0] && header[9] == 6 && is_between).then_some(())?;
        let (ports, _) = segment.split_first_chunk::<4>()?;
        let (from, to) = ([ports[0], ports[1]], [ports[2], ports[3]]);
        let ports = if is_sent { [from, to] } else { [to, from] };
        Some(Segment { is_sent, ports, flags: *segment.get(13)? })
    }
}
