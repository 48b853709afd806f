//! The process: its stack behind the lock, or one for each thread ([`contexts`]), how it comes to be, and what a fork and an
//! exit do to it.

mod acceptors;
mod away;
mod background;
pub(crate) mod contexts;
mod datagram;
mod ended;
mod exec;
mod family;
mod handover;
mod kernel_set;
mod leash;
mod leaving;
mod loopback;
mod pairs;
mod ports;
pub(crate) mod rounds;
pub(crate) mod sets;
mod settings;
mod show;
mod signal;
mod sleep;
mod spin;
mod stalled;
mod standby;
mod timers;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::fd::AsRawFd;

use overfly_engine::{Config, Engine, Instant};
use overfly_link::broker::{Client, Cluster, Interface, Leash, Protocol, anywhere};
use overfly_profile::options::Options;
use overfly_profile::routes;
use overfly_profile::rules::{self, Direction, Rules};
use overfly_wire::MacAddr;
use rustix::io::Errno;

use self::away::{Away, NoStack};
pub(crate) use self::contexts::process;
pub(crate) use self::datagram::Placed;
pub(crate) use self::exec::before_exec;
use self::family::Family;
pub(crate) use self::family::has_inherited;
pub(crate) use self::kernel_set::KernelSet;
use self::loopback::WithinHost;
use self::ports::{SharedPort, SharedPorts};
pub(crate) use self::sleep::{
    Sleeper, Told, Woken, is_waiting, let_others_in, readable, settled, stops_waiting, wait,
};
pub(crate) use self::spin::{goes_on, spin_until};
use self::timers::Timers;
use crate::carrier::{Carrier, SEGMENT_OFFLOAD};
use crate::descriptors::Descriptors;
use crate::kernel::{self, now};
use crate::lock::{Guard, Guarded};
use crate::memory::Source;
use crate::options::Fresh;
pub(crate) use crate::sleepers::For;
use crate::sleepers::{Calls, Sleepers};
use crate::socket::{Side, SocketId, State, canonical};
use crate::stack::{Closed, Stack};
use crate::statistics::{Refused, Statistics, Why};
use crate::table::{self, Entry};
use crate::{allocate, bound, environment, sys};

/// The library was loaded by `overfly run`: sockets are looked at.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The program's address is not the kernel's: binding to it must be allowed all the same (ip(7), IP_FREEBIND).
static FREE_BIND: AtomicBool = AtomicBool::new(false);

/// How long a process that exits waits for its peers to acknowledge what it sent.
const EXIT_LINGER: Duration = Duration::from_secs(2);
/// Memory that a stack has to leave to the program, which may have a limit (RLIMIT_AS), in bytes.
const ROOM_TO_START: usize = 64 << 20;
/// How many times as large batches are with EF_HIGH_THROUGHPUT_MODE.
const LARGE_BATCHES: usize = 4;
/// Tells our own registrations in the program's epoll sets from the program's: the upper half of their data. No pointer
/// and no small number looks like it; the lower half says which.
const PRIVATE: u64 = 0xa5f1_0e7f << 32;
/// The stacks' own descriptors.
const PRIVATE_STACK: u64 = PRIVATE | 0xffff_ffff;

/// A context's links where others may be at the door.
const fn private_doors(context: usize) -> u64 {
    PRIVATE | 0xffff_ff40 | context as u64
}

/// Its connection to the broker.
const fn private_broker(context: usize) -> u64 {
    PRIVATE | 0xffff_ff80 | context as u64
}

/// Its bell of observers.
const fn private_bell(context: usize) -> u64 {
    PRIVATE | 0xffff_ffc0 | context as u64
}

/// The data of a listener's kernel socket in an epoll set.
pub(crate) const fn private_listener(id: SocketId) -> u64 {
    PRIVATE | id.0 as u64
}

/// What the data of an event from the kernel says.
pub(crate) enum Tag {
    /// The program's.
    Program,
    /// Frames arrived, or another thread has news.
    Stack,
    /// The broker has something from another process for a context.
    Broker(usize),
    /// An observer wants an answer of a context's.
    Bell(usize),
    /// Frames arrived, or somebody who wants to exchange some with a context.
    Doors(usize),
    /// The kernel has a connection for this listener.
    Listener(SocketId),
}

pub(crate) const fn tag(data: u64) -> Tag {
    if data >> 32 != PRIVATE >> 32 {
        return Tag::Program;
    }
    // No context has so many sockets that these are among their numbers.
    let context = (data & 0x1f) as usize;
    match data as u32 {
        0xffff_ffff => Tag::Stack,
        0xffff_ff40..=0xffff_ff5f => Tag::Doors(context),
        0xffff_ff80..=0xffff_ff9f => Tag::Broker(context),
        0xffff_ffc0..=0xffff_ffdf => Tag::Bell(context),
        id => Tag::Listener(SocketId(id)),
    }
}

/// Whether there is a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// Nothing needed one yet.
    Untried,
    /// It runs.
    Running,
    /// It cannot be had; the reason was said.
    Failed,
}

