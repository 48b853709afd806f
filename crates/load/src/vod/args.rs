//! The command line of `overfly load vod`.

use std::io::IsTerminal;
use std::process::ExitCode;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::report::Moment;
use super::run::{Stop, run};
use super::settings::Settings;
use crate::control::Control;
use overfly_terminal::redraw;

use crate::arguments::{ReceiveArgs, count, cpus, number, ports, sources, time};
use crate::error::Error;
use crate::link::{Link, Network};
use crate::output::{print_report, redraw_fitted};

/// Streams video to ever more players and reports how many the server sustains before a buffer runs dry.
#[derive(Debug, Clone, clap::Args)]
pub struct VodArgs {
    /// Where the blocks are, such as http://HOST/block-{block}: {block} becomes a number from 0 on
    #[arg(value_name = "URL")]
    pub url: String,
    /// Blocks; each request is for one of them at random
    #[arg(long, value_name = "N", default_value = "128", allow_hyphen_values = true)]
    pub blocks: String,
    /// Bytes that a player's buffer holds
    #[arg(long, value_name = "BYTES", default_value = "5M", allow_hyphen_values = true)]
    pub buffer: String,
    /// Below this share of its buffer a player asks for more
    #[arg(long, value_name = "SHARE%", default_value = "50%", allow_hyphen_values = true)]
    pub watermark: String,
    /// What a player watches, bits/s
    #[arg(long, value_name = "BITS/S", default_value = "1M", allow_hyphen_values = true)]
    pub drain_rate: String,
    /// How often a buffer drains
    #[arg(long, value_name = "TIME", default_value = "500ms", allow_hyphen_values = true)]
    pub tick: String,
    /// Streams opened at the start
    #[arg(long, value_name = "N", default_value = "64", allow_hyphen_values = true)]
    pub initial: String,
    /// Streams opened at each interval; 0 leaves it to the control socket
    #[arg(long, value_name = "N", default_value = "256", allow_hyphen_values = true)]
    pub step: String,
    /// Between two looks at the streams
    #[arg(long, value_name = "TIME", default_value = "1s", allow_hyphen_values = true)]
    pub interval: String,
    /// What the link is expected to carry, bits/s
    #[arg(long, value_name = "BITS/S", default_value = "40G", allow_hyphen_values = true)]
    pub link_speed: String,
    /// Demand, as a share of the link's speed, at which the approach begins
    #[arg(long, value_name = "SHARE%", default_value = "95%", allow_hyphen_values = true)]
    pub approach_start: String,
    /// As --step, in the approach
    #[arg(long, value_name = "N", default_value = "32", allow_hyphen_values = true)]
    pub approach_step: String,
    /// As --interval, in the approach
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    pub approach_interval: String,
    /// Open more streams only while enough of those that are open are streaming
    #[arg(long, value_name = "BOOL", default_value = "true", allow_hyphen_values = true)]
    pub rate_limit_ramp_up: String,
    /// How many are enough, as a share of those that are open
    #[arg(long, value_name = "SHARE%", default_value = "90%", allow_hyphen_values = true)]
    pub enough: String,
    /// Streams at most; the run ends when all of them have lasted for --hold
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub streams: Option<String>,
    /// How long --streams have to last
    #[arg(long, value_name = "TIME", default_value = "10s", allow_hyphen_values = true)]
    pub hold: String,
    /// Go on when streams are lost
    #[arg(long)]
    pub keep_going: bool,
    /// How long streams may take to begin to stream before the run is given up
    #[arg(long, value_name = "TIME", default_value = "120s", allow_hyphen_values = true)]
    pub patience: String,
    /// How long to run at most [default: until streams are lost]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub duration: Option<String>,
    /// Threads; on a user-level link each has a stack of its own [default: one for each processor]
    #[arg(short = 't', long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<String>,
    /// Pin thread after thread to these processors, and over veth what the kernel receives for them: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub cpus: Option<String>,
    /// What carries the streams: kernel (sockets); or the user-level stack over xdp (an interface, needs root), memif:PATH
    /// (shared memory with the program that listens there) or tap:NAME (a tap device, at whose other end is this host's kernel)
    #[arg(long, value_name = "LINK", default_value = "kernel", allow_hyphen_values = true)]
    pub link: String,
    /// The stack's own address with --link memif or tap [default: 10.77.0.2/24]
    #[arg(long, value_name = "ADDRESS/LENGTH", allow_hyphen_values = true)]
    pub address: Option<String>,
    /// The interface for --link xdp [default: the one on the route to the server]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub interface: Option<String>,
    /// How frames come.
    #[command(flatten)]
    pub receive: ReceiveArgs,
    /// Addresses that connections come from, such as 10.77.0.0/16, chosen at random [default: one]
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    pub sources: Option<String>,
    /// The local ports that a user-level stack takes for itself
    #[arg(long, value_name = "LOW-HIGH", default_value = "10000-65000", allow_hyphen_values = true)]
    pub ports: String,
    /// Receive window of a connection, bytes: what may wait there while a player has no room
    #[arg(long, value_name = "BYTES", default_value = "262144", allow_hyphen_values = true)]
    pub window: String,
    /// Times that a connection is tried before its stream has failed
    #[arg(long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub attempts: String,
    /// Take orders at this Unix socket (a path) or TCP address (IP:PORT): {"open": N}, {"stop": true}, {}
    #[arg(long, value_name = "PATH|IP:PORT", allow_hyphen_values = true)]
    pub control: Option<String>,
    /// The same seed chooses the same blocks and addresses
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub seed: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `50%` as 0.5.
fn share(option: &'static str, given: &str) -> Result<f64, Error> {
    let percent = given.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
    percent
        .map(|percent| percent / 100.0)
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| Error::usage(option, given, "a share from 0% to 100%"))
}

