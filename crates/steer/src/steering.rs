//! What a broker whose frames go over an interface gives away: stacks, and which of the interface's frames are theirs. Each
//! stack's part of the shared rings is taken back when it is certain that its process no longer touches them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overfly_broker::message::{Kind, Part, PassedMessage, Request, StackPart, Word};
use overfly_broker::service::{Asked, Asker, Backing, Outcome, deliver};
use overfly_broker::{Deferral, Interface, LeftFrames};
use overfly_link::xdp::StackSockets;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt;
use rustix::process::Pid;
use zerocopy::IntoBytes;

use crate::attachment::Attachment;
use crate::attachment::departures::wait_for_softirqs;
use crate::claim::{Claims, identity};
use crate::error::Error;
use crate::firewall::ControlGroups;
use crate::grants::Grants;
use crate::handover::{Move, Within, parcel};
use crate::netlink::{Asks, Changes, Monitor};
use crate::orphans::{self, Orphans, Teller};
use crate::renewal;
use crate::repair::Room;

/// How long a connection that one listener gave away waits for another to come, as long as somebody listens in the kernel: a server's
/// new process may still be starting.
const PASSED_WAIT: Duration = Duration::from_secs(60);
/// How long it is tried often.
const PASSED_HASTE: Duration = Duration::from_secs(2);
/// How often it is tried.
const PASSED_PAUSE: Duration = Duration::from_millis(5);
/// And afterwards: a server that has stopped to accept for a while.
const PASSED_LONG_PAUSE: Duration = Duration::from_millis(100);
/// Connections of one stack, and of all, that wait to be accepted by another.
const PASSED_OF_ONE_MAX: usize = 1024;
const PASSED_MAX: usize = 4096;
/// How often the kernel is made to look whether gateways are still there, and the program's neighbours are compared with its own.
const GATEWAYS_PAUSE: Duration = Duration::from_secs(30);
/// A process that has closed its connection to the broker and dies is dead by then.
const DYING_MAX: Duration = Duration::from_secs(1);
/// How often a stack that was let go is looked at.
const LINGER_PAUSE: Duration = Duration::from_millis(50);
/// How often to look whether the kernel is through with a stack's rings.
const BARRIER_PAUSE: Duration = Duration::from_millis(2);

/// What cannot be answered yet.
pub struct Waiting(Step);

/// What is to come of it next.
enum Step {
    /// A next hop is to answer, until then; `asks`: what the kernel has not been made to do yet. `held` shows that the client
    /// has the local port.
    NextHop { request: Request, until: Instant, asks: Asks, held: Option<Arc<OwnedFd>> },
    /// The kernel is to have a connection; then another stack accepts it, if that was asked for.
    Move(Move, Option<Passed>),
}

/// A connection of the kernel's on its way from one stack's listener to another's.
struct Passed {
    /// The stack that gave it away.
    from: u16,
    listener: SocketAddr,
    remote: SocketAddr,
    socket: OwnedFd,
    /// How long it waits for somebody to listen.
    until: Instant,
}

impl Passed {
    fn new(from: u16, listener: SocketAddr, remote: SocketAddr, socket: &OwnedFd) -> Result<Passed, Error> {
        let socket = fcntl_dupfd_cloexec(socket, 3).map_err(|errno| Error::system("dup", errno))?;
        Ok(Passed { from, listener, remote, socket, until: Instant::now() + PASSED_WAIT })
    }

    /// Nobody comes for it: its peer hears of it when the broker's descriptor, the last one, is closed (SO_LINGER, socket(7)).
    fn reset(&self) {
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// False if the client does not read.
    fn send(&self, client: &OwnedFd) -> bool {
        deliver(client, PassedMessage::new(self.listener, self.remote).as_bytes(), &[self.socket.as_fd()])
    }
}

/// A stack that nothing is steered to any more and whose process may still be at its rings.
struct Lingering {
    stack: u16,
    /// `None`: it is at its rings no more.
    process: Option<OwnedFd>,
    /// If its process is being killed, these are to be told; until then.
    orphans: Option<(Orphans, Instant)>,
    /// Ends when the kernel is at its rings no more either.
    barrier: Option<JoinHandle<()>>,
}

impl Lingering {
    /// Its process is at its rings no more.
    fn begin_barrier(&mut self) {
        self.process = None;
        // Where there can be no thread, `finish` waits itself.
        self.barrier = std::thread::Builder::new().spawn(wait_for_softirqs).ok();
    }