/// Everything behind the lock: the process's, or what it is to the threads of one context.
pub(crate) struct Process {
    /// Which context it is.
    pub(crate) context: usize,
    pub(crate) stack: Stack<Carrier>,
    pub(crate) options: Options,
    pub(crate) rules: Rules,
    start: Start,
    environment: Option<String>,
    leash: Option<Leash>,
    client: Option<Client>,
    /// There was a broker, and will be one again, perhaps.
    away: Option<Away>,
    /// When it was last asked whether the broker has something to say.
    heard: Instant,
    interface: Option<Interface>,
    /// What a socket comes with.
    fresh: Option<Fresh>,
    /// The largest SO_RCVBUF, in bytes.
    pub(crate) receive_buffer_max: u32,
    /// The interface's index, which link-local addresses carry: 0 before there is a stack.
    pub(crate) interface_index: u32,
    /// Descriptors of the link's sockets.
    link_descriptors: Vec<i32>,
    /// Those of them where others may be at the door.
    doors: Vec<i32>,
    /// Threads that sleep.
    pub(crate) sleepers: Sleepers,
    timers: Timers,
    /// The thread that moves frames in the program's place begins once the program turns out to need it (EF_BACKGROUND=2).
    background_postponed: bool,
    /// By [`crate::interest::SetId`].
    pub(crate) sets: Vec<KernelSet>,
    /// How many there have been.
    pub(crate) sets_opened: u64,
    /// Children may wait in them as well.
    pub(crate) sets_shared: bool,
    /// One of them was exposed.
    any_exposed: bool,
    /// Closed descriptors that are kept.
    pub(crate) descriptors: Descriptors,
    shared_ports: SharedPorts,
    within_host: WithinHost,
    /// Connections wait and nobody accepts.
    stalled: Option<stalled::Stalled>,
    /// The program waits in epoll_wait, poll or select: output can wait until then.
    pub(crate) event_loop: bool,
    pub(crate) pumped: Instant,
    /// When the counters were last shown, and a place for their values.
    shown: Instant,
    shown_values: Vec<u64>,
    pub(crate) statistics: Statistics,
    family: Family,
}

/// Whether the library does anything.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Whether the program's addresses are no kernel's: over memif and tap.
fn has_addresses_of_its_own() -> bool {
    FREE_BIND.load(Ordering::Relaxed)
}

/// A new socket of the program.
pub(crate) fn allow_own_address(descriptor: i32, v6: bool) {
    if has_addresses_of_its_own() {
        kernel::allow_any_address(descriptor, v6);
    }
}

/// A call is about to go to the kernel and may wait there: output that waits for company goes first.
#[inline]
pub(crate) fn before_kernel_wait() {
    if contexts::is_pending(0) {
        process().transmit();
    }
    if let Some(own @ 1..) = contexts::own_if_any()
        && contexts::is_pending(own)
    {
        contexts::at(own).transmit();
    }
}

impl Guarded for Process {
    /// The link's descriptor.
    type Errand = i32;

    fn contended(&mut self) {
        self.stack.defers = true;
    }

    #[inline]
    fn take_errand(&mut self) -> Option<i32> {
        self.stack.take_owed()
    }

    type Calls = Calls;

    #[inline]
    fn take_calls(&mut self) -> Option<Calls> {
        if self.sleepers.are_forgotten(self.pumped) {
            self.remember_sleepers();
        }
        self.sleepers.take_calls()
    }

    fn call(calls: Calls) {
        sleep::call(&calls);
    }

    fn run(descriptor: i32) -> Result<(), Errno> {
        overfly_link::xdp::kick(kernel::borrow(descriptor))
    }

    #[cold]
    fn finish_errand(&mut self, failure: Option<Errno>) {
        self.stack.finish_kick(failure);
    }
}

impl Process {
    const fn new() -> Self {
        Self {
            context: 0,
            stack: Stack::new(),
            options: Options::DEFAULT,
            rules: Rules::new(),
            start: Start::Untried,
            environment: None,
            leash: None,
            client: None,
            away: None,
            heard: Instant::from_micros(0),
            interface: None,
            fresh: None,
            receive_buffer_max: 0,
            interface_index: 0,
            link_descriptors: Vec::new(),
            doors: Vec::new(),
            sleepers: Sleepers::new(),
            timers: Timers::new(),
            background_postponed: false,
            sets: Vec::new(),
            sets_opened: 0,
            sets_shared: false,
            any_exposed: false,
            descriptors: Descriptors::new(),
            shared_ports: SharedPorts::new(),
            within_host: WithinHost::new(),
            stalled: None,
            event_loop: false,
            pumped: Instant::from_micros(0),
            shown: Instant::from_micros(0),
            shown_values: Vec::new(),
            statistics: Statistics::new(),
            family: Family::new(),
        }
    }

    // ---- coming to be ----

    /// Reads the environment. Returns whether the program is to be accelerated.
    fn configure(&mut self) -> bool {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        match Options::read(variable) {
            Ok(options) => self.options = options,
            Err(error) => {
                kernel::complain(&error.to_string());
                sys::exit(2);
            }
        }
        kernel::complain_to_log(self.options.log_via_ioctl != 0);
        match Rules::parse(&variable(rules::ENVIRONMENT).unwrap_or_default(), kernel::program_names()) {
            Ok(rules) => self.rules = rules,
            Err(error) => {
                kernel::complain(&error);
                sys::exit(2);
            }
        }
        self.statistics.enabled = std::env::var_os("OVERFLY_STATS").is_some_and(|value| value == "1");
        FREE_BIND.store(std::env::var_os("OVERFLY_FREE_BIND").is_some(), Ordering::Relaxed);
        self.environment = std::env::var("OVERFLY_BROKER").ok();
        if self.environment.is_some() {
            environment::remember();
        }
        let environment = self.environment.as_deref();
        if environment.is_some() {
            contexts::begin(self.options, &self.rules, environment, self.statistics.enabled);
        }
        environment.is_some()
    }

