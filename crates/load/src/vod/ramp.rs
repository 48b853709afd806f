//! When to open how many more streams, when to stop, and what the answer is.
//!
//! The decisions alone: whoever asks tells the time and what has been counted.

use std::time::Duration;

/// How streams are added.
#[derive(Debug, Clone, PartialEq)]
pub struct RampSettings {
    /// Streams opened at the start.
    pub initial: u64,
    /// Streams opened at each interval.
    pub step: u64,
    /// Between looks.
    pub interval: Duration,
    /// What the link is expected to carry, bits/s.
    pub link_speed_bps: f64,
    /// Demand, as a share of the link's speed, at which the approach begins. 0 to 1.
    pub approach_start: f64,
    /// As `step`, in the approach.
    pub approach_step: u64,
    /// As `interval`, in the approach.
    pub approach_interval: Duration,
    /// More streams are opened only while enough of those that are open are streaming.
    pub rate_limit: bool,
    /// How many are enough: a share of those that are open. 0 to 1.
    pub enough: f64,
    /// Never more streams than this; when they all have streamed for `hold`, the run is over.
    pub streams: Option<u64>,
    /// How long `streams` have to last.
    pub hold: Duration,
    /// The run ends when more streams than this have been lost. `None`: it goes on.
    pub tolerated: Option<u64>,
    /// How long the streams that are open may take to stream before the run is given up.
    pub patience: Duration,
    /// How long to run at most.
    pub duration: Option<Duration>,
}

impl Default for RampSettings {
    fn default() -> RampSettings {
        RampSettings {
            initial: 64,
            step: 256,
            interval: Duration::from_secs(1),
            link_speed_bps: 40e9,
            approach_start: 0.95,
            approach_step: 32,
            approach_interval: Duration::from_secs(30),
            rate_limit: true,
            enough: 0.9,
            streams: None,
            hold: Duration::from_secs(10),
            tolerated: Some(0),
            patience: Duration::from_secs(120),
            duration: None,
        }
    }
}

/// What has been counted until now, over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Standing {
    /// Streams begun, lost ones included.
    pub opened: u64,
    /// Streams whose connection is being made.
    pub connecting: u64,
    /// Streams in their first filling.
    pub filling: u64,
    /// Streams that drain.
    pub streaming: u64,
    /// Streams whose buffer ran dry.
    pub dropped: u64,
    /// Streams whose connection failed for good.
    pub failed: u64,
    /// Content received, bytes.
    pub bytes: u64,
}

impl Standing {
    /// Streams that are there: not lost.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.dropped + self.failed)
    }

    /// Streams that are no more.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped + self.failed
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Streams ran dry.
    Dropped,
    /// Connections failed.
    Failed,
    /// As many streams as were asked for lasted.
    StreamsReached,
    /// The streams that were open did not begin to stream.
    NotStreaming,
    /// The time was over.
    TimeOver,
    /// Somebody said so: a signal, or the control socket.
    OnRequest,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Wait,
    /// Open so many more.
    Open(u64),
    End(Ended),
}

/// A ramp that goes on.
#[derive(Debug)]
pub(crate) struct Ramp {
    settings: RampSettings,
    drain_bps: f64,
    /// Streams asked for, by us and by the control socket.
    wanted: u64,
    started: bool,
    next_look: Duration,
    approaching: bool,
    /// Since when all that were asked for are streaming.
    all_since: Option<Duration>,
    /// When enough of those that were open were last streaming.
    enough_at: Duration,
    /// Standing at the last look, and when it was.
    before: Option<(Duration, Standing)>,
    sustained: u64,
}

impl Ramp {
    pub(crate) fn new(settings: RampSettings, drain_bps: f64) -> Ramp {
        Ramp {
            settings,
            drain_bps,
            wanted: 0,
            started: false,
            next_look: Duration::ZERO,
            approaching: false,
            all_since: None,
            enough_at: Duration::ZERO,
            before: None,
            sustained: 0,
        }
    }

    /// The answer: the most streams that streamed from one look to the next while none was lost.
    pub(crate) fn sustained(&self) -> u64 {
        self.sustained
    }

    /// Whether demand is near the link's speed.
    pub(crate) fn is_approaching(&self) -> bool {
        self.approaching
    }

