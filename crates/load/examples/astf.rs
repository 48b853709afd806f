//! `overfly load astf` by itself, without the rest of the command.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    astf: overfly_load::astf::AstfArgs,
}

fn main() -> ExitCode {
    overfly_load::astf::main_astf(&Command::parse().astf)
}
