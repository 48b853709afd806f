//! `overfly bench`: the same work over the kernel and over Overfly, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overfly_bench::plan::{Mode, Plan};
use overfly_bench::report::Report;
use overfly_bench::session::Session;

use overfly_profile::Profile;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Measure a server on the kernel and on Overfly, as a plan says, and compare
///
/// Prints a table and writes it, with every figure behind it, to results/NAME/. Plans that
/// measure an interface (AF_XDP) need root, those over memif do not. The
/// exit status is 1 if a run or a request failed, or a figure is not what the plan's rules require.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// What to measure; what is not there is looked for where Overfly is installed (share/overfly, with cookbooks/README.md, which
    /// documents the format)
    plan: PathBuf,
    /// Folder for the results [default: results/NAME, NAME being that of the plan]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Repeats the order of an earlier session, which printed its seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only see whether all of it works: the ends of each axis, once, for half a second each
    #[arg(long)]
    smoke: bool,
    /// Measure less of it: the ends of each axis, three times each
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// Go on with what an interrupted session of this plan has measured
    #[arg(long, conflicts_with = "seed")]
    resume: bool,
}

pub(crate) fn bench(arguments: &Arguments) -> ExitCode {
    match measure(arguments) {
        Ok((report, output)) => {
            let text = report.to_text();
            let written = output.join("{report.html,report.md,points.csv,summary.json,raw/}");
            let said = overfly_terminal::print(&format!("{text}\nWritten: {}\n", written.display()));
            if report.is_interrupted() {
                crate::complain(
                    "interrupted; `overfly bench --resume` goes on with it, the earlier report is as it was",
                );
                return ExitCode::from(130);
            }
            let errors = report.errors();
            let missed = report.missed();
            if errors == 0 && missed == 0 {
                return crate::written(said);
            }
            if errors == 0 {
                crate::complain(format_args!(
                    "{missed} figures are not what the plan requires; the lines above that begin with `!` say which"
                ));
                return ExitCode::FAILURE;
            }
            crate::complain(format_args!("{errors} errors; the lines above that begin with `!` say which"));
            ExitCode::FAILURE
        }
        Err(error) => {
            crate::complain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Where the plan is: as it was named, or so in the installation.
fn place_of(plan: &Path) -> PathBuf {
    let installed =
        || crate::run::installed(Path::new("share/overfly").join(plan)).filter(|its| its.exists());
    if plan.exists() { None } else { installed() }.unwrap_or_else(|| plan.to_owned())
}

/// The report, and the folder that it was written to.
fn measure(arguments: &Arguments) -> Result<(Report, PathBuf), overfly_bench::Error> {
    let plan = Plan::read(&place_of(&arguments.plan))?;
    let plan = match (arguments.smoke, arguments.quick) {
        (true, _) => plan.smoke(),
        (_, true) => plan.quick(),
        _ => plan,
    };
    // The plan's own profile, before an hour of runs that cannot have it.
    if plan.modes.contains(&Mode::Overfly) {
        for name in &plan.profile.0 {
            if name.contains('/') && !plan.hosts.is_empty() {
                let message = format!(
                    "profile = \"{name}\": a file of this machine; expected the name of a profile with hosts"
                );
                return Err(plan.fault("profile", message));
            }
            let profile = Profile::load(name, &overfly_profile::folders());
            profile.map_err(|error| plan.fault("profile", format!("profile = \"{name}\": {error}")))?;
        }
    }
    let overfly = std::env::current_exe().map_err(|source| overfly_bench::Error::Kernel {
        action: "find this command's own file".to_owned(),
        source,
    })?;
    let output = arguments.output.clone().unwrap_or_else(|| Path::new("results").join(plan.name()));
    let seed = arguments.seed.unwrap_or_else(Session::random_seed);
    listen_to_signals();
    let library = crate::run::library().ok();
    Session { overfly, library, output, seed, resume: arguments.resume }.run(&plan)
}

/// The first signal ends the session with a report of what was measured, the second ends this process.
fn listen_to_signals() {
    for signal in [SIGINT, SIGTERM] {
        let flag = overfly_bench::interruption();
        // Without handlers a signal ends the process: what was measured is on disk all the same.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone());
        let _ = signal_hook::flag::register(signal, flag);
    }
}
