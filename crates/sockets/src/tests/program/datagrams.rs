//! UDP sockets.

use core::net::IpAddr;
use core::ptr::null_mut;
use std::net::UdpSocket;

use libc::{iovec, mmsghdr, msghdr};
use overfly_broker::message::Kind;

use super::sending::message;
use super::*;
use crate::tests::{CLIENT_V6, SERVER_V6};

const FAR_UDP: SocketAddr = SocketAddr::new(IpAddr::V4(CLIENT), 53);
const ALONE: c_int = libc::MSG_DONTWAIT;

/// A program's sockets, one that talks with the peer and one with the kernel's, and who is there.
pub(super) struct Twins {
    pub(super) ends: [c_int; 2],
    ports: [u16; 2],
    peer: Peer,
    id: SocketId,
    kernel: UdpSocket,
}

impl Twins {
    pub(super) fn new(world: &World) -> Twins {
        let id = {
            let mut stack = world.peer.stack();
            let id = stack.open_datagram(5, false, true).unwrap();
            stack.place_datagram(id, FAR_UDP, None, false).unwrap();
            stack.datagrams_mut(id).unwrap().limit = 1 << 20;
            stack.next_hop(now(), SERVER_IP.into(), SERVER_MAC);
            id
        };
        let kernel = UdpSocket::bind("127.0.0.1:0").unwrap();
        kernel.set_read_timeout(Some(PATIENCE)).unwrap();
        let ends = [(); 2].map(|()| socket(libc::AF_INET, libc::SOCK_DGRAM));
        for end in ends {
            assert_eq!(bind(end, "0.0.0.0:0".parse().unwrap()), Ok(0));
        }
        let ports = ends.map(|end| name(end, false).unwrap().port());
        Twins { ends, ports, peer: world.peer.clone(), id, kernel }
    }

    /// Where each one's far end is.
    fn far(&self, end: c_int) -> SocketAddr {
        if end == self.ends[0] { FAR_UDP } else { self.kernel.local_addr().unwrap() }
    }

    #[track_caller]
    pub(super) fn same<R: PartialEq + Debug>(&self, mut call: impl FnMut(c_int) -> R) -> R {
        let [ours, kernels] = self.ends.map(&mut call);
        assert_eq!(ours, kernels, "ours, and the kernel's");
        ours
    }

    pub(super) fn far_send(&self, data: &[u8]) {
        let to = own(self.ports[0]);
        let sent = self.peer.until(|stack| Some(stack.send_datagram(now(), self.id, None, to, data)));
        assert_eq!(sent, Ok(()));
        let _ = self.peer.until(|stack| Some(stack.transmit(now())));
        self.kernel.send_to(data, ("127.0.0.1", self.ports[1])).unwrap();
    }

    /// They have come.
    pub(super) fn hear(&self, data: &[u8]) {
        self.far_send(data);
        for end in self.ends {
            until(|| (polled(end, libc::POLLIN, 0) != 0).then_some(()));
        }
    }

    /// The next datagram at both far ends.
    #[track_caller]
    fn far_read(&self) -> Vec<u8> {
        let mut buffer = [0; 2000];
        let (length, from) = self.kernel.recv_from(&mut buffer).unwrap();
        assert_eq!(from.port(), self.ports[1]);
        let ours = self.peer.until(|stack| {
            let mut buffer = [core::mem::MaybeUninit::new(0_u8); 2000];
            let read = stack.read_datagram(self.id, core::iter::once(&mut buffer[..]), 2000, false)?;
            assert_eq!(read.record.source, own(self.ports[0]));
            // SAFETY: every byte was initialised.
            Some(buffer[..read.copied].iter().map(|byte| unsafe { byte.assume_init() }).collect::<Vec<u8>>())
        });
        assert_eq!(ours, buffer[..length], "at the far ends");
        ours
    }

    /// Traffic class and hop limit of the next datagram at the peer.
    pub(super) fn far_marks(&self) -> (c_int, c_int) {
        let read = self.peer.until(|stack| stack.read_datagram(self.id, core::iter::empty(), 0, false));
        let record = read.record;
        (record.traffic_class.into(), record.hop_limit.into())
    }

    fn connect(&self) {
        assert_eq!(self.same(|end| connect(end, self.far(end))), Ok(0));
    }

    pub(super) fn close(self) {
        assert_eq!(self.same(close), Ok(0));
    }
}

