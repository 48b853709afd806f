use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use overfly_broker::service;
use overfly_steer::{Attachment, Error, Steering};

/// A broker in a thread of the test's own process, whose attachment the test can look at.
#[derive(Debug)]
pub struct Broker {
    serving: service::Broker,
    attachment: Arc<Mutex<Attachment>>,
}

impl Broker {
    /// Starts to serve, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn start(attachment: Attachment) -> Result<Broker, Error> {
        let public = service::listen_for(&attachment.interface().name);
        let steering = Steering::new(attachment)?;
        let attachment = steering.attachment();
        Ok(Broker { serving: service::Broker::start(steering, public)?, attachment })
    }

    /// The attachment, between two requests. Do not hold it for long.
    pub fn attachment(&self) -> impl DerefMut<Target = Attachment> {
        self.attachment.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Broker {
    type Target = service::Broker;

    fn deref(&self) -> &service::Broker {
        &self.serving
    }
}