    /// This is not the first context of the process, but has its options and rules.
    fn becomes(
        &mut self,
        context: usize,
        options: Options,
        rules: Rules,
        environment: Option<String>,
        reports: bool,
    ) {
        self.context = context;
        self.stack.belongs_to(context);
        self.descriptors.belong_to(context);
        (self.options, self.rules, self.environment) = (options, rules, environment);
        self.statistics.enabled = reports;
    }

    /// The kernel carries the program's sockets from now on, unless that is forbidden.
    fn fall_back(&mut self, reason: &str) {
        if self.start == Start::Failed {
            return;
        }
        self.start = Start::Failed;
        if self.options.no_fail == 0 {
            kernel::complain(&format!("{reason}; EF_NO_FAIL=0 forbids to go on over the kernel"));
            sys::exit(1);
        }
        kernel::complain(&format!(
            "{}process {} goes on over the kernel: {reason}",
            if self.context > 0 { "a thread of " } else { "" },
            rustix::process::getpid().as_raw_nonzero()
        ));
    }

    /// Makes the stack, at its first use. Returns whether it runs.
    pub(crate) fn start(&mut self) -> bool {
        if self.start == Start::Untried {
            let outcome = match self.try_start() {
                Err(NoStack::Yet) => self.start_away(),
                outcome => outcome,
            };
            match outcome {
                Ok(()) => self.start = Start::Running,
                Err(NoStack::Ever(reason)) => self.fall_back(&reason),
                Err(NoStack::Yet) => {}
            }
        }
        self.start == Start::Running
    }

    fn try_start(&mut self) -> Result<(), NoStack> {
        let mut client = self.take_client().map_err(|error| self.no_stack(&error))?;
        let outcome = self.try_start_with(&mut client);
        if outcome.is_ok() {
            self.client = Some(client);
            self.begin_to_show();
            self.watch_new_links();
        } else {
            // The broker takes back what it gave.
            table::enter(client.as_fd().as_raw_fd(), Entry::Kernel);
            self.stop_showing();
        }
        outcome
    }

    fn try_start_with(&mut self, client: &mut Client) -> Result<(), NoStack> {
        let interface = client.interface().clone();
        if interface.addresses.is_empty() {
            return Err(format!("interface {} has no address", interface.name).into());
        }
        let (address, prefix_len) = first_v4(&interface).unwrap_or((Ipv4Addr::UNSPECIFIED, 32));
        client.set_cluster(Cluster::new(self.options.cluster(), self.options.cluster_size as u32));
        let sockets = client.open_stack();
        let link = Carrier::open(sockets.map_err(|error| self.no_stack(&error))?)?;
        let mut config = Config::new(interface.mac, address, prefix_len);
        config.mtu = interface.mtu;
        // RFC 8200 section 5: a link with less carries no IPv6.
        if let Some((address, prefix_len)) = first_v6(&interface).filter(|_| interface.mtu >= 1280) {
            (config.address6, config.prefix6_len) = (Some(address), prefix_len);
        }
        config.partial_checksums = interface.partial_checksums;
        let is_alone = link.is_alone();
        if is_alone {
            config.arp = true;
            config.checksum_offload = true;
            config.segment_offload = SEGMENT_OFFLOAD;
        } else {
            config.routes = routes::read();
            if self.options.segment_offload != 0 {
                config.segment_offload = link.segment_offload();
            }
        }
        config.time_wait = Duration::from_secs(2 * self.options.tcp_tconst_msl);
        self.carry(Side::Network, config, link)?;
        self.stack.hands_over(!is_alone);
        self.interface_index = interface.index;
        self.interface = Some(interface);
        Ok(())
    }

    /// Makes the engine of one side.
    fn carry(&mut self, side: Side, mut config: Config, link: Carrier) -> Result<(), String> {
        self.equip()?;
        let fast_open = kernel::FastOpen::read();
        config.fast_open_client = fast_open.client();
        config.fast_open_client_without_cookie = fast_open.client_without_cookie();
        config.fast_open_server_without_cookie = fast_open.server_without_cookie();
        config.max_flows = u32::try_from(self.options.max_endpoints).unwrap_or(u32::MAX >> 1);
        config.max_time_wait = config.max_flows / 2;
        config.ack_stretch = self.options.dynamic_ack_thresh as u16;
        config.initial_window = self.options.tcp_initial_cwnd as u32;
        config.receive_window = kernel::receive_window_max();
        config.window_scale = kernel::window_scale();
        config.initial_receive_window =
            if self.options.tcp_rcvbuf_mode == 0 { config.receive_window } else { 64 * 1024 };
        kernel::sysctls().apply(&mut config, &self.options);
        config.congestion = self.default_congestion();
        let _ = rustix::rand::getrandom(&mut config.hash_key[..], rustix::rand::GetRandomFlags::empty());
        let needed = Engine::memory_of(&config) + ROOM_TO_START;
        if !allocate::has(needed) {
            return Err(format!(
                "{} MB of memory are not to be had: raise the limit (RLIMIT_AS, ulimit -v), or lower EF_MAX_ENDPOINTS",
                needed.div_ceil(1 << 20)
            ));
        }
        let engine = Engine::new(config).map_err(|error| error.to_string())?;
        self.link_descriptors.extend(link.descriptors());
        if link.has_doors() {
            self.doors.extend(link.descriptors());
        }
        self.stack.start(side, engine, link, self.descriptors.limit().max(1024));
        self.statistics.stacks += 1;
        self.look_after();
        if self.options.high_throughput_mode != 0 {
            self.stack.enlarge_batches(LARGE_BATCHES);
        }
        Ok(())
    }