pub(super) fn send_to(end: c_int, data: &[u8], to: SocketAddr) -> Said {
    let (record, length) = record(to);
    let at = (&raw const record).cast();
    // SAFETY: the data and the address are lent.
    said_long(unsafe { send::sendto(end, data.as_ptr().cast(), data.len(), 0, at, length) })
}

/// What is read, and the port that it came from.
fn receive_from(end: c_int, most: usize, flags: c_int) -> Result<(usize, Vec<u8>, u16), Errno> {
    let mut buffer = vec![0_u8; most];
    let (mut at, mut length) = record(own(0));
    // SAFETY: the buffer, the record and its length are lent.
    let read = said_long(unsafe {
        let at = (&raw mut at).cast();
        receive::recvfrom(end, buffer.as_mut_ptr().cast(), most, flags, at, &raw mut length)
    })?;
    buffer.truncate(read as usize);
    // SAFETY: as above.
    let from = unsafe { sockets::address_from((&raw const at).cast(), length) };
    Ok((read as usize, buffer, from.map_or(0, |from| from.port())))
}

#[test]
fn questions_and_answers() {
    script(|world| {
        let twins = Twins::new(&world);
        assert_eq!(twins.same(|end| receive_from(end, 10, ALONE)), Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| send_to(end, b"who?", twins.far(end))), Ok(4));
        assert_eq!(twins.far_read(), b"who?");
        assert_eq!(twins.same(|end| send_to(end, b"", twins.far(end))), Ok(0));
        assert_eq!(twins.far_read(), b"");
        twins.hear(b"it is me");
        assert_eq!(twins.same(|end| queued(end, libc::FIONREAD)), Ok(8));
        assert_eq!(twins.same(|end| recv(end, 2, libc::MSG_PEEK)), Ok(b"it".to_vec()));
        for end in twins.ends {
            let (length, data, port) = receive_from(end, 20, 0).unwrap();
            assert_eq!((length, &data[..], port), (8, &b"it is me"[..], twins.far(end).port()));
        }
        twins.hear(b"too long");
        // With MSG_TRUNC the whole length is said.
        let cut = twins.same(|end| {
            let mut buffer = [0_u8; 3];
            // SAFETY: the buffer is lent.
            (said_long(unsafe { receive::recv(end, buffer.as_mut_ptr().cast(), 3, libc::MSG_TRUNC) }), buffer)
        });
        assert_eq!(cut, (Ok(8), *b"too"));
        twins.hear(b"");
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(vec![]));
        // SAFETY: nothing is read.
        let nothing = |end| said_long(unsafe { receive::read(end, null_mut(), 0) });
        assert_eq!(twins.same(nothing), Ok(0));
        assert_eq!(world.told.asked(Kind::Listen).len(), 2);
        assert_eq!(world.told.asked(Kind::Route).len(), 1);
        twins.close();
        assert_eq!(world.told.asked(Kind::Unlisten).len(), 2);
    });
}

#[test]
fn messages_have_addresses_and_pieces() {
    script(|world| {
        let twins = Twins::new(&world);
        assert_eq!(twins.same(|end| write(end, b"nobody")), Err(Errno::DESTADDRREQ));
        let mut pieces = [b"in ".as_slice(), b"pieces"]
            .map(|piece| iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
        let whole = message(&mut pieces);
        let addressed = |end, at: &mut Record| {
            let length;
            (*at, length) = record(twins.far(end));
            msghdr { msg_name: (&raw mut *at).cast(), msg_namelen: length, ..whole }
        };
        let one = |end| {
            let mut at = record(own(0)).0;
            // SAFETY: the message is lent.
            said_long(unsafe { send::sendmsg(end, &addressed(end, &mut at), 0) })
        };
        assert_eq!(twins.same(one), Ok(9));
        assert_eq!(twins.far_read(), b"in pieces");
        let both = |end| {
            let mut at = record(own(0)).0;
            let mut records = [mmsghdr { msg_hdr: addressed(end, &mut at), msg_len: 0 }; 2];
            // SAFETY: the records are lent.
            (said(unsafe { send::sendmmsg(end, records.as_mut_ptr(), 2, 0) }), records.map(|its| its.msg_len))
        };
        assert_eq!(twins.same(both), (Ok(2), [9, 9]));
        assert_eq!((twins.far_read(), twins.far_read()), (b"in pieces".to_vec(), b"in pieces".to_vec()));
        // No address, and one that is none.
        // SAFETY: as above.
        let nowhere = |end| said_long(unsafe { send::sendmsg(end, &raw const whole, 0) });
        assert_eq!(twins.same(nowhere), Err(Errno::DESTADDRREQ));
        let short = |end| {
            let mut at = record(own(0)).0;
            let cut = msghdr { msg_namelen: 3, ..addressed(end, &mut at) };
            // SAFETY: as above.
            said_long(unsafe { send::sendmsg(end, &raw const cut, 0) })
        };
        assert_eq!(twins.same(short), Err(Errno::INVAL));
        twins.close();
    });
}

/// The kernel chooses the address that a connected socket has: one that is not the stack's leaves it to the kernel.
#[test]
fn connected_sockets_are_where_the_kernel_sees_them() {
    script(|world| {
        let twins = Twins::new(&world);
        let near = twins.kernel.local_addr().unwrap();
        for end in twins.ends {
            assert_eq!(connect(end, near), Ok(0));
            assert_eq!(name(end, true), Ok(near));
            assert_eq!(write(end, b"written"), Ok(7));
            let mut buffer = [0; 20];
            let (length, from) = twins.kernel.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"written");
            twins.kernel.send_to(b"answer", from).unwrap();
            assert_eq!(recv(end, 20, 0), Ok(b"answer".to_vec()));
        }
        // AF_UNSPEC dissolves it.
        // SAFETY: an all-zero record is valid.
        let nowhere: sockaddr = unsafe { core::mem::zeroed() };
        // SAFETY: the record is lent.
        let dissolve = |end| said(unsafe { sockets::connect(end, &raw const nowhere, 16) });
        assert_eq!(twins.same(dissolve), Ok(0));
        assert_eq!(twins.same(|end| name(end, true)), Err(Errno::NOTCONN));
        twins.close();
    });
}

