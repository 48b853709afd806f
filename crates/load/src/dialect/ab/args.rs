//! ab's flags, and ours beside them.

use std::path::PathBuf;

use super::html::Attributes;
use super::page::Shown;
use crate::dialect::own::OwnArgs;
use crate::error::Error;

/// Takes ab's flags and prints ab's page, over any link
#[derive(Debug, Clone, clap::Args)]
#[command(disable_version_flag = true, override_usage = "overfly load ab [OPTIONS] URL")]
pub struct AbArgs {
    /// What to request: [http[s]://]HOST[:PORT][/PATH]; any certificate is taken
    #[arg(value_name = "URL", required_unless_present = "version")]
    pub(super) url: Option<String>,
    /// Number of requests to perform [default: 1, with -t 50000]
    #[arg(short = 'n', value_name = "REQUESTS", allow_hyphen_values = true)]
    pub(super) requests: Option<String>,
    /// Number of multiple requests to make at a time
    #[arg(short = 'c', value_name = "CONCURRENCY", default_value = "1", allow_hyphen_values = true)]
    pub(super) concurrency: String,
    /// Seconds to max. to spend on benchmarking
    #[arg(short = 't', value_name = "TIMELIMIT", allow_hyphen_values = true)]
    pub(super) time_limit: Option<String>,
    /// Seconds to max. wait for each response
    #[arg(short = 's', value_name = "TIMEOUT", default_value = "30", allow_hyphen_values = true)]
    pub(super) timeout: String,
    /// Address to make outgoing connections from; --sources takes many
    #[arg(short = 'B', value_name = "ADDRESS")]
    pub(super) bind: Option<String>,
    /// File containing data to POST. Remember also to set -T
    #[arg(short = 'p', value_name = "POSTFILE", conflicts_with_all = ["put", "head"])]
    pub(super) post: Option<PathBuf>,
    /// File containing data to PUT. Remember also to set -T
    #[arg(short = 'u', value_name = "PUTFILE", conflicts_with = "head")]
    pub(super) put: Option<PathBuf>,
    /// Content-type header to use for POST/PUT data
    #[arg(short = 'T', value_name = "CONTENT-TYPE", default_value = "text/plain")]
    pub(super) content_type: String,
    /// How much troubleshooting info to print: 2 for requests and responses, 3 for statuses too
    #[arg(short = 'v', value_name = "VERBOSITY", default_value = "0")]
    pub(super) verbosity: String,
    /// Print out results in HTML tables
    #[arg(short = 'w')]
    pub(super) html: bool,
    /// Use HEAD instead of GET
    #[arg(short = 'i')]
    pub(super) head: bool,
    /// String to insert as table attributes
    #[arg(short = 'x', value_name = "ATTRIBUTES")]
    pub(super) table: Option<String>,
    /// String to insert as tr attributes
    #[arg(short = 'y', value_name = "ATTRIBUTES")]
    pub(super) row: Option<String>,
    /// String to insert as td or th attributes
    #[arg(short = 'z', value_name = "ATTRIBUTES")]
    pub(super) cell: Option<String>,
    /// Add cookie, eg. 'Apache=1234'. (repeatable)
    #[arg(short = 'C', value_name = "ATTRIBUTE")]
    pub(super) cookies: Vec<String>,
    /// Add Arbitrary header line, eg. 'Accept-Encoding: gzip'. (repeatable)
    #[arg(short = 'H', value_name = "ATTRIBUTE", allow_hyphen_values = true)]
    pub(super) headers: Vec<String>,
    /// Add Basic WWW Authentication: USER:PASSWORD
    #[arg(short = 'A', value_name = "ATTRIBUTE")]
    pub(super) authentication: Option<String>,
    /// Add Basic Proxy Authentication: USER:PASSWORD
    #[arg(short = 'P', value_name = "ATTRIBUTE")]
    pub(super) proxy_authentication: Option<String>,
    /// Proxyserver and port number to use
    #[arg(short = 'X', value_name = "PROXY:PORT")]
    pub(super) proxy: Option<String>,
    /// Print version number and exit
    #[arg(short = 'V')]
    pub(super) version: bool,
    /// Use HTTP KeepAlive feature
    #[arg(short = 'k')]
    pub(super) keep_alive: bool,
    /// Do not show percentiles served table
    #[arg(short = 'd')]
    pub(super) no_percentiles: bool,
    /// Do not show confidence estimators and warnings
    #[arg(short = 'S')]
    pub(super) no_confidence: bool,
    /// Do not show progress when doing more than 150 requests
    #[arg(short = 'q')]
    pub(super) quiet: bool,
    /// Accept variable document length (use this for dynamic pages)
    #[arg(short = 'l')]
    pub(super) any_length: bool,
    /// Output collected data to gnuplot format file; times of day are UTC
    #[arg(short = 'g', value_name = "FILENAME")]
    pub(super) gnuplot: Option<PathBuf>,
    /// Output CSV file with percentages served
    #[arg(short = 'e', value_name = "FILENAME")]
    pub(super) csv: Option<PathBuf>,
    /// Don't exit on socket receive errors
    #[arg(short = 'r')]
    pub(super) receive_errors_are_fine: bool,
    /// Method name
    #[arg(short = 'm', value_name = "METHOD", conflicts_with = "head")]
    pub(super) method: Option<String>,
    /// Refused: the window follows the path here
    #[arg(short = 'b', value_name = "WINDOWSIZE")]
    pub(super) window: Option<String>,
    /// Refused: a server's name is always sent to it
    #[arg(short = 'I')]
    pub(super) no_sni: bool,
    /// Refused: rustls offers the cipher suites that are safe
    #[arg(short = 'Z', value_name = "CIPHERSUITE")]
    pub(super) ciphers: Option<String>,
    /// Refused: rustls speaks TLS 1.2 and 1.3
    #[arg(short = 'f', value_name = "PROTOCOL")]
    pub(super) protocol: Option<String>,
    /// Refused: the generator has no certificate
    #[arg(short = 'E', value_name = "CERTFILE")]
    pub(super) certificate: Option<PathBuf>,
    /// Go on, whatever fails: connections, too
    #[arg(long)]
    pub(super) keep_going: bool,
    /// The content size that is a success [default: the first response's]
    #[arg(long, value_name = "BYTES")]
    pub(super) expect_size: Option<String>,
    /// Print the number of successes as well
    #[arg(long)]
    pub(super) successes: bool,
    /// Threads; with a user-level link each has a stack of its own
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) threads: String,
    #[command(flatten)]
    pub(super) own: OwnArgs,
}

