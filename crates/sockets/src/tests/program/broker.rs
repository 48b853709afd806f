//! The broker of a test's process: it grants everything, but for what the test forbids, and notes what it was asked for.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use overfly_broker::message::{Kind, MemifPart, Request};
use overfly_broker::service::{
    Asked, Asker, Backing, Broker, Denial, Outcome, Service, Serving, Sockets, deliver, listen_at,
    public_name,
};
use overfly_broker::{Deferral, Heard, Interface, Lease, LeftFrames, Refusal, Route};
use overfly_link::memif::{Address, Listener, Settings};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::tests::joined::interface;
use crate::tests::{CLIENT_MAC, SERVER_IP, SERVER_V6};

/// What a test knows of its broker.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    asked: Vec<Request>,
    forbidden: Vec<(Kind, Refusal)>,
    /// Where what is handed over is connected to.
    onward: Option<SocketAddr>,
}

impl Told {
    /// What was asked for so far, of one kind.
    pub(super) fn asked(&self, kind: Kind) -> Vec<Request> {
        self.0.lock().unwrap().asked.iter().filter(|request| request.kind == kind).copied().collect()
    }

    /// What is asked of this kind from now on is refused.
    pub(super) fn forbid(&self, kind: Kind, refusal: Refusal) {
        self.0.lock().unwrap().forbidden.push((kind, refusal));
    }

    /// Nothing is refused any more.
    pub(super) fn allow(&self) {
        self.0.lock().unwrap().forbidden.clear();
    }

    /// What is handed over goes on with who listens there.
    pub(super) fn connect_onward(&self, to: SocketAddr) {
        self.0.lock().unwrap().onward = Some(to);
    }
}

/// Gives each stack a place where memif clients connect, who are none.
struct Granting {
    told: Told,
    listener: Listener,
    place: Address,
    stacks: u16,
}

/// Starts it.
pub(super) fn start() -> (Broker, Told) {
    let told = Told::default();
    (Broker::start(granting(&told), None).unwrap(), told)
}

/// One that stands as a service: when it ends, another may take its place.
pub(super) struct Standing {
    name: String,
    pub(super) told: Told,
    serving: Option<Serving>,
    lease: Option<Lease>,
}

impl Standing {
    pub(super) fn start() -> Standing {
        let name = public_name(&format!("unit-{}", std::process::id()));
        let mut standing = Standing { name, told: Told::default(), serving: None, lease: None };
        standing.serve();
        standing.lease = Some(Lease::at(&standing.name).unwrap());
        standing
    }

    /// Takes the leash of this process, which is the program's: it does not end with the broker.
    pub(super) fn take_leash(&self) {
        let lease = self.lease.as_ref().unwrap();
        loop {
            match lease.hear() {
                Heard::Leash(leash) => return core::mem::forget(leash),
                Heard::News(_) => {}
                other => panic!("no leash: {other:?}"),
            }
        }
    }

    /// Where observers look.
    pub(super) fn watched(&self) -> String {
        format!("watched-{}", std::process::id())
    }

    /// What processes are told.
    pub(super) fn environment(&self) -> &str {
        self.lease.as_ref().unwrap().environment()
    }

    fn serve(&mut self) {
        let listener = listen_at(&self.name).unwrap();
        let public = listen_at(&public_name(&self.watched())).ok();
        let sockets = Sockets { listener, name: self.name.clone(), public };
        let service = Service::standing(granting(&self.told), sockets, "");
        self.serving = Some(Serving::start(move |stopped| service.run(Some(&stopped))).unwrap());
    }

    /// It says farewell, and ends when its clients have left, or after a while.
    pub(super) fn end(&mut self) -> JoinHandle<()> {
        let serving = self.serving.take();
        std::thread::spawn(move || drop(serving))
    }

    /// Another one begins, and the program returns to it.
    pub(super) fn again(&mut self) {
        self.serve();
        let lease = self.lease.take().unwrap();
        let name = self.name.clone();
        self.lease = lease.again(name.rsplit('/').next().unwrap()).unwrap();
    }
}

fn granting(told: &Told) -> Granting {
    let place: Address = format!("@overfly-test-{}", std::process::id()).parse().unwrap();
    let listener = Listener::bind(&place, Settings::default()).unwrap();
    Granting { told: told.clone(), listener, place, stacks: 0 }
}

/// Connects a socket, and waits for that also if its program would not.
fn connect(socket: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    match rustix::net::connect(socket, &to) {
        Err(Errno::INPROGRESS) => {
            poll(&mut [PollFd::new(socket, PollFlags::OUT)], None)?;
            rustix::net::sockopt::socket_error(socket)?
        }
        outcome => outcome,
    }
}

fn denied(refusal: Refusal) -> Denial {
    Denial { refusal, reason: "the test forbids it".to_owned() }
}

impl Backing for Granting {
    type Waiting = ();
    type Error = Denial;

    fn interface(&self) -> Interface {
        interface()
    }

    fn open_stack(&mut self, asker: Asker<'_>) -> Result<(u16, bool), Denial> {
        let said = self.told.0.lock().unwrap();
        if let Some(&(_, refusal)) = said.forbidden.iter().find(|(kind, _)| *kind == Kind::OpenStack) {
            return Err(denied(refusal));
        }
        drop(said);
        self.stacks += 1;
        let part = MemifPart::new(&self.place);
        Ok((self.stacks, deliver(asker.socket, part.as_bytes(), &[self.listener.socket()])))
    }

    fn shares(&self) -> Option<Option<Deferral>> {
        Some(None)
    }

    fn pause(&self) -> Option<Duration> {
        None
    }

    fn renew_stack(&mut self, _: Asker<'_>, _: u16) -> Result<bool, Denial> {
        Ok(true)
    }

    fn close_stack(&mut self, _: u16, _: Option<OwnedFd>, _: bool) -> u64 {
        0
    }

    fn left(&self) -> Option<LeftFrames> {
        None
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn ask(
        &mut self,
        _: Asker<'_>,
        _: Option<u16>,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Asked<(), Denial> {
        let mut said = self.told.0.lock().unwrap();
        said.asked.push(request);
        let forbidden = said.forbidden.iter().find(|(kind, _)| *kind == request.kind);
        if let Some(&(_, refusal)) = forbidden {
            return Asked::Now(Err(denied(refusal)));
        }
        let source = match request.remote.ip() {
            IpAddr::V4(_) => SERVER_IP.into(),
            IpAddr::V6(_) => SERVER_V6.ip(),
        };
        // Of each connection three descriptors, or two: the first one is its socket.
        let step = if request.kind == Kind::HandOverPair { 3 } else { 2 };
        if let (Kind::HandOver | Kind::GiveAway | Kind::HandOverPair, Some(onward)) =
            (request.kind, said.onward)
        {
            for socket in descriptors.iter().step_by(step) {
                if let Err(error) = connect(socket, onward) {
                    let reason = format!("the test's broker cannot connect it: {error}");
                    return Asked::Now(Err(Denial { refusal: Refusal::NotMoved, reason }));
                }
            }
        }
        Asked::Now(Ok(Some(Route { source, next_hop: CLIENT_MAC })))
    }

    fn go_on(&mut self, _: Option<u16>, (): &mut ()) -> Option<Outcome<Denial>> {
        None
    }

    fn wake(&mut self, _: &[bool]) -> u64 {
        0
    }

    fn tell(&mut self, _: &mut dyn Iterator<Item = (u16, &OwnedFd)>) {}

    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }
}
