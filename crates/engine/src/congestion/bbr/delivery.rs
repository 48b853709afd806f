//! Delivery rate samples (draft-ietf-ccwg-bbr-05 section 4.1; draft-cheng-iccrg-delivery-rate-estimation-02): how fast the path
//! delivered what was last in flight, and whether the program, rather than the path, was the limit.
//!
//! What is sent at one moment shares a [`Record`], as the draft has it of offloaded packets.

use std::collections::VecDeque;

use crate::recovery::Latest;
use crate::sequence::{Sequence, at_or_before, before, later};
use crate::time::Instant;

/// Records of either kind: beyond, new data shares the last one, whose samples are then low rather than high.
const MOST: usize = 1024;
/// Bytes a second that are believed: beyond any path, and sums of it stay numbers.
pub(super) const MOST_RATE: u64 = 1 << 40;

/// What was sent at one moment, and what was known then. Times in microseconds, sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    start: Sequence,
    end: Sequence,
    sent_us: u64,
    /// [`Delivery::delivered`] then, and when that was last counted.
    delivered: u64,
    delivered_us: u64,
    /// [`Delivery::first_sent_us`] then.
    first_sent_us: u64,
    /// [`Delivery::lost`] then.
    pub(super) lost: u64,
    /// In flight with it.
    pub(super) in_flight: u32,
    /// The program was the limit.
    pub(super) is_limited: bool,
}

/// What an acknowledgment delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Newest {
    /// All that it covers, in order: the newest is the last below SND.UNA.
    InOrder,
    /// The most recently sent of it.
    Of(Latest),
    /// Nothing, or what may have been an earlier copy.
    Unknown,
}

/// A sample; without a record, only `acked` means something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sample {
    /// Whether a record was found.
    pub(super) is_known: bool,
    /// Bytes a second; 0 where the interval was too short to be believed.
    pub(super) rate: u64,
    /// Bytes delivered over the interval.
    pub(super) delivered: u64,
    /// Bytes that had been delivered when it began.
    pub(super) prior_delivered: u64,
    /// In flight when the newest of what was delivered was sent.
    pub(super) in_flight: u32,
    /// Lost since then.
    pub(super) lost: u64,
    /// The program was the limit.
    pub(super) is_limited: bool,
    /// The round trip of the newest of what was delivered; 0 where it was sent again.
    pub(super) rtt_us: u32,
    /// Bytes newly delivered.
    pub(super) acked: u32,
}

/// One flow's sampler.
#[derive(Debug)]
pub(super) struct Delivery {
    /// New data in flight, by sequence number; what the peer has out of order still stands here.
    sent: VecDeque<Record>,
    /// What was sent again, by time.
    again: VecDeque<Record>,
    pub(super) delivered: u64,
    delivered_us: u64,
    /// When what was last delivered was sent, or the first of what is in flight now.
    first_sent_us: u64,
    pub(super) lost: u64,
    /// Samples are limited by the program until more than this has been delivered; 0 if they are not.
    limited_until: u64,
}

impl Delivery {
    pub(super) fn new(now_us: u64) -> Self {
        Self {
            sent: VecDeque::new(),
            again: VecDeque::new(),
            delivered: 0,
            delivered_us: now_us,
            first_sent_us: now_us,
            lost: 0,
            limited_until: 0,
        }
    }

    /// `[start, end)` was sent, for the first time or again; `in_flight` counts it.
    pub(super) fn sent(&mut self, now_us: u64, start: Sequence, end: Sequence, is_new: bool, in_flight: u32) {
        if in_flight <= end.since(start) {
            (self.first_sent_us, self.delivered_us) = (now_us, now_us);
        }
        let record = Record {
            start,
            end,
            sent_us: now_us,
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            first_sent_us: self.first_sent_us,
            lost: self.lost,
            in_flight,
            is_limited: self.is_limited(),
        };
        let list = if is_new { &mut self.sent } else { &mut self.again };
        let is_full = list.len() >= MOST;
        match list.back_mut() {
            Some(last) if last.is_same_moment(&record) => {
                last.end = later(last.end, end);
                last.in_flight = in_flight;
            }
            Some(last) if is_full && is_new => last.end = end,
            _ => {
                if is_full {
                    list.pop_front();
                }
                list.push_back(record);
            }
        }
    }

