//! `overfly __far`: what a session of `overfly bench` does on a host that is another machine. Not for people.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use overfly_bench::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what this host is, and keep the session's folders until standard input ends
    Hold {
        #[arg(long)]
        folder: Option<PathBuf>,
        #[arg(long)]
        program: String,
        #[arg(long)]
        interface: String,
    },
    /// What processes and cores have spent
    Spent {
        /// Folders of the wardens that the processes are under
        #[arg(long)]
        of: Vec<PathBuf>,
        #[arg(long)]
        interface: String,
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
    },
    /// How fast cores are
    Speed {
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
    },
}

pub(crate) fn far(arguments: &Arguments) -> ExitCode {
    let print = |text: &str| crate::written(overfly_terminal::print_json(&format!("{text}\n")));
    match &arguments.command {
        Command::Hold { folder, program, interface } => {
            let said = |about: &str| {
                print(about);
            };
            match agent::hold(folder.as_deref(), program, interface, said) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    crate::complain(&error);
                    ExitCode::from(error.exit_status())
                }
            }
        }
        Command::Spent { of, interface, cores } => {
            print(&serde_json::to_string(&agent::spent(of, interface, cores)).unwrap_or_default())
        }
        Command::Speed { cores } => print(&agent::speed(cores).to_string()),
    }
}