/// An address, or a path, which has a slash in it: a wrong address is no name of a file.
fn control(given: &str) -> Result<Control, Error> {
    if given.contains('/') {
        return Ok(Control::Unix(given.into()));
    }
    let wrong = |_| Error::usage("--control", given, "ADDRESS:PORT, or a path with a slash in it");
    given.parse().map(Control::Tcp).map_err(wrong)
}

impl VodArgs {
    /// The settings that these arguments ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first option that is wrong.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut settings = Settings::new(self.url.clone());
        settings.blocks = number("--blocks", &self.blocks)?;
        settings.buffer = count("--buffer", &self.buffer)?;
        settings.watermark = share("--watermark", &self.watermark)?;
        settings.drain_bps = count("--drain-rate", &self.drain_rate)? as f64;
        settings.tick = time("--tick", &self.tick)?;
        let window = count("--window", &self.window)?;
        settings.window = u32::try_from(window).unwrap_or(u32::MAX);
        settings.threads = match &self.threads {
            Some(given) => number("-t", given)?,
            None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        settings.cpus = self.cpus.as_deref().map(cpus).transpose()?.unwrap_or_default();
        settings.link = Link::parse(&self.link)?;
        settings.network = Network::own(self.address.as_deref(), &settings.link)?;
        settings.interface.clone_from(&self.interface);
        settings.receive_offload = self.receive.offload(Some(&settings.link))?;
        settings.sources = self.sources.as_deref().map(sources).transpose()?;
        settings.ports = ports(&self.ports)?;
        settings.attempts = number("--attempts", &self.attempts)?;
        settings.control = self.control.as_deref().map(control).transpose()?;
        settings.seed = number("--seed", &self.seed)?;
        self.ramp_into(&mut settings)?;
        if settings.ramp.initial == 0 && settings.ramp.step == 0 && settings.control.is_none() {
            let expected = "streams from the start (--initial), at each step, or from --control";
            return Err(Error::usage("--step", &self.step, expected));
        }
        settings.check()?;
        Ok(settings)
    }

    fn ramp_into(&self, settings: &mut Settings) -> Result<(), Error> {
        let ramp = &mut settings.ramp;
        ramp.initial = count("--initial", &self.initial)?;
        ramp.step = count("--step", &self.step)?;
        ramp.interval = time("--interval", &self.interval)?;
        ramp.link_speed_bps = count("--link-speed", &self.link_speed)? as f64;
        ramp.approach_start = share("--approach-start", &self.approach_start)?;
        ramp.approach_step = count("--approach-step", &self.approach_step)?;
        ramp.approach_interval = time("--approach-interval", &self.approach_interval)?;
        ramp.rate_limit = (self.rate_limit_ramp_up.to_ascii_lowercase().parse())
            .map_err(|_| Error::usage("--rate-limit-ramp-up", &self.rate_limit_ramp_up, "true or false"))?;
        ramp.enough = share("--enough", &self.enough)?;
        ramp.streams = self.streams.as_deref().map(|given| count("--streams", given)).transpose()?;
        ramp.hold = time("--hold", &self.hold)?;
        ramp.tolerated = (!self.keep_going).then_some(0);
        ramp.patience = time("--patience", &self.patience)?;
        ramp.duration = self.duration.as_deref().map(|given| time("-d", given)).transpose()?;
        Ok(())
    }
}

