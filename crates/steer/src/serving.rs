//! The thread of a broker.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::error::Error;

/// A thread that serves. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Serving {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts `serve` in a thread of its own. The descriptor that it is given becomes readable when it is to end.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn start(serve: impl FnOnce(OwnedFd) + Send + 'static) -> Result<Serving, Error> {
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