#[test]
fn who_waits_for_a_datagram_gets_it_or_gives_up() {
    script(|world| {
        let twins = Twins::new(&world);
        let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let set = |end| set_option(end, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time);
        assert_eq!(twins.same(set), Ok(0));
        assert_eq!(twins.same(|end| recv(end, 6, 0)), Err(Errno::AGAIN));
        let forever = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let set = |end| set_option(end, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &forever);
        assert_eq!(twins.same(set), Ok(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                twins.far_send(b"at last");
            });
            assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"at last".to_vec()));
        });
        // SAFETY: no memory is lent.
        let shutdown = |end, how| said(unsafe { sockets::shutdown(end, how) });
        assert_eq!(twins.same(|end| shutdown(end, libc::SHUT_RDWR)), Err(Errno::NOTCONN));
        twins.connect();
        assert_eq!(twins.same(|end| shutdown(end, 9)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| shutdown(end, libc::SHUT_RD)), Ok(0));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| shutdown(end, libc::SHUT_WR)), Ok(0));
        assert_eq!(twins.same(|end| send(end, b"late", libc::MSG_NOSIGNAL)), Err(Errno::PIPE));
        twins.close();
    });
}

/// What comes with a datagram, but for times and interfaces: level, type, and length of each control message.
pub(super) fn about(end: c_int, room: usize, flags: c_int) -> (Said, c_int, Vec<(c_int, c_int, usize)>) {
    let (mut buffer, mut control) = ([0_u8; 64], [0_u64; 64]);
    let mut vectors = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 64 }];
    let mut whole = message(&mut vectors);
    (whole.msg_control, whole.msg_controllen) = (control.as_mut_ptr().cast(), room);
    // SAFETY: the message and what it names are lent.
    let read = said_long(unsafe { receive::recvmsg(end, &raw mut whole, flags) });
    (read, whole.msg_flags, control_messages(&whole))
}

fn control_messages(whole: &msghdr) -> Vec<(c_int, c_int, usize)> {
    let mut found = Vec::new();
    // SAFETY: the kernel, or the library, has filled in the room.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(whole);
        while let Some(control) = header.as_ref() {
            found.push((control.cmsg_level, control.cmsg_type, control.cmsg_len));
            header = libc::CMSG_NXTHDR(whole, header);
        }
    }
    found
}

#[test]
fn sockets_are_told_what_they_want_to_know() {
    script(|world| {
        let twins = Twins::new(&world);
        let ip = libc::IPPROTO_IP;
        for (level, option) in [
            (ip, libc::IP_PKTINFO),
            (ip, libc::IP_RECVTTL),
            (ip, libc::IP_RECVTOS),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        ] {
            assert_eq!(twins.same(|end| set_option(end, level, option, &1)), Ok(0));
            twins.hear(b"news");
            let (read, flags, told) = twins.same(|end| about(end, 512, 0));
            assert!(read == Ok(4) && flags == 0 && !told.is_empty());
        }
        twins.hear(b"news");
        assert_eq!(twins.same(|end| about(end, 512, 0)).2.len(), 4);
        for room in [0, 8, 16, 20, 32, 50] {
            twins.hear(b"news");
            let (read, flags, _) = twins.same(|end| about(end, room, 0));
            assert_eq!((read, flags), (Ok(4), libc::MSG_CTRUNC), "{room}");
        }
        assert_eq!(twins.same(|end| set_option(end, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)), Ok(0));
        twins.hear(b"news");
        assert_eq!(twins.same(|end| about(end, 512, 0)).2.len(), 4);
        twins.close();
    });
}