    /// What every engine's sockets need.
    fn equip(&mut self) -> Result<(), String> {
        if self.fresh.is_some() {
            return Ok(());
        }
        self.receive_buffer_max = kernel::receive_buffer_max();
        self.fresh = Some(kernel::fresh().map_err(|error| format!("a TCP socket: {error}"))?);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024) / 4;
        let limit = limit / contexts::all().count() as u64;
        let limit = self.options.socket_cache_max.min(limit);
        self.descriptors.bound(usize::try_from(limit).unwrap_or(0));
        Ok(())
    }

    /// The child of a fork: the stack is the parent's, what was inherited is this process's only in name.
    fn begin_as_child(&mut self) {
        let ancestor = self.become_child();
        self.lose_stack(ancestor);
        self.sleepers.forget().into_iter().for_each(signal::close);
        self.timers.forget();
        self.background_postponed = false;
        // Those that it makes itself.
        self.sets_shared = false;
        let enabled = self.statistics.enabled;
        self.statistics = Statistics::new();
        self.statistics.enabled = enabled;
    }

    /// The process goes on without a stack, until it needs one again.
    fn stop(&mut self) {
        self.settle();
        self.watch_everywhere();
        self.lose_stack(0);
        for descriptor in
            self.family_descriptors().chain(self.leash.iter().map(|leash| leash.as_fd().as_raw_fd()))
        {
            table::enter(descriptor, Entry::Internal);
        }
    }

    /// Everything is on its way, and as long as the lock is held no other thread uses the link's descriptors.
    fn settle(&mut self) {
        self.stack.flush_finally();
        contexts::settle(self.context);
    }

    /// Connections are an ancestor's from now on.
    fn lose_stack(&mut self, ancestor: u32) {
        self.stack.drop_arrivals(sys::close);
        drop(self.stack.forget(ancestor));
        self.within_host.forget();
        self.stalled = None;
        self.stop_showing();
        let (sleepers, mut world) = self.machine();
        sleepers.background.stand_back(&mut world);
        bound::falls_silent(self.context);
        self.client = None;
        self.away = None;
        self.interface = None;
        self.link_descriptors.clear();
        self.doors.clear();
        self.descriptors.forget();
        self.shared_ports = SharedPorts::new();
        for set in &mut self.sets {
            set.tainted |= set.prepared;
            set.inherited = true;
            set.prepared = false;
            // This process's copies of what wakes others, and of what tells of whoever has the flows.
            set.conceal();
            set.signalled = false;
        }
        self.sleepers.empty_sets();
        if self.start == Start::Running {
            self.start = Start::Untried;
        }
        contexts::set_pending(self.context, false);
    }

    // ---- moving frames ----

    /// Takes what has arrived, runs timers, sends what is due.
    pub(crate) fn pump(&mut self) -> usize {
        self.pumped = now();
        if self.away.is_some() {
            self.look_for_broker();
        }
        self.heed_kick();
        let received = self.stack.pump(self.pumped);
        if self.sleepers.acceptors() > 0 {
            self.show_acceptors(0);
        }
        self.sleepers.took_frames(received);
        if self.within_host.is_busy() {
            self.look_within_host();
        }
        if self.stack.is_leaving() {
            self.give_away();
        }
        if received > 0 || self.stalled.is_some() {
            self.look_at_queues();
        }
        self.after_output();
        if self.sleepers.any() {
            self.tell_of_news();
        }
        self.show_sometimes();
        received
    }

    /// A call would have to wait: perhaps what it waits for has arrived. Programs that poll without ever waiting make
    /// progress by this; one with an event loop pumps there, and not here every time.
    pub(crate) fn pump_before_waiting(&mut self) {
        const EVENT_LOOP_PAUSE: Duration = Duration::from_micros(50);
        if !self.stack.is_running() || (self.event_loop && now() - self.pumped < EVENT_LOOP_PAUSE) {
            return;
        }
        self.pump();
    }

    /// A call that need not wait, in a program that perhaps never waits: it must hear all the same that its peer is gone.
    pub(crate) fn keep_up(&mut self) {
        const PAUSE: Duration = Duration::from_millis(1);
        let hears_in_its_loop = self.event_loop && spin::loops();
        if !hears_in_its_loop && self.stack.is_running() && now() - self.pumped >= PAUSE {
            self.pump();
        }
    }

    /// A call asks what has come and takes nothing: if the last look for frames is a while ago, there may be more.
    pub(crate) fn look_again(&mut self) {
        const PAUSE: Duration = Duration::from_millis(1);
        if self.stack.is_running() && now() - self.pumped >= PAUSE {
            self.pump();
        }
    }

    /// Sends what is due.
    pub(crate) fn transmit(&mut self) {
        self.heed_kick();
        self.stack.transmit(now());
        self.after_output();
    }

    /// The calling thread waits for events, in epoll_wait, poll or select: what it sends before that can wait.
    pub(crate) fn waits_for_events(&mut self) {
        self.event_loop = true;
        self.judge_event_loop();
        spin::begins_to_loop();
    }

    /// Another thread may be kicking the device for this one, too.
    #[inline]
    fn heed_kick(&mut self) {
        self.stack.kick_underway = self.stack.defers && contexts::runs_errand(self.context);
    }

    fn after_output(&mut self) {
        contexts::set_pending(self.context, false);
        let Self { stack, client, descriptors, .. } = self;
        stack.disconnected(|side, local, remote, descriptor| {
            if let Some(client) = client
                && side == Side::Network
            {
                let _ = client.disconnect_flow(Protocol::Tcp, local.port(), remote);
            }
            if descriptor >= 0 {
                descriptors.release(descriptor);
            }
        });
    }

    /// A call made output: it goes out now if there is enough of it, or if nothing says that the program will soon wait.
    pub(crate) fn output(&mut self) {
        if !self.event_loop {
            self.leaves_event_loop();
        }
        // Whoever is not the stack's own thread may wait elsewhere.
        let waits = self.event_loop && (self.context == 0 || contexts::own_if_any() == Some(self.context));
        if !waits || self.stack.wants_transmit() || self.sleepers.any() {
            self.transmit();
        } else if !contexts::is_pending(self.context) {
            contexts::set_pending(self.context, true);
        }
    }

    /// The links' descriptors: readable when frames have come.
    pub(crate) fn link_descriptors(&self) -> &[i32] {
        &self.link_descriptors
    }

    /// Readable when another process gave something away.
    pub(crate) fn broker_descriptor(&self) -> Option<i32> {
        self.client.as_ref().map(|client| client.as_fd().as_raw_fd())
    }

    /// What one of the library's own descriptors is registered as in the program's sets.
    pub(crate) fn private_data(&self, descriptor: i32) -> u64 {
        match Some(descriptor) {
            some if some == self.broker_descriptor() => private_broker(self.context),
            some if some == self.bell() => private_bell(self.context),
            _ if self.doors.contains(&descriptor) => private_doors(self.context),
            _ => PRIVATE_STACK,
        }
    }

    /// One of the library's own descriptors is readable.
    pub(crate) fn heed(&mut self, tag: &Tag) {
        match tag {
            Tag::Broker(_) => {
                self.hear_broker();
            }
            Tag::Bell(_) => self.hush(),
            Tag::Doors(_) => self.stack.rang(),
            Tag::Stack | Tag::Program | Tag::Listener(_) => {}
        }
    }

    /// What poll() has found, the program's descriptors among it; and what the broker has said meanwhile.
    pub(crate) fn heed_all(&mut self, polled: &[libc::pollfd]) {
        if self.has_unheard() {
            self.hear_broker();
        }
        for entry in polled.iter().filter(|entry| entry.revents != 0) {
            self.heed(&tag(self.private_data(entry.fd)));
        }
    }

    /// There is output that the link had no frames for, or that the device did not take.
    fn is_blocked(&self) -> bool {
        sleep::is_blocked(&self.stack)
    }

    /// Readable when an observer wants an answer; there is none where nobody can look.
    pub(crate) fn bell(&self) -> Option<i32> {
        self.stack.show.as_ref().map(|show| show.bell().as_raw_fd())
    }

    /// How long a spinning call sleeps before it looks again, in microseconds.
    pub(crate) fn nap_us(&mut self, spins: bool) -> u64 {
        let nap_us = if spins { self.options.sleep_spin_usec } else { 0 };
        self.statistics.naps += u64::from(nap_us > 0);
        nap_us
    }

    /// One of the program's descriptors of a socket is closed. Returns whether the library keeps the descriptor; if not,
    /// the caller closes it in the kernel.
    pub(crate) fn close_socket(&mut self, id: SocketId, descriptor: i32) -> bool {
        let socket = self.stack.socket(id);
        let (last, customized, v6, close_on_exec) =
            (socket.references <= 1, socket.customized, socket.v6, socket.close_on_exec);
        let (listens, receives) = (socket.listening.is_some(), socket.datagrams.is_some());
        let inherited = self.is_inherited(id);
        if last && inherited && self.leave_to_child(id) {
            return false;
        }
        if last && listens {
            self.forget_listener(id);
        }
        if last && receives {
            self.displace_datagram(id);
        }
        if !last && socket_descriptor(&self.stack, id) == descriptor {
            // Another descriptor of the same socket must stand for it.
            let other = (0..table::length())
                .find(|&other| other != descriptor && table::lookup(other) == Entry::Socket(id));
            self.stack.socket_mut(id).descriptor = other.unwrap_or(-1);
        }
        table::enter(descriptor, Entry::Kernel);
        let kept = match self.stack.close(id) {
            Closed::StillOpen | Closed::Done => false,
            Closed::Reusable => {
                !customized && !inherited && self.descriptors.keep(descriptor, v6, close_on_exec)
            }
            Closed::Held => self.descriptors.hold(descriptor, if contexts::are_several() { 16 } else { 64 }),
        };
        self.output();
        kept
    }

    /// A listener goes, or leaves the stack: the broker stops steering, the kernel's socket leaves the epoll sets.
    fn forget_listener(&mut self, id: SocketId) {
        let mut registered = Vec::new();
        self.stack.interests(id, |set, descriptor, _, _| registered.push((set, descriptor)));
        for (set, descriptor) in registered {
            let set = &self.sets[set.0 as usize];
            // As close() itself: what another process watches it goes on to watch.
            if !set.inherited {
                let null = core::ptr::null();
                let _ = sys::epoll_control(set.descriptor, libc::EPOLL_CTL_DEL, descriptor, null);
            }
        }
        self.part(id);
    }

    // ---- listeners and active opens ----

    /// Whether frames for this address can reach the stack. `bound` may be a link-local address with the index of its link.
    fn is_accelerated_address(&self, bound: SocketAddr) -> bool {
        let address = bound.ip().to_canonical();
        // Which addresses those are the next broker says.
        address.is_unspecified() || self.is_away() || self.is_own(address) && !self.is_elsewhere(bound)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.interface
            .as_ref()
            .is_some_and(|interface| interface.addresses.iter().any(|&(own, _)| own == address))
    }

    /// Whether the kernel can connect to the address in place of the stack. The program's own are no kernel's over memif; over
    /// tap the kernel would come back to this very process, which would wait for itself.
    pub(super) fn kernel_reaches(&self, address: IpAddr) -> bool {
        !has_addresses_of_its_own() || !self.is_own(address)
    }

    /// A link-local address of another link.
    const fn is_elsewhere(&self, address: SocketAddr) -> bool {
        matches!(address, SocketAddr::V6(address) if address.scope_id() != 0
            && address.ip().is_unicast_link_local() && address.scope_id() != self.interface_index)
    }

    /// The interface may have got addresses since the stack was made.
    fn refresh_addresses(&mut self) {
        if let Some(client) = &mut self.client
            && let Ok(interface) = client.refresh_interface()
        {
            self.interface = Some(interface.clone());
        }
    }

    /// This process takes connections for the listener from now on. Returns false if it stays the kernel's.
    pub(crate) fn join(&mut self, id: SocketId, descriptor: i32) -> bool {
        if self.stack.has_joined(id) {
            return true;
        }
        let Some(bound) = kernel::local_address(descriptor) else { return false };
        let network = self.may_join(bound);
        let within_host = self.options.tcp_server_loopback != 0 && self.start_loopback();
        if let Err(why) = network
            && !(within_host && why == Why::Loopback)
        {
            self.left(why);
            if !within_host {
                return false;
            }
        }
        if self.is_tied_elsewhere(descriptor) {
            return self.left(Why::OtherAddress);
        }
        let settings = self.settings(id, descriptor);
        let socket = self.stack.socket_mut(id);
        // Not what the kernel says: another process that shares the listener may have joined it before.
        let nonblocking = socket.nonblocking;
        socket.settings = settings;
        let local = canonical(bound);
        // The engine knows no mapped addresses: a listener for both families is two there (RFC 3493 section 5.3).
        let both = local.is_ipv6() && local.ip().is_unspecified() && !kernel::is_v6only(descriptor);
        let v4 = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()));
        // Of a listener's two families, the firewall may leave one to the kernel.
        let mut left_one = false;
        for local in [Some(local), v4].into_iter().flatten() {
            if network.is_ok()
                && let Err(refused) = self.join_at(id, descriptor, local)
            {
                if refused.why != Why::Firewall || !both || left_one {
                    return self.refuse_listener(id, bound, &refused);
                }
                kernel::complain(&format!("the kernel serves {local}: {}", refused.reason));
                left_one = true;
            }
            if within_host && let Some(local) = self.place_within_host(local) {
                self.join_within_host(id, local);
            }
        }
        if !self.stack.has_joined(id) {
            return self.left(network.err().unwrap_or(Why::Refused));
        }
        self.follow_listener(id, descriptor);
        if !nonblocking {
            // accept() must not wait in the kernel, where the stack's connections are not seen.
            kernel::set_nonblocking(descriptor, true);
        }
        if let Some(listening) = &mut self.stack.socket_mut(id).listening {
            listening.forced_nonblocking = true;
        }
        true
    }

    /// Whether the interface's connections to a listener can be the stack's.
    fn may_join(&mut self, bound: SocketAddr) -> Result<(), Why> {
        if bound.ip().to_canonical().is_loopback() {
            return Err(Why::Loopback);
        }
        if !self.start() {
            return Err(Why::NoStack);
        }
        if !self.is_accelerated_address(bound) {
            self.refresh_addresses();
            if !self.is_accelerated_address(bound) {
                return Err(Why::OtherAddress);
            }
        }
        Ok(())
    }

    /// A socket stays the kernel's, and why.
    pub(crate) fn left(&mut self, why: Why) -> bool {
        self.statistics.leave(why);
        if self.stack.show.is_none() {
            self.begin_to_show();
        } else {
            self.show();
        }
        false
    }

    fn join_at(&mut self, id: SocketId, descriptor: i32, local: SocketAddr) -> Result<(), Refused> {
        let by_engine =
            |error: &dyn core::fmt::Display| Refused { why: Why::Refused, reason: error.to_string() };
        if self.stack.join(Side::Network, id, local).map_err(|error| by_engine(&error))?
            && let Some(client) = &mut self.client
            && let Err(error) = client.listen_as(kernel::borrow(descriptor), Protocol::Tcp, local, true)
            && !self.is_parting(&error)
        {
            return Err(Refused::new(error));
        }
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.set_listening(true);
        }
        Ok(())
    }

    /// The listener stays the kernel's, whole.
    fn refuse_listener(&mut self, id: SocketId, bound: SocketAddr, refused: &Refused) -> bool {
        self.part(id);
        self.statistics.listeners_refused += 1;
        kernel::complain(&format!("the kernel serves {bound}: {}", refused.reason));
        self.left(refused.why)
    }

    /// Begins an active open. `Ok(None)`: the kernel can do this one better. Else how much of `data` goes with the SYN or right
    /// behind it, which needs TCP Fast Open.
    pub(crate) fn connect(
        &mut self,
        id: SocketId,
        descriptor: i32,
        remote: SocketAddr,
        data: Option<Source<'_>>,
    ) -> Result<Option<usize>, Errno> {
        if !self.begin_connecting(id, descriptor, remote)? {
            return Ok(None);
        }
        let written = data.map_or(0, |data| self.stack.open_with_data(id, data.pieces(0)));
        self.transmit();
        Ok(Some(written))
    }

    fn begin_connecting(&mut self, id: SocketId, descriptor: i32, remote: SocketAddr) -> Result<bool, Errno> {
        let ip = remote.ip().to_canonical();
        if ip.is_unspecified() {
            return Ok(self.left(Why::Loopback));
        }
        let socket = self.stack.socket(id);
        if socket.wants_kernel || socket.shared {
            return Ok(self.left(if socket.shared { Why::Shared } else { Why::SocketOption }));
        }
        if !self.rules.accelerate(Direction::Connect, remote) {
            return Ok(self.left(Why::Rule));
        }
        if ip == IpAddr::V4(Ipv4Addr::BROADCAST) || ip.is_multicast() || remote.port() == 0 {
            return Ok(self.left(Why::OtherAddress));
        }
        // Where they are no kernel's, only the stack knows which addresses are the program's own.
        if has_addresses_of_its_own() && !ip.is_loopback() {
            self.start();
        }
        if self.is_of_host(ip) && !self.is_across(ip) {
            let begun = self.connect_within_host(id, descriptor, canonical(remote))?;
            return if begun || self.kernel_reaches(ip) { Ok(begun) } else { Err(Errno::CONNREFUSED) };
        }
        if !self.start() || allocate::is_short() {
            return Ok(self.left(Why::NoStack));
        }
        let tied = self.stack.socket(id).customized && self.is_tied_elsewhere(descriptor);
        if self.is_own(ip) || self.is_elsewhere(remote) || tied {
            return Ok(self.left(Why::OtherAddress));
        }
        let remote = canonical(remote);
        let bound = kernel::local_address(descriptor).ok_or(Errno::INVAL)?;
        if !self.is_accelerated_address(bound) {
            return Ok(self.left(Why::OtherAddress));
        }
        let from = bound.ip().to_canonical();
        if !from.is_unspecified() && from.is_ipv4() != remote.is_ipv4() {
            return Ok(self.left(Why::OtherAddress));
        }
        let (port, holder) = self.local_port(descriptor, bound, remote)?;
        let Some(client) = &mut self.client else { return Ok(false) };
        let local = if from.is_unspecified() { anywhere(remote, port) } else { SocketAddr::new(from, port) };
        let route = match client.connect_flow_as(kernel::borrow(holder), Protocol::Tcp, local, remote) {
            Ok(route) => route,
            Err(error) => {
                self.statistics.connects_refused += 1;
                return Ok(self.left(Refused::new(error).why));
            }
        };
        let local = SocketAddr::new(if from.is_unspecified() { route.source } else { from }, port);
        if !self.begin(Side::Network, id, descriptor, (local, remote), route.next_hop) {
            if let Some(client) = &mut self.client {
                let _ = client.disconnect_flow(Protocol::Tcp, port, remote);
            }
            return Ok(self.left(Why::Refused));
        }
        Ok(true)
    }

    /// Begins a socket's active open between two ends: it is the stack's from now on. False if the engine refuses it.
    fn begin(
        &mut self,
        side: Side,
        id: SocketId,
        descriptor: i32,
        (local, remote): (SocketAddr, SocketAddr),
        next_hop: MacAddr,
    ) -> bool {
        // A socket that was connected before has its options, and O_NONBLOCK, here.
        let again = self.stack.socket(id).state == State::Ended;
        let settings = if again { self.stack.socket(id).settings } else { self.settings(id, descriptor) };
        if self.stack.connect(now(), side, id, local, remote, next_hop, settings).is_err() {
            self.statistics.connects_refused += 1;
            return false;
        }
        // What watched the kernel's socket in a set watches the stack's from now on.
        let mut registered = Vec::new();
        self.stack.interests(id, |set, descriptor, _, _| registered.push((set, descriptor)));
        for (set, descriptor) in registered {
            let _ = sys::epoll_control(
                self.sets[set.0 as usize].descriptor,
                libc::EPOLL_CTL_DEL,
                descriptor,
                core::ptr::null(),
            );
        }
        let close_on_exec = kernel::is_close_on_exec(descriptor);
        let nonblocking =
            if again { self.stack.socket(id).nonblocking } else { kernel::is_nonblocking(descriptor) };
        let socket = self.stack.socket_mut(id);
        socket.nonblocking = nonblocking;
        socket.close_on_exec = close_on_exec;
        true
    }

    /// Prints what the process did, if that is wanted.
    fn report(&mut self) {
        let Self { stack, statistics, context, .. } = self;
        statistics.report(stack, *context);
    }

    /// The port that an active open leaves from: the socket's own, one that others share, or a fresh one; and the descriptor of
    /// the kernel's socket that has it.
    fn local_port(
        &mut self,
        descriptor: i32,
        bound: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(u16, i32), Errno> {
        if bound.port() != 0 {
            return Ok((bound.port(), descriptor));
        }
        let from = bound.ip().to_canonical();
        let own = self.interface.as_ref().and_then(|interface| {
            interface.addresses.iter().map(|&(own, _)| own).find(|own| own.is_ipv4() == remote.is_ipv4())
        });
        let Self { stack, shared_ports, options, .. } = self;
        let reuse = options.tcp_shared_local_ports_reuse_fast != 0;
        let source = if from.is_unspecified() { own } else { Some(from) };
        let shared = shared_ports.choose(options, from, remote.is_ipv4(), |port| {
            source.is_some_and(|source| stack.is_free(SocketAddr::new(source, port), remote, reuse))
        });
        match shared {
            SharedPort::Chosen(port, holder) => {
                self.statistics.shared_port_connects += 1;
                return Ok((port, holder));
            }
            SharedPort::Exhausted if self.options.tcp_shared_local_ports_no_fallback != 0 => {
                return Err(Errno::ADDRNOTAVAIL);
            }
            SharedPort::Exhausted | SharedPort::NotMeant => {}
        }
        kernel::bind_any_port(descriptor, bound)?;
        Ok((kernel::local_address(descriptor).ok_or(Errno::INVAL)?.port(), descriptor))
    }

    /// Something that was closed is still to be delivered.
    fn unfinished(&self) -> bool {
        self.stack.is_running() && (self.stack.unfinished() > 0 || self.stack.is_leaving())
    }
}

