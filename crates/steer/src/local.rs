//! Serves the processes of a program whose frames go over memif, or over a tap device. Nothing here needs privilege over the
//! machine: there is no interface of the kernel's to steer, and nothing that would have to be undone.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overfly_broker::message::{Kind, MemifPart, Request, TapPart};
use overfly_broker::service::{
    Asked, Asker, Backing, Broker, Outcome, Serving, deliver, listen_at, listen_for, public_name,
};
use overfly_broker::{Deferral, Interface, LeftFrames, Route};
use overfly_link::memif::{Address, Listener, MemifLink, Settings};
use overfly_link::tap::TapLink;
use overfly_wire::MacAddr;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::IntoBytes;

use crate::claim::Claims;
use crate::error::Error;
use crate::handover::{Move, Within};
use crate::netlink::Netlink;
use crate::orphans::{self, Reached, Teller};
use crate::repair::Room;
use crate::switch::Switch;

/// Listens for memif clients at `place`, and serves the program's processes. Their address is `address`, in a network
/// with a prefix of so many bits.
///
/// # Errors
/// [`Error::Link`] if another program listens at `place`, or what the kernel said.
pub fn over_memif(place: &Address, address: IpAddr, prefix_len: u8) -> Result<Broker, Error> {
    let settings = Settings::default();
    let interface = interface("memif", address, prefix_len, settings.mtu);
    let listener = Listener::bind(place, settings)?;
    let public = listen_for(&format!("memif:{place}"));
    serve(Wire::Memif { listener, place: place.clone() }, interface, public, None)
}

/// Opens a queue of the tap device, and serves the program's processes, whose address is `address`. It needs
/// CAP_NET_ADMIN in the network namespace, which whoever made that has (`unshare -Urn`), or to be the device's owner.
///
/// # Errors
/// [`Error::TapTaken`], [`Error::KernelsAddress`], [`Error::Link`] if there is no such device or queue, or what the kernel
/// said.
pub fn over_tap(name: &str, address: IpAddr, prefix_len: u8) -> Result<Broker, Error> {
    // The frames of one device are one program's.
    let public = listen_at(&public_name(&format!("tap:{name}"))).map_err(|errno| match errno {
        Errno::ADDRINUSE => Error::TapTaken(name.to_owned()),
        errno => Error::system("the broker's public name", errno),
    })?;
    let mut device = TapLink::open(name)?;
    let holder = Netlink::open().and_then(|mut netlink| netlink.holder(address));
    if let Some(index) = holder.map_err(|errno| Error::system("asking for addresses", errno))? {
        return Err(Error::KernelsAddress { address, index });
    }
    let interface = interface(name, address, prefix_len, device.mtu());
    let duplicate = || fcntl_dupfd_cloexec(device.queue(), 3).map_err(|errno| Error::system("dup", errno));
    let (queue, asking) = (duplicate()?, duplicate()?);
    let switch = Switch::default();
    let forwarded = switch.clone();
    let _forwarding = Serving::start(move |stopped| forwarded.forward(&mut device, &stopped))?;
    let teller = Teller::new(orphans::asking_by_tap(asking, interface.mac));
    serve(Wire::Tap { queue, switch, _forwarding }, interface, Some(public), Some(teller))
}

/// A thread that hands what carries frames to each process of a program.
fn serve(
    wire: Wire,
    interface: Interface,
    public: Option<OwnedFd>,
    teller: Option<Teller<Vec<Reached>>>,
) -> Result<Broker, Error> {
    let local = Local {
        wire,
        interface,
        claims: Claims::open(0)?,
        room: Room::of_kernel(),
        stacks: HashSet::new(),
        next: 0,
        teller,
    };
    Ok(Broker::start(local, public)?)
}

/// A locally administered address (IEEE 802) out of the last bytes of the IP address.
fn mac(address: IpAddr) -> MacAddr {
    let [.., a, b, c, d] = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    MacAddr([2, 0xff, a, b, c, d])
}

/// What the program's processes are told that they have.
fn interface(name: &str, address: IpAddr, prefix_len: u8, mtu: u16) -> Interface {
    Interface {
        name: name.to_owned(),
        index: 0,
        mac: mac(address),
        mtu,
        addresses: vec![(address, prefix_len)],
        partial_checksums: true,
    }
}

/// What carries the program's frames.
enum Wire {
    /// Clients that connect to a socket.
    Memif { listener: Listener, place: Address },
    /// The queue of a device, and what hands out its frames.
    Tap { queue: OwnedFd, switch: Switch, _forwarding: Serving },
}

impl Wire {
    /// Gives a stack to a process. False if it does not take it.
    fn give(&self, stack: u16, client: &OwnedFd) -> Result<bool, Error> {
        match self {
            Wire::Memif { listener, place } => {
                Ok(deliver(client, MemifPart::new(place).as_bytes(), &[listener.socket()]))
            }
            Wire::Tap { queue, switch, .. } => {
                let (ours, theirs) =
                    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                        .map_err(|errno| Error::system("socketpair", errno))?;
                switch.attach(stack, MemifLink::offer(&ours)?);
                Ok(deliver(client, TapPart::new().as_bytes(), &[queue.as_fd(), theirs.as_fd()]))
            }
        }
    }

