//! A program that waits by system calls of its own. The hooks are no libc's here: libc's functions are what such a program does.

use libc::epoll_event;
use overfly_broker::message::Kind;

use super::*;
use crate::table::{self, Entry};

const IN: u32 = libc::EPOLLIN as u32;

/// What the kernel's wait says within so many milliseconds: events and data.
fn ask_kernel(set: c_int, timeout: c_int) -> Vec<(u32, u64)> {
    let mut records = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: the records are lent.
    let count = unsafe { libc::epoll_wait(set, records.as_mut_ptr(), 8, timeout) };
    records.iter().take(count as usize).map(|record| (record.events, record.u64)).collect()
}

/// So many connections come to a listener in a set about which the kernel alone is asked: it has them, and tells the program's data.
fn comes_by_the_kernel(set: c_int, listener: c_int, port: u16, rounds: u32) {
    for round in 0..rounds {
        let there = TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(ask_kernel(set, 5000), [(IN, listener as u64)], "round {round}");
        let (accepted, _) = accept(listener, 0).unwrap();
        assert_eq!(table::lookup(accepted), Entry::Kernel);
        assert_eq!(accept(listener, 0), Err(Errno::AGAIN));
        drop(there);
        assert_eq!(close(accepted), Ok(0));
    }
}

#[test]
fn a_listener_joins_when_a_wait_for_its_set_is_seen() {
    script(|world| {
        let (listener, port) = world.listen();
        let set = epoll();
        assert_eq!(watch(set, listener, libc::EPOLLIN), Ok(0));
        assert_eq!(world.told.asked(Kind::Listen).len(), 0);
        assert_eq!(ask(set, 0), Ok(vec![]));
        assert_eq!(world.told.asked(Kind::Listen).len(), 1);
        let _far = world.peer.connect(own(port), 40_001);
        assert_eq!(ask(set, 5000), Ok(vec![(IN, listener as u64)]));
        assert!(accept(listener, 0).is_ok());
        // Another one in a set whose waits are seen joins at once.
        let (other, _) = world.listen();
        assert_eq!(watch(set, other, libc::EPOLLIN), Ok(0));
        assert_eq!(world.told.asked(Kind::Listen).len(), 2);
    });
}

#[test]
fn a_listener_in_a_set_that_the_kernel_alone_is_asked_about_is_the_kernels() {
    script(|world| {
        let (listener, port) = world.listen();
        assert_eq!(fcntl(listener, libc::F_SETFL, libc::O_NONBLOCK as u64), Ok(0));
        let set = epoll();
        assert_eq!(watch(set, listener, libc::EPOLLIN), Ok(0));
        comes_by_the_kernel(set, listener, port, 3);
        assert_eq!(world.told.asked(Kind::Listen).len(), 0);
    });
}

#[test]
fn a_connection_goes_to_the_kernel_when_a_thread_waits_unseen() {
    script(|world| {
        let onward = TcpListener::bind("127.0.0.1:0").unwrap();
        world.told.connect_onward(onward.local_addr().unwrap());
        let (descriptor, _far) = world.dial();
        let set = epoll();
        assert_eq!(watch(set, descriptor, libc::EPOLLIN), Ok(0));
        let waits = std::thread::spawn(move || ask_kernel(set, 10_000));
        let (mut peer, _) = onward.accept().unwrap();
        peer.write_all(b"there").unwrap();
        assert_eq!(waits.join().unwrap(), [(IN, descriptor as u64)]);
        // The kernel has the connection before the thread that hands it over has said so, with the lock held.
        drop(crate::process::process());
        assert_eq!(table::lookup(descriptor), Entry::Kernel);
        // What the program opens from then on is the kernel's.
        let (kernels, _peer) = world.dial_kernel();
        assert_eq!(table::lookup(kernels), Entry::Kernel);
        let (listener, _) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        assert_eq!(table::lookup(listener), Entry::Kernel);
    });
}

#[test]
fn a_thread_that_is_seen_to_wait_leaves_connections_where_they_are() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        let set = epoll();
        assert_eq!(watch(set, descriptor, libc::EPOLLIN), Ok(0));
        let waits = std::thread::spawn(move || ask(set, 10_000));
        std::thread::sleep(Duration::from_millis(100));
        far.write(b"there");
        assert_eq!(waits.join().unwrap(), Ok(vec![(IN, descriptor as u64)]));
        assert!(crate::hooks::data::is_connection(descriptor), "it is the kernel's");
    });
}

#[test]
fn a_udp_socket_joins_when_a_wait_for_its_set_is_seen() {
    script(|world| {
        let end = socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK);
        let set = epoll();
        assert_eq!(bind(end, "0.0.0.0:0".parse().unwrap()), Ok(0));
        assert_eq!(watch(set, end, libc::EPOLLIN), Ok(0));
        // What the kernel has received is read, as long as it alone is asked.
        assert_eq!(recv(end, 10, 0), Err(Errno::AGAIN));
        assert_eq!(world.told.asked(Kind::Listen).len(), 0);
        assert_eq!(ask(set, 0), Ok(vec![]));
        assert_eq!(world.told.asked(Kind::Listen).len(), 1);
    });
}

/// Adds a socket to a set as no call that the library sees.
fn watch_unseen(set: c_int, descriptor: c_int) {
    let mut event = epoll_event { events: IN, u64: descriptor as u64 };
    // SAFETY: the event is lent.
    assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, descriptor, &raw mut event) }, 0);
}

fn set_nonblocking_unseen(descriptor: c_int) {
    // SAFETY: no memory is lent.
    assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

fn epoll_unseen() -> c_int {
    // SAFETY: no memory is lent.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(set >= 0);
    set
}

#[test]
fn a_listener_in_a_set_that_no_call_has_shown_is_the_kernels() {
    script(|world| {
        let (listener, port) = world.listen();
        set_nonblocking_unseen(listener);
        let set = epoll_unseen();
        watch_unseen(set, listener);
        assert_eq!(accept(listener, 0), Err(Errno::AGAIN));
        comes_by_the_kernel(set, listener, port, 20);
        assert_eq!(world.told.asked(Kind::Listen).len(), 0);
        assert_eq!(table::lookup(listener), Entry::Kernel);
    });
}

#[test]
fn a_listener_that_is_in_no_set_joins_when_it_is_asked() {
    script(|world| {
        let (listener, port) = world.listen();
        assert_eq!(fcntl(listener, libc::F_SETFL, libc::O_NONBLOCK as u64), Ok(0));
        let other = epoll_unseen();
        watch_unseen(other, world.listen().0);
        assert_eq!(accept(listener, 0), Err(Errno::AGAIN));
        assert_eq!(world.told.asked(Kind::Listen).len(), 1);
        let _far = world.peer.connect(own(port), 40_001);
        let accepted = core::iter::repeat_with(|| accept(listener, 0)).find(Result::is_ok).unwrap();
        assert!(crate::hooks::data::is_connection(accepted.unwrap().0));
    });
}

#[test]
fn a_udp_socket_in_a_set_that_no_call_has_shown_is_the_kernels() {
    script(|world| {
        let end = socket(libc::AF_INET, libc::SOCK_DGRAM);
        set_nonblocking_unseen(end);
        assert_eq!(bind(end, "127.0.0.2:0".parse().unwrap()), Ok(0));
        let set = epoll_unseen();
        watch_unseen(set, end);
        for _ in 0..20 {
            assert_eq!(recv(end, 10, 0), Err(Errno::AGAIN));
        }
        assert_eq!(world.told.asked(Kind::Listen).len(), 0);
        assert_eq!(table::lookup(end), Entry::Kernel);
    });
}
