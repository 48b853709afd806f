//! The largest packet that a flow's path takes: what ICMP says of it (RFC 1191, RFC 8201), believed as far as RFC 5927 lets it
//! be, and what is found out without (RFC 4821, RFC 8899).
//!
//! A flow begins with the size that its link and its peer take, and needs no state. [`PathMtu`] is made when something goes
//! wrong: an ICMP message arrives, or a full-sized segment times out. Most flows never have one, so the control block holds a
//! box.

use crate::congestion::CongestionControl;
use crate::flow::{Flags, Flow};
use crate::handshake::{MIN_MSS, TIMESTAMPS_LEN};
use crate::owner::Owner;
use crate::sequence::{Sequence, at_or_before, before};
use crate::shared::Turn;
use crate::time::{Tick, Ticks};
use crate::tuple::Tuple;

/// RFC 8200 section 5: every IPv6 link takes packets of this size.
const IPV6_MIN: u16 = 1280;
/// Linux's net.ipv4.route.min_pmtu: what claims less is more likely an attack than a path.
const IPV4_MIN: u16 = 552;
/// Where an IPv4 path that swallows full-sized packets starts again: the plateau next to RFC 4821 section 7.2's 1,024.
const IPV4_BASE: u16 = 1006;
/// Packet sizes that are worth a try, ascending: the plateaus of RFC 1191 section 7.1, and what is left of an Ethernet frame by
/// tunnels, PPPoE (RFC 2516 section 7) and jumbo frames. A probe must be less than two segments of the size before: a link with
/// segmentation offload would cut it.
const SIZES: [u16; 20] = [
    576, 1006, 1280, 1380, 1400, 1420, 1440, 1450, 1462, 1480, 1492, 1500, 2002, 3000, 4352, 8166, 9000,
    17_914, 32_000, 60_000,
];
/// RFC 8899 section 5.1.2: MAX_PROBES, after which a size is held to be too large.
const MAX_PROBES: u8 = 3;
/// RFC 8899 section 5.1.1: PMTU_RAISE_TIMER, also RFC 1191 section 6.3 and RFC 8201 section 4.
const RAISE_AFTER: Ticks = Ticks::from_micros(600_000_000);

/// What a flow knows of its path. Sizes are those of IP packets in bytes, headers included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMtu {
    /// What is sent now.
    size: u16,
    /// What the link and the peer take.
    max: u16,
    /// The largest that is worth a try.
    limit: u16,
    search: Search,
    /// A packet of `size` was acknowledged.
    is_confirmed: bool,
    is_ipv6: bool,
    /// Probes of one size that were lost.
    lost_probes: u8,
}

const _: () = assert!(size_of::<PathMtu>() <= 24);

#[derive(Clone, Copy, Debug)]
enum Search {
    /// Larger sizes are tried (RFC 8899 section 5.2: Search).
    On,
    /// A probe is on its way: its size, and the sequence number after it. `refused`: a router has said that it was too large.
    Probing { size: u16, end: Sequence, refused: bool },
    /// Nothing larger fits, until then (Search Complete).
    Complete { raise_at: Tick },
    /// ICMP claims that the path takes no more than this, although it took `size` before. The next timeout decides.
    Claimed { size: u16 },
}

/// What to do about an ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Belief {
    /// It says nothing new, or nothing that can be.
    Ignored,
    /// [`PathMtu::size`] has become smaller: what is outstanding is to be cut anew and sent again.
    Believed,
    /// It is kept in mind until an acknowledgment or a timeout.
    Doubted,
}

/// Whether an ICMP error may be about a segment of this flow: it quotes a sequence number that is outstanding (RFC 5927 section
/// 4.1). `next` is the highest SND.NXT has been.
pub(crate) const fn is_plausible(quoted: Sequence, una: Sequence, next: Sequence) -> bool {
    at_or_before(una, quoted) && before(quoted, next)
}

impl PathMtu {
    /// `max` is what the link and the peer take; `is_confirmed` that a packet of that size was acknowledged on this flow.
    pub(crate) fn new(is_ipv6: bool, max: u16, is_confirmed: bool) -> Self {
        let max = max.max(floor(is_ipv6));
        Self { size: max, max, limit: max, search: Search::On, is_confirmed, is_ipv6, lost_probes: 0 }
    }