impl AbArgs {
    /// Flags of ab that cannot be followed, with the reason.
    pub(super) fn refuse(&self) -> Result<(), Error> {
        let text = |path: &PathBuf| path.display().to_string();
        let refused = [
            ("-b", self.window.clone(), "no window: the engine's and the kernel's follow the path's need"),
            ("-I", self.no_sni.then(String::new), "nothing: a server's name is always sent to it"),
            ("-Z", self.ciphers.clone(), "no cipher suites: rustls offers those that are safe"),
            ("-f", self.protocol.clone(), "no protocol: rustls speaks TLS 1.2 and 1.3"),
            ("-E", self.certificate.as_ref().map(text), "no client certificate: the generator has none"),
        ];
        match refused.into_iter().find_map(|(flag, given, why)| Some((flag, given?, why))) {
            Some((flag, given, why)) => Err(Error::usage(flag, given, why)),
            None => Ok(()),
        }
    }

    pub(super) fn shown(&self) -> Shown {
        Shown {
            no_percentiles: self.no_percentiles,
            no_confidence: self.no_confidence,
            successes: self.successes,
        }
    }

    /// As in ab, each of `-x`, `-y` and `-z` asks for HTML as well.
    pub(super) fn html(&self) -> Option<Attributes> {
        let wanted = self.html || self.table.is_some() || self.row.is_some() || self.cell.is_some();
        let text = |given: &Option<String>| given.clone().unwrap_or_default();
        wanted.then(|| Attributes {
            table: text(&self.table),
            row: text(&self.row),
            cell: self.cell.clone().unwrap_or_else(|| "bgcolor=white".to_string()),
        })
    }
}
