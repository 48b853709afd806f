//! The command line of `overfly load serve`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::fault::Chances;
use super::run::{Progress, Server};
use super::settings::Settings;
use overfly_terminal::{redraw, tell};

use crate::arguments::{count, cpus, number, time};
use crate::error::Error;
use crate::link::{Link, Network};
use crate::output::{print_report, redraw_fitted};

/// Serves HTTP as fast as it can: /1024, /10k and /1M ask for so many bytes, / for none.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// The address to listen at; :: takes those of both families. With --link memif or tap it is the stack's own, with the
    /// length of its prefix [default: 0.0.0.0, or 10.77.0.1/24]
    #[arg(long, value_name = "IP[/LENGTH]", allow_hyphen_values = true)]
    pub address: Option<String>,
    /// The port to listen at; 0 lets the kernel choose
    #[arg(short = 'p', long, value_name = "N", default_value = "8080", allow_hyphen_values = true)]
    pub port: String,
    /// Threads, each with a listener of its own
    #[arg(short = 't', long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub threads: String,
    /// Pin thread after thread to these processors, and over veth what the kernel receives for them: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub cpus: Option<String>,
    /// What carries the connections: kernel (sockets); or the user-level stack over xdp (an interface, needs root),
    /// memif:PATH (shared memory with programs that connect there; @NAME is an abstract socket) or tap:NAME (a tap device, at
    /// whose other end is this host's kernel)
    #[arg(long, value_name = "LINK", default_value = "kernel", allow_hyphen_values = true)]
    pub link: String,
    /// The interface for --link xdp [default: the one that has --address]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub interface: Option<String>,
    /// Connections at most, over all threads [default: 65536; over kernel sockets what ulimit -Hn allows]
    #[arg(short = 'c', long, value_name = "N", allow_hyphen_values = true)]
    pub connections: Option<String>,
    /// How long to serve: 10s, 500ms, 2m [default: until SIGINT or SIGTERM]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub duration: Option<String>,
    /// How long a client may be silent: between requests, within one, and while it should read
    #[arg(long, value_name = "TIME", default_value = "60s", allow_hyphen_values = true)]
    pub timeout: String,
    /// Send bodies in chunks
    #[arg(long)]
    pub chunked: bool,
    /// Close each connection after its first response
    #[arg(long)]
    pub close: bool,
    /// Spoil a share of responses, to test clients: reset, stall, garbage, short or lie; may be repeated
    #[arg(long = "fault", value_name = "KIND=SHARE%", allow_hyphen_values = true)]
    pub faults: Vec<String>,
    /// The same seed spoils the same requests of each thread
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub seed: String,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    pub json: bool,
}

impl ServeArgs {
    /// The settings that these arguments ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first option that is wrong.
    pub fn settings(&self) -> Result<Settings, Error> {
        let link = Link::parse(&self.link)?;
        let network = self.network(&link)?;
        let mut faults = Chances::default();
        self.faults.iter().try_for_each(|given| faults.add(given))?;
        let settings = Settings {
            listen: SocketAddr::new(
                network.address,
                self.port
                    .parse()
                    .map_err(|_| Error::usage("--port", &self.port, "a port from 0 to 65535"))?,
            ),
            prefix_len: network.prefix_len,
            threads: number("-t", &self.threads)?,
            cpus: self.cpus.as_deref().map(cpus).transpose()?.unwrap_or_default(),
            link,
            interface: self.interface.clone(),
            connections: (self.connections.as_deref())
                .map(|given| count("--connections", given).map(|count| count as usize))
                .transpose()?,
            duration: self.duration.as_deref().map(|given| time("-d", given)).transpose()?,
            timeout: time("--timeout", &self.timeout)?,
            chunked: self.chunked,
            close: self.close,
            faults,
            seed: number("--seed", &self.seed)?,
        };
        settings.check()?;
        Ok(settings)
    }

