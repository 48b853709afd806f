//! Where results go, on the command line.

use std::path::PathBuf;

/// Where results go.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Write a time series to this file, a line a second
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write HdrHistogram's interval log to this file, a histogram a second
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Serve what was counted so far to Prometheus, at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Show the run on a screen of its own; q ends it early
    #[arg(long)]
    pub tui: bool,
}
