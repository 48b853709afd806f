//! What to stream, checked before anything runs.

use std::ops::RangeInclusive;
use std::time::Duration;

use overfly_engine::Prefix;
use overfly_steer::ReceiveOffload;

use super::buffer::Shape;
use super::ramp::RampSettings;
use crate::error::Error;
use crate::http::Target;
use crate::link::sources::Sources;
use crate::link::{Link, Network};

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the blocks are; `{block}` in it stands for a block's number, from 0 on.
    pub url: String,
    /// How many blocks there are: each request is for one at random.
    pub blocks: u32,
    /// Bytes that a player's buffer holds.
    pub buffer: u64,
    /// Below this share of the buffer, more is wanted. 0 to 1.
    pub watermark: f64,
    /// What a player watches, bits/s.
    pub drain_bps: f64,
    /// How often the buffer drains.
    pub tick: Duration,
    /// Receive window of a connection at most, bytes: what may wait there while a player reads nothing.
    pub window: u32,
    /// How streams are added, and when the run ends.
    pub ramp: RampSettings,
    /// Threads; on a user-level link each has a stack of its own.
    pub threads: usize,
    /// Thread i runs on processor `cpus[i % cpus.len()]` alone. Empty: wherever.
    pub cpus: Vec<usize>,
    /// What carries the streams.
    pub link: Link,
    /// The stack's own address with `memif` and `tap`.
    pub network: Network,
    /// The interface for `xdp`; `None`: the one that the route to the server names.
    pub interface: Option<String>,
    /// What may arrive over `xdp`.
    pub receive_offload: ReceiveOffload,
    /// Addresses that connections come from, chosen at random; `None`: this host's, or the stack's own.
    pub sources: Option<Prefix>,
    /// The local ports that a user-level stack takes for itself.
    pub ports: RangeInclusive<u16>,
    /// Times that a connection is tried before its stream has failed.
    pub attempts: u8,
    /// Where others open streams and ask how they do.
    pub control: Option<crate::control::Control>,
    /// The same seed chooses the same blocks and addresses.
    pub seed: u64,
}

/// Streams that a run is made ready for where nobody says how many there may be.
const STREAMS: u64 = 65_536;

impl Settings {
    /// Table 9 for one URL: 128 blocks, 5 MB of buffer, half of it the watermark, 1 Mb/s.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            blocks: 128,
            buffer: 5_000_000,
            watermark: 0.5,
            drain_bps: 1e6,
            tick: Duration::from_millis(500),
            window: 256 * 1024,
            ramp: RampSettings::default(),
            threads: 1,
            cpus: Vec::new(),
            link: Link::Kernel,
            network: Network::default(),
            interface: None,
            receive_offload: ReceiveOffload::Packets,
            sources: None,
            ports: 10_000..=65_000,
            attempts: 10,
            control: None,
            seed: 1,
        }
    }

    /// What can be known to be wrong without touching the machine.
    ///
    /// # Errors
    /// [`Error::Usage`], for the first option that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |wrong: bool, option: &'static str, given: String, expected: &str| {
            if wrong { Err(Error::usage(option, given, expected)) } else { Ok(()) }
        };
        let share = |share: f64| (0.0..=1.0).contains(&share);
        let (ramp, shape) = (&self.ramp, self.shape());
        refuse(!(1..=64).contains(&self.threads), "-t", self.threads.to_string(), "1 to 64 threads")?;
        refuse(
            !(1..=65_536).contains(&self.blocks),
            "--blocks",
            self.blocks.to_string(),
            "1 to 65536 blocks",
        )?;
        refuse(
            self.tick < Duration::from_millis(1),
            "--tick",
            format!("{}s", self.tick.as_secs_f64()),
            "1ms at least",
        )?;
        refuse(shape.drain == 0, "--drain-rate", self.drain_bps.to_string(), "a byte a tick at least")?;
        refuse(
            shape.drain > shape.capacity,
            "--buffer",
            self.buffer.to_string(),
            "room for what one tick drains at least",
        )?;
        refuse(!share(self.watermark), "--watermark", percent(self.watermark), "0% to 100%")?;
        refuse(!share(ramp.approach_start), "--approach-start", percent(ramp.approach_start), "0% to 100%")?;
        refuse(!share(ramp.enough), "--enough", percent(ramp.enough), "0% to 100%")?;
        refuse(ramp.streams == Some(0), "--streams", "0".into(), "one stream at least")?;
        refuse(
            ramp.interval.is_zero() || ramp.approach_interval.is_zero(),
            "--interval",
            "0".into(),
            "a time such as 1s",
        )?;
        refuse(
            !(4096..=1 << 30).contains(&self.window),
            "--window",
            self.window.to_string(),
            "4096 bytes to 1 GiB",
        )?;
        refuse(
            self.interface.is_some() && self.link != Link::Xdp,
            "--interface",
            self.interface.clone().unwrap_or_default(),
            "--link xdp with it: others have no interface of their own",
        )?;
        self.addresses()?;
        self.targets().map(|_| ())
    }

    /// Each block's target.
    pub(crate) fn targets(&self) -> Result<Vec<Target>, Error> {
        let blocks = if self.url.contains("{block}") { self.blocks } else { 1 };
        (0..blocks).map(|block| Target::parse(&self.url.replace("{block}", &block.to_string()))).collect()
    }

    /// The addresses that connections come from, if that was asked for.
    pub(crate) fn addresses(&self) -> Result<Option<Sources>, Error> {
        self.sources.map(Sources::new).transpose()
    }

    /// What all buffers have in common.
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            capacity: self.buffer,
            watermark: (self.buffer as f64 * self.watermark) as u64,
            drain: (self.drain_bps * self.tick.as_secs_f64() / 8.0).round() as u64,
        }
    }

    /// How many streams there may be, over all threads.
    pub(crate) fn most_streams(&self) -> u64 {
        self.ramp.streams.unwrap_or(STREAMS)
    }
}

fn percent(share: f64) -> String {
    format!("{}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_9() {
        let settings = Settings::new("http://a/{block}");
        settings.check().unwrap();
        assert_eq!(settings.shape(), Shape { capacity: 5_000_000, watermark: 2_500_000, drain: 62_500 });
        assert_eq!(settings.targets().unwrap().len(), 128);
        assert_eq!(settings.targets().unwrap()[127].url(), "http://a/127");
        assert_eq!(Settings::new("http://a/10M").targets().unwrap().len(), 1);
        let ramp = &settings.ramp;
        assert_eq!((ramp.initial, ramp.step, ramp.interval), (64, 256, Duration::from_secs(1)));
        assert_eq!((ramp.approach_step, ramp.approach_interval), (32, Duration::from_secs(30)));
        assert_eq!((ramp.link_speed_bps, ramp.approach_start, ramp.rate_limit), (40e9, 0.95, true));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut Settings), option: &str| {
            let mut settings = Settings::new("http://a/");
            change(&mut settings);
            let text = settings.check().unwrap_err().to_string();
            assert!(text.starts_with(option), "{text}");
        };
        refused(|s| s.threads = 0, "-t 0");
        refused(|s| s.blocks = 0, "--blocks 0");
        refused(|s| s.drain_bps = 0.0, "--drain-rate 0");
        refused(|s| s.buffer = 1, "--buffer 1");
        refused(|s| s.watermark = 1.5, "--watermark 150%");
        refused(|s| s.ramp.streams = Some(0), "--streams 0");
        refused(|s| s.window = 1, "--window 1");
        refused(|s| s.interface = Some("eth0".into()), "--interface eth0");
        refused(|s| s.url = "ftp://a".into(), "URL ftp://a");
    }
}