    fn network(&self, link: &Link) -> Result<Network, Error> {
        match (&self.address, link) {
            (Some(given), Link::Memif(_) | Link::Tap(_)) => given.parse(),
            (None, Link::Memif(_) | Link::Tap(_)) => Ok(Network::SERVER),
            (given, Link::Xdp | Link::Kernel) => {
                let given = given.as_deref().unwrap_or("0.0.0.0");
                let address = given.parse();
                let address =
                    address.map_err(|_| Error::usage("--address", given, "an IP address of this machine"))?;
                Ok(Network { address, ..Network::SERVER })
            }
        }
    }
}

/// Serves what the arguments ask for and says how it went: 0 it ended when it was told to, 1 the machine cannot do it, 2 a
/// wrong option.
#[must_use]
pub fn main_serve(args: &ServeArgs) -> ExitCode {
    Error::exit("overfly load serve", serve(args))
}

/// Serves until it is told to end.
fn serve(args: &ServeArgs) -> Result<bool, Error> {
    let settings = args.settings()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Error::machine("waiting for signals", error))?;
    }
    let server = Server::start(settings)?;
    // On standard error: standard output is for the result.
    tell(format_args!("Serving at http://{} over {}", server.address(), args.link));
    let mut line = LiveLine::new(!args.json);
    while !stop.load(Ordering::Relaxed) && !server.is_over() {
        std::thread::sleep(Duration::from_millis(20));
        line.show(&server.progress());
    }
    line.clear();
    let report = server.stop()?;
    print_report(args.json, || report.to_json(), &report)?;
    Ok(true)
}

/// A line that rewrites itself once a second, for people at a terminal only.
struct LiveLine {
    wanted: bool,
    shown: Option<Progress>,
}

impl LiveLine {
    fn new(wanted: bool) -> LiveLine {
        LiveLine { wanted: wanted && std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, progress: &Progress) {
        let (before, requests) =
            self.shown.map_or((Duration::ZERO, 0), |shown| (shown.elapsed, shown.counts.requests));
        let passed = progress.elapsed.saturating_sub(before);
        if !self.wanted || passed < Duration::from_secs(1) {
            return;
        }
        redraw_fitted(&format!(
            "{:.0} s: {:.0} requests/s, {} connections open, {} malformed",
            progress.elapsed.as_secs_f64(),
            progress.counts.requests.saturating_sub(requests) as f64 / passed.as_secs_f64(),
            progress.counts.open(),
            progress.counts.malformed_total()
        ));
        self.shown = Some(*progress);
    }

    fn clear(&mut self) {
        if self.shown.is_some() {
            redraw("");
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::serve::Fault;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn settings(line: &str) -> Result<Settings, String> {
        let words = std::iter::once("serve").chain(line.split_ascii_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        command.serve.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn the_options_are_read() {
        let s =
            settings("--address ::1 -p 81 -t2 --cpus 0-1 -c 1k -d 2s --timeout 5 --chunked --close --seed 3")
                .unwrap();
        assert_eq!(s.listen, "[::1]:81".parse().unwrap());
        assert_eq!((s.threads, s.cpus, s.connections), (2, vec![0, 1], Some(1000)));
        assert_eq!((s.duration, s.timeout), (Some(Duration::from_secs(2)), Duration::from_secs(5)));
        assert!(s.chunked && s.close && s.seed == 3 && s.link == Link::Kernel);
        let s = settings("--link xdp --interface eth0 --fault reset=1% --fault lie=0.5%").unwrap();
        assert_eq!((s.link, s.interface.as_deref()), (Link::Xdp, Some("eth0")));
        assert_eq!((s.faults.of(Fault::Reset), s.faults.of(Fault::Lie)), (10_000, 5_000));
        assert_eq!(settings("").unwrap().listen, "0.0.0.0:8080".parse().unwrap());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (line, start) in [
            ("--address here", "--address here: expected "),
            ("-p 70000", "--port 70000: expected a port from 0 to 65535"),
            ("-t 0", "-t 0: expected "),
            ("--link dpdk", "--link dpdk: expected "),
            ("--fault fire=1%", "--fault fire=1%: expected "),
            ("--timeout 0", "--timeout 0: expected "),
            ("-d -1", "-d -1: expected "),
        ] {
            let text = settings(line).unwrap_err();
            assert!(text.starts_with(start) && !text.contains('\n'), "{line}: {text}");
        }
    }
}
