//! Overfly on one interface: XDP program, pools, stacks, and who gets which frames.

pub(crate) mod departures;
mod fetch;
mod judging;
mod options;
mod routes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overfly_broker::connection::Parcel;
use overfly_broker::{Cluster, Deferral, Interface, Protocol, Route};
use overfly_link::packet::PacketSocket;
use overfly_link::xdp::{BusyPoll, HugePages, Mode, Pool, PoolLayout, QueueSockets, Reclaimed, StackSockets};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use self::departures::Departures;
pub use self::options::Options;
use crate::beside;
use crate::confined::Confined;
use crate::device;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::groups::{BoundAddress, Groups, listening_places};
use crate::long_packets::Shape;
use crate::mirror::{self, Neighbor};
use crate::napi::ReceivingThreads;
use crate::netlink::{Link, Netlink};
use crate::orphans::{Orphans, Records};
pub use crate::program::Counters;
use crate::program::{Attached, Claim, FlowKey, Group, Program, XdpMode};
use crate::repair::{Repair, Right, Room};

/// How long a next hop may take to answer ARP or neighbour discovery: the kernel asks three times, a second apart.
pub(crate) const NEIGHBOR_WAIT: Duration = Duration::from_millis(3200);
/// Why there is no way for frames of several segments where nobody wants one.
const SWITCHED_OFF: &str = "switched off";
/// Bounds the XSKMAP, and the descriptors that an attachment needs.
const QUEUES_MAX: u32 = 256;

/// A stack's place.
#[derive(Debug)]
enum Slot {
    /// Nobody's, since then.
    Free(Option<Instant>),
    /// Somebody's: the sockets, one for each queue.
    Open(Vec<OwnedFd>),
    /// Steering has forgotten it, its process may still use the rings.
    Detached(Vec<OwnedFd>),
}

/// A connection that a stack opened, or a connected UDP socket.
#[derive(Debug)]
struct Opened {
    stack: u16,
    /// The kernel's socket that has its port: nobody else gets that while frames for it are the stack's.
    held: Option<Arc<OwnedFd>>,
}

/// A connection of a stack's whose frames are the kernel's already, and which the kernel does not have yet.
#[derive(Debug)]
pub(crate) struct Steered {
    stack: u16,
    flow: FlowKey,
    /// `None` if a listener of the stack's had accepted it.
    opened: Option<Opened>,
    repair: Repair,
}

/// An XDP program on an interface, and everything that depends on it. All of it goes with this value, or with the process:
/// nothing is pinned.
///
/// It belongs to the network namespace of the thread that calls [`Attachment::attach`]; call the other methods from threads
/// of the same namespace.
pub struct Attachment {
    // Dropped in this order: the device's NAPIs are as they were, no frame is redirected any more, then the sockets go, then
    // the pools.
    pub(crate) receiving: Option<ReceivingThreads>,
    _attached: Attached,
    stacks: Vec<Slot>,
    pools: Vec<Pool>,
    program: Program,
    interface: Interface,
    netlink: Netlink,
    layout: PoolLayout,
    /// How the program is attached, and the sockets bound.
    shape: Shape,
    mode: Mode,
    huge_pages: HugePages,
    queues: u32,
    /// Whose processes have had the pools. Nobody can take memory back from a process, so they are never another user's.
    user: Option<u32>,
    busy_poll: Option<BusyPoll>,
    min_free_frames: u32,
    /// `None`: it is not heeded.
    firewall: Option<Firewall>,
    groups: Groups,
    /// Whose turn it is to take over connections that another one gives away.
    turn: usize,
    connections: HashMap<FlowKey, Opened>,
    claims: BTreeMap<(Protocol, IpAddr), Claim>,
    /// What the device's settings were, if they were changed.
    deferral_before: Option<Deferral>,
    /// The interface is gone, and not there again.
    pub(crate) lost: bool,
    receiving_cpus: Vec<usize>,
    known: routes::Known,
    departures: Departures,
    reclaimed: Reclaimed,
    /// Where frames of several segments leave, or why there is no such place.
    confined: Result<Confined, String>,
    /// By stack.
    packet_sockets: BTreeMap<u16, PacketSocket>,
}

impl Attachment {
    /// Attaches to an interface of this thread's network namespace.
    ///
    /// # Errors
    /// What is missing, and what to do about it. Nothing is left behind.
    pub fn attach(interface: &str, options: Options) -> Result<Attachment, Error> {
        let mut netlink = Netlink::open().map_err(|errno| Error::system("netlink", errno))?;
        let link = netlink
            .link(interface)
            .map_err(|errno| Error::system("reading the interface", errno))?
            .ok_or_else(|| Error::NoInterface { name: interface.to_owned() })?;
        let unfit = |lacks| Error::UnfitInterface { name: interface.to_owned(), lacks };
        let mac = link.mac.ok_or_else(|| unfit("Ethernet address"))?;
        let addresses =
            netlink.addresses(link.index).map_err(|errno| Error::system("reading the addresses", errno))?;
        if addresses.is_empty() {
            return Err(unfit("IP address"));
        }
        let (rx_queues, tx_queues) = device::queues_of(interface, &link)?;
        let queues = options.queues.unwrap_or(rx_queues).min(rx_queues);
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(Error::Options(format!(
                "{interface} has {rx_queues} receive queues; from 1 to {QUEUES_MAX} can be used: see `ethtool -l {interface}`"
            )));
        }
        let shape = Shape::of(&link, interface, &options);
        let long_packets = shape.long_packets.is_ok();
        let layout = options.layout(&shape, queues.min(tx_queues).max(1));
        layout.check()?;

