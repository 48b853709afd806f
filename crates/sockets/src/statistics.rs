//! What was accelerated, what was not and why. Printed at the process's end if `OVERFLY_STATS=1`.

use overfly_broker::Refusal;

use crate::any_link::AnyLink;
use crate::kernel;
use crate::process::contexts::are_several;
use crate::socket::Side;
use crate::stack::Stack;

/// Why a socket is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It listens at, or connects to, a loopback address.
    Loopback,
    /// Its address is not the accelerated interface's, or its peer is not reached through it.
    OtherAddress,
    /// A rule of the profile says so.
    Rule,
    /// The process has no stack: the reason was said when it could not be made.
    NoStack,
    /// The broker or the engine refused it.
    Refused,
    /// EF_UL_EPOLL is 0, and it was put into an epoll set.
    KernelEpoll,
    /// It was given an option that the stack does not follow.
    SocketOption,
    /// The host's firewall does not let its peers through for certain.
    Firewall,
    /// It connects, and came from another process, which may have it still.
    Shared,
}

/// What the broker or the engine refused, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) why: Why,
    pub(crate) reason: String,
}

impl Refused {
    #[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
    pub(crate) fn new(error: overfly_broker::Error) -> Self {
        let why = match &error {
            overfly_broker::Error::Refused { refusal: Refusal::RouteElsewhere, .. } => Why::OtherAddress,
            overfly_broker::Error::Refused { refusal: Refusal::Firewall, .. } => Why::Firewall,
            _ => Why::Refused,
        };
        Self { why, reason: error.to_string() }
    }
}

impl Why {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Loopback, "loopback"),
        (Self::OtherAddress, "other_address"),
        (Self::Rule, "rule"),
        (Self::NoStack, "no_stack"),
        (Self::Refused, "refused"),
        (Self::KernelEpoll, "kernel_epoll"),
        (Self::SocketOption, "socket_option"),
        (Self::Firewall, "firewall"),
        (Self::Shared, "shared"),
    ];
}

/// Counters since the process began.
pub(crate) struct Statistics {
    /// `OVERFLY_STATS=1`.
    pub(crate) enabled: bool,
    /// Engines made.
    pub(crate) stacks: u64,
    /// Connections that listeners of ours took from the kernel (loopback, other interfaces).
    pub(crate) kernel_accepts: u64,
    /// Active opens to loopback, through another interface, or that the broker refused.
    pub(crate) kernel_connects: u64,
    /// Listeners that the broker or the engine refused.
    pub(crate) listeners_refused: u64,
    /// Active opens that the broker or the engine refused (counted in `kernel_connects` too).
    pub(crate) connects_refused: u64,
    /// Active opens within the host that nobody answered in time, and that the kernel made instead.
    pub(crate) late_within_host: u64,
    /// Connections that the kernel took over.
    pub(crate) handovers: u64,
    /// Those of them that took a large upload (`EF_UPLOADS_TO_KERNEL`).
    pub(crate) handovers_of_uploads: u64,
    /// Those that it should have, and that stayed.
    pub(crate) handovers_refused: u64,
    /// Connections that came from the stack of another thread, and those of this one that stayed: for now, and for good.
    pub(crate) moves: u64,
    pub(crate) moves_put_off: u64,
    pub(crate) moves_refused: u64,
    /// Connections that another process accepts in place of this one.
    pub(crate) given_away: u64,
    /// Those that nobody was there for.
    pub(crate) reset_unaccepted: u64,
    /// UDP sockets whose datagrams came to the stack, each counted again when it connects anew.
    pub(crate) datagram_sockets: u64,
    /// UDP sockets that the broker or the engine refused.
    pub(crate) datagram_sockets_refused: u64,
    /// Sockets that were left to the kernel, by [`Why`].
    left: [u64; Why::ALL.len()],
    /// Active opens from a port that others share.
    pub(crate) shared_port_connects: u64,
    /// Looks of spinning epoll_waits.
    pub(crate) looks: u64,
    /// Times that a spinning call slept (EF_SLEEP_SPIN_USEC).
    pub(crate) naps: u64,
    /// Times that a waiting call slept in the kernel.
    pub(crate) sleeps: u64,
    /// Times that a call had to wait for the lock, since another thread had it.
    pub(crate) lock_waits: u64,
}

