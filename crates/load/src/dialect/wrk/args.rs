//! The flags of wrk and of wrk2, and ours beside them.

use std::path::PathBuf;

use crate::dialect::own::OwnArgs;

/// What both tools take.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Both {
    /// What to request: http[s]://HOST[:PORT][/PATH]; any certificate is taken
    #[arg(value_name = "URL", required_unless_present = "version")]
    pub(super) url: Option<String>,
    /// Connections to keep open
    #[arg(short = 'c', long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub(super) connections: String,
    /// Duration of test: 30s, 2m, 1h
    #[arg(short = 'd', long, value_name = "T", default_value = "10s", allow_hyphen_values = true)]
    pub(super) duration: String,
    /// Number of threads to use; with a user-level link each has a stack of its own
    #[arg(short = 't', long, value_name = "N", default_value = "2", allow_hyphen_values = true)]
    pub(super) threads: String,
    /// Load Lua script file
    #[arg(short = 's', long, value_name = "S")]
    pub(super) script: Option<PathBuf>,
    /// Add header to request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "H", allow_hyphen_values = true)]
    pub(super) headers: Vec<String>,
    /// Socket/request timeout
    #[arg(short = 'T', long, value_name = "T", default_value = "2s", allow_hyphen_values = true)]
    pub(super) timeout: String,
    /// Print version details
    #[arg(short = 'v', long)]
    pub(super) version: bool,
    /// What the script's init gets
    #[arg(last = true, value_name = "SCRIPT ARGUMENTS")]
    pub(super) script_arguments: Vec<String>,
    #[command(flatten)]
    pub(super) own: OwnArgs,
}

/// Takes wrk's flags and Lua scripts and prints wrk's page, over any link
#[derive(Debug, Clone, clap::Args)]
#[command(
    disable_version_flag = true,
    override_usage = "overfly load wrk [OPTIONS] URL [-- SCRIPT ARGUMENTS]"
)]
pub struct WrkArgs {
    /// Print latency statistics
    #[arg(short = 'L', long)]
    pub(super) latency: bool,
    #[command(flatten)]
    pub(super) both: Both,
}

/// Takes wrk2's flags and Lua scripts and prints wrk2's page, over any link
#[derive(Debug, Clone, clap::Args)]
#[command(
    disable_version_flag = true,
    override_usage = "overfly load wrk2 -R RATE [OPTIONS] URL [-- SCRIPT ARGUMENTS]"
)]
pub struct Wrk2Args {
    /// Work rate (throughput) in requests/sec (total)
    #[arg(
        short = 'R',
        long,
        value_name = "T",
        required_unless_present = "version",
        allow_hyphen_values = true
    )]
    pub(super) rate: Option<String>,
    /// Print latency statistics
    #[arg(short = 'L', long)]
    pub(super) latency: bool,
    /// Print uncorrected latency statistics
    #[arg(short = 'U', long = "u_latency")]
    pub(super) u_latency: bool,
    /// Measure latency of whole batches of pipelined ops (as opposed to each op)
    #[arg(short = 'B', long = "batch_latency")]
    pub(super) batch_latency: bool,
    #[command(flatten)]
    pub(super) both: Both,
}

impl Both {
    /// As words of `overfly load http`'s command line.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = self.own.words();
        for (option, given) in [
            ("-c", &self.connections),
            ("-d", &self.duration),
            ("-t", &self.threads),
            ("--timeout", &self.timeout),
        ] {
            words.extend([option.to_string(), given.clone()]);
        }
        for header in &self.headers {
            words.extend(["-H".to_string(), header.clone()]);
        }
        if self.url.as_ref().is_some_and(|url| url.starts_with("https:")) {
            // As the tools do: they measure, they do not trust.
            words.push("--insecure".to_string());
        }
        words.extend(self.url.clone());
        words
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    /// wrk's and wrk2's getopt strings have both letters (`src/wrk.c`, parse_args).
    #[test]
    fn short_flags_are_the_tools_own() {
        let line = ["wrk", "-L", "-T", "7s", "-t1", "-c3", "-d1s", "http://a/"];
        let wrk = WrkArgs::augment_args(clap::Command::new("wrk")).try_get_matches_from(line).unwrap();
        let wrk = WrkArgs::from_arg_matches(&wrk).unwrap();
        assert!(wrk.latency);
        assert_eq!((wrk.both.timeout.as_str(), wrk.both.threads.as_str()), ("7s", "1"));
        let line = ["wrk2", "-R", "10", "-L", "-T", "7s", "http://a/"];
        let wrk2 = Wrk2Args::augment_args(clap::Command::new("wrk2")).try_get_matches_from(line).unwrap();
        let wrk2 = Wrk2Args::from_arg_matches(&wrk2).unwrap();
        assert!(wrk2.latency && wrk2.both.timeout == "7s");
    }
}