        let mut key = [0; 8];
        getrandom(&mut key, GetRandomFlags::empty()).map_err(|errno| Error::system("getrandom", errno))?;
        let key = u64::from_ne_bytes(key);
        let mut program = Program::load(queues, options.flows.max(1), key, shape.mode, long_packets)?;
        program.set_mac(mac)?;
        if !options.judge_senders {
            program.trust_senders()?;
        }
        let attached = program.attach(link.index)?.map_err(|errno| match errno {
            Errno::BUSY | Errno::EXIST => {
                Error::ProgramAttached { name: interface.to_owned(), id: link.xdp_program }
            }
            Errno::RANGE => Error::MtuTooBig { name: interface.to_owned(), mtu: link.mtu },
            Errno::NOSPC => Error::TooFewQueues { name: interface.to_owned(), rx_queues },
            Errno::OPNOTSUPP => Error::NoNativeXdp { name: interface.to_owned() },
            Errno::PERM => {
                Error::NoPrivilege { operation: "attaching the XDP program", capability: "CAP_NET_ADMIN" }
            }
            errno => Error::system("attaching the XDP program", errno),
        })?;
        let copies = options.force_copy || shape.mode == XdpMode::Generic;
        let mode = if copies { Mode::Copy } else { Mode::Best };
        let pools = (0..queues)
            .map(|queue| Pool::create(link.index, queue, layout, mode, options.huge_pages, long_packets))
            .collect::<Result<Vec<_>, _>>()?;
        let is_veth = link.kind.as_deref() == Some("veth");
        // On veth the sender's core runs our NAPI. Taking that over bounds a burst by veth's ring of 256, and costs
        // the server's core what the peer's has to spare (1 KB keep-alive: 188 k requests/s with, 250 k without).
        let busy_poll = options.busy_poll && !is_veth && pools.iter().all(Pool::can_busy_poll);
        let deferral_before = if busy_poll {
            Some(
                device::begin_busy_poll(interface)
                    .map_err(|errno| Error::system("setting gro_flush_timeout", errno))?,
            )
        } else {
            None
        };
        let confined = if options.segment_offload {
            confine(&pools, &mut netlink, &link)
        } else {
            Err(SWITCHED_OFF.to_owned())
        };
        let mut attachment = Attachment {
            interface: Interface {
                name: interface.to_owned(),
                index: link.index,
                mac,
                mtu: shape.mtu,
                addresses,
                partial_checksums: is_veth,
            },
            known: routes::Known::new(&program),
            program,
            netlink,
            layout,
            shape,
            mode,
            huge_pages: options.huge_pages,
            queues,
            user: None,
            busy_poll: busy_poll.then(BusyPoll::default),
            min_free_frames: options.min_free_frames,
            stacks: (0..options.stacks).map(|_| Slot::Free(None)).collect(),
            firewall: options.heed_firewall.then(|| Firewall::open(link.index, interface)).transpose()?,
            groups: Groups::default(),
            turn: 0,
            connections: HashMap::new(),
            claims: BTreeMap::new(),
            deferral_before,
            reclaimed: Reclaimed::default(),
            receiving: None,
            lost: false,
            receiving_cpus: Vec::new(),
            departures: Departures::default(),
            confined,
            packet_sockets: BTreeMap::new(),
            _attached: attached,
            pools,
        };
        attachment.refresh_ways()?;
        Ok(attachment)
    }

    /// The interface, with its addresses as they were last read.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether the driver moves frames without copying.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.pools.iter().all(Pool::zero_copy)
    }

    /// Whether the stacks poll the device themselves: it was asked for and the kernel can.
    #[must_use]
    pub fn busy_poll(&self) -> bool {
        self.busy_poll.is_some()
    }

    /// On veth a frame is received by the core that sends it. This gives that work to these processors, as a network card's
    /// interrupts would be, in threads of the kernel's that wait until the processor is free: who spins there lets them in
    /// ([`overfly_link::xdp::XdpLink::share_processor`]). Returns whether it is so; where the device is no veth, or the kernel
    /// older than 6.17, nothing changes.
    pub fn receive_on(&mut self, cpus: &[usize]) -> bool {
        let is_driven = self.interface.partial_checksums && self.shape.mode == XdpMode::Driver;
        if is_driven && !cpus.is_empty() && self.receiving.is_none() {
            self.receiving = ReceivingThreads::start(self.interface.index, cpus).ok();
            self.receiving_cpus = cpus.to_vec();
        }
        self.receiving.is_some()
    }

    /// Whether stacks can send frames of several segments, which the kernel cuts.
    ///
    /// # Errors
    /// Why they cannot, in words. Everything works all the same, segment by segment.
    pub fn long_frames(&self) -> Result<(), &str> {
        self.confined.as_ref().map(drop).map_err(String::as_str)
    }

    /// Whether packets longer than a buffer arrive: those of a large MTU.
    ///
    /// # Errors
    /// Why they do not, in words. The interface's MTU is bounded by a buffer then.
    pub fn long_packets(&self) -> Result<(), &str> {
        self.shape.long_packets.as_ref().copied().map_err(String::as_str)
    }

    /// Whether what a kernel peer sends as one frame of several segments arrives so.
    ///
    /// # Errors
    /// Why it does not, in words. It arrives segment by segment.
    pub fn segments_arrive_together(&self) -> Result<(), &str> {
        self.shape.segments.as_ref().copied().map_err(String::as_str)
    }

    /// Whether the device, or the kernel, completes the TCP checksums of what stacks send.
    ///
    /// # Errors
    /// Why neither does, in words. The engine sums while it copies.
    pub fn checksums_are_completed(&self) -> Result<(), &str> {
        self.shape.checksums.as_ref().copied().map_err(String::as_str)
    }

    /// The stack's way for frames of several segments. Where there is none it does without.
    fn packet_socket_of(&mut self, stack: u16) -> Option<OwnedFd> {
        if !self.packet_sockets.contains_key(&stack) {
            let socket = self.confined.as_mut().ok()?.open_socket();
            match socket {
                Ok(socket) => drop(self.packet_sockets.insert(stack, socket)),
                Err(reason) => {
                    self.confined = Err(reason);
                    return None;
                }
            }
        }
        self.packet_sockets.get(&stack)?.share().ok()
    }

    /// What the device's settings were, if they were changed.
    pub(crate) fn deferral_before(&self) -> Option<Deferral> {
        self.deferral_before
    }

    /// Whether the frames' memory is made of huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.pools.iter().all(Pool::huge_pages)
    }

    /// Stacks that are open.
    #[must_use]
    pub fn open_stacks(&self) -> usize {
        self.stacks.iter().filter(|place| matches!(place, Slot::Open(_))).count()
    }

    /// What the XDP program has done with frames.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.program.counters()
    }

    /// What was taken back from stacks that are gone, all of them together.
    #[must_use]
    pub fn reclaimed(&self) -> Reclaimed {
        self.reclaimed
    }

    /// Frames that could be received into, for each queue.
    pub fn free_frames(&self) -> impl Iterator<Item = u32> {
        self.pools.iter().map(Pool::free_frames)
    }

    /// Makes a stack's sockets, for this process's user. Frames reach them as soon as something is steered to the stack.
    ///
    /// # Errors
    /// As [`Attachment::add_stack_for`].
    pub fn add_stack(&mut self) -> Result<StackSockets, Error> {
        self.add_stack_for(geteuid().as_raw())
    }

    /// Makes a stack's sockets for a process of a user's. All stacks at one time are of one user: they see one another's
    /// frames. The next user gets new memory.
    ///
    /// # Errors
    /// [`Error::OtherUser`], [`Error::NoStack`] if all are taken, [`Error::TooFewFrames`], or what the kernel said.
    pub fn add_stack_for(&mut self, user: u32) -> Result<StackSockets, Error> {
        self.give_pools_to(user)?;
        let (free, wanted) = (self.free_frames().min().unwrap_or(0), self.min_free_frames);
        if free < wanted {
            return Err(Error::TooFewFrames { free, wanted });
        }
        let stack = self.free_place().ok_or(Error::NoStack { stacks: self.stacks.len() as u16 })?;
        let mut kept = Vec::with_capacity(self.pools.len());
        let mut queues = Vec::with_capacity(self.pools.len());
        for pool in &self.pools {
            pool.prepare(stack);
            let socket = pool.open_socket(stack, self.busy_poll)?;
            let duplicate =
                |descriptor| fcntl_dupfd_cloexec(descriptor, 3).map_err(|errno| Error::system("dup", errno));
            queues.push(QueueSockets {
                socket: duplicate(socket.as_fd())?,
                pool: duplicate(pool.descriptor())?,
            });
            kept.push(socket);
        }
        let pulses = self.program.pulses()?;
        let mut result = self.program.admit(stack);
        for (queue, socket) in (0_u32..).zip(&kept) {
            result = result.and(self.program.set_socket(stack, queue, Some(socket.as_fd())));
        }
        self.stacks[usize::from(stack)] = Slot::Open(kept);
        if let Err(error) = result {
            self.remove_stack(stack)?;
            return Err(error);
        }
        Ok(StackSockets {
            stack,
            queues,
            layout: self.layout,
            zero_copy: self.zero_copy(),
            busy_poll: self.busy_poll,
            pulses: Some(pulses),
            long_frames: self.packet_socket_of(stack),
        })
    }

    /// Makes sure that no other user's process has the pools, or could have kept them.
    fn give_pools_to(&mut self, user: u32) -> Result<(), Error> {
        if self.user.is_some_and(|its| its != user) {
            let taken = self.stacks.iter().any(|place| !matches!(place, Slot::Free(_)));
            if let Some(user) = self.user.filter(|_| taken) {
                return Err(Error::OtherUser { user });
            }
            self.pools.clear();
            self.user = None;
        }
        for queue in self.pools.len() as u32..self.queues {
            let pool = self.create_pool(self.interface.index, queue)?;
            self.pools.push(pool);
        }
        self.user = Some(user);
        Ok(())
    }

    fn create_pool(&self, interface: u32, queue: u32) -> Result<Pool, overfly_link::Error> {
        let long_packets = self.shape.long_packets.is_ok();
        Pool::create(interface, queue, self.layout, self.mode, self.huge_pages, long_packets)
    }

    /// The place that has been free for longest: frames of its last stack that the network still brings find nobody for as
    /// long as possible.
    fn free_place(&self) -> Option<u16> {
        (0_u16..)
            .zip(&self.stacks)
            .filter_map(|(stack, place)| match place {
                Slot::Free(freed) => Some((stack, *freed)),
                _ => None,
            })
            .min_by_key(|(_, freed)| *freed)
            .map(|(stack, _)| stack)
    }

    /// Nothing is steered to the stack any more. Its process may still be at its rings: call
    /// [`Attachment::remove_stack`] when it is not ([`Attachment::is_in_use`] says so, or its death does).
    ///
    /// # Errors
    /// [`Error::UnknownStack`], or what the kernel said.
    pub fn detach_stack(&mut self, stack: u16) -> Result<(), Error> {
        let place = self.stacks.get_mut(usize::from(stack)).ok_or(Error::UnknownStack(stack))?;
        match std::mem::replace(place, Slot::Free(None)) {
            Slot::Open(sockets) => *place = Slot::Detached(sockets),
            other => {
                *place = other;
                return Err(Error::UnknownStack(stack));
            }
        }
        let mut result = Ok(());
        for queue in 0..self.pools.len() as u32 {
            result = result.and(self.program.set_socket(stack, queue, None));
        }
        self.groups.remove(stack);
        result = result.and(self.install_listeners());
        result = result.and(self.program.dismiss(stack));
        let theirs: Vec<FlowKey> = self
            .connections
            .iter()
            .filter_map(|(&flow, owner)| (owner.stack == stack).then_some(flow))
            .collect();
        for flow in theirs {
            self.connections.remove(&flow);
            result = result.and(self.program.remove_connection(flow));
        }
        result
    }

    /// What its peers must be asked about if the stack's process dies: take it before [`Attachment::detach_stack`].
    pub(crate) fn orphans_of(&self, stack: u16) -> Orphans {
        let theirs = self.connections.iter().filter(|(_, owner)| owner.stack == stack);
        Orphans {
            mark: self.program.mark_of(stack),
            opened: theirs.map(|(flow, _)| *flow).collect(),
            interface: self.interface.index,
        }
    }

    /// The connections of listeners, for another thread to read.
    pub(crate) fn records(&self) -> Result<Records, Error> {
        self.program.records()
    }

    /// Whether an [`overfly_link::xdp::XdpLink`] of the stack is open, or its process died without dropping it.
    #[must_use]
    pub fn is_in_use(&self, stack: u16) -> bool {
        self.pools.iter().any(|pool| pool.is_in_use(stack))
    }

    /// Undoes [`Attachment::add_stack`] and all that was steered to the stack; takes the frames back that it held. Its
    /// `XdpLink` must be dropped or its process dead.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], or what the kernel said.
    pub fn remove_stack(&mut self, stack: u16) -> Result<(), Error> {
        let detached = match self.stacks.get(usize::from(stack)) {
            Some(Slot::Open(_)) => self.detach_stack(stack),
            Some(Slot::Detached(_)) => Ok(()),
            _ => return Err(Error::UnknownStack(stack)),
        };
        departures::wait_for_softirqs();
        detached.and(self.take_back(stack))
    }

    fn check_open(&self, stack: u16) -> Result<(), Error> {
        match self.stacks.get(usize::from(stack)) {
            Some(Slot::Open(_)) => Ok(()),
            _ => Err(Error::UnknownStack(stack)),
        }
    }

    /// New TCP connections to the address go to the stack, or to one of those that listen there, chosen by hash; with UDP,
    /// each datagram. The address 0.0.0.0 or `::` stands for all addresses of the interface, also those it gets later: `::`
    /// for those of both families, unless `v6only` (which means nothing with other addresses).
    ///
    /// When another stack begins or ceases to listen, TCP connections stay where they are. UDP keeps no record: of the
    /// peers' ports, some move to another stack.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], [`Error::NotLocal`], or what the kernel said.
    pub fn listen(
        &mut self,
        stack: u16,
        protocol: Protocol,
        address: SocketAddr,
        v6only: bool,
    ) -> Result<(), Error> {
        self.listen_in(stack, protocol, address, v6only, Cluster::default())
    }

    /// As [`Attachment::listen`], as one of a cluster: stacks of other clusters keep what they have.
    ///
    /// # Errors
    /// Those of [`Attachment::listen`], and [`Error::ListenerTaken`].
    pub fn listen_in(
        &mut self,
        stack: u16,
        protocol: Protocol,
        address: SocketAddr,
        v6only: bool,
        cluster: Cluster,
    ) -> Result<(), Error> {
        self.check_open(stack)?;
        let ip = address.ip().to_canonical();
        if !ip.is_unspecified() && !self.is_local(ip)? {
            return Err(Error::NotLocal(ip));
        }
        let mut places = listening_places(protocol, address, v6only);
        for &place in &places {
            self.groups.admits(stack, place, &cluster).map_err(|taken| taken.at(address))?;
        }
        places.retain(|&place| self.groups.listen(stack, place, cluster));
        if places.is_empty() {
            return Ok(());
        }
        let result = self.install_listeners().and_then(|()| self.check_firewall(&places));
        if result.is_err() {
            for place in places {
                self.groups.withdraw(stack, place);
            }
            self.install_listeners()?;
        }
        result
    }

    /// How many stacks listen at that address, as [`Attachment::listen`] took it: `0.0.0.0` and `::` count themselves alone.
    /// While there are none, the kernel serves it.
    #[must_use]
    pub fn listening_stacks(&self, protocol: Protocol, address: SocketAddr) -> usize {
        self.groups.accepting_stacks(BoundAddress::new(protocol, address))
    }

    /// The stack gets no new connections there, and no datagrams. TCP connections that it has stay its own. Takes what
    /// [`Attachment::listen`] took.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], or what the kernel said.
    pub fn unlisten(
        &mut self,
        stack: u16,
        protocol: Protocol,
        address: SocketAddr,
        v6only: bool,
    ) -> Result<(), Error> {
        self.check_open(stack)?;
        for place in listening_places(protocol, address, v6only) {
            self.groups.unlisten(stack, place);
        }
        self.install_listeners()
    }

    fn install_listeners(&mut self) -> Result<(), Error> {
        let places = self.places();
        if let Some(firewall) = &mut self.firewall {
            firewall.judge_places(&mut self.program, &places)?;
        }
        self.program.set_listeners(places)
    }

    /// Where the program is to find listeners.
    fn places(&self) -> BTreeMap<BoundAddress, Group> {
        let local: Vec<IpAddr> = self.interface.addresses.iter().map(|(address, _)| *address).collect();
        self.groups.expand(&local)
    }

    /// Whether the firewall lets anybody through to places that were asked for.
    fn check_firewall(&mut self, asked: &[BoundAddress]) -> Result<(), Error> {
        let places = self.places();
        let theirs =
            places.keys().filter(|place| asked.contains(place) || asked.contains(&place.everywhere()));
        self.firewall.as_mut().map_or(Ok(()), |firewall| firewall.admits_somebody(theirs))
    }

    /// Whether the firewall lets the stack's datagrams through to a peer, and the answers.
    ///
    /// # Errors
    /// [`Error::Firewall`]: the kernel must send them.
    pub(crate) fn may_send(&mut self, stack: u16, destination: IpAddr) -> Result<(), Error> {
        let destination = destination.to_canonical();
        let mut places: Vec<BoundAddress> = (self.places().into_iter())
            .filter(|(place, group)| place.protocol == Protocol::Udp && group.has(stack))
            .map(|(place, _)| place)
            .filter(|place| place.address.is_ipv4() == destination.is_ipv4())
            .collect();
        if places.is_empty() {
            let own = self.interface.addresses.iter().map(|(address, _)| *address);
            let own = own.filter(|address| address.is_ipv4() == destination.is_ipv4()).take(1);
            places.extend(own.map(|address| BoundAddress::new(Protocol::Udp, SocketAddr::new(address, 0))));
        }
        let Some(firewall) = &mut self.firewall else { return Ok(()) };
        if firewall.is_judged(stack) {
            return Err(Error::Firewall("a BPF program of its control group judges its packets".to_owned()));
        }
        places.iter().try_for_each(|place| firewall.admits_datagrams(place, destination))
    }

    /// Says when the rules change; when they are to be looked at again though nothing says so.
    pub(crate) fn firewall(&self) -> (Option<&impl AsFd>, Option<Instant>) {
        (self.firewall.as_ref(), self.firewall.as_ref().and_then(Firewall::due))
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool, Error> {
        let known = |interface: &Interface| interface.addresses.iter().any(|(a, _)| *a == address);
        Ok(known(&self.interface) || (self.refresh_addresses()? && known(&self.interface)))
    }

    /// Reads the interface's addresses again, and lets listeners at all addresses follow. True if something changed.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn refresh_addresses(&mut self) -> Result<bool, Error> {
        let addresses = self.netlink.addresses(self.interface.index);
        let addresses = addresses.map_err(|errno| Error::system("reading the addresses", errno))?;
        if addresses == self.interface.addresses {
            return Ok(false);
        }
        // First the way to an address, by which a SYN to its listeners is judged.
        let ways = self.refresh_ways();
        self.interface.addresses = addresses;
        self.install_listeners().and(ways).map(|()| true)
    }

    /// Reads the namespace's routes, rules and neighbours, and the interface's hardware address, again: the XDP program goes by
    /// them when it judges who may open a connection, and where the answers go.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn refresh_ways(&mut self) -> Result<(), Error> {
        let (name, index) = (&self.interface.name, self.interface.index);
        let link = self.netlink.link(name).map_err(|errno| Error::system("reading the interface", errno))?;
        if let Some(mac) = link.filter(|link| link.index == index).and_then(|link| link.mac) {
            self.interface.mac = mac;
            self.program.set_mac(mac)?;
        }
        let tables = self.netlink.tables().map_err(|errno| Error::system("reading the routes", errno))?;
        self.program.set_routes(&mirror::compile(&tables, index))?;
        let neighbors =
            self.netlink.neighbors(index).map_err(|errno| Error::system("reading the neighbours", errno))?;
        let there: BTreeSet<IpAddr> =
            neighbors.iter().filter(|its| its.mac.is_some()).map(|its| its.address).collect();
        for address in self.program.known_neighbors() {
            if !there.contains(&address) {
                self.program.set_neighbor(address, None)?;
            }
        }
        for Neighbor { address, mac, .. } in &neighbors {
            self.program.set_neighbor(*address, *mac)?;
        }
        Ok(())
    }

    /// Has the kernel ask whether gateways are still where they were, where it does not know by now: what stacks send it does not
    /// see, and a gateway that was replaced in silence would never be missed.
    pub(crate) fn confirm_gateways(&mut self) -> Result<(), Error> {
        let index = self.interface.index;
        let failed = |errno| Error::system("asking for a gateway", errno);
        let gateways: BTreeSet<IpAddr> = self.program.gateways().collect();
        if gateways.is_empty() {
            return Ok(());
        }
        let neighbors = self.netlink.neighbors(index).map_err(failed)?;
        for neighbor in neighbors.iter().filter(|its| its.stale && gateways.contains(&its.address)) {
            self.netlink.confirm(neighbor).map_err(failed)?;
        }
        Ok(())
    }

    /// The interface's index, and whatever has its name now. The first is `None` if there is none of that index.
    pub(crate) fn interface_now(&mut self) -> Result<(Option<String>, Option<Link>), Error> {
        let name = name_of(self.interface.index)?;
        let link = self
            .netlink
            .link(&self.interface.name)
            .map_err(|errno| Error::system("reading the interface", errno))?;
        Ok((name, link))
    }

    /// Attaches to another interface of the same name. Listeners stay, and stacks get new sockets. False if it has no address yet.
    ///
    /// # Errors
    /// As [`Attachment::attach`].
    pub(crate) fn renew(&mut self, link: &Link) -> Result<bool, Error> {
        let name = self.interface.name.clone();
        let addresses = self
            .netlink
            .addresses(link.index)
            .map_err(|errno| Error::system("reading the addresses", errno))?;
        let Some(mac) = link.mac.filter(|_| !addresses.is_empty()) else { return Ok(false) };
        let (rx_queues, _) = device::queues_of(&name, link)?;
        if rx_queues < self.queues {
            return Err(Error::TooFewQueues { name, rx_queues });
        }
        let attached = self
            .program
            .attach(link.index)?
            .map_err(|errno| Error::system("attaching the XDP program again", errno))?;
        let pools = (0..self.queues)
            .map(|queue| self.create_pool(link.index, queue))
            .collect::<Result<Vec<_>, _>>()?;
        if self.busy_poll.is_some() {
            device::set_deferral(&name, device::BUSY_POLL)
                .map_err(|errno| Error::system("setting gro_flush_timeout", errno))?;
        }
        let mut open = Vec::new();
        for (stack, place) in (0_u16..).zip(&mut self.stacks) {
            match place {
                Slot::Open(_) => open.push(stack),
                // Its frames went with the old memory.
                Slot::Detached(sockets) => sockets.clear(),
                Slot::Free(_) => {}
            }
        }
        for stack in open {
            let mut sockets = Vec::with_capacity(pools.len());
            for (queue, pool) in (0_u32..).zip(&pools) {
                pool.prepare(stack);
                let socket = pool.open_socket(stack, self.busy_poll)?;
                self.program.set_socket(stack, queue, Some(socket.as_fd()))?;
                sockets.push(socket);
            }
            self.stacks[usize::from(stack)] = Slot::Open(sockets);
        }
        self.pools = pools;
        self._attached = attached;
        if self.confined.is_ok() {
            // Those of the interface that is gone lead nowhere.
            self.packet_sockets.clear();
            self.confined = Confined::new(&mut self.netlink, link);
        }
        (self.interface.index, self.interface.mac, self.interface.addresses) = (link.index, mac, addresses);
        if let Some(firewall) = &mut self.firewall {
            firewall.moves_to(link.index);
        }
        self.refresh_ways()?;
        self.install_listeners()?;
        self.receiving = None;
        let cpus = std::mem::take(&mut self.receiving_cpus);
        self.receive_on(&cpus);
        self.lost = false;
        Ok(true)
    }

    /// The sockets of a stack that is open, once more.
    pub(crate) fn sockets_of(&mut self, stack: u16) -> Result<StackSockets, Error> {
        let Some(Slot::Open(sockets)) = self.stacks.get(usize::from(stack)) else {
            return Err(Error::UnknownStack(stack));
        };
        let duplicate =
            |descriptor| fcntl_dupfd_cloexec(descriptor, 3).map_err(|errno| Error::system("dup", errno));
        let queues = (self.pools.iter().zip(sockets))
            .map(|(pool, socket)| {
                Ok(QueueSockets { socket: duplicate(socket.as_fd())?, pool: duplicate(pool.descriptor())? })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(StackSockets {
            stack,
            queues,
            layout: self.layout,
            zero_copy: self.zero_copy(),
            busy_poll: self.busy_poll,
            pulses: Some(self.program.pulses()?),
            long_frames: self.packet_socket_of(stack),
        })
    }

    /// Finds the way to `remote` and steers the connection's frames to the stack. The address of `local` may be
    /// unspecified: the route then says which. Waits for the next hop to answer, for 1 s at most.
    ///
    /// # Errors
    /// [`Error::RouteElsewhere`] if the kernel must carry this connection; [`Error::TupleInUse`]; those of
    /// [`Attachment::route`].
    pub fn connect_flow(
        &mut self,
        stack: u16,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Route, Error> {
        let route = self.route(remote.ip())?;
        self.register_flow(stack, protocol, local, remote, route, None)
    }

    /// The second half of [`Attachment::connect_flow`], when the route is known. `held` is the kernel's socket that has the local
    /// port.
    pub(crate) fn register_flow(
        &mut self,
        stack: u16,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        mut route: Route,
        held: Option<Arc<OwnedFd>>,
    ) -> Result<Route, Error> {
        self.check_open(stack)?;
        let address = local.ip().to_canonical();
        if !address.is_unspecified() {
            if address.is_ipv4() != route.source.is_ipv4() || !self.is_local(address)? {
                return Err(Error::NotLocal(address));
            }
            route.source = address;
        }
        let local = SocketAddr::new(route.source, local.port());
        let flow = FlowKey::new(protocol, local, remote);
        match self.connections.get(&flow) {
            Some(owner) if owner.stack == stack => return Ok(route),
            Some(_) => return Err(Error::TupleInUse { local, remote }),
            None if self.program.is_recorded_by_others(flow, stack) => {
                return Err(Error::TupleInUse { local, remote });
            }
            None => {}
        }
        if let Some(firewall) = &self.firewall {
            firewall.admits(&BoundAddress::new(protocol, local), remote)?;
        }
        self.program.add_connection(flow, stack)?;
        self.connections.insert(flow, Opened { stack, held });
        Ok(route)
    }

    /// The connection is over. With an unspecified address in `local`, from whichever of the interface's addresses it was.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], or what the kernel said. A connection that is not the stack's is left alone.
    pub fn disconnect_flow(
        &mut self,
        stack: u16,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        self.check_open(stack)?;
        let candidates: Vec<FlowKey> = if local.ip().to_canonical().is_unspecified() {
            (self.interface.addresses.iter())
                .map(|(address, _)| FlowKey::new(protocol, SocketAddr::new(*address, local.port()), remote))
                .collect()
        } else {
            vec![FlowKey::new(protocol, local, remote)]
        };
        for flow in candidates {
            if self.connections.get(&flow).is_some_and(|owner| owner.stack == stack) {
                self.connections.remove(&flow);
                self.program.remove_connection(flow)?;
            }
        }
        Ok(())
    }

    /// Has the kernel go on with a TCP connection of the stack's: `socket`, which is in none, becomes it. The kernel has it
    /// before its frames are let through, so that nobody answers them with RST; frames that are in the stack's rings by
    /// then are lost, and sent again by the peer. [`Attachment::go_on_with`] does the rest.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], [`Error::NotTheirs`], [`Error::NotMoved`]: then the connection is the stack's as before.
    pub(crate) fn hand_over(
        &mut self,
        stack: u16,
        socket: OwnedFd,
        parcel: Parcel<OwnedFd>,
        room: Room,
    ) -> Result<Steered, Error> {
        self.check_open(stack)?;
        let (local, remote) = (parcel.connection.local(), parcel.connection.remote());
        let flow = FlowKey::new(Protocol::Tcp, local, remote);
        let opened = self.connections.get(&flow).filter(|owner| owner.stack == stack);
        if opened.is_none() && !self.program.is_recorded(flow, stack) {
            return Err(Error::NotTheirs { local, remote });
        }
        let holder = opened.and_then(|owner| owner.held.as_deref());
        beside::bind_beside(&socket, holder, &parcel.connection, self.interface.index);
        let repair = Repair::restore(socket, parcel, self.interface.index, room, Right::Granted)
            .map_err(|errno| Error::NotMoved { errno })?;
        if opened.is_some() {
            self.program.remove_connection(flow)?;
        } else {
            self.program.forget_recorded(flow)?;
        }
        Ok(Steered { stack, flow, opened: self.connections.remove(&flow), repair })
    }

    /// Goes on with what [`Attachment::hand_over`] began. `None` if that takes longer.
    pub(crate) fn go_on_with(&mut self, steered: &mut Steered) -> Option<Result<(), Error>> {
        let errno = match steered.repair.go_on() {
            Ok(true) => return Some(Ok(())),
            Ok(false) => return None,
            Err(errno) => errno,
        };
        let Steered { stack, flow, ref mut opened, .. } = *steered;
        let again = match opened.take() {
            Some(opened) => {
                let outcome = self.program.add_connection(flow, stack);
                self.connections.insert(flow, opened);
                outcome
            }
            None => self.program.record(flow, stack),
        };
        Some(again.and(Err(Error::NotMoved { errno })))
    }

    /// A stack that accepts TCP connections at `listener`, which is as it was said in [`Attachment::listen`]: each in turn, and
    /// before all others one in which a thread waits to accept. If `giver`, who has the connection, accepts there still, it is only
    /// busy: then nobody else but one that waits, unless the connection `cannot_wait`.
    pub fn next_listener(&mut self, listener: SocketAddr, giver: u16, cannot_wait: bool) -> Option<u16> {
        self.turn = self.turn.wrapping_add(1);
        let place = BoundAddress::new(Protocol::Tcp, listener);
        let all = self.groups.accepting_stacks(place);
        let in_turn = (0..all).filter_map(|next| self.groups.accepting(place, self.turn.wrapping_add(next)));
        let waiting = in_turn.into_iter().find(|&stack| self.program.is_waiting(stack));
        if let Some(stack) = waiting {
            self.program.note_passed(stack);
            return waiting;
        }
        if !cannot_wait && self.groups.accepts(giver, place) {
            return None;
        }
        self.groups.accepting(place, self.turn)
    }

    /// Whether the stack, and no other, takes new connections there.
    pub(crate) fn accepts_alone(&self, listener: SocketAddr, stack: u16) -> bool {
        let place = BoundAddress::new(Protocol::Tcp, listener);
        self.groups.accepts(stack, place) && self.groups.accepting_stacks(place) == 1
    }

    /// All frames of the protocol to `address` and one of `ports` go to stack `first + port % count`: for generators that
    /// open more connections than could be registered one by one. The address need not be the interface's. Replaces an
    /// earlier claim of the same protocol and address; `count` 0 gives it up.
    ///
    /// # Errors
    /// [`Error::UnknownStack`] if one of the stacks is not open, or what the kernel said.
    pub fn claim_ports(
        &mut self,
        protocol: Protocol,
        address: IpAddr,
        ports: RangeInclusive<u16>,
        first: u16,
        count: u16,
    ) -> Result<(), Error> {
        for stack in first..first.saturating_add(count) {
            self.check_open(stack)?;
        }
        let claim = (count > 0 && !ports.is_empty()).then_some(Claim {
            port_low: *ports.start(),
            port_high: *ports.end(),
            first,
            count,
        });
        match claim {
            Some(claim) => self.claims.insert((protocol, address), claim),
            None => self.claims.remove(&(protocol, address)),
        };
        self.program.set_claim(protocol, address, claim, self.claims.len() as u32)
    }
}

/// Where frames of several segments leave, if there is such a place.
fn confine(pools: &[Pool], netlink: &mut Netlink, link: &Link) -> Result<Confined, String> {
    if pools.iter().all(Pool::zero_copy) {
        return Err("the driver moves frames without copying".to_owned());
    }
    Confined::new(netlink, link)
}

/// The interface of an index.
fn name_of(index: u32) -> Result<Option<String>, Error> {
    let result = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| index_to_name(&socket, index));
    match result {
        Ok(name) => Ok(Some(name)),
        Err(Errno::NODEV | Errno::NXIO) => Ok(None),
        Err(errno) => Err(Error::system("reading the interface's name", errno)),
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Attachment")
            .field("interface", &self.interface)
            .field("pools", &self.pools)
            .finish_non_exhaustive()
    }
}
