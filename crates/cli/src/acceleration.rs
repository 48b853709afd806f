//! The one place where `overfly run` meets the links: an interface in, an accelerator out.

use overfly_steer::{Attachment, Broker, Options};

/// Holds the interface's XDP program and the broker; dropping it takes both away.
pub(crate) struct Acceleration {
    broker: Broker,
}

impl Acceleration {
    /// Attaches to `interface` and starts the broker.
    ///
    /// # Errors
    /// Says in words why that cannot be done.
    pub(crate) fn start(interface: &str) -> Result<Acceleration, String> {
        // No busy polling of the device, even where the program spins: on veth the sender's core then
        // moves our frames. Polling ourselves cost nginx 10 to 25 % (2 cores, Linux 6.18).
        let attachment =
            Attachment::attach(interface, Options::default()).map_err(|error| error.to_string())?;
        let broker = Broker::start(attachment).map_err(|error| error.to_string())?;
        Ok(Acceleration { broker })
    }

    /// What OVERFLY_BROKER is to be for the program.
    pub(crate) fn environment(&self) -> &str {
        self.broker.environment()
    }
}