    /// The largest packet to send.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// ICMP's Packet Too Big, or Fragmentation Needed, about a packet of `quoted` bytes (its header's total length); the next
    /// link takes `told` bytes, 0 if it does not say. [`is_plausible`] comes before.
    pub(crate) fn too_big(&mut self, now: Tick, told: u16, quoted: u16) -> Belief {
        let told = if told == 0 && !self.is_ipv6 {
            // RFC 1191 section 5: an old router. The plateau below what was too large.
            below(quoted.min(self.size))
        } else {
            told
        };
        if self.is_ipv6 && told < IPV6_MIN {
            // RFC 8201 section 4: no link takes so little.
            return Belief::Ignored;
        }
        let told = told.max(floor(self.is_ipv6));
        if let Search::Probing { size, refused, .. } = &mut self.search
            && (self.size..*size).contains(&told)
        {
            // RFC 4821 section 7.6.2: about the probe. What is sent now fits; the probe's data is missed later.
            *refused = true;
            self.limit = told;
            self.lost_probes = 0;
            return Belief::Ignored;
        }
        if told >= self.size {
            return Belief::Ignored;
        }
        if self.is_confirmed {
            // RFC 5927 section 7.2: the path took more before. Only if segments are in fact lost is it believed.
            self.search = Search::Claimed { size: told };
            return Belief::Doubted;
        }
        self.believe(now, told);
        Belief::Believed
    }

    /// `una` moved there. `is_full` says that a packet of [`PathMtu::size`] is among what was acknowledged. True if the size has
    /// become larger.
    pub(crate) fn acknowledged(&mut self, una: Sequence, is_full: bool) -> bool {
        if is_full {
            self.is_confirmed = true;
            if let Search::Claimed { .. } = self.search {
                // RFC 5927 section 7.2: it was not so.
                self.search = Search::On;
            }
        }
        if let Search::Probing { size, end, refused } = self.search
            && at_or_before(end, una)
        {
            if refused {
                // Its data arrived another way.
                self.search = Search::On;
                return false;
            }
            // RFC 8899 section 5.3.1.
            self.size = size;
            self.is_confirmed = true;
            self.lost_probes = 0;
            self.search = Search::On;
            return true;
        }
        false
    }

    /// The retransmission timer expired; `is_full` says that the segment at SND.UNA fills a packet of [`PathMtu::size`],
    /// `is_black_hole` that it did so often enough to doubt the path (RFC 4821 section 7.7, RFC 8899 section 4.3). True if the
    /// size has become smaller: what is outstanding is to be cut anew.
    pub(crate) fn timed_out(&mut self, now: Tick, is_full: bool, is_black_hole: bool) -> bool {
        if let Search::Probing { .. } = self.search {
            // RFC 4821 section 7.6.4: says nothing of the probe.
            self.search = Search::On;
        }
        if !is_full {
            return false;
        }
        if let Search::Claimed { size } = self.search {
            self.believe(now, size);
            return true;
        }
        let floor = floor(self.is_ipv6);
        if !is_black_hole || self.size <= floor {
            return false;
        }
        self.limit = below(self.size);
        self.size = if self.is_ipv6 || self.size <= IPV4_BASE { floor } else { IPV4_BASE };
        self.is_confirmed = false;
        self.lost_probes = 0;
        self.search = Search::On;
        true
    }

    /// The size to probe now, if any (RFC 4821 section 7.3). The caller sends new data in it, with more behind, so that a loss
    /// is noticed, while nothing is being recovered; then calls [`PathMtu::probe_sent`].
    pub(crate) fn probe(&mut self, now: Tick) -> Option<u16> {
        if let Search::Complete { raise_at } = self.search {
            if now.is_before(raise_at) {
                return None;
            }
            self.limit = self.max;
            self.search = Search::On;
        }
        // RFC 8899 section 5.2: first that what is sent now arrives.
        if !matches!(self.search, Search::On) || !self.is_confirmed {
            return None;
        }
        let next = SIZES.iter().copied().find(|&size| size > self.size).unwrap_or(u16::MAX).min(self.limit);
        if next > self.size {
            return Some(next);
        }
        self.complete(now);
        None
    }

    /// A probe of `size` bytes is on its way; `end` is the sequence number after it.
    pub(crate) fn probe_sent(&mut self, size: u16, end: Sequence) {
        self.search = Search::Probing { size, end, refused: false };
    }

    /// The size of the probe that is on its way, and the sequence number after it.
    pub(crate) fn probing(&self) -> Option<(u16, Sequence)> {
        match self.search {
            Search::Probing { size, end, .. } => Some((size, end)),
            _ => None,
        }
    }