    /// The control socket asked for more: as many of them as are allowed.
    pub(crate) fn grant(&mut self, more: u64) -> u64 {
        let room = self.settings.streams.map_or(u64::MAX, |streams| streams.saturating_sub(self.wanted));
        let granted = more.min(room);
        self.wanted += granted;
        granted
    }

    /// Looks at what has been counted. Call it often: it knows when it is time.
    pub(crate) fn look(&mut self, now: Duration, standing: &Standing) -> Decision {
        let lost = self.settings.tolerated.is_some_and(|tolerated| standing.lost() > tolerated);
        if lost {
            return Decision::End(if standing.dropped > 0 { Ended::Dropped } else { Ended::Failed });
        }
        if self.settings.duration.is_some_and(|duration| now >= duration) {
            self.note(now, standing);
            return Decision::End(Ended::TimeOver);
        }
        if !std::mem::replace(&mut self.started, true) {
            self.next_look = now + self.settings.interval;
            self.enough_at = now;
            return Decision::Open(self.grant(self.settings.initial));
        }
        if now < self.next_look {
            return Decision::Wait;
        }
        self.note(now, standing);
        let demand_bps = standing.open() as f64 * self.drain_bps;
        self.approaching = demand_bps >= self.settings.approach_start * self.settings.link_speed_bps;
        let interval =
            if self.approaching { self.settings.approach_interval } else { self.settings.interval };
        self.next_look = now + interval;
        self.end_or_open(now, standing)
    }

    /// Takes note of what lasted since the last look.
    fn note(&mut self, now: Duration, standing: &Standing) {
        if let Some((_, before)) = self.before
            && before.lost() == standing.lost()
        {
            self.sustained = self.sustained.max(before.streaming.min(standing.streaming));
        }
        self.before = Some((now, *standing));
    }

