//! What a process has with its broker: where it is, the connection, what the broker has said of the interface, and what there is
//! while there is none ([`super::away`]).

use core::net::IpAddr;
use std::os::fd::AsRawFd;

use overfly_broker::{Client, Error, Greeted, Interface, Leash, Refusal, may_return};
use overfly_engine::Instant;

use super::away::{Away, NoStack};
use super::kept::Kept;
use crate::numbers;
use crate::table::{self, Entry};

/// The session of one context.
pub(super) struct Session {
    /// Where the broker is: OVERFLY_BROKER.
    pub(super) environment: Option<String>,
    pub(super) leash: Option<Leash>,
    pub(super) client: Option<Client>,
    /// What it has granted, and nobody needs at the moment.
    pub(super) kept: Option<Box<Kept>>,
    /// There was a broker, and will be one again, perhaps.
    pub(super) away: Option<Away>,
    /// When it was last asked whether the broker has something to say.
    pub(super) heard: Instant,
    pub(super) interface: Option<Interface>,
}

impl Session {
    pub(super) const fn new() -> Self {
        Self {
            environment: None,
            leash: None,
            client: None,
            kept: None,
            away: None,
            heard: Instant::from_micros(0),
            interface: None,
        }
    }

    /// Whether there may be another broker if this one ends.
    pub(super) fn may_return(&self) -> bool {
        self.environment.as_deref().is_some_and(may_return)
    }

    /// What it means that the broker said this, or nothing.
    pub(super) fn no_stack(&self, error: &Error) -> NoStack {
        let later = matches!(error, Error::Refused { refusal: Refusal::Later, .. });
        if self.may_return() && (later || error.is_end_of_broker()) {
            NoStack::Yet
        } else {
            NoStack::Ever(error.to_string())
        }
    }

    /// Whether a broker did not answer because it ends: what was asked for the next one is asked for.
    pub(super) fn is_parting(&self, error: &Error) -> bool {
        self.may_return() && error.is_end_of_broker()
    }

    /// The broker has said something beside an answer, which nobody has heard.
    #[inline]
    pub(super) fn has_unheard(&self) -> bool {
        let unheard =
            |client: &Client| client.has_kept() && (self.may_return() || client.parting().is_none());
        self.client.as_ref().is_some_and(unheard)
    }

    /// Tells a broker that this process is there.
    pub(super) fn greet(&self) -> Result<Greeted, Error> {
        // Nothing: the program was not started with `overfly run`.
        let mut greeted = Greeted::new(self.environment.as_deref().unwrap_or_default())?;
        numbers::out_of_the_way(|least| greeted.move_up(least));
        table::enter(greeted.as_fd().as_raw_fd(), Entry::Internal);
        Ok(greeted)
    }

    /// Whether it is one of the interface's addresses.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.interface
            .as_ref()
            .is_some_and(|interface| interface.addresses.iter().any(|&(own, _)| own == address))
    }
}