#[test]
fn several_are_read_and_sent_at_once() {
    script(|world| {
        let twins = Twins::new(&world);
        for _ in 0..3 {
            twins.hear(b"each");
        }
        let several = |end, flags| {
            let mut buffers = [[0_u8; 8]; 4];
            let mut vectors =
                buffers.each_mut().map(|buffer| iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 8 });
            let mut records = vectors
                .each_mut()
                .map(|vector| mmsghdr { msg_hdr: message(core::slice::from_mut(vector)), msg_len: 99 });
            // SAFETY: the records and what they name are lent.
            let count = said(unsafe { receive::recvmmsg(end, records.as_mut_ptr(), 4, flags, null_mut()) });
            (count, records.map(|record| record.msg_len))
        };
        let all = twins.same(|end| until(|| Some(several(end, ALONE)).filter(|read| read.0 == Ok(3))));
        assert_eq!(all.1, [4, 4, 4, 99]);
        assert_eq!(twins.same(|end| several(end, ALONE).0), Err(Errno::AGAIN));
        // In pieces, by an option and by a message of its own.
        let udp = libc::SOL_UDP;
        assert_eq!(twins.same(|end| set_option(end, udp, libc::UDP_SEGMENT, &4)), Ok(0));
        assert_eq!(twins.same(|end| send_to(end, b"0123456789", twins.far(end))), Ok(10));
        assert_eq!([(); 3].map(|()| twins.far_read()), [&b"0123"[..], b"4567", b"89"]);
        assert_eq!(twins.same(|end| set_option(end, udp, libc::UDP_SEGMENT, &0)), Ok(0));
        assert_eq!(twins.same(|end| set_option(end, udp, libc::UDP_GRO, &1)), Ok(0));
        twins.close();
    });
}

/// Sends with one control message.
pub(super) fn send_with<T>(end: c_int, to: SocketAddr, level: c_int, kind: c_int, value: T) -> Said {
    let (mut at, length) = record(to);
    let mut control = [0_u64; 8];
    let mut vectors = [iovec { iov_base: b"0123456789".as_ptr().cast_mut().cast(), iov_len: 10 }];
    let mut whole = message(&mut vectors);
    (whole.msg_name, whole.msg_namelen) = ((&raw mut at).cast(), length);
    // SAFETY: there is room for any of the messages.
    unsafe {
        whole.msg_control = control.as_mut_ptr().cast();
        whole.msg_controllen = libc::CMSG_SPACE(size_of::<T>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const whole);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        said_long(send::sendmsg(end, &raw const whole, 0))
    }
}

