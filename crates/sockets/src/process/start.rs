//! How a process's stack comes to be, and how it goes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::AsRawFd;

use overfly_broker::{Client, Cluster, Interface};
use overfly_engine::{Config, Engine};
use overfly_link::Link;
use overfly_profile::options::Options;
use overfly_profile::routes;
use overfly_profile::rules::{self, Rules};

use super::away::NoStack;
use super::ports::SharedPorts;
use super::{FREE_BIND, Process, contexts, signal};
use crate::any_link::{AnyLink, SEGMENT_OFFLOAD};
use crate::socket::Side;
use crate::statistics::Statistics;
use crate::table::{self, Entry};
use crate::{allocate, bound, environment, kernel, sys};

/// Memory that a stack has to leave to the program, which may have a limit (RLIMIT_AS), in bytes.
const ROOM_TO_START: usize = 64 << 20;

/// How many times as large batches are with EF_HIGH_THROUGHPUT_MODE.
const LARGE_BATCHES: usize = 4;

/// Whether there is a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// Nothing needed one yet.
    Untried,
    /// It runs.
    Running,
    /// It cannot be had; the reason was said.
    Failed,
}

impl Process {
    /// Reads the environment. Returns whether the program is to be accelerated.
    pub(super) fn configure(&mut self) -> bool {
        kernel::standard_error::remember();
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
        self.session.environment = std::env::var("OVERFLY_BROKER").ok();
        if self.session.environment.is_some() {
            environment::remember();
        }
        let environment = self.session.environment.as_deref();
        if environment.is_some() {
            contexts::begin(self.options, &self.rules, environment, self.statistics.enabled);
        }
        environment.is_some()
    }

    /// This is not the first context of the process, but has its options and rules.
    pub(super) fn becomes(
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
        (self.options, self.rules, self.session.environment) = (options, rules, environment);
        self.statistics.enabled = reports;
    }

    /// The process divides: the `other` context has what the whole process has.
    pub(super) fn divides_into(&self, context: usize, other: &mut Self) {
        let Self { options, rules, session, statistics, .. } = self;
        other.becomes(context, *options, rules.clone(), session.environment.clone(), statistics.enabled);
        other.sets.shared = self.sets.shared;
    }

    /// The process has divided.
    pub(super) fn has_divided(&mut self) {
        // A thread's stack may be nobody's soon.
        if self.stack.is_running() {
            self.begin_background();
        }
        // Who waits in a set that watches others looks at all contexts from now on.
        self.wake_set(None);
    }

    /// The kernel carries the program's sockets from now on, unless that is forbidden.
    pub(super) fn fall_back(&mut self, reason: &str) {
        if self.start == Start::Failed {
            return;
        }
        self.start = Start::Failed;
        if self.options.no_fail == 0 {
            kernel::complain(&format!("{reason}; EF_NO_FAIL=0 forbids it to continue on the kernel's stack"));
            sys::exit(1);
        }
        kernel::complain(&format!(
            "{}process {} continues on the kernel's stack: {reason}",
            if self.context > 0 { "a thread of " } else { "" },
            rustix::process::getpid().as_raw_nonzero()
        ));
    }

