//! More connections than a broker has room for: silent ones of anybody's, and ones of a user that has a program's secret.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use overfly_broker::Error;
use overfly_broker::message::Reply;
use overfly_broker::service::Counters;
use overfly_broker::{Client, Leash, Refusal, observer};
use overfly_lab::{Broker, INTERFACE, Lab};
use overfly_steer::{Attachment, Options, over_memif};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};

const NOBODY: u32 = 65534;
const STRANGER: u32 = 65533;
/// Connections that nobody says anything on.
const SILENT: usize = 1500;

/// This process is broker and clients at once.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

fn as_user<R: Send>(lab: &Lab, user: u32, work: impl FnOnce() -> R + Send) -> R {
    lab.server.within(|| {
        rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
        work()
    })
}

fn dial(name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

/// What is said on a connection, if anything is within a while.
fn said(socket: &OwnedFd) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut bytes = vec![0; 1024];
    let (length, _) = recv(socket, bytes.as_mut_slice(), RecvFlags::empty())?;
    bytes.truncate(length);
    Ok(bytes)
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal: Refusal::Full, .. })
}

/// Anybody connects and says nothing, over and over; processes of programs come and go as ever.
fn withstands_silence(lab: &Lab, environment: &str, public: &str, counters: impl Fn() -> Counters + Send) {
    let (name, _) = environment.split_once(':').unwrap();
    for name in [name, public] {
        let before = counters();
        let silent = as_user(lab, STRANGER, || {
            let each = (0..SILENT).map(|_| dial(name));
            each.collect::<Vec<_>>()
        });
        for user in [0, NOBODY, STRANGER] {
            as_user(lab, user, || {
                let mut client = Client::connect(environment).unwrap();
                client.refresh_interface().unwrap();
                assert!(observer::look(public.strip_prefix(observer::PREFIX).unwrap()).is_ok(), "{user}");
            });
        }
        // They had to make place, and were told; the last of them are late before long.
        assert!(counters().connections_refused >= before.connections_refused + SILENT as u64 - 100);
        assert!(is_full(&Reply::parse(&said(&silent[0]).unwrap()).unwrap_err()));
        let end = Instant::now() + Duration::from_secs(20);
        while counters().greetings_refused < before.greetings_refused + 10 {
            assert!(Instant::now() < end, "{:?}", counters());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn broker(lab: &Lab) -> Broker {
    let options = Options { stacks: 4, rx_frames: 1024, rx_ring: 512, tx_frames: 64, ..Options::default() };
    lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, options).unwrap()).unwrap())
}

#[test]
fn silence_keeps_nobody_out() {
    raise_limit();
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let public = format!("{}{INTERFACE}", observer::PREFIX);
    withstands_silence(&lab, broker.environment(), &public, || broker.counters());
}

#[test]
fn nor_does_it_over_memif() {
    raise_limit();
    let lab = Lab::new(1);
    let place = "@crowd".parse().unwrap();
    let broker = lab.server.within(|| over_memif(&place, "10.98.0.1".parse().unwrap(), 24).unwrap());
    let public = format!("{}memif:{place}", observer::PREFIX);
    withstands_silence(&lab, broker.environment(), &public, || broker.counters());
}

#[test]
fn a_full_broker_is_no_dead_one() {
    raise_limit();
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let environment = broker.environment();
    let crowd = as_user(&lab, NOBODY, || {
        let mut crowd = Vec::new();
        loop {
            match Client::connect(environment) {
                Ok(client) => crowd.push(client),
                Err(error) => {
                    assert!(!error.is_end_of_broker(), "{error}");
                    assert!(is_full(&error));
                    break;
                }
            }
            assert!(crowd.len() < 5000);
        }
        // Who can't be tied hears why, and lives.
        let error = Leash::connect(environment).unwrap_err();
        assert!(!error.is_end_of_broker() && is_full(&error));
        crowd
    });
    assert!(crowd.len() > 100, "{}", crowd.len());
    // There is room left for others.
    let mut other = as_user(&lab, STRANGER, || Client::connect(environment).unwrap());
    other.refresh_interface().unwrap();
    drop(crowd);
    let end = Instant::now() + Duration::from_secs(20);
    while as_user(&lab, NOBODY, || Client::connect(environment).is_err()) {
        assert!(Instant::now() < end, "the places come back");
    }
    let (name, _) = environment.split_once(':').unwrap();
    let gone = environment.replace(name, "overfly-nobody-listens-here");
    let error = lab.server.within(|| Client::connect(&gone).unwrap_err());
    assert!(error.is_end_of_broker(), "{error}");
}