    /// The probe was lost, and what was sent after it arrived. Its data goes out again in packets of [`PathMtu::size`].
    pub(crate) fn probe_lost(&mut self) {
        let Search::Probing { size, refused, .. } = self.search else {
            return;
        };
        self.search = Search::On;
        if refused {
            return;
        }
        self.lost_probes += 1;
        if self.lost_probes >= MAX_PROBES {
            self.lost_probes = 0;
            self.limit = below(size);
        }
    }

    /// The peer, or the owner, takes no more than `max`.
    fn hold_to(&mut self, max: u16) {
        self.max = self.max.min(max);
        self.limit = self.limit.min(max);
        self.size = self.size.min(max);
    }

    /// RFC 1191 section 3: not again more than `size`, until it is time to see whether the path has changed.
    fn believe(&mut self, now: Tick, size: u16) {
        self.size = size;
        self.limit = size;
        self.is_confirmed = false;
        self.lost_probes = 0;
        self.complete(now);
    }

    fn complete(&mut self, now: Tick) {
        self.search = Search::Complete { raise_at: now.after(RAISE_AFTER) };
    }
}

/// The largest of [`SIZES`] that is smaller.
fn below(size: u16) -> u16 {
    SIZES.iter().copied().rfind(|&smaller| smaller < size).unwrap_or(IPV4_MIN)
}

const fn floor(is_ipv6: bool) -> u16 {
    if is_ipv6 { IPV6_MIN } else { IPV4_MIN }
}

