//! The `overfly` command.

#![forbid(unsafe_code)]
// `overfly_terminal` writes: these would end the command where nobody reads any more.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod acceleration;
mod bench;
mod broker;
mod doctor;
mod enter;
mod far;
mod interface;
mod lab;
mod log;
mod manual;
mod one_line;
mod profile;
mod program;
mod report;
mod run;
mod supervise;
mod tune;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use overfly_load::astf::{AstfArgs, main_astf};
use overfly_load::dialect::{AbArgs, Wrk2Args, WrkArgs, main_ab, main_wrk, main_wrk2};
use overfly_load::http::{HttpArgs, main_http};
use overfly_load::serve::{ServeArgs, main_serve};
use overfly_load::step::{GatherArgs, MergeArgs, main_gather, main_merge};
use overfly_load::vod::{VodArgs, main_vod};
use overfly_terminal::Unwritten;

/// Runs unmodified network programs on a user-level TCP/IP stack that bypasses the kernel, puts load on servers with the
/// same engine, and measures both beside the kernel.
#[derive(Debug, Parser)]
#[command(name = "overfly", version, subcommand_required = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Visible(Visible),
    #[command(name = "__broker", hide = true)]
    Broker(broker::Arguments),
    #[command(name = "__enter", hide = true)]
    Enter(enter::Arguments),
    #[command(name = "__pod", hide = true)]
    Pod(broker::agent::PodArguments),
    #[command(name = "__far", hide = true)]
    Far(far::Arguments),
    #[command(name = "__warden", hide = true)]
    Warden(run::WardenArguments),
}

/// What people call.
#[derive(Debug, Subcommand)]
enum Visible {
    Run(run::Arguments),
    Bench(bench::Arguments),
    Report(report::Arguments),
    Doctor(doctor::Arguments),
    Profile(profile::Arguments),
    Broker(broker::service::Arguments),
    Top(watch::top::Arguments),
    Sockets(watch::sockets::Arguments),
    Dump(watch::dump::Arguments),
    Lab(lab::Arguments),
    Tune(tune::Arguments),
    #[command(subcommand)]
    Load(Load),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

/// Load a server, or be one, over a user-level stack of the generator's own or over kernel sockets
#[derive(Debug, Subcommand)]
enum Load {
    Http(Box<HttpArgs>),
    Serve(Box<ServeArgs>),
    Gather(GatherArgs),
    Merge(MergeArgs),
    Wrk(Box<WrkArgs>),
    Wrk2(Box<Wrk2Args>),
    Ab(Box<AbArgs>),
    Vod(Box<VodArgs>),
    Astf(Box<AstfArgs>),
}

fn main() -> ExitCode {
    // A thread that panics ends the command: what it measured would be worth nothing.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let arguments = match manual::parse() {
        Ok(arguments) => arguments,
        Err(error) => return one_line::report(&error),
    };
    match arguments.command {
        Command::Visible(command) => visible(command),
        Command::Broker(arguments) => broker::broker(&arguments),
        Command::Pod(arguments) => broker::agent::pod(&arguments),
        Command::Enter(arguments) => enter::enter(arguments),
        Command::Far(arguments) => far::far(&arguments),
        Command::Warden(arguments) => run::warden(&arguments),
    }
}

fn visible(command: Visible) -> ExitCode {
    match command {
        Visible::Run(arguments) => run::run(&arguments),
        Visible::Bench(arguments) => bench::bench(&arguments),
        Visible::Report(arguments) => report::report(&arguments),
        Visible::Doctor(arguments) => doctor::doctor(&arguments),
        Visible::Profile(arguments) => profile::profile(&arguments),
        Visible::Broker(arguments) => broker::service::serve(&arguments),
        Visible::Top(arguments) => watch::top::top(&arguments),
        Visible::Sockets(arguments) => watch::sockets::sockets(&arguments),
        Visible::Dump(arguments) => watch::dump::dump(&arguments),
        Visible::Lab(arguments) => lab::lab(&arguments),
        Visible::Tune(arguments) => tune::tune(&arguments),
        Visible::Load(Load::Http(arguments)) => main_http(&arguments),
        Visible::Load(Load::Serve(arguments)) => main_serve(&arguments),
        Visible::Load(Load::Gather(arguments)) => main_gather(&arguments),
        Visible::Load(Load::Merge(arguments)) => main_merge(&arguments),
        Visible::Load(Load::Wrk(arguments)) => main_wrk(&arguments),
        Visible::Load(Load::Wrk2(arguments)) => main_wrk2(&arguments),
        Visible::Load(Load::Ab(arguments)) => main_ab(&arguments),
        Visible::Load(Load::Vod(arguments)) => main_vod(&arguments),
        Visible::Load(Load::Astf(arguments)) => main_astf(&arguments),
        Visible::Completions(arguments) => manual::completions(&arguments),
        Visible::Man(arguments) => manual::man(&arguments),
    }
}

/// Says what is wrong, in one line.
fn complain(message: impl std::fmt::Display) {
    log::say(log::Level::Warning, message);
}

/// The exit status of a command whose output was written, or not: that is said, unless nobody reads any more.
fn written(output: Result<(), Unwritten>) -> ExitCode {
    match output {
        Ok(()) => ExitCode::SUCCESS,
        Err(unwritten) => {
            if let Unwritten::Failed(_) = &unwritten {
                complain(&unwritten);
            }
            ExitCode::from(unwritten.exit_status())
        }
    }
}