fn first_v4(interface: &Interface) -> Option<(Ipv4Addr, u8)> {
    interface.addresses.iter().find_map(|&(address, prefix_len)| match address {
        IpAddr::V4(address) => Some((address, prefix_len)),
        IpAddr::V6(_) => None,
    })
}

fn first_v6(interface: &Interface) -> Option<(Ipv6Addr, u8)> {
    interface.addresses.iter().find_map(|&(address, prefix_len)| match address {
        IpAddr::V6(address) if !address.is_unicast_link_local() => Some((address, prefix_len)),
        _ => None,
    })
}

/// The library's own descriptors are about to be closed.
fn disown_descriptors() {
    for descriptor in 0..table::length() {
        if table::lookup(descriptor) == Entry::Internal {
            table::enter(descriptor, Entry::Kernel);
        }
    }
}

fn socket_descriptor(stack: &Stack<Carrier>, id: SocketId) -> i32 {
    stack.socket(id).descriptor
}

// ---- what the hooks of the process's life call ----

/// The library was loaded.
pub(crate) fn load() {
    let mut process = process();
    if !process.configure() {
        return;
    }
    allocate::begin();
    sys::find_single_threaded();
    bound::set(match process.options.tcp_mem {
        0 => kernel::connections_memory(),
        kilobytes => bound::of_most(usize::try_from(kilobytes << 10).unwrap_or(usize::MAX)),
    });
    table::create(process.options.fdtable_size);
    // The first look at the clock asks the kernel where it is; a sandbox that the program enters later may forbid to ask.
    let _ = now();
    process.adopt_all();
    process.connect_leash(None);
    ACTIVE.store(process.start != Start::Failed, Ordering::Release);
}

