//! Listeners over memif: the ring pairs of each client are dealt out to the stacks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use overfly_engine::Config;
use overfly_link::memif::{Address, Hub, Listener, MemifLink, Settings};

use crate::error::Error;
use crate::link::alone::{config_of, engine};
use crate::link::{AnyLink, AnyStack, Each, Gone, Network, Ports, Stack, Wire, each_of};

/// How often the thread that accepts peers looks whether it is to end.
const ACCEPT_TURN: Duration = Duration::from_millis(50);

/// What a server over the link needs.
pub(crate) struct Listening<'a> {
    /// Where clients connect.
    pub(crate) place: &'a Address,
    /// The stacks' own address.
    pub(crate) network: Network,
    /// Stacks, and ring pairs that a client can have.
    pub(crate) threads: usize,
    /// Most connections of a thread.
    pub(crate) connections: usize,
}

/// A thread's end each, for as many clients as come, and what must outlive them: it accepts the clients.
pub(crate) fn accept_at(place: &Address, threads: usize) -> Result<(Vec<Port>, Acceptor), Error> {
    let refused = |error: overfly_link::Error| Error::machine(format!("--link memif:{place}"), error);
    let settings = Settings { pairs: threads as u16, ..Settings::default() };
    let listener = Listener::bind(place, settings).map_err(refused)?;
    let ports: Vec<Port> = (0..threads).map(|_| Port::default()).collect();
    let acceptor = Acceptor::start(listener, ports.iter().map(|port| port.inbox.clone()).collect())?;
    Ok((ports, acceptor))
}

/// One stack a thread, and what must outlive them. The engines do not listen yet.
pub(crate) fn listen(listening: &Listening<'_>) -> Result<(Vec<AnyStack>, Acceptor), Error> {
    let (wires, acceptor) = accept_at(listening.place, listening.threads)?;
    let mut stacks = Vec::new();
    for (index, wire) in wires.into_iter().enumerate() {
        let flows = listening.connections as u32;
        let config = Config {
            // Those in TIME-WAIT have a place of their own.
            max_flows: 2 * flows,
            max_time_wait: flows,
            ..config_of(listening.network, index, true)
        };
        let (local, ports) = (listening.network.address, Ports::none());
        let wire = AnyLink::Listening(wire);
        stacks.push(Stack::new(engine(config)?, wire, local, ports));
    }
    Ok((stacks, acceptor))
}

/// A serving stack's end of the ring pairs that it was given.
#[derive(Default)]
pub(crate) struct Port {
    hub: Hub,
    inbox: Arc<Inbox>,
}

/// New ring pairs for a stack.
#[derive(Default)]
struct Inbox {
    filled: AtomicBool,
    links: Mutex<Vec<MemifLink>>,
}

impl Inbox {
    fn put(&self, link: MemifLink) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        self.filled.store(true, Ordering::Release);
    }
}

impl Port {
    #[cold]
    fn take_new_links(&mut self) {
        self.inbox.filled.store(false, Ordering::Relaxed);
        for link in self.inbox.links.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.hub.attach(link);
        }
    }
}

/// The thread that gives the pairs of new clients to the stacks. Dropping it ends it.
pub(crate) struct Acceptor {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(mut listener: Listener, inboxes: Vec<Arc<Inbox>>) -> Result<Acceptor, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let body = move || {
            let mut next = 0;
            while !told.load(Ordering::Relaxed) {
                let links = match listener.accept(ACCEPT_TURN) {
                    Ok(Some(connection)) => connection.open(),
                    Ok(None) => continue,
                    Err(error) => Err(error),
                };
                match links {
                    Ok(links) => {
                        for link in links {
                            inboxes[next % inboxes.len()].put(link);
                            next += 1;
                        }
                    }
                    Err(error) => {
                        overfly_terminal::tell(format_args!(
                            "overfly: a memif client was turned away: {error}"
                        ));
                        std::thread::sleep(ACCEPT_TURN);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("memif-accept".to_owned()).spawn(body);
        let thread =
            thread.map_err(|error| Error::machine("starting the thread that accepts peers", error))?;
        Ok(Acceptor { over, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Wire for Port {
    #[inline]
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        if self.inbox.filled.load(Ordering::Acquire) {
            self.take_new_links();
        }
        self.hub.receive(budget, each)
    }

    #[inline]
    fn flush(&mut self) {
        self.hub.flush();
    }

    #[inline]
    fn take_gone(&mut self) -> Option<Gone> {
        Gone::those(self.hub.take_gone())
    }

    fn each_counter(&self, each: Each<'_>) {
        each_of("link", self.hub.link_counters().named().chain(self.hub.counters().named()), each);
    }
}

overfly_wire::frames_of!(Port, hub);
