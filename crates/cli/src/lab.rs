//! `overfly lab`: two network namespaces to try things in.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;
use overfly_bench::lab::named::{NamedLab, Up};
use overfly_bench::lab::{CLIENT, CLIENT_V6, SERVER, SERVER_V6};

/// Make, enter and remove two network namespaces, `server` (10.77.0.1, fd77::1) and `client`
/// (10.77.0.2, fd77::2), joined by a veth pair
///
/// The namespaces stay until `overfly lab down`; `ip netns exec server CMD` finds them too.
/// Namespaces of these names that somebody else made are never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// Put in front of the names of the namespaces, for a second lab
    #[arg(long, global = true, default_value = "", env = "OVERFLY_LAB_PREFIX", value_parser = prefix)]
    prefix: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the namespaces; harmless if they are there
    Up,
    /// Run a command inside one of them
    Exec {
        /// `server` or `client`
        #[arg(value_parser = ["server", "client"])]
        name: String,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Remove them
    Down,
}

fn prefix(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.len() <= 32 && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("expected at most 32 letters, digits, - and _".to_owned())
}

pub(crate) fn lab(arguments: &Arguments) -> ExitCode {
    let lab = NamedLab::new(&arguments.prefix);
    let result = match &arguments.action {
        Action::Up => up(&lab, &arguments.prefix),
        Action::Down => down(&lab),
        Action::Exec { name, command } => match lab.entry(name, command.clone()) {
            Ok(entry) => return crate::enter::become_command(&entry),
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(said) => crate::written(overfly_terminal::print(&said)),
        Err(error) => {
            crate::complain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// What there is to say of it.
fn up(lab: &NamedLab, prefix: &str) -> Result<String, overfly_bench::Error> {
    // Nothing is run through the path: a named lab is entered by whoever finds its name.
    let state = match lab.up("overfly".as_ref())? {
        Up::Made => "is up",
        Up::AlreadyThere => "was up already",
    };
    let option = if prefix.is_empty() { String::new() } else { format!(" --prefix {prefix}") };
    Ok(format!(
        "The lab {state}: {prefix}server has {SERVER} and {SERVER_V6}, {prefix}client has {CLIENT} and {CLIENT_V6}. \
         Try: overfly lab{option} exec client -- ping -c 1 {SERVER}\n"
    ))
}

fn down(lab: &NamedLab) -> Result<String, overfly_bench::Error> {
    let down = lab.down()?;
    for (id, name, namespace) in &down.left_running {
        crate::complain(format_args!("process {id} ({name}) of {namespace} goes on, without a network"));
    }
    Ok(match down.removed.as_slice() {
        [] => "There was no lab.\n".to_owned(),
        removed => format!("Removed {}.\n", removed.join(" and ")),
    })
}