/// Before a fork: nobody may be in the middle of something.
pub(crate) fn before_fork() {
    if is_active() {
        contexts::hold(|process| {
            process.look_again();
            process.leave_unused_listeners();
            if contexts::is_pending(process.context) {
                process.transmit();
            }
            process.settle();
            process.expect_child();
            process.share_sets();
            process.call_sleepers();
        });
    }
}

/// After a fork, in the parent.
pub(crate) fn after_fork_in_parent() {
    if is_active() {
        // SAFETY: `before_fork` held all contexts in this thread.
        unsafe {
            contexts::held(|process| {
                process.become_parent();
                process.call_sleepers();
            });
        }
        // SAFETY: as above.
        unsafe { contexts::release() };
    }
}

/// After a fork, in the child.
pub(crate) fn after_fork_in_child() {
    if is_active() {
        disown_descriptors();
        contexts::forget_threads();
        sets::inherit();
        // SAFETY: `before_fork` held all contexts in the thread that this one is the copy of.
        unsafe { contexts::held(Process::begin_as_child) };
        // SAFETY: as above.
        unsafe {
            contexts::held(|process| {
                if process.context == 0 {
                    let parents = process.leash.take();
                    process.connect_leash(parents.as_ref());
                }
            });
        }
        // SAFETY: as above.
        unsafe { contexts::release() };
    }
}

