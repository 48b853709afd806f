//! Serves an attachment to the processes of programs that have no privilege.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overfly_link::broker::message::Token;
use overfly_link::broker::{self, Refusal};
use rustix::process::getpid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::attachment::Attachment;
use crate::door::Sockets;
use crate::error::Error;
use crate::observers::{self, listen_at};
use crate::service::Service;
use crate::serving::Serving;
use crate::steering::Steering;

/// What a broker has done, and what it was asked for that made no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections turned away because there were too many, or not enough descriptors.
    pub connections_refused: u64,
    /// Connections closed because they did not say [`Hello`], or had the wrong secret.
    pub greetings_refused: u64,
    /// Connections closed because of a message that is none, or at the wrong time.
    pub messages_refused: u64,
    /// Requests granted.
    pub requests_granted: u64,
    /// Requests that got a reason instead.
    pub requests_refused: u64,
    /// Connections closed because the client did not read its answers.
    pub answers_undelivered: u64,
    /// Stacks whose process died or let go.
    pub stacks_ended: u64,
    /// Steps of undoing that failed. Something outside interfered.
    pub undoing_failed: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that serves an attachment. Dropping it ends all that it gave away: leashed processes are killed by the kernel,
/// the XDP program is detached.
pub struct Broker {
    environment: String,
    is_public: bool,
    attachment: Arc<Mutex<Attachment>>,
    counters: Arc<Mutex<BrokerCounters>>,
    _serving: Serving,
}

impl Broker {
    /// Starts to serve, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said about the socket or the thread.
    pub fn start(attachment: Attachment) -> Result<Broker, Error> {
        let (listener, name, token) = open_socket()?;
        // Somebody else may have the public name: then nobody can look, and all else is as ever.
        let public = observers::listen_for(&attachment.interface().name);
        let is_public = public.is_some();
        let environment = broker::environment(&name, token);
        let steering = Steering::new(attachment)?;
        let attachment = steering.attachment();
        let service = Service::endless(steering, Sockets { listener, name, public }, token);
        let counters = service.counters();
        let _serving = Serving::start(move |stopped| service.run(Some(&stopped)))?;
        Ok(Broker { environment, is_public, attachment, counters, _serving })
    }

    /// The value of `OVERFLY_BROKER` for the program. Whoever has it may use the interface.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// Observers find this broker at its interface's name. They do not if somebody else took that.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// The attachment, between two requests. Do not hold it for long.
    pub fn attachment(&self) -> impl std::ops::DerefMut<Target = Attachment> {
        lock(&self.attachment)
    }

    /// What this broker has done.
    #[must_use]
    pub fn counters(&self) -> BrokerCounters {
        *lock(&self.counters)
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Broker").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// The socket where clients connect, its name, and the secret.
pub(crate) fn open_socket() -> Result<(OwnedFd, String, Token), Error> {
    let mut random = [0; 24];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|errno| Error::system("getrandom", errno))?;
    let (suffix, secret) = random.split_at(8);
    let suffix = suffix.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let mut token = Token([0; 16]);
    token.0.copy_from_slice(secret);
    let name = format!("overfly-{}-{suffix:016x}", getpid().as_raw_nonzero());
    let listener = listen_at(&name).map_err(|errno| Error::system("the broker's socket", errno))?;
    Ok((listener, name, token))
}

pub(crate) fn refusal(error: &Error) -> Refusal {
    match error {
        Error::Options(_) | Error::UnknownStack(_) => Refusal::StackState,
        Error::NoStack { .. }
        | Error::TooFewFrames { .. }
        | Error::OtherUser { .. }
        | Error::Share { .. } => Refusal::NoStack,
        Error::ListenerTaken { .. } => Refusal::ListenerTaken,
        Error::NotLocal(_) => Refusal::NotLocal,
        Error::TupleInUse { .. } => Refusal::TupleInUse,
        Error::Unreachable { .. } => Refusal::Unreachable,
        Error::RouteElsewhere { .. } => Refusal::RouteElsewhere,
        Error::Firewall(_) => Refusal::Firewall,
        Error::NoNeighbor { .. } => Refusal::NoNeighbor,
        Error::NotTheirs { .. } | Error::NotMoved { .. } | Error::NoKernelsAddress => Refusal::NotMoved,
        _ => Refusal::Other,
    }
}
