//! The one place where `overfly run` meets the links: an interface in, an accelerator out.

use overfly_steer::{Attachment, Broker, Options};

/// Holds the interface's XDP program and the broker; dropping it takes both away.
pub(crate) struct Acceleration {
    broker: Broker,
}

/// A wait that spins this long, in µs, looks after the device by itself: the device is told not to
/// interrupt. One that sleeps sooner needs to be woken.
const BUSY_POLL_USEC: u64 = 1_000;

impl Acceleration {
    /// Attaches to `interface` and starts the broker. `poll_usec` is how long the program's
    /// waits will spin.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn start(interface: &str, poll_usec: u64) -> Result<Acceleration, String> {
        let options = Options { busy_poll: poll_usec >= BUSY_POLL_USEC, ..Options::default() };
        let attachment = Attachment::attach(interface, options).map_err(|error| error.to_string())?;
        let broker = Broker::start(attachment).map_err(|error| error.to_string())?;
        Ok(Acceleration { broker })
    }

    /// What OVERFLY_BROKER is to be for the program.
    pub(crate) fn environment(&self) -> &str {
        self.broker.environment()
    }
}
