//! Who was granted what comes to an address because it showed the kernel's socket there: when that is no longer there, another
//! process may have the address, and the grant ends. A reference to the socket would keep the address from everybody.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use overfly_broker::Protocol;
use overfly_broker::message::Request;
use rustix::io::Errno;

use crate::socket_table::{SocketTable, There};

/// How often the kernel's sockets are looked at, while there are grants.
const PAUSE: Duration = Duration::from_millis(250);
/// Looks in a row that must miss a socket.
const MISSES: u32 = 2;

/// A place, and the socket that was shown for it.
#[derive(Debug)]
struct Grant {
    stack: u16,
    request: Request,
    shown: There,
    /// Looks in a row that did not find it. A list that is read while sockets come and go may leave one out.
    misses: u32,
}

impl Grant {
    fn is_of(&self, stack: u16, request: &Request) -> bool {
        let (own, other) = (&self.request, request);
        self.stack == stack
            && (own.protocol, own.local, own.v6only) == (other.protocol, other.local, other.v6only)
    }
}

/// All grants of this kind.
#[derive(Debug)]
pub(crate) struct Grants {
    grants: Vec<Grant>,
    next: Instant,
}

impl Grants {
    pub(crate) fn new() -> Grants {
        Grants { grants: Vec::new(), next: Instant::now() }
    }

    /// A stack listens as it wished, since it showed this socket.
    pub(crate) fn add(&mut self, stack: u16, request: Request, shown: There) {
        if self.grants.is_empty() {
            self.next = Instant::now() + PAUSE;
        }
        if !self.grants.iter().any(|one| one.is_of(stack, &request) && one.shown == shown) {
            self.grants.push(Grant { stack, request, shown, misses: 0 });
        }
    }

    /// A stack gives a place up.
    pub(crate) fn remove(&mut self, stack: u16, request: &Request) {
        self.grants.retain(|one| !one.is_of(stack, request));
    }

    /// A stack is no more.
    pub(crate) fn remove_stack(&mut self, stack: u16) {
        self.grants.retain(|one| one.stack != stack);
    }

    /// When the kernel's sockets are to be looked at.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.grants.is_empty()).then_some(self.next)
    }

    /// Looks, if it is time: which stacks' places are no longer backed by any socket that was shown for them.
    ///
    /// # Errors
    /// What the kernel said: nothing is known then.
    pub(crate) fn look(&mut self, table: &mut SocketTable) -> Result<Vec<(u16, Request)>, Errno> {
        if self.due().is_none_or(|due| Instant::now() < due) {
            return Ok(Vec::new());
        }
        self.next = Instant::now() + PAUSE;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut its = self.grants.iter_mut().filter(|one| one.request.protocol == protocol).peekable();
            if its.peek().is_none() || !table.answers(protocol) {
                continue;
            }
            let there: HashSet<There> = table.all(protocol)?;
            for grant in its {
                grant.misses = if there.contains(&grant.shown) { 0 } else { grant.misses + 1 };
            }
        }
        let gone: Vec<Grant> = self.grants.extract_if(.., |one| one.misses >= MISSES).collect();
        let mut places: Vec<(u16, Request)> = gone.into_iter().map(|one| (one.stack, one.request)).collect();
        places.retain(|(stack, request)| !self.grants.iter().any(|one| one.is_of(*stack, request)));
        Ok(places)
    }
}
