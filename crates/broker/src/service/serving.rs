//! A broker as a thread.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::getpid;
use rustix::rand::{GetRandomFlags, getrandom};

use super::acceptor::Sockets;
use super::observers::listen_at;
use super::{Backing, Counters, Service, lock};
use crate::message::Token;
use crate::{Error, environment};

/// A thread that serves one program, until this value is dropped: leashed processes are killed by the kernel then.
#[derive(Debug)]
pub struct Broker {
    environment: String,
    is_public: bool,
    counters: Arc<Mutex<Counters>>,
    _serving: Serving,
}

impl Broker {
    /// Starts to serve, in the network namespace of the calling thread. Observers find it at `public`.
    ///
    /// # Errors
    /// What the kernel said about the socket or the thread.
    pub fn start<B>(backing: B, public: Option<OwnedFd>) -> Result<Broker, Error>
    where
        B: Backing + Send + 'static,
        B::Waiting: Send,
    {
        let (listener, name, token) = open_socket()?;
        let (environment, is_public) = (environment(&name, token), public.is_some());
        let service = Service::endless(backing, Sockets { listener, name, public }, token);
        let counters = service.counters();
        let _serving = Serving::start(move |stopped| service.run(Some(&stopped)))?;
        Ok(Broker { environment, is_public, counters, _serving })
    }

    /// The value of `OVERFLY_BROKER` for the program. Whoever has it may use what the broker gives away.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// Observers find it by its link's name. They do not if somebody else took that, or if it is too long.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *lock(&self.counters)
    }
}

/// The socket where clients connect, its name, and the secret.
///
/// # Errors
/// What the kernel said.
pub fn open_socket() -> Result<(OwnedFd, String, Token), Error> {
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

/// A thread that serves. Dropping it ends the thread.
#[derive(Debug)]
pub struct Serving {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts `serve` in a thread of its own. The descriptor that it is given becomes readable when it is to end.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn start(serve: impl FnOnce(OwnedFd) + Send + 'static) -> Result<Serving, Error> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Error::system("eventfd", errno))?;
        let stopped = fcntl_dupfd_cloexec(&stop, 3).map_err(|errno| Error::system("dup", errno))?;
        let thread = std::thread::Builder::new()
            .name("overfly-broker".to_owned())
            .spawn(move || serve(stopped))
            .map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                Error::system("starting the broker's thread", errno)
            })?;
        Ok(Serving { stop, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