    /// Whether [`Lingering::finish`] does not wait.
    fn is_over(&self) -> bool {
        self.process.is_none() && self.barrier.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until nobody is at its rings any more.
    fn finish(&mut self) {
        if self.barrier.take().is_none_or(|barrier| barrier.join().is_err()) {
            wait_for_softirqs();
        }
    }
}

/// An attachment, as a broker gives it away: the XDP program is detached with it.
pub struct Steering {
    attachment: Arc<Mutex<Attachment>>,
    monitor: Monitor,
    /// When routes are read again because something changed.
    ways_at: Option<Instant>,
    /// They are not read before.
    ways_not_before: Instant,
    /// When gateways are looked after next.
    gateways_at: Instant,
    /// Readable when the firewall's rules change, if they are heeded.
    rules: Option<OwnedFd>,
    /// When they are to be looked at again though nothing says so.
    rules_due: Option<Instant>,
    /// What else judges packets.
    groups: ControlGroups,
    /// The interface has come back: stacks have new sockets, and clients have not been told yet.
    renewed: bool,
    claims: Claims,
    /// Who listens for having shown a socket.
    grants: Grants,
    room: Room,
    /// Sockets that show who has a local port, by their numbers: one may stand for many connections.
    held: HashMap<u64, Weak<OwnedFd>>,
    lingering: Vec<Lingering>,
    /// Steps of undoing that nobody has heard of.
    failed: u64,
    /// The process of each stack.
    processes: HashMap<u16, Pid>,
    /// Tells the peers of killed processes.
    teller: Teller<Orphans>,
    /// Connections that somebody is to accept.
    passed: Vec<Passed>,
    /// What users have not been told yet, and what they were told last.
    news: Vec<String>,
    said: String,
}

impl Steering {
    /// In the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn new(mut attachment: Attachment) -> Result<Steering, Error> {
        let monitor = Monitor::open().map_err(|errno| Error::system("netlink monitor", errno))?;
        // What changed while it attached, nobody has told.
        attachment.refresh_addresses()?;
        attachment.refresh_ways()?;
        let (rules, rules_due) = attachment.firewall();
        let rules = rules.map(|rules| fcntl_dupfd_cloexec(rules, 3)).transpose();
        let now = Instant::now();
        Ok(Steering {
            monitor,
            ways_at: None,
            ways_not_before: now,
            gateways_at: now + GATEWAYS_PAUSE,
            rules: rules.map_err(|errno| Error::system("dup", errno))?,
            rules_due,
            groups: ControlGroups::default(),
            renewed: false,
            claims: Claims::open(attachment.interface().index)?,
            grants: Grants::new(),
            room: Room::of_kernel(),
            held: HashMap::new(),
            processes: HashMap::new(),
            lingering: Vec::new(),
            failed: 0,
            teller: Teller::new(orphans::asking(attachment.records()?)),
            passed: Vec::new(),
            news: Vec::new(),
            said: String::new(),
            attachment: Arc::new(Mutex::new(attachment)),
        })
    }

    /// The attachment, between two requests. Do not hold it for long.
    #[must_use]
    pub fn attachment(&self) -> Arc<Mutex<Attachment>> {
        Arc::clone(&self.attachment)
    }

