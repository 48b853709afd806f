//! `overfly tune`: a host as it should be before it is measured, and the way back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use overfly_bench::agent;
use overfly_bench::tune::{Difference, Host};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Prepare this host for measurements, and put it back
///
/// Sysctls (queues, ports, files), huge pages, the cores' governor, services that disturb (irqbalance, firewalls, clock daemons),
/// and with --interface its interrupt moderation and the cores of its interrupts. What a host has not is passed over; what is
/// better than needed stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The network interface that is measured
    #[arg(long, value_name = "NAME", global = true)]
    interface: Option<String>,
    /// The cores that its interrupts are to be on, queue after queue: 0,2
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "interface", global = true)]
    irq_cpus: Vec<usize>,
    /// Where /proc, /sys and /var are: another root than / serves trials, without services
    #[arg(long, value_name = "FOLDER", default_value = "/", global = true)]
    root: PathBuf,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what is not as it should be, and why; the exit status is 1 if anything is not
    Check,
    /// Show it, then change it; what was there is kept in /var/lib/overfly/tune.jsonl first
    Apply,
    /// Change it, show it, and put everything back when standard input ends, or at Ctrl-C
    Hold,
    /// Put everything back, also after a crash
    Revert,
}

pub(crate) fn tune(arguments: &Arguments) -> ExitCode {
    let Arguments { interface, irq_cpus, root, json, .. } = arguments;
    let host = Host { root: root.clone(), interface: interface.clone(), irq_cpus: irq_cpus.clone() };
    match carry_out(&host, &arguments.command, *json) {
        Ok(code) => code,
        Err(error) => {
            crate::complain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Returns at the end of standard input, or at a signal.
fn await_end(mut signals: Signals) {
    std::thread::spawn(|| {
        agent::await_end_of_leash();
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    });
    let _ = signals.forever().next();
}

fn carry_out(host: &Host, command: &Command, json: bool) -> Result<ExitCode, overfly_bench::Error> {
    let print = |text: &str| crate::written(overfly_terminal::print(text));
    let show = |differences: &[Difference]| {
        if json {
            let text = serde_json::to_string(differences).unwrap_or_default() + "\n";
            return crate::written(overfly_terminal::print_json(&text));
        }
        print(&differences.iter().map(|difference| format!("{difference}\n")).collect::<String>())
    };
    let changes = !matches!(command, Command::Check);
    if changes && host.root == Path::new("/") && !rustix::process::geteuid().is_root() {
        return Err(overfly_bench::Error::Machine(
            "only root may change this host: type it behind `sudo`; `overfly tune check` needs no privilege"
                .to_owned(),
        ));
    }
    match command {
        Command::Check => {
            let differences = host.check();
            let shown = show(&differences);
            if host.is_applied() {
                overfly_terminal::tell("this host was tuned; `overfly tune revert` puts it back");
            }
            Ok(if differences.is_empty() { shown } else { ExitCode::FAILURE })
        }
        Command::Apply => {
            // Each difference and its reason first.
            let differences = host.check();
            let shown = show(&differences);
            let changed = host.apply()?.len();
            overfly_terminal::tell(format_args!(
                "{changed} settings changed; `overfly tune revert` puts them back"
            ));
            Ok(shown)
        }
        Command::Hold => {
            let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|source| {
                overfly_bench::Error::Kernel { action: "listen to signals".to_owned(), source }
            })?;
            let differences = host.apply()?;
            let shown = show(&differences);
            await_end(signals);
            host.revert()?;
            overfly_terminal::tell(format_args!("{} settings are as they were", differences.len()));
            Ok(shown)
        }
        Command::Revert => {
            let count = host.revert()?;
            overfly_terminal::tell(format_args!("{count} settings are as they were"));
            Ok(ExitCode::SUCCESS)
        }
    }
}