    /// `bytes` left the network and are with the peer, all below `una` among them.
    pub(super) fn delivered(
        &mut self,
        now_us: u64,
        una: Sequence,
        bytes: u32,
        newest: Newest,
        min_rtt_us: u32,
    ) -> Sample {
        self.delivered += u64::from(bytes);
        self.delivered_us = now_us;
        let (record, again) = match newest {
            Newest::InOrder => (self.release(una), false),
            Newest::Of(latest) => {
                let record = self.find(latest).copied();
                self.release(una);
                (record, latest.again)
            }
            Newest::Unknown => {
                self.release(una);
                (None, false)
            }
        };
        if self.delivered > self.limited_until {
            self.limited_until = 0;
        }
        let Some(record) = record else { return Sample { acked: bytes, ..Sample::default() } };
        self.first_sent_us = record.sent_us;
        let sending_us = record.sent_us.saturating_sub(record.first_sent_us);
        let arriving_us = now_us.saturating_sub(record.delivered_us);
        let interval_us = sending_us.max(arriving_us);
        let delivered = self.delivered - record.delivered;
        let is_sound = interval_us > 0 && interval_us >= u64::from(min_rtt_us);
        let rtt_us = u32::try_from(now_us.saturating_sub(record.sent_us)).unwrap_or(u32::MAX).max(1);
        Sample {
            is_known: true,
            rate: if is_sound { MOST_RATE.min(delivered.saturating_mul(1_000_000) / interval_us) } else { 0 },
            delivered,
            prior_delivered: record.delivered,
            in_flight: record.in_flight,
            lost: self.lost - record.lost,
            is_limited: record.is_limited,
            rtt_us: if again { 0 } else { rtt_us },
            acked: bytes,
        }
    }

    /// Forgets what lies below `una`; returns the newest of it.
    fn release(&mut self, una: Sequence) -> Option<Record> {
        let mut newest = None;
        while let Some(first) = self.sent.front_mut() {
            if before(una, first.end) {
                if before(first.start, una) {
                    first.start = una;
                    newest = Some(*first);
                }
                break;
            }
            newest = self.sent.pop_front();
        }
        while self.again.pop_front_if(|record| at_or_before(record.end, una)).is_some() {}
        newest
    }

    /// What was known when those bytes were sent.
    fn find(&self, latest: Latest) -> Option<&Record> {
        if latest.again {
            return self
                .again
                .iter()
                .rev()
                .find(|record| Instant::from_micros(record.sent_us).moment() == latest.sent_at);
        }
        let index = self.sent.partition_point(|record| before(record.end, latest.end));
        self.sent.get(index).filter(|record| before(record.start, latest.end))
    }

    /// What was known when bytes were sent that are lost now: the oldest in flight, where it is not known which.
    pub(super) fn of_lost(&self, latest: Option<Latest>) -> Option<Record> {
        match latest {
            Some(latest) => self.find(latest).copied(),
            None => self.sent.front().copied(),
        }
    }

    /// There is nothing to send, and room for it: samples of the next `in_flight` bytes say what the program sends.
    pub(super) fn limit(&mut self, in_flight: u32) {
        self.limited_until = (self.delivered + u64::from(in_flight)).max(1);
    }

    pub(super) const fn is_limited(&self) -> bool {
        self.limited_until != 0
    }
}

