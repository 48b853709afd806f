//! Datagrams that do not arrive, and those that are read as one.

use std::net::UdpSocket;

use super::datagrams::{Twins, about, send_to};
use super::*;

const IP: c_int = libc::IPPROTO_IP;

/// Where nobody is, for each of the twins.
fn nobody() -> [SocketAddr; 2] {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    [SocketAddr::new(CLIENT.into(), 9), closed]
}

#[test]
fn the_error_queue_says_what_did_not_arrive() {
    script(|world| {
        let twins = Twins::new(&world);
        let nobody = nobody();
        let ends = twins.ends;
        let to = |end| nobody[usize::from(end == ends[1])];
        assert_eq!(twins.same(|end| set_option(end, IP, libc::IP_RECVERR, &1)), Ok(0));
        assert_eq!(twins.same(|end| about(end, 512, libc::MSG_ERRQUEUE)).0, Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| send_to(end, b"lost", to(end))), Ok(4));
        for end in ends {
            until(|| (polled(end, libc::POLLIN, 10) & libc::POLLERR != 0).then_some(()));
        }
        let (read, flags, told) = twins.same(|end| about(end, 512, libc::MSG_ERRQUEUE));
        assert_eq!((read, flags, told), (Ok(4), libc::MSG_ERRQUEUE, vec![(IP, libc::IP_RECVERR, 48)]));
        assert_eq!(twins.same(|end| about(end, 512, libc::MSG_ERRQUEUE)).0, Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| recv(end, 10, libc::MSG_DONTWAIT)), Err(Errno::AGAIN));
        // Without room for it, and with all else that is told.
        assert_eq!(twins.same(|end| set_option(end, IP, libc::IP_RECVTTL, &1)), Ok(0));
        for room in [512, 20] {
            assert_eq!(twins.same(|end| send_to(end, b"lost", to(end))), Ok(4));
            for end in ends {
                until(|| (polled(end, libc::POLLIN, 10) & libc::POLLERR != 0).then_some(()));
            }
            let (read, flags, _) = twins.same(|end| about(end, room, libc::MSG_ERRQUEUE));
            let cut = if room == 20 { libc::MSG_CTRUNC } else { 0 };
            assert_eq!((read, flags), (Ok(4), libc::MSG_ERRQUEUE | cut));
        }
        // Who does not ask the queue is told by the next call.
        assert_eq!(twins.same(|end| send_to(end, b"lost", to(end))), Ok(4));
        for end in ends {
            until(|| (polled(end, libc::POLLIN, 10) & libc::POLLERR != 0).then_some(()));
        }
        assert_eq!(twins.same(|end| number(end, libc::SOL_SOCKET, libc::SO_ERROR)), Ok(libc::ECONNREFUSED));
        assert_eq!(twins.same(|end| number(end, libc::SOL_SOCKET, libc::SO_ERROR)), Ok(0));
        assert_eq!(twins.same(|end| set_option(end, IP, libc::IP_RECVERR, &0)), Ok(0));
        twins.close();
    });
}

#[test]
fn without_an_error_queue_nobody_hears_of_it() {
    script(|world| {
        let twins = Twins::new(&world);
        let nobody = nobody();
        let ends = twins.ends;
        assert_eq!(twins.same(|end| send_to(end, b"lost", nobody[usize::from(end == ends[1])])), Ok(4));
        twins.hear(b"later");
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"later".to_vec()));
        twins.close();
    });
}

#[test]
fn datagrams_of_one_length_are_read_as_one() {
    script(|world| {
        let twins = Twins::new(&world);
        let [ours, _] = twins.ends;
        assert_eq!(twins.same(|end| set_option(end, libc::SOL_UDP, libc::UDP_GRO, &1)), Ok(0));
        for data in [b"first-".as_slice(), b"second", b"3rd"] {
            twins.far_send(data);
        }
        // How many have come when it is read is not known: all of them in the end, in order.
        let mut all = Vec::new();
        while all.len() < 15 {
            let data = recv(ours, 100, 0).unwrap();
            assert!([3, 6, 9, 12, 15].contains(&data.len()));
            all.extend(data);
        }
        assert_eq!(all, b"first-second3rd");
        twins.hear(b"alone");
        assert_eq!(recv(ours, 100, 0), Ok(b"alone".to_vec()));
        assert_eq!(close(ours), Ok(0));
    });
}