    /// Whether a client may have what comes to the address that it names: it shows the kernel's socket there (true), or it could do
    /// what the broker does (false).
    fn check_claim(
        &mut self,
        asker: Asker<'_>,
        request: &Request,
        socket: Option<&OwnedFd>,
    ) -> Result<bool, Error> {
        if let Some(peer) = asker.peer.filter(|_| self.rules.is_some()) {
            self.groups.check(peer.process, request)?;
        }
        let addresses = lock(&self.attachment).interface().addresses.clone();
        match self.claims.check(socket, request, &addresses, asker.peer) {
            Ok(()) => Ok(true),
            Err(_) if asker.may_do_all() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Grants [`Kind::Listen`].
    fn listen(
        &mut self,
        asker: Asker<'_>,
        stack: u16,
        request: Request,
        socket: Option<&OwnedFd>,
    ) -> Result<(), Error> {
        let shown = self.check_claim(asker, &request, socket)?;
        let shown = socket.filter(|_| shown).map(|socket| identity(socket.as_fd())).transpose();
        let shown = shown.map_err(|errno| Error::system("SO_COOKIE", errno))?;
        let Request { protocol, local, v6only, cluster, .. } = request;
        if let Some(shown) = shown.filter(|_| self.rules.is_some())
            && let Some(group) = self.claims.control_group(protocol, shown)?
        {
            self.groups.check_socket(stack, group, &request)?;
        }
        lock(&self.attachment).listen_in(stack, protocol, local, v6only, cluster)?;
        if let Some(shown) = shown {
            self.grants.add(stack, request, shown);
        }
        Ok(())
    }

    /// Who no longer has the kernel's socket that it showed, listens no longer: the address may be another's.
    fn look_at_grants(&mut self) -> u64 {
        let Ok(gone) = self.grants.look(self.claims.table()) else { return 1 };
        let mut attachment = lock(&self.attachment);
        let unlisten = |(stack, request): (u16, Request)| {
            attachment.unlisten(stack, request.protocol, request.local, request.v6only)
        };
        gone.into_iter().map(unlisten).filter(Result::is_err).count() as u64
    }

    /// Goes along with what has changed around the interface, and tells the XDP program.
    fn follow(&mut self, changes: &Changes) -> Result<(), Error> {
        let mut attachment = lock(&self.attachment);
        attachment.forget_ways();
        let (mut result, mut differs) = (Ok(()), changes.others);
        for neighbor in &changes.neighbors {
            let noted = attachment.note_neighbor(neighbor);
            differs |= *noted.as_ref().unwrap_or(&true);
            result = result.and(noted.map(drop));
        }
        if changes.others {
            let (renewed, news) = renewal::follow(&mut attachment);
            self.claims.moves_to(attachment.interface().index);
            // What fails goes on failing.
            if let Some(line) = news.filter(|line| renewed.is_ok() || *line != self.said) {
                self.said.clone_from(&line);
                self.news.push(line);
            }
            self.ways_at = Some(self.ways_not_before);
            self.renewed |= *renewed.as_ref().unwrap_or(&false);
            result = result.and(renewed.map(|_| ()));
        }
        if differs {
            attachment.note_change();
        }
        result
    }

    /// Reads the routes again, if they have changed, and has gateways looked after.
    fn look_around(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let mut result = Ok(());
        if self.ways_at.is_some_and(|at| at <= begin) {
            self.ways_at = None;
            result = lock(&self.attachment).refresh_ways();
            // A router's tables change all the time, and are long.
            self.ways_not_before = Instant::now() + begin.elapsed() * 10;
        }
        if self.gateways_at <= begin {
            self.gateways_at = begin + GATEWAYS_PAUSE;
            let mut attachment = lock(&self.attachment);
            // What the program has learned and the kernel has not goes.
            result = result.and(attachment.refresh_ways()).and(attachment.confirm_gateways());
        }
        result
    }

    /// The firewall's rules may have changed, and so may programs of control groups.
    fn refresh_firewall(&mut self) -> Result<(), Error> {
        self.news.extend(self.groups.look());
        let mut attachment = lock(&self.attachment);
        if self.groups.begins_to_judge_connects() {
            attachment.note_change();
        }
        let refreshed = attachment.refresh_firewall();
        self.rules_due = attachment.firewall().1;
        refreshed.and(attachment.set_judged(self.groups.judged().iter().copied()))
    }

    /// Keeps a socket for as long as a connection needs its port.
    fn hold(&mut self, socket: OwnedFd) -> Result<Arc<OwnedFd>, Error> {
        let keep = || {
            let number = rustix::fs::fstat(&socket)?.st_ino;
            if let Some(held) = self.held.get(&number).and_then(Weak::upgrade) {
                return Ok(held);
            }
            let held = Arc::new(socket);
            if self.held.len() == self.held.capacity() {
                self.held.retain(|_, held| held.strong_count() > 0);
            }
            self.held.insert(number, Arc::downgrade(&held));
            Ok(held)
        };
        keep().map_err(|errno| Error::system("keeping a port", errno))
    }

    /// Begins with [`Kind::HandOver`] and [`Kind::GiveAway`].
    fn begin_move(
        &self,
        asker: Asker<'_>,
        stack: u16,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Waiting, Error> {
        let [socket, file] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| Error::Options("a connection is a socket and a file".to_owned()))?;
        let parcel = parcel(file)?;
        let (local, remote) = (parcel.connection.local(), parcel.connection.remote());
        self.claims.check_backing(socket.as_fd(), local, asker.peer)?;
        let passed = match request.kind {
            Kind::GiveAway => {
                self.check_passed(stack)?;
                if lock(&self.attachment).accepts_alone(request.local, stack) {
                    // Those that wait, wait for other connections.
                    return Err(Error::Options("nobody else accepts there".to_owned()));
                }
                Some(Passed::new(stack, request.local, remote, &socket)?)
            }
            _ => None,
        };
        let steered = lock(&self.attachment).hand_over(stack, socket, parcel, self.room)?;
        Ok(Waiting(Step::Move(Move::Steered(Box::new(steered)), passed)))
    }

    /// Grants [`Kind::Fetch`].
    fn fetch(&self, stack: u16, local: SocketAddr, remote: SocketAddr) -> Result<(), Error> {
        let own = self.processes.get(&stack);
        let same = self.processes.iter().filter(|&(other, process)| *other != stack && Some(process) == own);
        lock(&self.attachment).fetch_flow(stack, same.map(|(other, _)| *other), local, remote)
    }

    /// Grants [`Kind::PassOn`].
    fn pass_on(&mut self, stack: u16, request: &Request, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| Error::Options("a connection to be passed on is one socket".to_owned()))?;
        self.claims.check_passed(socket.as_fd(), request.local, request.remote)?;
        self.check_passed(stack)?;
        self.passed.push(Passed::new(stack, request.local, request.remote, &socket)?);
        Ok(())
    }

    fn check_passed(&self, stack: u16) -> Result<(), Error> {
        let own = self.passed.iter().filter(|passed| passed.from == stack).count();
        if own < PASSED_OF_ONE_MAX && self.passed.len() < PASSED_MAX {
            Ok(())
        } else {
            Err(Error::Options("too many connections wait for another listener".to_owned()))
        }
    }

    /// Goes on with a stack whose process has died or let go: when the kernel is through with it, its part of the rings is taken back.
    /// How many steps failed.
    fn settle(&mut self, index: usize, dead: bool) -> u64 {
        let lingering = &mut self.lingering[index];
        if lingering.process.is_some() {
            let in_use = lock(&self.attachment).is_in_use(lingering.stack);
            if !dead && in_use {
                return 0;
            }
            let killed = |(_, until): &(Orphans, Instant)| in_use && Instant::now() < *until;
            lingering.orphans = lingering.orphans.take().filter(killed);
            lingering.begin_barrier();
        }
        if lingering.is_over() { self.take_back(index) } else { 0 }
    }

    /// Takes a stack's part of the rings back.
    fn take_back(&mut self, index: usize) -> u64 {
        let mut lingering = self.lingering.swap_remove(index);
        lingering.finish();
        let failed = u64::from(lock(&self.attachment).take_back(lingering.stack).is_err());
        failed + lingering.orphans.map_or(0, |(orphans, _)| u64::from(!self.teller.tell(orphans)))
    }

    /// Takes back what only the kernel was still at, for somebody who finds no room. False if there is no such thing.
    fn make_room(&mut self) -> bool {
        let before = self.lingering.len();
        for index in (0..before).rev() {
            if self.lingering[index].process.is_none() {
                self.failed += self.take_back(index);
            }
        }
        self.lingering.len() < before
    }
}

impl Drop for Steering {
    /// The peers of processes that were killed are told in any case.
    fn drop(&mut self) {
        self.make_room();
    }
}

fn lock(attachment: &Mutex<Attachment>) -> MutexGuard<'_, Attachment> {
    attachment.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new stack's sockets to a client. False if it does not read.
fn give(socket: &OwnedFd, sockets: &StackSockets) -> bool {
    (0_u16..).zip(&sockets.queues).all(|(queue, descriptors)| {
        let part = StackPart::new(&Part {
            stack: sockets.stack,
            queue,
            queues: sockets.queues.len() as u16,
            zero_copy: sockets.zero_copy,
            busy_poll: sockets.busy_poll,
            layout: sockets.layout,
        });
        let mut given = vec![descriptors.socket.as_fd(), descriptors.pool.as_fd()];
        // Once is enough.
        if let Some(pulses) = sockets.pulses.as_ref().filter(|_| queue == 0) {
            given.push(pulses.as_fd());
            given.extend(sockets.long_frames.as_ref().map(AsFd::as_fd));
        }
        deliver(socket, part.as_bytes(), &given)
    })
}

impl Backing for Steering {
    type Waiting = Waiting;
    type Error = Error;