    /// Makes the stack, at its first use. Returns whether it runs.
    pub(crate) fn start(&mut self) -> bool {
        if self.start == Start::Untried && super::unseen::is_found() {
            self.start = Start::Failed;
        }
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

    pub(super) fn try_start(&mut self) -> Result<(), NoStack> {
        let mut client = self.take_client().map_err(|error| self.session.no_stack(&error))?;
        let outcome = self.try_start_with(&mut client);
        if outcome.is_ok() {
            self.session.client = Some(client);
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
        let link = AnyLink::open(sockets.map_err(|error| self.session.no_stack(&error))?)?;
        let mut config = Config::new(interface.mac, address, prefix_len);
        config.mtu = interface.mtu;
        // RFC 8200 section 5: a link with less carries no IPv6.
        if let Some((address, prefix_len)) = first_v6(&interface).filter(|_| interface.mtu >= 1280) {
            (config.address6, config.prefix6_len) = (Some(address), prefix_len);
        }
        config.partial_checksums = interface.partial_checksums;
        let is_alone = link.is_alone();
        self.device_asked = None;
        if is_alone {
            config.alone = true;
            config.checksum_offload = true;
            config.segment_offload = SEGMENT_OFFLOAD;
        } else {
            config.routes = routes::read();
            config.checksum_offload = link.checksum_offload();
            if self.options.segment_offload != 0 {
                config.segment_offload = link.segment_offload();
                self.heed_device();
            }
        }
        config.time_wait = Duration::from_secs(2 * self.options.tcp_tconst_msl);
        self.carry(Side::Network, config, link)?;
        self.stack.hands_over(!is_alone);
        self.stack.hands_over_uploads(self.options.uploads_to_kernel << 20);
        self.interface_index = interface.index;
        self.session.interface = Some(interface);
        Ok(())
    }

    /// A stack over a link that a test has joined to another in memory: what there was before is forgotten. There is no broker, but
    /// for one that gives no link (OVERFLY_BROKER).
    #[cfg(test)]
    pub(crate) fn start_joined(
        &mut self,
        interface: Interface,
        link: AnyLink,
        broker: Option<&str>,
    ) -> Result<(), String> {
        self.lose_stack(0);
        table::create(0);
        // Within the host there is nobody; the kernel does not have the address.
        (self.options.tcp_server_loopback, self.options.tcp_client_loopback) = (0, 0);
        FREE_BIND.store(true, Ordering::Relaxed);
        let (address, prefix_len) = first_v4(&interface).ok_or("the interface has no address")?;
        let mut config = Config::new(interface.mac, address, prefix_len);
        if let Some((address, prefix_len)) = first_v6(&interface) {
            (config.address6, config.prefix6_len) = (Some(address), prefix_len);
        }
        if let Some(broker) = broker {
            self.session.environment = Some(broker.to_owned());
            let mut client = Client::connect(broker).map_err(|error| error.to_string())?;
            // What it gives is not used.
            drop(client.open_stack().map_err(|error| error.to_string())?);
            self.session.client = Some(client);
            self.connect_leash(None);
        }
        self.carry(Side::Network, config, link)?;
        self.stack.hands_over(broker.is_some());
        self.interface_index = interface.index;
        self.session.interface = Some(interface);
        self.start = Start::Running;
        super::ACTIVE.store(true, Ordering::Release);
        Ok(())
    }

    /// What OVERFLY_BROKER would say.
    #[cfg(test)]
    pub(crate) fn broker_of_tests(&self) -> Option<String> {
        self.session.environment.clone()
    }

    /// Makes the engine of one side.
    pub(super) fn carry(&mut self, side: Side, mut config: Config, link: AnyLink) -> Result<(), String> {
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
        self.link_descriptors.extend(link.numbers());
        if link.has_doors() {
            self.doors.extend(link.numbers());
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
    pub(super) fn equip(&mut self) -> Result<(), String> {
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
    pub(super) fn begin_as_child(&mut self) {
        let ancestor = self.become_child();
        self.stack.lose_datagrams(ancestor);
        self.lose_stack(ancestor);
        self.sleepers.forget().into_iter().for_each(signal::close);
        self.timers.forget();
        self.background_postponed = false;
        // Those that it makes itself.
        self.sets.shared = false;
        let enabled = self.statistics.enabled;
        self.statistics = Statistics::new();
        self.statistics.enabled = enabled;
    }

    /// The process goes on without a stack, until it needs one again.
    pub(super) fn stop(&mut self) {
        self.settle();
        self.watch_everywhere();
        self.lose_stack(0);
        for descriptor in
            self.family_descriptors().chain(self.session.leash.iter().map(|leash| leash.as_fd().as_raw_fd()))
        {
            table::enter(descriptor, Entry::Internal);
        }
    }

    /// Everything is on its way, and as long as the lock is held no other thread uses the link's descriptors.
    pub(super) fn settle(&mut self) {
        self.stack.flush_finally();
        contexts::settle(self.context);
    }

    /// Connections are an ancestor's from now on.
    pub(super) fn lose_stack(&mut self, ancestor: u32) {
        self.stack.drop_arrivals(sys::close);
        drop(self.stack.forget(ancestor));
        self.within_host.forget();
        self.stalled = None;
        self.stop_showing();
        let (sleepers, mut world) = self.machine();
        sleepers.background.stand_back(&mut world);
        bound::falls_silent(self.context);
        self.session.client = None;
        self.session.kept = None;
        self.session.away = None;
        self.session.interface = None;
        self.link_descriptors.clear();
        self.doors.clear();
        self.descriptors.forget();
        self.shared_ports = SharedPorts::new();
        for set in self.sets.iter_mut() {
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
}

pub(super) fn first_v4(interface: &Interface) -> Option<(Ipv4Addr, u8)> {
    interface.addresses.iter().find_map(|&(address, prefix_len)| match address {
        IpAddr::V4(address) => Some((address, prefix_len)),
        IpAddr::V6(_) => None,
    })
}

pub(super) fn first_v6(interface: &Interface) -> Option<(Ipv6Addr, u8)> {
    interface.addresses.iter().find_map(|&(address, prefix_len)| match address {
        IpAddr::V6(address) if !address.is_unicast_link_local() => Some((address, prefix_len)),
        _ => None,
    })
}