/// Whoever sleeps looks again.
pub(crate) fn wake_everybody() {
    contexts::each(|process| process.wake_set(None));
}

/// The process is about to end: what it sent must arrive, as it would if the kernel sent it.
pub(crate) fn finish() {
    if !is_active() {
        return;
    }
    contexts::each(|process| {
        process.leave_inheritance();
        let listeners: Vec<_> = process.stack.listeners().collect();
        for id in listeners {
            process.part(id);
        }
        process.stack.close_all();
        if contexts::are_several() {
            process.pump();
        }
    });
    let end = now() + EXIT_LINGER;
    for context in contexts::all() {
        let mut process = deliver(contexts::at(context), end);
        if !process.unfinished()
            && let Some(client) = &mut process.client
        {
            let _ = client.finish();
        }
        process.report();
    }
}

/// Waits until what was sent on closed connections has arrived, or `end` comes.
fn deliver(mut guard: Guard<'static, Process>, end: Instant) -> Guard<'static, Process> {
    guard.pump();
    while guard.unfinished() {
        let (next, woken) =
            wait(guard, For::Frames, &mut [], Some(end), Instant::from_micros(0), sys::seen(), true);
        guard = next;
        guard.pump();
        if woken == Woken::TimedOut {
            break;
        }
    }
    guard
}
