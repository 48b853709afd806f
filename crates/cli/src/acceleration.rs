//! The one place where `overfly run` meets the links: an interface in, an accelerator out.

/// Holds the interface's XDP program and the broker; dropping it takes both away.
#[derive(Debug)]
pub(crate) struct Acceleration {
    environment: String,
}

impl Acceleration {
    /// What OVERFLY_BROKER is to be for the program.
    pub(crate) fn environment(&self) -> &str {
        &self.environment
    }
}

/// Attaches to `interface` and starts the broker.
///
/// # Errors
/// Says in words why that cannot be done.
pub(crate) fn start(interface: &str) -> Result<Acceleration, String> {
    Err(format!("this version has no link for {interface}"))
}