    fn end_or_open(&mut self, now: Duration, standing: &Standing) -> Decision {
        let settings = &self.settings;
        let enough = standing.opened >= self.wanted
            && standing.streaming > 0
            && standing.streaming as f64 >= settings.enough * standing.open() as f64;
        if enough {
            self.enough_at = now;
        } else if standing.opened > 0 && now.saturating_sub(self.enough_at) >= settings.patience {
            return Decision::End(Ended::NotStreaming);
        }
        if settings.streams.is_some_and(|streams| standing.streaming >= streams) {
            if now - *self.all_since.get_or_insert(now) >= settings.hold {
                return Decision::End(Ended::StreamsReached);
            }
        } else {
            self.all_since = None;
        }
        if settings.rate_limit && !enough && standing.opened > 0 {
            return Decision::Wait;
        }
        let step = if self.approaching { settings.approach_step } else { settings.step };
        match self.grant(step) {
            0 => Decision::Wait,
            more => Decision::Open(more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that carries up to `capacity` streams; beyond that some run dry after `drain_s`.
    struct Server {
        capacity: u64,
        standing: Standing,
    }

    /// Runs a ramp, a look every 10 ms. Returns when it ended, why, and the steps.
    fn run(mut ramp: Ramp, server: &mut Server) -> (f64, Ended, Ramp, Vec<(f64, u64)>) {
        let mut steps = Vec::new();
        let mut filling: Vec<(u64, u64)> = Vec::new();
        for now_ms in (0_u64..).step_by(10) {
            assert!(now_ms < 10_000_000, "{:?}", server.standing);
            let now = Duration::from_millis(now_ms);
            let standing = &mut server.standing;
            filling.retain(|(until, count)| {
                let done = *until <= now_ms;
                if done {
                    standing.filling -= count;
                    standing.streaming += count;
                }
                !done
            });
            if standing.streaming > server.capacity {
                standing.dropped += 3;
                standing.streaming -= 3;
            }
            match ramp.look(now, standing) {
                Decision::Wait => {}
                Decision::Open(more) => {
                    steps.push((now.as_secs_f64(), more));
                    standing.opened += more;
                    standing.filling += more;
                    // Filling takes 300 ms.
                    filling.push((now_ms + 300, more));
                }
                Decision::End(ended) => return (now.as_secs_f64(), ended, ramp, steps),
            }
        }
        unreachable!()
    }

    fn server(capacity: u64) -> Server {
        Server { capacity, standing: Standing::default() }
    }

    #[test]
    fn table_9_finds_what_a_server_carries() {
        let mut server = server(1500);
        let (at, ended, ramp, steps) = run(Ramp::new(RampSettings::default(), 1e6), &mut server);
        assert_eq!(ended, Ended::Dropped);
        assert_eq!((steps[0], steps[1], steps[2]), ((0.0, 64), (1.0, 256), (2.0, 256)));
        // 1344 streamed at the last look, and no look after it was without loss.
        assert_eq!(ramp.sustained(), 1088);
        assert!((6.0..7.0).contains(&at), "{at}");
        assert_eq!(server.standing.opened, 1600);
    }

    #[test]
    fn near_the_links_speed_steps_are_small_and_rare() {
        let settings = RampSettings { link_speed_bps: 1e9, ..RampSettings::default() };
        let mut server = server(1111);
        let (_, ended, ramp, steps) = run(Ramp::new(settings, 1e6), &mut server);
        assert_eq!(ended, Ended::Dropped);
        // 64 + 4 × 256 = 1088 are above 950.
        assert_eq!(steps[..5].iter().map(|step| step.1).sum::<u64>(), 1088);
        assert_eq!(steps[5], (5.0, 32));
        assert!(ramp.is_approaching());
        assert_eq!(ramp.sustained(), 832);
    }

    #[test]
    fn it_waits_while_too_few_stream() {
        let mut ramp = Ramp::new(RampSettings::default(), 1e6);
        let standing = |streaming, filling| Standing {
            opened: streaming + filling,
            streaming,
            filling,
            ..Standing::default()
        };
        let s = Duration::from_secs;
        assert_eq!(ramp.look(s(0), &standing(0, 0)), Decision::Open(64));
        assert_eq!(ramp.look(s(1), &standing(0, 64)), Decision::Wait);
        assert_eq!(ramp.look(s(2), &standing(57, 7)), Decision::Wait, "57 of 64 are less than 90 %");
        assert_eq!(ramp.look(s(3), &standing(58, 6)), Decision::Open(256));
        for second in 4..123 {
            assert_eq!(ramp.look(s(second), &standing(58, 262)), Decision::Wait);
        }
        assert_eq!(ramp.look(s(123), &standing(58, 262)), Decision::End(Ended::NotStreaming));
        assert_eq!(ramp.sustained(), 58);

        let unlimited = RampSettings { rate_limit: false, ..RampSettings::default() };
        let mut ramp = Ramp::new(unlimited, 1e6);
        assert_eq!(ramp.look(s(0), &standing(0, 0)), Decision::Open(64));
        assert_eq!(ramp.look(s(1), &standing(0, 64)), Decision::Open(256));
    }

    #[test]
    fn as_many_as_asked_for_have_to_last() {
        let settings =
            RampSettings { streams: Some(400), hold: Duration::from_secs(5), ..RampSettings::default() };
        let (at, ended, ramp, steps) = run(Ramp::new(settings, 1e6), &mut server(1000));
        assert_eq!((ended, ramp.sustained()), (Ended::StreamsReached, 400));
        assert_eq!(steps, [(0.0, 64), (1.0, 256), (2.0, 80)]);
        assert!((8.0..9.0).contains(&at), "{at}");
    }

    #[test]
    fn losses_may_be_tolerated_and_time_may_end() {
        let settings = RampSettings {
            tolerated: None,
            duration: Some(Duration::from_secs(20)),
            ..RampSettings::default()
        };
        let mut server = server(600);
        let (at, ended, ramp, _) = run(Ramp::new(settings, 1e6), &mut server);
        assert_eq!((ended, at), (Ended::TimeOver, 20.0));
        assert!(server.standing.dropped > 100 && ramp.sustained() <= 600);
    }

    #[test]
    fn the_control_socket_opens_within_the_bound() {
        let settings = RampSettings { initial: 0, step: 0, streams: Some(10), ..RampSettings::default() };
        let mut ramp = Ramp::new(settings, 1e6);
        assert_eq!(ramp.look(Duration::ZERO, &Standing::default()), Decision::Open(0));
        assert_eq!(ramp.look(Duration::from_secs(600), &Standing::default()), Decision::Wait);
        assert_eq!((ramp.grant(8), ramp.grant(8), ramp.grant(8)), (8, 2, 0));
    }
}
