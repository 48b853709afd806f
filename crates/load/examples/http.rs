//! `overfly load http` by itself, without the rest of the command.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    http: overfly_load::http::HttpArgs,
}

fn main() -> ExitCode {
    overfly_load::http::main_http(&Command::parse().http)
}