/// Runs what the arguments ask for, prints the report, and says how it went: 0 streams were sustained, 1 none was or the
/// machine cannot do it, 2 a wrong option.
#[must_use]
pub fn main_vod(args: &VodArgs) -> ExitCode {
    Error::exit("overfly load vod", load(args))
}

/// Whether any stream was sustained.
fn load(args: &VodArgs) -> Result<bool, Error> {
    let settings = args.settings()?;
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.0.clone())
            .map_err(|error| Error::machine("waiting for signals", error))?;
    }
    let live = !args.json && std::io::stderr().is_terminal();
    let report = run(&settings, &stop, |moment| {
        if live {
            show(moment);
        }
    })?;
    if live {
        redraw("");
    }
    print_report(args.json, || report.to_json(), &report)?;
    Ok(report.sustained > 0)
}

/// A line that rewrites itself.
fn show(moment: &Moment) {
    let standing = &moment.standing;
    redraw_fitted(&format!(
        "{:.0} s: {} streaming, {} filling, {} dropped, {} failed, {:.3} Gb/s{}",
        moment.at_s,
        standing.streaming,
        standing.filling + standing.connecting,
        standing.dropped,
        standing.failed,
        moment.rate_bps / 1e9,
        if moment.approaching { ", approaching the link's speed" } else { "" }
    ));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::vod::RampSettings;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        vod: VodArgs,
    }

    fn settings(line: &str) -> Result<Settings, String> {
        let words = std::iter::once("vod").chain(line.split_ascii_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        command.vod.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn without_options_it_is_table_9() {
        let settings = settings("http://a/{block}").unwrap();
        assert_eq!(settings.ramp, RampSettings::default());
        let expected = Settings::new("http://a/{block}");
        assert_eq!(settings.shape(), expected.shape());
        assert_eq!((settings.blocks, settings.tick, settings.window), (128, expected.tick, expected.window));
    }

    #[test]
    fn the_options_are_read() {
        let s = settings(
            "http://a/ --buffer 1M --watermark 25% --drain-rate 5M --tick 100ms --initial 1 --step 2 --interval 3s \
             --link-speed 10G --approach-start 80% --approach-step 4 --approach-interval 5s --enough 70% \
             --rate-limit-ramp-up False --streams 9 --hold 6s --keep-going --patience 7s -d 8s -t 2 --cpus 0 \
             --sources 10.0.0.0/24 --ports 2000-3000 --window 64k --attempts 3 --control 127.0.0.1:9 --seed 5",
        )
        .unwrap();
        assert_eq!((s.buffer, s.watermark, s.drain_bps), (1_000_000, 0.25, 5e6));
        let s_of = Duration::from_secs;
        let expected = RampSettings {
            initial: 1,
            step: 2,
            interval: s_of(3),
            link_speed_bps: 10e9,
            approach_start: 0.8,
            approach_step: 4,
            approach_interval: s_of(5),
            rate_limit: false,
            enough: 0.7,
            streams: Some(9),
            hold: s_of(6),
            tolerated: None,
            patience: s_of(7),
            duration: Some(s_of(8)),
        };
        assert_eq!(s.ramp, expected);
        assert_eq!((s.threads, &s.cpus[..], s.seed, s.attempts), (2, &[0][..], 5, 3));
        assert_eq!(s.addresses().unwrap().unwrap().len(), 254);
        assert_eq!((s.ports, s.window), (2000..=3000, 64_000));
        assert_eq!(s.control, Some(Control::Tcp("127.0.0.1:9".parse().unwrap())));
        let s = settings("http://a/ --control run/vod.sock").unwrap();
        assert_eq!(s.control, Some(Control::Unix("run/vod.sock".into())));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (line, start) in [
            ("a", "URL a: expected "),
            ("http://a/ --watermark 50", "--watermark 50: expected "),
            ("http://a/ --control 127.0.0.1:99999", "--control 127.0.0.1:99999: expected "),
            ("http://a/ --control vod.sock", "--control vod.sock: expected "),
            ("http://a/ --initial 0 --step 0", "--step 0: expected "),
            ("http://a/ --address 10.0.0.1/24", "--address 10.0.0.1/24: expected "),
            ("http://a/ --drain-rate 0", "--drain-rate 0: expected "),
            ("http://a/ --rate-limit-ramp-up maybe", "--rate-limit-ramp-up maybe: expected "),
            ("http://a/ --sources 10.0.0.0/x", "--sources 10.0.0.0/x: expected "),
            ("http://a/ --streams 0", "--streams 0: expected "),
            ("http://a/ --link dpdk", "--link dpdk: expected "),
        ] {
            let text = settings(line).unwrap_err();
            assert!(text.starts_with(start) && !text.contains('\n'), "{line}: {text}");
        }
    }
}