    fn interface(&self) -> Interface {
        lock(&self.attachment).interface().clone()
    }

    fn shares(&self) -> Option<Option<Deferral>> {
        Some(lock(&self.attachment).deferral_before())
    }

    fn left(&self) -> Option<LeftFrames> {
        let counters = lock(&self.attachment).counters().ok()?;
        Some(LeftFrames {
            passed_source: counters.passed_source,
            passed_firewall: counters.passed_firewall,
            dropped_firewall: counters.dropped_firewall,
        })
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        let none = self.monitor.as_fd();
        let lingering = self.lingering.iter().map(|one| one.process.as_ref().map_or(none, AsFd::as_fd));
        let rules = self.rules.as_ref().map(AsFd::as_fd);
        std::iter::once(self.monitor.as_fd()).chain(rules).chain(lingering).collect()
    }

    fn wake(&mut self, ready: &[bool]) -> u64 {
        let mut ready = ready.iter().copied();
        let changed = ready.next() == Some(true);
        let rules_changed = self.rules.is_some() && ready.next() == Some(true);
        let mut failed = std::mem::take(&mut self.failed);
        let mut note = |result: Result<(), Error>| failed += u64::from(result.is_err());
        if rules_changed || self.rules_due.is_some_and(|due| due <= Instant::now()) {
            note(self.refresh_firewall());
        }
        if changed {
            note(self.follow(&self.monitor.changes()));
        }
        note(self.look_around());
        failed += self.look_at_grants();
        let dead: Vec<bool> = ready.collect();
        for (index, &dead) in dead.iter().enumerate().rev() {
            failed += self.settle(index, dead);
        }
        failed
    }

