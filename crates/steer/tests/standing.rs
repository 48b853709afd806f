//! A broker that stands as a service ends, and another one takes its place: what its clients hear, who is tied to whom, and who may come
//! back as whom.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overfly_broker::Error;
use overfly_broker::message::{Hello, Role, Token};
use overfly_broker::service::{Admission, Applicant, Event, Share};
use overfly_broker::{Client, Heard, Holder, Lease, Leash, Parting, Refusal, observer};
use overfly_lab::{INTERFACE, Lab};
use overfly_link::messages;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Options, stand};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use zerocopy::IntoBytes;

const OPTIONS: Options = Options {
    queues: None,
    busy_poll: false,
    force_copy: false,
    stacks: 4,
    rx_frames: 2048,
    rx_ring: 256,
    tx_frames: 128,
    flows: 1024,
    min_free_frames: 0,
    huge_pages: overfly_link::xdp::HugePages::No,
    heed_firewall: true,
    judge_senders: true,
    segment_offload: true,
    receive_offload: overfly_steer::ReceiveOffload::Off,
    checksum_offload: overfly_steer::ChecksumOffload::Off,
};

struct Everybody;

impl Admission for Everybody {
    fn judge(&mut self, _: &Applicant) -> Result<Option<Share>, String> {
        Ok(None)
    }

    fn note(&mut self, _: Event) {}
}

/// A broker in a thread.
struct Standing {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Standing {
    fn start(lab: &Lab) -> Standing {
        // A child that another test of this process is about to start may have the last one's socket for a moment still.
        wait_until("the name is nobody's", || lab.server.within(|| Holder::of(INTERFACE)) == Holder::Nobody);
        let (stop, told) = UnixStream::pair().unwrap();
        let (ready, begins) = mpsc::channel();
        let thread = lab.server.within(|| {
            std::thread::spawn(move || {
                let told = OwnedFd::from(told);
                let say = || ready.send(()).unwrap();
                stand(INTERFACE, OPTIONS, "", Box::new(Everybody), &told, say).unwrap();
            })
        });
        begins.recv_timeout(Duration::from_secs(20)).expect("it begins");
        Standing { stop, thread: Some(thread) }
    }

