//! The service over a backing of this test's own: what it asks of a backing, and what of the answers clients hear. No privilege is needed.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use overfly_broker::message::{Kind, MemifPart, Request};
use overfly_broker::service::{Asked, Asker, Backing, Broker, Denial, Outcome, deliver};
use overfly_broker::{Client, Deferral, Error, Interface, LeftFrames, Protocol, Refusal, Route, Sockets};
use overfly_wire::MacAddr;
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(10);
/// Who wants the way there hears of it when it has been looked at so often.
const LOOKS: u32 = 3;

/// What a backing was told.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Opened(u16),
    Renewed(u16),
    Asked(Option<u16>, Kind),
    /// It had finished, and its process lived.
    Closed(u16, bool, bool),
}

/// Has two stacks, and notes what it is told.
struct Two {
    told: Sender<Call>,
    open: Vec<u16>,
    socket: UnixDatagram,
}

impl Two {
    fn say(&self, told: Call) {
        let _ = self.told.send(told);
    }

    fn give(&self, client: &OwnedFd) -> bool {
        let part = MemifPart::new(&"@somewhere".parse().expect("an address"));
        deliver(client, part.as_bytes(), &[self.socket.as_fd()])
    }
}

fn denied(refusal: Refusal, reason: &str) -> Denial {
    Denial { refusal, reason: reason.to_owned() }
}

impl Backing for Two {
    /// Looks that are left.
    type Waiting = u32;
    type Error = Denial;

    fn interface(&self) -> Interface {
        Interface {
            name: "two".to_owned(),
            index: 2,
            mac: MacAddr([2; 6]),
            mtu: 1500,
            addresses: vec![(IpAddr::from([10, 2, 2, 2]), 24)],
            partial_checksums: false,
        }
    }

    fn shares(&self) -> Option<Option<Deferral>> {
        None
    }

    fn left(&self) -> Option<LeftFrames> {
        None
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn wake(&mut self, _: &[bool]) -> u64 {
        0
    }

    fn pause(&self) -> Option<Duration> {
        None
    }

    fn open_stack(&mut self, asker: Asker<'_>) -> Result<(u16, bool), Denial> {
        let stack = (0..2).find(|stack| !self.open.contains(stack));
        let stack = stack.ok_or_else(|| denied(Refusal::NoStack, "both are taken"))?;
        self.open.push(stack);
        self.say(Call::Opened(stack));
        Ok((stack, self.give(asker.socket)))
    }

    fn renew_stack(&mut self, asker: Asker<'_>, stack: u16) -> Result<bool, Denial> {
        self.say(Call::Renewed(stack));
        Ok(self.give(asker.socket))
    }

    fn close_stack(&mut self, stack: u16, process: Option<OwnedFd>, finished: bool) -> u64 {
        self.open.retain(|&open| open != stack);
        self.say(Call::Closed(stack, finished, process.is_some()));
        u64::from(stack)
    }

    fn ask(
        &mut self,
        _: Asker<'_>,
        stack: Option<u16>,
        request: Request,
        _: Vec<OwnedFd>,
    ) -> Asked<u32, Denial> {
        self.say(Call::Asked(stack, request.kind));
        match request.kind {
            Kind::Route => Asked::Later(LOOKS),
            Kind::Listen => Asked::Now(Err(denied(Refusal::ListenerTaken, "not here"))),
            _ => Asked::Now(Ok(None)),
        }
    }

    fn go_on(&mut self, _: Option<u16>, looks: &mut u32) -> Option<Outcome<Denial>> {
        *looks -= 1;
        let route = Route { source: IpAddr::from([10, 2, 2, 2]), next_hop: MacAddr([4; 6]) };
        (*looks == 0).then_some(Ok(Some(route)))
    }

    fn tell(&mut self, _: &mut dyn Iterator<Item = (u16, &OwnedFd)>) {}

    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }
}

fn start() -> (Broker, Receiver<Call>) {
    let (told, heard) = channel();
    let socket = UnixDatagram::unbound().expect("a socket");
    (Broker::start(Two { told, open: Vec::new(), socket }, None).expect("a broker"), heard)
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (Refusal, String) {
    match result {
        Err(Error::Refused { refusal, reason }) => (refusal, reason),
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn stacks_are_the_backing_s_and_come_back_to_it() {
    let (broker, told) = start();
    assert!(!broker.is_public());
    let heard = || told.recv_timeout(PATIENCE).expect("the backing is told");
    let mut clients: Vec<Client> =
        (0..3).map(|_| Client::connect(broker.environment()).expect("a client")).collect();
    assert_eq!(clients[0].interface().name, "two");
    for (stack, client) in (0..2).zip(&mut clients) {
        assert!(matches!(client.open_stack(), Ok(Sockets::Memif { .. })));
        assert_eq!(heard(), Call::Opened(stack));
    }
    assert_eq!(refusal(clients[2].open_stack()), (Refusal::NoStack, "both are taken".to_owned()));
    // Who has one is given it once more.
    assert!(clients[1].open_stack().is_ok());
    assert_eq!(heard(), Call::Renewed(1));
    // One says that its connections are over, the other one only goes.
    clients[0].finish().expect("the broker hears it");
    drop(clients.remove(0));
    assert_eq!(heard(), Call::Closed(0, true, true));
    assert!(clients[1].open_stack().is_ok(), "there is one again");
    assert_eq!(heard(), Call::Opened(0));
    drop(clients.remove(0));
    assert_eq!(heard(), Call::Closed(1, false, true));
    drop(clients);
    assert_eq!(heard(), Call::Closed(0, false, true));
    // Its counters are written at the end of a turn: the next turn has ended when somebody new is heard.
    drop(Client::connect(broker.environment()).expect("a client"));
    let counters = broker.counters();
    assert_eq!((counters.stacks_ended, counters.undoing_failed, counters.requests_refused), (3, 1, 1));
}

#[test]
fn an_answer_comes_when_the_backing_has_it() {
    let (broker, told) = start();
    let mut client = Client::connect(broker.environment()).expect("a client");
    client.open_stack().expect("a stack");
    let place = "10.2.2.2:80".parse().expect("a place");
    assert_eq!(
        refusal(client.listen(Protocol::Tcp, place, false)),
        (Refusal::ListenerTaken, "not here".to_owned())
    );
    let route = client.route(IpAddr::from([10, 2, 2, 3])).expect("a way");
    assert_eq!(route.next_hop, MacAddr([4; 6]));
    let all: Vec<Call> = told.try_iter().collect();
    let asked = |kind| Call::Asked(Some(0), kind);
    assert_eq!(all, [Call::Opened(0), asked(Kind::Listen), asked(Kind::Route)]);
}