    /// The stack is no more. Returns the connections that it may have had, where their peers do not see it themselves.
    fn take_back(&self, stack: u16) -> Vec<Reached> {
        match self {
            Wire::Memif { .. } => Vec::new(),
            Wire::Tap { switch, .. } => switch.detach(stack),
        }
    }

    /// Has frames come to the stack, or no more. Over memif each client is connected to one stack, and what it sends there is
    /// that stack's.
    fn steer(&self, stack: u16, request: &Request) -> Result<(), Error> {
        let Wire::Tap { switch, .. } = self else { return Ok(()) };
        let &Request { kind, protocol, v6only, local, remote, cluster } = request;
        match kind {
            Kind::Listen => switch.listen(stack, protocol, local, v6only, cluster)?,
            Kind::Unlisten => switch.unlisten(stack, protocol, local, v6only),
            Kind::Connect => switch.connect(stack, protocol, local, remote)?,
            Kind::Disconnect => switch.disconnect(stack, protocol, local, remote),
            _ => {}
        }
        Ok(())
    }
}

/// What the program's processes are given.
struct Local {
    wire: Wire,
    interface: Interface,
    claims: Claims,
    room: Room,
    /// Those that are some process's.
    stacks: HashSet<u16>,
    /// Where the next one is looked for.
    next: u16,
    /// Tells the peers of killed processes, over a tap device.
    teller: Option<Teller<Vec<Reached>>>,
}

impl Local {
    /// Frames are the stack's from now on, or no more, and the way to where it connects.
    fn steer(&self, stack: Option<u16>, mut request: Request) -> Outcome<Error> {
        let route = match request.kind {
            Kind::Connect | Kind::Route | Kind::Look => {
                let destination = request.remote.ip();
                Some(self.route(destination).ok_or(Error::RouteElsewhere { destination })?)
            }
            _ => None,
        };
        let stack = stack.ok_or_else(|| Error::Options("open a stack first".to_owned()))?;
        // A connection's local address is the only one that there is.
        if let (Kind::Connect | Kind::Disconnect, Some(&(address, _))) =
            (request.kind, self.interface.addresses.first())
        {
            request.local.set_ip(address);
        }
        self.wire.steer(stack, &request)?;
        Ok(route)
    }

    /// The stack asks for hardware addresses itself.
    fn route(&self, destination: IpAddr) -> Option<Route> {
        let &(source, prefix_len) = self.interface.addresses.first()?;
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let ((own, own_family), (other, family)) = (bits(source), bits(destination));
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
        let near = own_family == family && (own ^ other) & mask == 0;
        near.then_some(Route { source, next_hop: MacAddr([0; 6]) })
    }
}

impl Backing for Local {
    type Waiting = Move;
    type Error = Error;

    fn interface(&self) -> Interface {
        self.interface.clone()
    }

    /// The frames are one program's.
    fn shares(&self) -> Option<Option<Deferral>> {
        None
    }

    /// No rule and no route is in the way of the frames.
    fn left(&self) -> Option<LeftFrames> {
        None
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn wake(&mut self, _ready: &[bool]) -> u64 {
        0
    }

    fn pause(&self) -> Option<Duration> {
        None
    }

    fn open_stack(&mut self, asker: Asker<'_>) -> Result<(u16, bool), Error> {
        let turns = (0..=u16::MAX).map(|turn| self.next.wrapping_add(turn));
        let stack = turns.into_iter().find(|stack| !self.stacks.contains(stack));
        let stack = stack.ok_or(Error::NoStack { stacks: u16::MAX })?;
        let given = self.wire.give(stack, asker.socket)?;
        self.next = stack.wrapping_add(1);
        self.stacks.insert(stack);
        Ok((stack, given))
    }

    fn renew_stack(&mut self, _: Asker<'_>, _: u16) -> Result<bool, Error> {
        Err(Error::Options("this client has a stack already".to_owned()))
    }

    fn close_stack(&mut self, stack: u16, _process: Option<OwnedFd>, finished: bool) -> u64 {
        self.stacks.remove(&stack);
        let orphans = self.wire.take_back(stack);
        let killed = !finished && !orphans.is_empty();
        u64::from(killed && !self.teller.as_mut().is_some_and(|teller| teller.tell(orphans)))
    }

    fn ask(
        &mut self,
        asker: Asker<'_>,
        stack: Option<u16>,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Asked<Move, Error> {
        match request.kind {
            Kind::HandOverPair => {
                let all = || asker.may_do_all();
                match Within::begin(descriptors, &mut self.claims, asker.peer, all, self.room) {
                    Ok(Some(begun)) => Asked::Later(begun),
                    Ok(None) => Asked::Now(Ok(None)),
                    Err(error) => Asked::Now(Err(error)),
                }
            }
            Kind::HandOver | Kind::GiveAway | Kind::PassOn | Kind::Fetch => {
                Asked::Now(Err(Error::NoKernelsAddress))
            }
            _ => Asked::Now(self.steer(stack, request)),
        }
    }

    fn go_on(&mut self, _stack: Option<u16>, moving: &mut Move) -> Option<Outcome<Error>> {
        moving.go_on(None).map(|outcome| outcome.map(|()| None))
    }

    fn tell(&mut self, _clients: &mut dyn Iterator<Item = (u16, &OwnedFd)>) {}

    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }
}
