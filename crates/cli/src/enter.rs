//! `overfly __enter`: how a child of a lab's owner gets inside. Not for people.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use overfly_bench::lab::Entry;
use rustix::process::Signal;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    net: Option<PathBuf>,
    #[arg(long)]
    mounts: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    cpu: Vec<usize>,
    #[arg(long)]
    die_with: Option<u32>,
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=31))]
    death_signal: Option<i32>,
    #[arg(long)]
    preload: Option<OsString>,
    #[arg(long)]
    contained: bool,
    #[arg(long)]
    innermost: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn enter(arguments: Arguments) -> ExitCode {
    let death_signal = arguments.death_signal.and_then(Signal::from_named_raw);
    let Arguments { net, mounts, cpu: cpus, die_with, preload, contained, innermost, command, .. } =
        arguments;
    become_command(&Entry {
        net,
        mounts,
        cpus,
        die_with,
        death_signal,
        preload,
        contained,
        innermost,
        command,
    })
}

/// Returns only if the command could not be run, or ran as a contained child.
pub(crate) fn become_command(entry: &Entry) -> ExitCode {
    match entry.enter() {
        Ok(code) => code,
        Err(error) => {
            crate::complain(&error);
            match error {
                overfly_bench::Error::Kernel { source, .. }
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    ExitCode::from(127)
                }
                _ => ExitCode::FAILURE,
            }
        }
    }
}