#[test]
fn messages_say_where_they_are_from_and_in_which_pieces() {
    script(|world| {
        let twins = Twins::new(&world);
        let segment = |end| send_with(end, twins.far(end), libc::SOL_UDP, libc::UDP_SEGMENT, 6_u16);
        assert_eq!(twins.same(segment), Ok(10));
        assert_eq!([twins.far_read(), twins.far_read()], [&b"012345"[..], b"6789"]);
        let info = |end| {
            let any = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: any, ipi_addr: any };
            send_with(end, twins.far(end), libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        };
        assert_eq!(twins.same(info), Ok(10));
        assert_eq!(twins.far_read(), b"0123456789");
        let own_info = libc::in_pktinfo {
            ipi_ifindex: 7,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from(SERVER_IP).to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        assert_eq!(send_with(twins.ends[0], FAR_UDP, libc::IPPROTO_IP, libc::IP_PKTINFO, own_info), Ok(10));
        let nonsense = |end| send_with(end, twins.far(end), libc::SOL_SOCKET, libc::SCM_RIGHTS, -1);
        assert_eq!(twins.same(nonsense), Ok(10), "it is not UDP's");
        twins.close();
    });
}

#[test]
fn sets_and_polls_know_datagrams() {
    script(|world| {
        let twins = Twins::new(&world);
        let set = epoll();
        for end in twins.ends {
            assert_eq!(watch(set, end, libc::EPOLLIN), Ok(0));
        }
        let mut seen = Vec::new();
        twins.hear(b"news");
        while seen.len() < 2 {
            let found = ask(set, 1000).unwrap();
            assert!(!found.is_empty());
            for (_, end) in found {
                let end = end as c_int;
                assert_eq!(recv(end, 10, ALONE), Ok(b"news".to_vec()));
                seen.push(end);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, twins.ends);
        assert_eq!(twins.same(|end| polled(end, libc::POLLIN | libc::POLLOUT, 0)), libc::POLLOUT);
        assert_eq!(close(set), Ok(0));
        twins.close();
    });
}

#[test]
fn what_the_stack_does_not_do_the_kernel_does() {
    script(|world| {
        let twins = Twins::new(&world);
        assert_eq!(twins.same(|end| send_to(end, b"x", twins.far(end))), Ok(1));
        assert_eq!(twins.far_read(), b"x");
        // To this host, from the same socket.
        assert_eq!(send_to(twins.ends[0], b"near", twins.kernel.local_addr().unwrap()), Ok(4));
        let mut buffer = [0; 10];
        let (length, from) = twins.kernel.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.port()), (&b"near"[..], twins.ports[0]));
        twins.kernel.send_to(b"back", from).unwrap();
        assert_eq!(recv(twins.ends[0], 10, 0), Ok(b"back".to_vec()));
        let (too_long, to) = (vec![0; 70_000], twins.far(twins.ends[1]));
        assert_eq!(twins.same(|end| send_to(end, &too_long, to)), Err(Errno::MSGSIZE));
        assert_eq!(twins.same(|end| send_to(end, b"x", "[::1]:9".parse().unwrap())), Err(Errno::AFNOSUPPORT));
        // SAFETY: the call says that it cannot read there.
        let nowhere = |end| said_long(unsafe { receive::recv(end, 0x10 as *mut _, 5, ALONE) });
        twins.hear(b"kept");
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        twins.close();
        world.told.forbid(Kind::Listen, overfly_broker::Refusal::ListenerTaken);
        let end = socket(libc::AF_INET, libc::SOCK_DGRAM);
        assert_eq!(bind(end, "0.0.0.0:0".parse().unwrap()), Ok(0));
        assert_eq!(recv(end, 10, ALONE), Err(Errno::AGAIN));
        assert!(!crate::calls::datagram::is_ours(end), "it is the kernel's");
    });
}

#[test]
fn datagrams_of_both_families() {
    script(|world| {
        let far = SocketAddr::new(CLIENT_V6.into(), 53);
        let id = {
            let mut stack = world.peer.stack();
            let id = stack.open_datagram(5, true, true).unwrap();
            stack.place_datagram(id, far, None, false).unwrap();
            stack.datagrams_mut(id).unwrap().limit = 1 << 20;
            stack.next_hop(now(), SERVER_V6.ip(), SERVER_MAC);
            id
        };
        let end = socket(libc::AF_INET6, libc::SOCK_DGRAM);
        let ipv6 = libc::IPPROTO_IPV6;
        for option in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            assert_eq!(set_option(end, ipv6, option, &1), Ok(0));
        }
        assert_eq!(send_to(end, b"six", far), Ok(3));
        let port = name(end, false).unwrap().port();
        let to = SocketAddr::new(SERVER_V6.ip(), port);
        let sent = world.peer.until(|stack| Some(stack.send_datagram(now(), id, None, to, b"back")));
        assert_eq!(sent, Ok(()));
        world.peer.until(|stack| Some(stack.transmit(now())));
        let (read, flags, told) = about(end, 512, 0);
        assert_eq!((read, flags), (Ok(4), 0));
        let expected =
            [(ipv6, libc::IPV6_PKTINFO, 36), (ipv6, libc::IPV6_HOPLIMIT, 20), (ipv6, libc::IPV6_TCLASS, 20)];
        assert_eq!(told, expected);
        let own_info = libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr {
                s6_addr: match to.ip() {
                    IpAddr::V6(own) => own.octets(),
                    IpAddr::V4(_) => [0; 16],
                },
            },
            ipi6_ifindex: 0,
        };
        assert_eq!(send_with(end, far, ipv6, libc::IPV6_PKTINFO, own_info), Ok(10));
        // A mapped address is the other family's.
        let mapped: SocketAddr = "[::ffff:10.77.0.2]:53".parse().unwrap();
        assert_eq!(send_to(end, b"four", mapped), Ok(4));
        assert_eq!(close(end), Ok(0));
    });
}
