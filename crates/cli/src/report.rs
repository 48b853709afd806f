//! `overfly report`: the report of a session of `overfly bench`, once more, and what two sessions say beside each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use overfly_bench::diff::Diff;
use overfly_bench::report::Report;

/// Write the report of a session again, or compare two
///
/// `overfly report results/NAME` makes report.html, report.md and points.csv from the summary.json in that folder.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// The folder that `overfly bench` wrote
    folder: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what changed between two sessions of a plan, beyond noise
    ///
    /// A figure is worse, or better, if the whole interval of the factor between the sessions lies beyond the tolerance
    /// (Hodges and Lehmann's ratio, Mann and Whitney's exact distribution: 95 %, or what at least three undisturbed runs a
    /// side allow), and worse if more requests failed. The exit status is 0 if nothing became worse, 1 if something did,
    /// 2 if they cannot be compared.
    Diff {
        /// The earlier session: the folder that was written, or its summary.json
        before: PathBuf,
        /// The later one
        after: PathBuf,
        /// Differences below this are none, %
        #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
        tolerance: f64,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn report(arguments: &Arguments) -> ExitCode {
    let Some(Command::Diff { before, after, tolerance, json }) = &arguments.command else {
        return rebuild(arguments.folder.as_deref().unwrap_or(Path::new(".")));
    };
    if !(0.0..100.0).contains(tolerance) {
        crate::complain(format_args!("--tolerance {tolerance}: expected a share from 0 to 100 %"));
        return ExitCode::from(2);
    }
    let diff = match Diff::of(before, after, tolerance / 100.0) {
        Ok(diff) => diff,
        Err(error) => {
            crate::complain(&error);
            return ExitCode::from(error.exit_status());
        }
    };
    let said = if *json {
        overfly_terminal::print_json(&diff.to_json())
    } else {
        overfly_terminal::print(&diff.to_text())
    };
    match said {
        Ok(()) if diff.worse() > 0 => ExitCode::FAILURE,
        said => crate::written(said),
    }
}

fn rebuild(folder: &Path) -> ExitCode {
    match Report::read(folder).and_then(|report| report.write(folder)) {
        Ok(()) => {
            let written = folder.join("{report.html,report.md,points.csv}");
            crate::written(overfly_terminal::print(&format!("Written: {}\n", written.display())))
        }
        Err(error) => {
            crate::complain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}
