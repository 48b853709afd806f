//! `overfly profile`: which profiles there are, what one puts in force, and what can be set.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Subcommand;

use overfly_profile::options::{DEFINITIONS, Definition, Options};
use overfly_profile::{InForce, Profile, environment, folders, known};

use crate::complain;

/// Show profiles and the options that they set
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The profiles that have a name, and where each is found
    List,
    /// What `overfly run -p NAME` would put in force here and now, and from where
    Show {
        /// A profile's name, or the path of an .opf file; several with commas between them
        #[arg(default_value = "balanced")]
        name: String,
        /// The profile wins over EF_* variables of the environment
        #[arg(long)]
        force_profiles: bool,
    },
    /// Every option: its meaning, its default and its range
    Options,
}

pub(crate) fn profile(arguments: &Arguments) -> ExitCode {
    let text = match &arguments.command {
        Command::List => list(),
        Command::Options => options_table(),
        Command::Show { name, force_profiles } => {
            let in_force = Profile::load(name, &folders())
                .and_then(|profile| profile.in_environment(&environment(), *force_profiles));
            match in_force {
                Ok(in_force) => show(&in_force),
                Err(error) => {
                    complain(error);
                    return ExitCode::from(2);
                }
            }
        }
    };
    crate::written(overfly_terminal::print(&text))
}

fn list() -> String {
    let mut text = String::new();
    for (name, place) in known(&folders()) {
        let _ = writeln!(text, "{name:<16} {place}");
    }
    text
}

/// One line for each option and each rule.
fn show(in_force: &InForce) -> String {
    let mut text = format!("{:<40} {:>12} {:>12}  {}\n", "option", "value", "default", "from");
    for definition in DEFINITIONS {
        let Definition { name, .. } = definition;
        let default = definition.default_text();
        let (value, from) = match in_force.setting(name) {
            Some(setting) => match definition.accepted {
                Some(_) => (setting.value.clone(), format!("{} (has no effect)", setting.origin)),
                None => (setting.value.clone(), setting.origin.to_string()),
            },
            None => implied(&in_force.options, definition),
        };
        let _ = writeln!(text, "{name:<40} {:>12} {:>12}  {from}", shown(&value), shown(&default));
    }
    if !in_force.rules.is_empty() {
        text.push('\n');
    }
    for (rule, origin) in &in_force.rules {
        let _ = writeln!(text, "{:<66}  {origin}", format!("rule {rule}"));
    }
    for line in in_force.without_effect() {
        let _ = writeln!(text, "\n{line}");
    }
    text
}

/// The value of an option that nobody set: its default, or what EF_POLL_USEC makes of it.
fn implied(options: &Options, definition: &Definition) -> (String, String) {
    let default = definition.default_text();
    match options.value(definition.name) {
        Some(value) if value != default => (value, "EF_POLL_USEC".to_owned()),
        _ => (default, "default".to_owned()),
    }
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "-" } else { value }
}

/// The table of docs/profiles.md.
fn options_table() -> String {
    let mut text = "| option | meaning | default | range |\n|---|---|---|---|\n".to_owned();
    let mut sorted: Vec<&Definition> = DEFINITIONS.iter().collect();
    sorted.sort_by_key(|definition| definition.name);
    for definition in sorted {
        let Definition { name, meaning, shape, accepted, .. } = definition;
        let default = definition.default_text();
        let effect =
            accepted.map_or(String::new(), |reason| format!(". **Accepted, without effect**: {reason}"));
        let _ = writeln!(text, "| `{name}` | {meaning}{effect} | {} | {shape} |", shown(&default));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_table_of_options() {
        let document =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiles.md")).unwrap();
        for row in options_table().lines() {
            assert!(
                document.contains(row),
                "docs/profiles.md lacks this row of `overfly profile options`:\n{row}"
            );
        }
        let rows = document.lines().filter(|line| line.starts_with("| `EF_")).count();
        assert_eq!(rows, DEFINITIONS.len(), "docs/profiles.md has rows for options that are not there");
    }

    #[test]
    fn every_option_of_the_reference_is_known() {
        // The names of shared/reference/onload-options.md.
        let reference = "EF_POLL_USEC EF_SLEEP_SPIN_USEC EF_POLL_FAST_USEC EF_EPOLL_SPIN EF_POLL_SPIN EF_PKT_WAIT_SPIN \
            EF_TCP_RECV_SPIN EF_TCP_SEND_SPIN EF_TCP_CONNECT_SPIN EF_TCP_ACCEPT_SPIN EF_UDP_RECV_SPIN EF_UDP_SEND_SPIN \
            EF_INT_DRIVEN EF_UL_EPOLL EF_EPOLL_MT_SAFE EF_RXQ_SIZE EF_MAX_PACKETS EF_MIN_FREE_PACKETS EF_MAX_ENDPOINTS \
            EF_FDTABLE_SIZE EF_USE_HUGE_PAGES EF_ACCEPTQ_MIN_BACKLOG EF_SOCKET_CACHE_MAX EF_TCP_TCONST_MSL \
            EF_TCP_FIN_TIMEOUT EF_TCP_INITIAL_CWND EF_DYNAMIC_ACK_THRESH EF_TAIL_DROP_PROBE EF_TCP_RCVBUF_MODE \
            EF_HIGH_THROUGHPUT_MODE EF_CLUSTER_NAME EF_CLUSTER_SIZE EF_CLUSTER_IGNORE EF_SCALABLE_FILTERS \
            EF_SCALABLE_FILTERS_ENABLE EF_TCP_SHARED_LOCAL_PORTS EF_TCP_SHARED_LOCAL_PORTS_MAX \
            EF_TCP_SHARED_LOCAL_PORTS_STEP EF_TCP_SHARED_LOCAL_PORTS_PER_IP EF_TCP_SHARED_LOCAL_PORTS_PER_IP_MAX \
            EF_TCP_SHARED_LOCAL_PORTS_REUSE_FAST EF_TCP_SHARED_LOCAL_PORTS_NO_FALLBACK EF_UDP EF_NO_FAIL \
            EF_LOG_VIA_IOCTL EF_LOAD_ENV EF_PIO EF_CTPIO EF_TX_PUSH";
        for name in reference.split_ascii_whitespace() {
            assert!(DEFINITIONS.iter().any(|definition| definition.name == name), "{name}");
        }
    }

    #[test]
    fn a_value_that_nobody_set_is_the_default_or_follows_from_the_spin_time() {
        let environment = [("EF_POLL_USEC".to_owned(), "9".to_owned())];
        let in_force = Profile::default().in_environment(&environment, false).unwrap();
        let text = show(&in_force);
        let from = |name: &str| {
            let line = text.lines().find(|line| line.split(' ').next() == Some(name)).unwrap().to_owned();
            line.split_ascii_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(from("EF_POLL_USEC"), ["9", "0", "environment"]);
        assert_eq!(from("EF_EPOLL_SPIN"), ["1", "0", "EF_POLL_USEC"]);
        assert_eq!(from("EF_TCP_ACCEPT_SPIN"), ["0", "0", "default"]);
        assert_eq!(from("EF_CLUSTER_NAME"), ["-", "-", "default"]);
    }
}