    fn tell_to_stop(&mut self) {
        std::io::Write::write_all(&mut self.stop, b"x").unwrap();
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // It may have ended.
        let _ = std::io::Write::write_all(&mut self.stop, b"x");
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(15), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What comes next that is no news.
fn hears(lease: &Lease) -> Heard {
    loop {
        match lease.hear() {
            Heard::News(_) => {}
            other => return other,
        }
    }
}

fn refusal(error: &Error) -> Refusal {
    match error {
        Error::Refused { refusal, .. } => *refusal,
        other => panic!("{other}"),
    }
}

/// What the broker answers at its public name to a first word; nothing if it hangs up.
fn says(lab: &Lab, hello: Hello) -> Vec<u8> {
    lab.server.within(|| {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let name = format!("{}{INTERFACE}", observer::PREFIX);
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        messages::send(&socket, hello.as_bytes(), &[], SendFlags::empty()).unwrap();
        let mut bytes = [0; 1024];
        let (length, _) = messages::receive(&socket, &mut bytes, RecvFlags::empty()).unwrap_or_default();
        bytes[..length].to_vec()
    })
}

/// The secret in the value of `OVERFLY_BROKER`.
fn secret(environment: &str) -> Token {
    let (_, hex) = environment.rsplit_once(':').unwrap();
    let byte = |place: usize| u8::from_str_radix(&hex[2 * place..][..2], 16).unwrap();
    Token(std::array::from_fn(byte))
}

#[test]
fn its_clients_hear_farewell_and_come_back_to_the_next_one_with_the_same_secret() {
    let lab = Lab::new(1);
    let mut broker = Standing::start(&lab);
    let lease = lab.server.within(|| Lease::at_interface(INTERFACE).unwrap().expect("a broker"));
    let environment = lease.environment().to_owned();
    assert!(lease.may_return() && environment.starts_with(&format!("{}{INTERFACE}:", observer::PREFIX)));
    let mut client = lab.server.within(|| Client::connect(&environment).unwrap());
    let link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    assert!(client.passed_connection().is_none() && client.parting().is_none());
    broker.tell_to_stop();
    wait_until("it says farewell", || {
        client.passed_connection().is_none() && client.parting() == Some(Parting::Farewell)
    });
    // It grants still what is asked for, and takes nobody any more.
    client.refresh_interface().unwrap();
    let error = lab.server.within(|| Client::connect(&environment).unwrap_err());
    assert_eq!(refusal(&error), Refusal::Later);
    let error = lab.server.within(|| Lease::at_interface(INTERFACE).unwrap_err());
    assert_eq!(refusal(&error), Refusal::BadRequest);
    assert!(!broker.has_ended() && lab.server.has_xdp());
    drop((link, client));
    wait_until("it ends with the last who had something", || broker.has_ended());
    assert!(!lab.server.has_xdp());
    assert!(matches!(hears(&lease), Heard::Ended));
    // Nobody is there.
    assert!(lab.server.within(|| Client::connect(&environment).unwrap_err()).is_end_of_broker());
    assert!(lab.server.within(|| lease.again(INTERFACE)).unwrap().is_none());
    // The next one knows nobody at first.
    let _broker = Standing::start(&lab);
    let error = lab.server.within(|| Client::connect(&environment).unwrap_err());
    assert_eq!(refusal(&error), Refusal::Later);
    let again = lab.server.within(|| lease.again(INTERFACE)).unwrap().expect("a broker");
    assert_eq!(again.environment(), environment);
    let mut client = lab.server.within(|| Client::connect(&environment).unwrap());
    drop(XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap());
    // A secret is one program's at a time, and one that everybody knows is none.
    let error = lab.server.within(|| lease.again(INTERFACE).unwrap_err());
    assert_eq!(refusal(&error), Refusal::Later);
    let said = says(&lab, Hello::new(Role::Return, observer::PUBLIC));
    assert!(String::from_utf8_lossy(&said).contains("the program yet"), "{said:?}");
    for role in [Role::Client, Role::Leash] {
        let said = says(&lab, Hello::new(role, Token([1; 16])));
        assert!(String::from_utf8_lossy(&said).contains("the program yet"), "{said:?}");
        let said = says(&lab, Hello::new(role, observer::PUBLIC));
        assert!(String::from_utf8_lossy(&said).contains("the program yet"), "{said:?}");
    }
    // Observers need none, and no program's secret makes one.
    assert!(!says(&lab, Hello::new(Role::Observer, observer::PUBLIC)).is_empty());
    let said = says(&lab, Hello::new(Role::Observer, secret(&environment)));
    assert!(String::from_utf8_lossy(&said).contains("another version"), "{said:?}");
    assert!(again.leave(), "the broker goes on");
    let error = lab.server.within(|| Client::connect(&environment).unwrap_err());
    assert_eq!(refusal(&error), Refusal::Later, "the lease is over");
}

#[test]
fn a_leash_is_held_by_whoever_has_the_lease() {
    let lab = Lab::new(1);
    let mut broker = Standing::start(&lab);
    let lease = lab.server.within(|| Lease::at_interface(INTERFACE).unwrap().expect("a broker"));
    // Tied by hand: a leash that is cut kills this process.
    let theirs = says_leash(&lab, secret(lease.environment()));
    let Heard::Leash(ours) = hears(&lease) else { panic!("no leash") };
    broker.tell_to_stop();
    wait_until("it ends", || broker.has_ended());
    assert_eq!(peek(&theirs), Err(Errno::AGAIN), "the broker's end is not theirs");
    drop(ours);
    assert_eq!(peek(&theirs), Ok(0));
    // Where nobody has the lease there is nobody to be tied to.
    let mut broker = Standing::start(&lab);
    assert!(lab.server.within(|| Leash::connect(lease.environment())).is_err());
    broker.tell_to_stop();
    wait_until("it ends", || broker.has_ended());
}

fn peek(socket: &OwnedFd) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    rustix::net::recv(socket, &mut [0_u8; 1][..], flags).map(|(length, _)| length)
}

/// A leash's end, as a process gets it.
fn says_leash(lab: &Lab, token: Token) -> OwnedFd {
    lab.server.within(|| {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let name = format!("{}{INTERFACE}", observer::PREFIX);
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        messages::send(socket.as_fd(), Hello::new(Role::Leash, token).as_bytes(), &[], SendFlags::empty())
            .unwrap();
        let (_, descriptors) = messages::receive(&socket, &mut [0; 1024], RecvFlags::empty()).unwrap();
        descriptors.into_iter().next().expect("a leash")
    })
}
