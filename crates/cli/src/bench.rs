//! `overfly bench`: the same work over the kernel and over Overfly, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overfly_bench::plan::Plan;
use overfly_bench::session::Session;

/// Measure a server on the kernel and on Overfly, as a plan says, and compare
///
/// Prints a table and writes it, with every figure behind it, to results/NAME/. Needs root. The
/// exit status is 1 if a run or a request failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// What to measure; cookbooks/README.md documents the format
    plan: PathBuf,
    /// Folder for the results [default: results/NAME, NAME being that of the plan]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Repeats the order of an earlier session, which printed its seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

pub(crate) fn bench(arguments: &Arguments) -> ExitCode {
    match measure(arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            crate::complain(format_args!("{errors} errors; the lines above that begin with `!` say which"));
            ExitCode::FAILURE
        }
        Err(error) => {
            crate::complain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

fn measure(arguments: &Arguments) -> Result<u64, overfly_bench::Error> {
    let plan = Plan::read(&arguments.plan)?;
    let overfly = std::env::current_exe().map_err(|source| overfly_bench::Error::Kernel {
        action: "find this command's own file".to_owned(),
        source,
    })?;
    let output = arguments.output.clone().unwrap_or_else(|| Path::new("results").join(plan.name()));
    let session = Session { overfly, output, seed: arguments.seed.unwrap_or_else(Session::random_seed) };
    let report = session.run(&plan)?;
    print!("{}", report.to_text());
    println!("\nWritten: {}", session.output.join("{report.md,summary.json,raw/}").display());
    Ok(report.errors())
}