impl<O: Owner> Turn<'_, O> {
    /// A router says that it takes packets of `told` bytes (RFC 1191, RFC 8201); what it is about is in flight.
    pub(crate) fn packet_too_big(&mut self, told: u32) {
        let now = self.tick();
        let size = self.packet_size();
        let path = self.path_or_new(size);
        match path.too_big(now, u16::try_from(told).unwrap_or(u16::MAX), size) {
            Belief::Ignored => self.shared.counters.drop_icmp += 1,
            Belief::Doubted => {}
            Belief::Believed => self.follow_path(),
        }
    }

    /// The retransmission timer expired: is it the size of the packets (RFC 4821 section 7.7)?
    pub(crate) fn suspect_path(&mut self) {
        let is_full = self.flow.flight() >= u32::from(self.flow.mss);
        let known = self.flow.extra.as_ref().is_some_and(|extra| extra.path.is_some());
        let probing = self.shared.config.mtu_probing;
        if !(known || (probing && is_full)) {
            return;
        }
        let (now, size) = (self.tick(), self.packet_size());
        // Without probing a timeout only decides what ICMP claimed.
        let is_black_hole = probing && self.flow.retries >= self.shared.config.black_hole_timeouts;
        if self.path_or_new(size).timed_out(now, is_full, is_black_hole) {
            self.follow_path();
        }
    }

    /// `acked` bytes were acknowledged.
    pub(crate) fn trust_path(&mut self, acked: u32) {
        let is_full = acked >= u32::from(self.flow.mss);
        let una = self.flow.send_una;
        if let Some(path) = self.flow.extra.as_mut().and_then(|extra| extra.path.as_mut())
            && path.acknowledged(una, is_full)
        {
            self.flow.mss = segment_of(path.size(), &self.flow.tuple, self.flow.flags);
        }
    }

    /// Payload of a probe to send now: it must be less than what waits to be sent, so that more follows it and its loss is
    /// noticed (RFC 4821 section 7.3).
    pub(crate) fn path_probe(&mut self) -> Option<u32> {
        let (now, mss) = (self.tick(), u32::from(self.flow.mss));
        let room = self.flow.congestion.window().saturating_sub(self.flow.pipe());
        let offered = self.flow.send_window.saturating_sub(self.flow.flight());
        let unsent = self.flow.unsent();
        let (tuple, flags) = (self.flow.tuple, self.flow.flags);
        let extra = self.flow.extra.as_mut()?;
        if extra.recovery.is_some() {
            return None;
        }
        let payload = u32::from(segment_of(extra.path.as_mut()?.probe(now)?, &tuple, flags));
        let whole = payload + 3 * mss;
        (payload > mss && u64::from(whole) <= unsent && whole <= room.min(offered)).then_some(payload)
    }

    /// A probe of `payload` bytes went out, up to SND.NXT.
    pub(crate) fn path_probed(&mut self, payload: u32) {
        let size = self.packet_size() + (payload - u32::from(self.flow.mss)) as u16;
        let end = self.flow.send_next;
        if let Some(path) = self.flow.extra.as_mut().and_then(|extra| extra.path.as_mut()) {
            path.probe_sent(size, end);
        }
    }

    /// `[sequence, end)` is sent again: if the probe is of it, its acknowledgment will say nothing of the probe.
    pub(crate) fn repeats_probe(&mut self, sequence: Sequence, end: Sequence) {
        let Some((began, probe_end)) = self.probe() else { return };
        if before(sequence, probe_end)
            && before(began, end)
            && let Some(path) = self.flow.extra.as_mut().and_then(|extra| extra.path.as_mut())
        {
            path.probe_lost();
        }
    }

    /// The sequence numbers of the probe that is on its way: its first byte, and after its last.
    fn probe(&self) -> Option<(Sequence, Sequence)> {
        let (size, end) = self.flow.extra.as_ref()?.path.as_ref()?.probing()?;
        let payload = segment_of(size, &self.flow.tuple, self.flow.flags);
        Some((end - u32::from(payload), end))
    }

    /// Whether what is lost is the probe alone: then the path takes no more than before, and is not congested (RFC 8899 section
    /// 3, item 7).
    pub(crate) fn lost_only_a_probe(&mut self) -> bool {
        let una = self.flow.send_una;
        let Some(probe) = self.probe() else { return false };
        let Some(extra) = &mut self.flow.extra else { return false };
        let (Some(path), Some(recovery)) = (&mut extra.path, &extra.recovery) else { return false };
        let only = recovery.only_loss(una) == Some(probe);
        if only {
            path.probe_lost();
        }
        only
    }

    /// Bytes of a packet whose segment is full.
    fn packet_size(&self) -> u16 {
        self.flow.mss + headers(&self.flow.tuple, self.flow.flags)
    }

    fn path_or_new(&mut self, size: u16) -> &mut PathMtu {
        let is_ipv6 = !self.flow.tuple.is_v4();
        // So much cannot have been acknowledged without a full segment among it.
        let is_confirmed = self.flow.una_offset > 4 * u64::from(self.flow.mss);
        let path = &mut self.flow.extra.get_or_insert_default().path;
        path.get_or_insert_with(|| PathMtu::new(is_ipv6, size, is_confirmed))
    }

    /// Packets are smaller from now on, and what is in flight goes again in such (RFC 1191 section 6.4): that is no congestion.
    fn follow_path(&mut self) {
        let Some(path) = self.flow.extra.as_ref().and_then(|extra| extra.path.as_ref()) else { return };
        self.flow.mss = segment_of(path.size(), &self.flow.tuple, self.flow.flags);
        if !self.flow.state.is_synchronized() {
            // What went with the handshake's segments waits for its end.
            return;
        }
        let una = self.flow.send_una;
        self.flow.recovery_or_new(self.shared.config.bounds()).lose_all_flying(una);
        self.flow.flags.set(Flags::SEND_WANTED);
    }
}

/// What is known of the path, if anything is, takes note that the flow's segments became smaller for another reason; and the
/// segments follow the path.
pub(crate) fn hold_to_segment(flow: &mut Flow) {
    let size = flow.mss + headers(&flow.tuple, flow.flags);
    if let Some(path) = flow.extra.as_mut().and_then(|extra| extra.path.as_mut()) {
        path.hold_to(size);
        flow.mss = segment_of(path.size(), &flow.tuple, flow.flags);
    }
}

/// Bytes of IP and TCP headers with the options of a data segment.
fn headers(tuple: &Tuple, flags: Flags) -> u16 {
    let base = if tuple.is_v4() { 40 } else { 60 };
    if flags.has(Flags::TIMESTAMPS) { base + TIMESTAMPS_LEN } else { base }
}

