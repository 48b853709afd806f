//! Clients that say anything to a listener, in any order, with any descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use overfly_link::memif::{Address, Listener, Settings};
use overfly_link::messages;
use overfly_testing::bytes::Bytes;
use overfly_wire::FrameSink;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};

use super::{memory, write_ring};

/// Bytes of a message, and of a region that the good script has.
const MESSAGE_LEN: usize = 128;
const REGION_LEN: u64 = 1 << 20;
const LOG2_SIZE: u8 = 4;

/// Up to four clients; each has its step in a good client's script, and may leave it at any time.
pub fn memif_messages(data: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("overfly-fuzz-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let address: Address = format!("@{name}").parse().expect("an address");
    let settings = Settings { pairs: 2, ..Settings::default() };
    let mut listener = Listener::bind(&address, settings).expect("a listener");
    let mut clients: Vec<(OwnedFd, usize)> = Vec::new();
    let mut bytes = Bytes(data);
    while let Some(decision) = bytes.byte() {
        let client = usize::from(decision & 3);
        if client >= clients.len() {
            clients.push((dial(&name), 0));
        }
        let (socket, step) = {
            let index = client.min(clients.len() - 1);
            &mut clients[index]
        };
        let mut message = script(*step);
        match decision >> 2 & 7 {
            // A field or two are others.
            0 | 1 => {
                let at = bytes.below(MESSAGE_LEN).unwrap_or_default().min(48);
                let other = bytes.take(4);
                message[at..at + other.len()].copy_from_slice(other);
            }
            // The message of another step.
            2 => message = script(bytes.below(8).unwrap_or_default()),
            // Any bytes, any number of them.
            3 => {
                let length = bytes.below(140).unwrap_or_default();
                message = bytes.take(length).to_vec();
            }
            _ => {}
        }
        let descriptor = match decision >> 5 {
            0 => None,
            1 => Some(memory(4096)),
            2 => Some(rustix::pipe::pipe().expect("a pipe").0),
            3 => Some(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")),
            _ => right_descriptor(*step),
        };
        *step += 1;
        // The listener may have hung up.
        let rights: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        let _ = messages::send(&*socket, &message, &rights, SendFlags::DONTWAIT);
        while let Some(connection) = listener.poll().expect("nothing is wrong with the kernel") {
            for mut link in connection.open().into_iter().flatten() {
                link.receive(8, |frame| drop(frame.to_vec()));
                if let Some(frame) = link.frame() {
                    frame[0] = 1;
                    link.commit(1);
                }
                link.flush();
                link.arm();
            }
        }
    }
    // Whoever comes next is greeted.
    let next = dial(&name);
    assert!(listener.poll().expect("nothing is wrong with the kernel").is_none());
    let mut hello = [0; MESSAGE_LEN];
    let heard = messages::receive(&next, &mut hello, RecvFlags::DONTWAIT).map(|(length, _)| length);
    assert_eq!((heard, hello[0]), (Ok(MESSAGE_LEN), 2), "HELLO");
}

fn dial(name: &str) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    let place = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    connect(&socket, &place).expect("a listener whose queue is not full");
    socket
}

/// A good client's messages, as memif.h lays them out: INIT, ADD_REGION, ADD_RING four times, CONNECT.
fn script(step: usize) -> Vec<u8> {
    let ring = |to_server: u8, index: u8, offset: u32| {
        [&[5, 0, to_server, 0, index, 0, 0, 0][..], &offset.to_le_bytes(), &[LOG2_SIZE]].concat()
    };
    let mut message = match step {
        0 => {
            let mut init = vec![3, 0, 0, 2];
            init.resize(33, 0);
            [&init[..], b"overfly/1 offload"].concat()
        }
        1 => [&[4, 0, 0, 0][..], &REGION_LEN.to_le_bytes()].concat(),
        2 | 3 => ring(1, step as u8 - 2, (step as u32 - 2) * 2 * 4096),
        4 | 5 => ring(0, step as u8 - 4, (step as u32 - 4) * 2 * 4096 + 4096),
        6 => vec![6, 0],
        _ => vec![8, 0],
    };
    message.resize(MESSAGE_LEN, 0);
    message
}

fn right_descriptor(step: usize) -> Option<OwnedFd> {
    match step {
        1 => {
            let memory = memory(REGION_LEN);
            for ring in 0..4 {
                write_ring(&memory, ring * 4096, LOG2_SIZE, (ring + 1) * 0x2_0000, 4096);
            }
            Some(memory)
        }
        2..=5 => Some(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")),
        _ => None,
    }
}
