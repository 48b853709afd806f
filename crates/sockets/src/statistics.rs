//! What was accelerated, what was not and why. Printed at the process's end if `OVERFLY_STATS=1`.

use overfly_link::xdp::XdpLink;

use crate::kernel;
use crate::stack::Stack;

/// Counters since the process began.
pub(crate) struct Statistics {
    /// `OVERFLY_STATS=1`.
    pub(crate) enabled: bool,
    /// Stacks made.
    pub(crate) stacks: u64,
    /// Connections that listeners of ours took from the kernel (loopback, other interfaces).
    pub(crate) kernel_accepts: u64,
    /// Active opens to loopback, through another interface, or that the broker refused.
    pub(crate) kernel_connects: u64,
    /// Listeners that the broker or the engine refused.
    pub(crate) listeners_refused: u64,
    /// Active opens that the broker or the engine refused (counted in `kernel_connects` too).
    pub(crate) connects_refused: u64,
    /// Connections that the kernel took over.
    pub(crate) handovers: u64,
    /// Those that it should have, and that stayed.
    pub(crate) handovers_refused: u64,
    /// UDP sockets whose datagrams came to the stack, each counted again when it connects anew.
    pub(crate) datagram_sockets: u64,
    /// UDP sockets that the broker or the engine refused.
    pub(crate) datagram_sockets_refused: u64,
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
            handovers: 0,
            handovers_refused: 0,
            datagram_sockets: 0,
            datagram_sockets_refused: 0,
        }
    }

    /// Prints everything, once.
    pub(crate) fn report(&mut self, stack: &Stack<XdpLink>) {
        if !core::mem::take(&mut self.enabled) || self.stacks == 0 {
            return;
        }
        let Self { kernel_accepts, kernel_connects, listeners_refused, connects_refused, .. } = self;
        let process = rustix::process::getpid().as_raw_nonzero();
        kernel::complain(&format!(
            "process {process}: accepts {} (kernel {kernel_accepts}), connects {} (kernel {kernel_connects}), refused listeners {listeners_refused} connects {connects_refused}",
            stack.accepts, stack.connects
        ));
        kernel::complain(&format!(
            "process {process}: handed over {} (refused {})",
            self.handovers, self.handovers_refused
        ));
        kernel::complain(&format!(
            "process {process}: UDP sockets {} (refused {}), overflows {}",
            self.datagram_sockets,
            self.datagram_sockets_refused,
            stack.datagram_overflows()
        ));
        if let Some(engine) = stack.engine() {
            kernel::complain(&format!("process {process}: engine {:?}", engine.counters()));
        }
        if let Some(link) = stack.transport() {
            kernel::complain(&format!("process {process}: link {:?}", link.counters()));
        }
    }
}