fn segment_of(packet: u16, tuple: &Tuple, flags: Flags) -> u16 {
    packet.saturating_sub(headers(tuple, flags)).max(MIN_MSS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u32) -> Sequence {
        Sequence::new(number)
    }

    const NOW: Tick = Tick(u32::MAX - 1000);

    fn ipv4() -> PathMtu {
        PathMtu::new(false, 1500, false)
    }

    /// Probes over a path that takes `path` bytes until there is nothing to try. Returns the probes.
    fn search(mtu: &mut PathMtu, now: Tick, path: u16) -> u32 {
        let mut probes = 0;
        while let Some(size) = mtu.probe(now) {
            assert!(size > mtu.size() && size <= mtu.max);
            probes += 1;
            mtu.probe_sent(size, at(5000));
            assert_eq!(mtu.probe(now), None);
            assert_eq!(mtu.probing(), Some((size, at(5000))));
            if size <= path {
                assert!(!mtu.acknowledged(at(4999), true));
                assert!(mtu.acknowledged(at(5000), true));
                assert_eq!(mtu.size(), size);
            } else {
                mtu.probe_lost();
            }
            assert!(probes < 1000);
        }
        probes
    }

    #[test]
    fn only_what_is_outstanding_may_be_quoted() {
        assert!(is_plausible(at(100), at(100), at(200)) && is_plausible(at(199), at(100), at(200)));
        assert!(!is_plausible(at(99), at(100), at(200)) && !is_plausible(at(200), at(100), at(200)));
        assert!(!is_plausible(at(100), at(100), at(100)));
        assert!(is_plausible(at(5), at(u32::MAX - 5), at(10)));
    }

    #[test]
    fn first_claim_is_believed_and_looked_at_again_after_ten_minutes() {
        let mut mtu = ipv4();
        assert_eq!(mtu.too_big(NOW, 1400, 1500), Belief::Believed);
        assert_eq!(mtu.size(), 1400);
        mtu.acknowledged(at(1), true);
        assert_eq!(mtu.probe(NOW.after(Ticks(RAISE_AFTER.0 - 1))), None);
        let later = NOW.after(RAISE_AFTER);
        assert_eq!(mtu.probe(later), Some(1420));
        search(&mut mtu, later, 1500);
        assert_eq!(mtu.size(), 1500);
    }

    #[test]
    fn claim_against_the_evidence_waits_for_a_timeout() {
        let mut mtu = ipv4();
        mtu.acknowledged(at(1), true);
        assert_eq!(mtu.too_big(NOW, 1400, 1500), Belief::Doubted);
        assert_eq!(mtu.size(), 1500);
        assert!(!mtu.timed_out(NOW, false, false));
        assert!(mtu.timed_out(NOW, true, false));
        assert_eq!(mtu.size(), 1400);
    }

    #[test]
    fn progress_refutes_a_claim() {
        let mut mtu = PathMtu::new(false, 1500, true);
        assert_eq!(mtu.too_big(NOW, 552, 1500), Belief::Doubted);
        assert!(!mtu.acknowledged(at(1), false));
        assert!(!mtu.acknowledged(at(2), true));
        assert!(!mtu.timed_out(NOW, true, false));
        assert_eq!(mtu.size(), 1500);
    }

    #[test]
    fn claims_that_cannot_be_are_ignored() {
        let mut mtu = PathMtu::new(true, 1500, false);
        for told in [0, 68, 1279, 1500, 1501, u16::MAX] {
            assert_eq!(mtu.too_big(NOW, told, 1500), Belief::Ignored);
            assert_eq!(mtu.size(), 1500);
        }
        assert_eq!(mtu.too_big(NOW, 1280, 1500), Belief::Believed);
        assert_eq!(mtu.too_big(NOW, 1280, 1500), Belief::Ignored);
    }

    #[test]
    fn ipv4_never_goes_below_its_minimum() {
        let mut mtu = ipv4();
        assert_eq!(mtu.too_big(NOW, 68, 1500), Belief::Believed);
        assert_eq!(mtu.size(), 552);
        assert_eq!(mtu.too_big(NOW, 68, 552), Belief::Ignored);
        for in_a_row in 1..20 {
            assert!(!mtu.timed_out(NOW, true, in_a_row >= 3));
        }
        assert_eq!(mtu.size(), 552);
    }

    #[test]
    fn routers_that_do_not_say_are_answered_with_plateaus() {
        let mut mtu = ipv4();
        let mut sizes = vec![];
        while mtu.too_big(NOW, 0, mtu.size()) == Belief::Believed {
            sizes.push(mtu.size());
        }
        assert_eq!(sizes, [1492, 1480, 1462, 1450, 1440, 1420, 1400, 1380, 1280, 1006, 576, 552]);
        // What the message quotes counts, if it was sent smaller.
        let mut mtu = ipv4();
        mtu.too_big(NOW, 0, 1300);
        assert_eq!(mtu.size(), 1280);
    }

    #[test]
    fn black_hole_is_left_after_three_timeouts_and_the_size_is_searched() {
        for (is_ipv6, base, path, found) in
            [(false, 1006, 1454, 1450), (true, 1280, 1454, 1450), (false, 1006, 1492, 1492)]
        {
            let mut mtu = PathMtu::new(is_ipv6, 1500, true);
            assert!(!mtu.timed_out(NOW, true, false));
            assert!(!mtu.timed_out(NOW, true, false));
            assert!(!mtu.timed_out(NOW, false, true));
            assert!(mtu.timed_out(NOW, true, true));
            assert_eq!(mtu.size(), base);
            // Nothing is probed until the base is known to arrive.
            assert_eq!(mtu.probe(NOW), None);
            mtu.acknowledged(at(1), true);
            let probes = search(&mut mtu, NOW, path);
            assert_eq!(mtu.size(), found);
            assert!(probes <= 11, "{probes}");
            assert_eq!(mtu.probe(NOW.after(Ticks(RAISE_AFTER.0 - 1))), None);
        }
    }

    #[test]
    fn deeper_black_hole_ends_at_the_floor() {
        let mut mtu = ipv4();
        let mut sizes = vec![];
        for in_a_row in 1..30 {
            if mtu.timed_out(NOW, true, in_a_row >= 3) {
                sizes.push(mtu.size());
            }
        }
        assert_eq!(sizes, [1006, 552]);
        mtu.acknowledged(at(1), true);
        search(&mut mtu, NOW, 576);
        assert_eq!(mtu.size(), 576);
    }

    #[test]
    fn three_lost_probes_settle_a_size() {
        let mut mtu = PathMtu::new(false, 1500, true);
        mtu.too_big(NOW, 1400, 1500);
        mtu.timed_out(NOW, true, false);
        mtu.acknowledged(at(1), true);
        let later = NOW.after(RAISE_AFTER);
        for _ in 0..2 {
            assert_eq!(mtu.probe(later), Some(1420));
            mtu.probe_sent(1420, at(9));
            mtu.probe_lost();
        }
        // A timeout in between says nothing of the probe.
        mtu.probe_sent(1420, at(9));
        mtu.timed_out(later, false, false);
        assert_eq!(mtu.probe(later), Some(1420));
        mtu.probe_sent(1420, at(9));
        mtu.probe_lost();
        assert_eq!(mtu.probe(later), None);
        assert_eq!(mtu.probe(later.after(RAISE_AFTER)), Some(1420));
    }

    #[test]
    fn message_about_a_probe_ends_the_probe_only() {
        let mut mtu = ipv4();
        mtu.too_big(NOW, 1300, 1500);
        mtu.acknowledged(at(1), true);
        let later = NOW.after(RAISE_AFTER);
        let size = mtu.probe(later).unwrap();
        mtu.probe_sent(size, at(9));
        assert_eq!(mtu.too_big(later, 1340, size), Belief::Ignored);
        assert_eq!((mtu.size(), mtu.probe(later)), (1300, None), "its data is still missing");
        mtu.probe_lost();
        assert_eq!(mtu.probe(later), Some(1340));
        mtu.probe_sent(1340, at(20));
        assert_eq!(mtu.too_big(later, 1310, 1340), Belief::Ignored);
        assert!(!mtu.acknowledged(at(20), true), "by a repetition");
        assert_eq!((mtu.size(), mtu.probe(later)), (1300, Some(1310)));
    }

    #[test]
    fn a_probe_is_less_than_two_segments() {
        let sizes = [&[IPV4_MIN], &SIZES[..], &[u16::MAX]].concat();
        for pair in sizes.windows(2) {
            for headers in [40, 52, 60, 72] {
                let payload = |size: u16| u32::from(size) - headers;
                assert!(payload(pair[1]) < 2 * payload(pair[0]), "{pair:?}");
            }
        }
    }

    #[test]
    fn jumbo_and_loopback_sizes_are_reached() {
        for max in [9000, 9216, 65_535] {
            let mut mtu = PathMtu::new(true, max, false);
            assert_eq!(mtu.too_big(NOW, 1280, max), Belief::Believed);
            mtu.acknowledged(at(1), true);
            search(&mut mtu, NOW.after(RAISE_AFTER), max);
            assert_eq!(mtu.size(), max);
        }
    }
}
