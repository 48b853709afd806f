//! What `overfly load http` can do that the tools whose dialects are spoken here cannot: the same options in each dialect.

use crate::step::StepArgs;

/// Options of `overfly load http` that every dialect takes as well.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Overfly's own")]
pub(super) struct OwnArgs {
    /// What carries the connections, as for `overfly load http`
    #[arg(long, value_name = "LINK", allow_hyphen_values = true)]
    link: Option<String>,
    /// The interface for --link xdp [default: the one on the route to the server]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    interface: Option<String>,
    /// The stack's own address with --link memif or tap
    #[arg(long, value_name = "ADDRESS/LEN", allow_hyphen_values = true)]
    address: Option<String>,
    /// Pin thread after thread to these processors: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    cpus: Option<String>,
    /// The local ports that a user-level link takes for itself
    #[arg(long, value_name = "LOW-HIGH", allow_hyphen_values = true)]
    ports: Option<String>,
    /// Connect from these addresses in turn, such as 10.77.1.0/24
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    sources: Option<String>,
    #[command(flatten)]
    pub(super) step: StepArgs,
}

impl OwnArgs {
    /// As words of `overfly load http`'s command line.
    pub(super) fn words(&self) -> Vec<String> {
        let options = [
            ("--link", &self.link),
            ("--interface", &self.interface),
            ("--address", &self.address),
            ("--cpus", &self.cpus),
            ("--ports", &self.ports),
            ("--sources", &self.sources),
        ];
        let mut words = Vec::new();
        for (option, given) in options {
            if let Some(given) = given {
                words.extend([option.to_string(), given.clone()]);
            }
        }
        words
    }
}