impl Statistics {
    pub(crate) const fn new() -> Self {
        Self {
            enabled: false,
            stacks: 0,
            kernel_accepts: 0,
            kernel_connects: 0,
            listeners_refused: 0,
            connects_refused: 0,
            late_within_host: 0,
            handovers: 0,
            handovers_of_uploads: 0,
            moves: 0,
            moves_put_off: 0,
            moves_refused: 0,
            given_away: 0,
            reset_unaccepted: 0,
            handovers_refused: 0,
            datagram_sockets: 0,
            datagram_sockets_refused: 0,
            left: [0; Why::ALL.len()],
            shared_port_connects: 0,
            looks: 0,
            naps: 0,
            sleeps: 0,
            lock_waits: 0,
        }
    }

    /// A socket stays the kernel's.
    pub(super) fn leave(&mut self, why: Why) {
        self.left[why as usize] += 1;
    }

    /// How many sockets stayed the kernel's, for each reason.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Why::ALL.into_iter().map(|(why, name)| (name, self.left[why as usize]))
    }

    /// The other counters, with their names.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("kernel_accepts", self.kernel_accepts),
            ("kernel_connects", self.kernel_connects),
            ("listeners_refused", self.listeners_refused),
            ("connects_refused", self.connects_refused),
            ("handovers", self.handovers),
            ("handovers_of_uploads", self.handovers_of_uploads),
            ("handovers_refused", self.handovers_refused),
            ("datagram_sockets", self.datagram_sockets),
            ("datagram_sockets_refused", self.datagram_sockets_refused),
            ("shared_port_connects", self.shared_port_connects),
            ("moves", self.moves),
            ("moves_put_off", self.moves_put_off),
            ("moves_refused", self.moves_refused),
            ("looks", self.looks),
            ("naps", self.naps),
            ("sleeps", self.sleeps),
            ("lock_waits", self.lock_waits),
        ]
        .into_iter()
    }

    /// Prints everything, once.
    pub(crate) fn report(&mut self, stack: &Stack<AnyLink>, context: usize) {
        let reasons = self.reasons().filter(|&(_, count)| count > 0);
        let left: String =
            reasons.map(|(name, count)| format!(" {} {count}", name.replace('_', " "))).collect();
        if !core::mem::take(&mut self.enabled) || (self.stacks == 0 && left.is_empty()) {
            return;
        }
        let process = rustix::process::getpid().as_raw_nonzero();
        let pid = if are_several() { format!("{process}, stack {context}") } else { process.to_string() };
        if !left.is_empty() {
            kernel::complain(&format!("process {pid}: left to the kernel:{left}"));
        }
        let Self { kernel_accepts, kernel_connects, listeners_refused, connects_refused, .. } = self;
        kernel::complain(&format!(
            "process {pid}: accepts {} (kernel {kernel_accepts}), connects {} (kernel {kernel_connects}), refused listeners {listeners_refused} connects {connects_refused}",
            stack.accepts, stack.connects
        ));
        kernel::complain(&format!(
            "process {pid}: handed over {} (refused {}), of them uploads {}, given away {} (reset {})",
            self.handovers,
            self.handovers_refused,
            self.handovers_of_uploads,
            self.given_away,
            self.reset_unaccepted
        ));
        if are_several() {
            kernel::complain(&format!(
                "process {pid}: moved here {} (put off {}, refused {})",
                self.moves, self.moves_put_off, self.moves_refused
            ));
        }
        kernel::complain(&format!(
            "process {pid}: UDP sockets {} (refused {}), overflows {}, unsent segments {}",
            self.datagram_sockets,
            self.datagram_sockets_refused,
            stack.datagram_overflows(),
            stack.unsent_segments()
        ));
        let Self { shared_port_connects, looks, naps, sleeps, lock_waits, .. } = self;
        kernel::complain(&format!(
            "process {pid}: shared ports {shared_port_connects}, sleeps {sleeps}, looks {looks}, naps {naps}, lock waits {lock_waits}"
        ));
        kernel::complain(&format!(
            "process {pid}: within the host: accepts {}, connects {} (late {})",
            stack.accepts_within_host, stack.connects_within_host, self.late_within_host
        ));
        for (side, name) in [(Side::Network, ""), (Side::Loopback, "loopback ")] {
            if let Some(engine) = stack.engine(side) {
                kernel::complain(&format!("process {pid}: {name}engine {:?}", engine.counters()));
            }
            if let Some(link) = stack.transport(side) {
                kernel::complain(&format!("process {pid}: {name}link {}", link.report()));
            }
        }
    }
}