impl Record {
    /// The same was known when both were sent.
    fn is_same_moment(&self, other: &Record) -> bool {
        (self.sent_us, self.delivered, self.first_sent_us, self.lost, self.is_limited)
            == (other.sent_us, other.delivered, other.first_sent_us, other.lost, other.is_limited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn at(number: u32) -> Sequence {
        Sequence::new(number)
    }

    fn sent_latest(end: u32, sent_us: u64, again: bool) -> Latest {
        Latest { end: at(end), sent_at: Instant::from_micros(sent_us).moment(), again }
    }

    /// Segments of 1,000 bytes, a millisecond apart, sent from sequence number 0 at time 1 s.
    fn sent(count: u32) -> Delivery {
        let mut delivery = Delivery::new(1_000_000);
        for index in 0..count {
            let (start, in_flight) = (index * MSS, (index + 1) * MSS);
            delivery.sent(1_000_000 + u64::from(index) * 1000, at(start), at(start + MSS), true, in_flight);
        }
        delivery
    }

    #[test]
    fn a_steady_flow_is_measured_at_its_rate() {
        let mut delivery = sent(20);
        for index in 0..20 {
            let una = (index + 1) * MSS;
            let now_us = 1_020_000 + u64::from(index) * 1000;
            let sample = delivery.delivered(now_us, at(una), MSS, Newest::InOrder, 20_000);
            assert!(sample.is_known && !sample.is_limited);
            assert_eq!(sample.rtt_us, 20_000);
            assert_eq!(sample.in_flight, una);
            // A segment a millisecond, in the end; the first round measures what was sent in it.
            assert_eq!(sample.delivered, u64::from(una));
            assert_eq!(sample.rate, u64::from(una) * 1_000_000 / (20_000 + u64::from(index) * 1000));
        }
        assert!(delivery.sent.is_empty());
    }

    #[test]
    fn acknowledgments_that_were_held_up_do_not_make_a_faster_path() {
        // A segment a millisecond; twenty acknowledgments come in one microsecond.
        let mut delivery = sent(40);
        delivery.delivered(1_040_000, at(20 * MSS), 20 * MSS, Newest::InOrder, 20_000);
        for index in 40..60 {
            delivery.sent(
                1_000_000 + u64::from(index) * 1000,
                at(index * MSS),
                at((index + 1) * MSS),
                true,
                40_000,
            );
        }
        delivery.delivered(1_060_000, at(40 * MSS), 20 * MSS, Newest::InOrder, 20_000);
        let sample = delivery.delivered(1_060_001, at(60 * MSS), 20 * MSS, Newest::InOrder, 20_000);
        // 40,000 bytes acknowledged in 20.001 ms, but sent in 40 ms.
        assert_eq!((sample.delivered, sample.rate), (40_000, 1_000_000));
    }

    #[test]
    fn an_interval_shorter_than_a_round_trip_is_not_believed() {
        let mut delivery = sent(2);
        let sample = delivery.delivered(1_005_000, at(MSS), MSS, Newest::InOrder, 20_000);
        assert!(sample.is_known);
        assert_eq!(sample.rate, 0);
    }

    #[test]
    fn samples_are_limited_until_the_gap_has_gone_through_the_path() {
        let mut delivery = sent(10);
        delivery.limit(10 * MSS);
        delivery.sent(1_015_000, at(10 * MSS), at(11 * MSS), true, 11 * MSS);
        let sample = delivery.delivered(1_020_000, at(10 * MSS), 10 * MSS, Newest::InOrder, 0);
        assert!(!sample.is_limited, "sent before");
        assert!(delivery.is_limited());
        delivery.sent(1_021_000, at(11 * MSS), at(12 * MSS), true, 2 * MSS);
        let sample = delivery.delivered(1_035_000, at(11 * MSS), MSS, Newest::InOrder, 0);
        assert!(sample.is_limited);
        assert!(!delivery.is_limited());
        // What was sent before that was known is limited still, what comes after is not.
        assert!(delivery.delivered(1_041_000, at(12 * MSS), MSS, Newest::InOrder, 0).is_limited);
        delivery.sent(1_042_000, at(12 * MSS), at(13 * MSS), true, MSS);
        assert!(!delivery.delivered(1_062_000, at(13 * MSS), MSS, Newest::InOrder, 0).is_limited);
    }

    #[test]
    fn the_newest_of_what_arrived_makes_the_sample() {
        let mut delivery = sent(10);
        // The first is lost; the fourth has arrived, out of order.
        let latest = sent_latest(4 * MSS, 1_003_000, false);
        let sample = delivery.delivered(1_023_000, at(0), MSS, Newest::Of(latest), 0);
        assert_eq!((sample.in_flight, sample.rtt_us), (4 * MSS, 20_000));
        // It goes again, and its acknowledgment brings what waited behind it.
        delivery.lost += u64::from(MSS);
        delivery.sent(1_030_000, at(0), at(MSS), false, 6 * MSS);
        let latest = sent_latest(MSS, 1_030_000, true);
        let sample = delivery.delivered(1_050_000, at(4 * MSS), 3 * MSS, Newest::Of(latest), 0);
        assert_eq!((sample.in_flight, sample.rtt_us, sample.lost), (6 * MSS, 0, 0), "no round trip");
        assert_eq!(sample.delivered, 3 * u64::from(MSS));
        assert!(delivery.again.is_empty());
    }

    #[test]
    fn what_was_sent_at_once_shares_a_record_and_there_are_only_so_many() {
        let mut delivery = Delivery::new(1_000_000);
        for index in 0..100 {
            delivery.sent(1_000_000, at(index * MSS), at((index + 1) * MSS), true, (index + 1) * MSS);
        }
        // The first begins what is in flight.
        assert_eq!(delivery.sent.len(), 1);
        for index in 0..5000 {
            delivery.sent(
                1_000_001 + u64::from(index),
                at(100_000 + index),
                at(100_001 + index),
                true,
                200_000,
            );
        }
        assert_eq!(delivery.sent.len(), MOST);
        let sample = delivery.delivered(1_100_000, at(105_000), 105_000, Newest::InOrder, 0);
        assert!(sample.is_known && sample.in_flight == 200_000);
        assert!(delivery.sent.is_empty());
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut delivery = Delivery::new(0);
        let first = at(u32::MAX - 1500);
        for index in 0..4 {
            let start = first + index * MSS;
            let at = 100 + u64::from(index);
            delivery.sent(at, start, start + MSS, true, (index + 1) * MSS);
        }
        let latest = sent_latest((first + 3 * MSS).number(), 102, false);
        assert_eq!(delivery.delivered(1000, first, MSS, Newest::Of(latest), 0).in_flight, 3 * MSS);
        assert_eq!(delivery.delivered(2000, first + 2 * MSS, 2 * MSS, Newest::InOrder, 0).in_flight, 2 * MSS);
        assert_eq!(delivery.sent.len(), 2);
    }
}