    fn pause(&self) -> Option<Duration> {
        let linger = self.lingering.iter().map(|one| match one.process {
            Some(_) => LINGER_PAUSE,
            None => BARRIER_PAUSE,
        });
        let linger = linger.min();
        let haste_until = self.passed.iter().map(|passed| passed.until).max();
        let passed = haste_until.map(|until| {
            let waited = PASSED_WAIT.saturating_sub(until.saturating_duration_since(Instant::now()));
            if waited < PASSED_HASTE { PASSED_PAUSE } else { PASSED_LONG_PAUSE }
        });
        let due =
            [Some(self.gateways_at), self.ways_at, self.rules_due, self.grants.due()].into_iter().flatten();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        linger.into_iter().chain(passed).chain(due).min()
    }

    fn open_stack(&mut self, asker: Asker<'_>) -> Result<(u16, bool), Error> {
        let peer = asker.peer.ok_or_else(|| Error::Options("a process that nobody sees".to_owned()))?;
        let add = |steering: &Steering| lock(&steering.attachment).add_stack_for(peer.user);
        let sockets = match add(self) {
            Err(_) if self.make_room() => add(self)?,
            added => added?,
        };
        self.groups.watch(sockets.stack, peer.process);
        self.processes.insert(sockets.stack, peer.process);
        Ok((sockets.stack, give(asker.socket, &sockets)))
    }

    fn renew_stack(&mut self, asker: Asker<'_>, stack: u16) -> Result<bool, Error> {
        let sockets = lock(&self.attachment).sockets_of(stack)?;
        Ok(give(asker.socket, &sockets))
    }

    fn close_stack(&mut self, stack: u16, process: Option<OwnedFd>, finished: bool) -> u64 {
        self.grants.remove_stack(stack);
        self.groups.forget(stack);
        self.processes.remove(&stack);
        let mut attachment = lock(&self.attachment);
        let in_use = attachment.is_in_use(stack);
        let orphans = (in_use && !finished).then(|| attachment.orphans_of(stack));
        let failed = u64::from(attachment.detach_stack(stack).is_err());
        let orphans = orphans.map(|orphans| (orphans, Instant::now() + DYING_MAX));
        let mut lingering = Lingering { stack, process: process.filter(|_| in_use), orphans, barrier: None };
        if lingering.process.is_none() {
            lingering.begin_barrier();
        }
        self.lingering.push(lingering);
        failed
    }

