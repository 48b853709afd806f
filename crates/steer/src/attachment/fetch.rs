//! Connections that go from one stack of a process to another one.

use std::net::SocketAddr;

use overfly_broker::Protocol;

use super::Attachment;
use crate::Error;
use crate::program::FlowKey;

impl Attachment {
    /// A connection that a listener of one of `givers` has got is the stack's: its frames come there from now on. Those that are in the
    /// other's rings by then are the process's to look after.
    ///
    /// # Errors
    /// [`Error::UnknownStack`], [`Error::NotTheirs`], or what the kernel said.
    pub(crate) fn fetch_flow(
        &mut self,
        stack: u16,
        givers: impl IntoIterator<Item = u16>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        self.check_open(stack)?;
        let flow = FlowKey::new(Protocol::Tcp, local, remote);
        let mut givers = givers.into_iter();
        if !givers.any(|giver| self.check_open(giver).is_ok() && self.program.is_recorded(flow, giver)) {
            return Err(Error::NotTheirs { local, remote });
        }
        self.program.record(flow, stack)
    }
}