    fn ask(
        &mut self,
        asker: Asker<'_>,
        stack: Option<u16>,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Asked<Waiting, Error> {
        let Request { kind, protocol, v6only, local, remote, .. } = request;
        // The kernel knows whether the addresses are the host's.
        if kind == Kind::HandOverPair {
            let all = || asker.may_do_all();
            return match Within::begin(descriptors, &mut self.claims, asker.peer, all, self.room) {
                Ok(Some(begun)) => Asked::Later(Waiting(Step::Move(begun, None))),
                Ok(None) => Asked::Now(Ok(None)),
                Err(error) => Asked::Now(Err(error)),
            };
        }
        let Some(stack) = stack else {
            return Asked::Now(Err(Error::Options("open a stack first".to_owned())));
        };
        let outcome = match kind {
            Kind::Listen => self.listen(asker, stack, request, descriptors.first()),
            Kind::Unlisten => {
                self.grants.remove(stack, &request);
                lock(&self.attachment).unlisten(stack, protocol, local, v6only)
            }
            Kind::Disconnect => lock(&self.attachment).disconnect_flow(stack, protocol, local, remote),
            Kind::PassOn => self.pass_on(stack, &request, descriptors),
            Kind::Fetch => self.fetch(stack, local, remote),
            Kind::HandOver | Kind::GiveAway => match self.begin_move(asker, stack, &request, descriptors) {
                Ok(begun) => return Asked::Later(begun),
                Err(error) => Err(error),
            },
            Kind::Connect | Kind::Route | Kind::Look => {
                let held = match kind {
                    Kind::Connect => {
                        self.check_claim(asker, &request, descriptors.first()).and_then(|shown| {
                            let shown = descriptors.into_iter().next().filter(|_| shown);
                            shown.map(|socket| self.hold(socket)).transpose()
                        })
                    }
                    _ => Ok(None),
                };
                match held {
                    Ok(held) => {
                        let (asks, wait) = Asks::of(kind);
                        let until = Instant::now() + wait;
                        return Asked::Later(Waiting(Step::NextHop { request, until, asks, held }));
                    }
                    Err(error) => Err(error),
                }
            }
            _ => Err(Error::Options("the broker answers that itself".to_owned())),
        };
        Asked::Now(outcome.map(|()| None))
    }

    fn go_on(&mut self, stack: Option<u16>, waiting: &mut Waiting) -> Option<Outcome<Error>> {
        let mut attachment = lock(&self.attachment);
        match &mut waiting.0 {
            Step::Move(moving, passed) => {
                let outcome = moving.go_on(Some(&mut attachment))?;
                if outcome.is_ok() {
                    self.passed.extend(passed.take());
                }
                Some(outcome.map(|()| None))
            }
            Step::NextHop { request, until, asks, held } => {
                let remote = request.remote;
                let route = match attachment.try_route(remote.ip(), std::mem::take(asks)) {
                    Ok(Ok(route)) => route,
                    Ok(Err(next_hop)) if *until <= Instant::now() => {
                        return Some(Err(Error::NoNeighbor { next_hop }));
                    }
                    Ok(Err(_)) => return None,
                    Err(error) => return Some(Err(error)),
                };
                let Some(stack) = stack.filter(|_| request.kind == Kind::Connect) else {
                    let may = stack.map_or(Ok(()), |stack| attachment.may_send(stack, remote.ip()));
                    return Some(may.map(|()| Some(route)));
                };
                let own = request.local.ip().to_canonical();
                let from = if own.is_unspecified() { route.source } else { own };
                let local = SocketAddr::new(from, request.local.port());
                let free = held.as_ref().map_or(Ok(()), |held| {
                    self.claims.is_free(held.as_fd(), request.protocol, local, remote)
                });
                let flow = free.and_then(|()| {
                    attachment.register_flow(
                        stack,
                        request.protocol,
                        request.local,
                        remote,
                        route,
                        held.take(),
                    )
                });
                Some(flow.map(Some))
            }
        }
    }

    fn tell(&mut self, clients: &mut dyn Iterator<Item = (u16, &OwnedFd)>) {
        if self.passed.is_empty() && !self.renewed {
            return;
        }
        let (clients, now) = (clients.collect::<HashMap<_, _>>(), Instant::now());
        if std::mem::take(&mut self.renewed) {
            for client in clients.values() {
                deliver(client, &Word::Renewed.to_bytes(), &[]);
            }
        }
        let mut attachment = lock(&self.attachment);
        let interface = self.claims.interface();
        let table = self.claims.table();
        // They are many connections of few listeners.
        let mut listened = HashMap::new();
        self.passed.retain(|passed| {
            let cannot_wait = passed.until.saturating_duration_since(now) < PASSED_HASTE;
            let heir = attachment.next_listener(passed.listener, passed.from, cannot_wait);
            let heir = heir.and_then(|heir| clients.get(&heir));
            if heir.is_some_and(|heir| passed.send(heir)) {
                return false;
            }
            let mut is_listened_at =
                |at| *listened.entry(at).or_insert_with(|| table.is_listened_at(at, interface));
            let may_come = now < passed.until && is_listened_at(passed.listener);
            if !may_come {
                passed.reset();
            }
            may_come
        });
    }

    fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}
