//! What losses lead to: fast recovery (RFC 6675, paced by RFC 9937's PRR), recovery after a timeout, tail loss
//! probes (RFC 8985 7), and taking it all back when nothing was lost (RFC 3522's timestamps, RFC 3708's
//! duplicates).

use super::congestion::Signal;
use super::connection::{Connection, Env};
use super::loss::{DUPLICATE_THRESHOLD, Rack};
use super::segment::Segment;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;
use offload_base::Seq;

/// Where recovery stands.
#[derive(Clone, Debug)]
enum Recovery {
    /// Nothing is known to be missing.
    Open,
    /// A loss was found; everything sent before `until` belongs to the same event.
    Fast { until: u64, pace: Box<ProportionalRate> },
    /// The retransmission timer fired; what was sent before `until` is sent again as acknowledgments come in.
    Timeout { until: u64 },
}

/// Proportional rate reduction (RFC 9937 6): data leave in the proportion in which they arrive.
#[derive(Clone, Copy, Debug)]
struct ProportionalRate {
    flight_at_start: u64,
    delivered: u64,
    sent: u64,
    /// Bytes the latest ACK delivered, and whether it was good news only.
    latest: u64,
    good: bool,
    /// Bytes that may be sent now.
    allowance: u64,
}

/// What it takes to find out that a recovery was uncalled for.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// Where the unacknowledged data began.
    from: u64,
    /// The timestamp of the first retransmission.
    first_retransmit: Option<u32>,
    /// Bytes sent again that were not reported as duplicates.
    unreported: u64,
    /// Whether anything was sent again.
    resent: bool,
}

/// A tail loss probe, until it is known what it met (RFC 8985 7.4.1).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    /// The last position sent when it was.
    end: u64,
    /// It was a retransmission; otherwise new data.
    retransmission: bool,
    /// What the network had carried by then.
    carried: u64,
}

/// What an ACK delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Delivery {
    /// Bytes that are newly known to have arrived.
    pub(super) bytes: u64,
    /// Some of them came after what was sent later.
    pub(super) late: bool,
    /// A range the peer got twice.
    pub(super) duplicate: Option<Range<u64>>,
    /// The ACK told nothing new but that something arrived.
    pub(super) plain_duplicate: bool,
    /// The same, or all had arrived before.
    pub(super) repeated: bool,
    /// Something arrived that was taken for lost, and had not been sent again.
    pub(super) given_up: bool,
    /// The round-trip time of what was sent last, if that was sent once.
    pub(super) rtt: Option<Duration>,
}

/// What is known of losses, and what is done about them. Only this file looks inside.
///
/// Invariant: what is kept to take a recovery back, or to judge a probe, is of the last one; it goes with it.
#[derive(Debug)]
pub(super) struct Repair {
    recovery: Recovery,
    undo: Option<Box<Undo>>,
    tail_probe: Option<TailProbe>,
    /// A tail loss probe is to be sent.
    tail_probe_owed: bool,
    /// Duplicate ACKs in a row, for peers without selective ones.
    duplicate_acks: u32,
    /// What was sent before this position belongs to the window that was cut last.
    cut_until: u64,
    /// Bytes that were outstanding behind the last new ones sent: what the network has carried. Whole windows are
    /// acknowledged at once by peers that join what they receive, so what is outstanding when a loss is found may be
    /// little.
    carried: u64,
    rack: Rack,
}

impl Default for Repair {
    fn default() -> Repair {
        Repair {
            recovery: Recovery::Open,
            undo: None,
            tail_probe: None,
            tail_probe_owed: false,
            duplicate_acks: 0,
            cut_until: 0,
            carried: 0,
            rack: Rack::new(),
        }
    }
}

impl Repair {
    /// Whether nothing is known to be missing.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.recovery, Recovery::Open)
    }

    /// Whether acknowledged bytes make the congestion window grow.
    pub(super) fn grows_window(&self) -> bool {
        !matches!(self.recovery, Recovery::Fast { .. })
    }

    /// Nothing is missing, and nothing was.
    pub(super) fn open(&mut self) {
        self.recovery = Recovery::Open;
        self.undo = None;
    }

    /// What an idle connection need not remember.
    pub(super) fn forget(&mut self) {
        self.undo = None;
    }

    /// All up to `until` is sent again, and no congestion is seen in it; unless something else is being repaired.
    pub(super) fn resend_until(&mut self, until: u64) -> bool {
        let open = self.is_open();
        if open {
            self.recovery = Recovery::Timeout { until };
            self.undo = None;
            self.tail_probe = None;
        }
        open
    }

    pub(super) fn owes_tail_probe(&self) -> bool {
        self.tail_probe_owed
    }

    pub(super) fn owe_tail_probe(&mut self, owed: bool) {
        self.tail_probe_owed = owed;
    }

    /// New bytes have left, and `outstanding` are not acknowledged.
    pub(super) fn note_carried(&mut self, outstanding: u64) {
        self.carried = outstanding;
    }

    pub(super) fn rack(&mut self) -> &mut Rack {
        &mut self.rack
    }
}

impl Connection {
    /// Bytes that congestion control lets out now. The first segment of a recovery is always let out.
    pub(super) fn congestion_allowance(&self) -> u64 {
        match &self.repair.recovery {
            // Nothing is left in the network that could let anything out.
            Recovery::Fast { pace, .. } if self.pipe() == 0 => pace.allowance.max(self.mss as u64),
            Recovery::Fast { pace, .. } => pace.allowance,
            _ => self.congestion.window().saturating_sub(self.pipe()),
        }
    }

    /// The bytes a second that the device is to keep to.
    pub(super) fn pace(&self) -> Option<NonZeroU64> {
        self.pace.of(self.congestion.window(), self.congestion.threshold(), self.rtt.smoothed())
    }

    /// Bytes believed to be in the network. Without selective ACKs, each duplicate one says that a segment left it.
    fn pipe(&self) -> u64 {
        let left = if self.peer.sack { 0 } else { u64::from(self.repair.duplicate_acks) * self.mss as u64 };
        self.flight.in_flight().saturating_sub(left)
    }

    /// Draws the consequences of an ACK that moved the first unacknowledged position by `acked` bytes.
    pub(super) fn recover(&mut self, env: &mut Env<'_>, segment: &Segment, delivery: &Delivery, acked: u64) {
        let of_probe = self.end_tail_probe(env, delivery);
        if let Some(duplicate) = &delivery.duplicate {
            env.counters.dsacks_received += 1;
            // A probe is sent by the clock: that it was not needed says nothing of reordering.
            if !of_probe {
                self.note_duplicate(duplicate);
            }
        }
        if acked > 0 && self.una_is_sacked() {
            // RFC 2018 8: what the peer has reported it has thrown away again.
            env.counters.sack_reneging += 1;
            self.flight.forget_sacks();
        }
        if self.was_spurious(segment, delivery, acked) {
            self.take_back(env, delivery.duplicate.is_some());
        }
        match self.repair.recovery {
            Recovery::Fast { until, .. } | Recovery::Timeout { until } if self.una >= until => self.end_recovery(),
            _ => {}
        }
        let lost = self.detect_losses(env, delivery, acked);
        if lost && self.repair.is_open() {
            self.begin_fast_recovery(env, delivery.bytes);
        }
        let (pipe, threshold, mss) = (self.pipe(), self.congestion.threshold(), self.mss as u64);
        let missing = self.flight.lost() > 0;
        if let Recovery::Fast { pace, .. } = &mut self.repair.recovery {
            // Without selective ACKs, a duplicate one says that some segment arrived.
            let bytes = if delivery.plain_duplicate { delivery.bytes.max(mss) } else { delivery.bytes };
            pace.on_delivery(bytes, acked > 0 && !lost);
            pace.allow(pipe, threshold, mss, missing);
        }
    }

    /// Finds what is lost; true if something newly is.
    pub(super) fn detect_losses(&mut self, env: &mut Env<'_>, delivery: &Delivery, acked: u64) -> bool {
        if !self.peer.sack {
            return self.count_duplicates(delivery, acked);
        }
        let recovering = !self.repair.is_open();
        let overdue = self.repair.rack.detect(env.now, &mut self.flight, &self.rtt, recovering, self.mss as u64);
        self.deadlines.reorder = overdue.next;
        env.counters.lost_retransmits += u64::from(overdue.retransmits_lost);
        overdue.lost > 0
    }

    /// RFC 6582, for peers that do not report what they have.
    fn count_duplicates(&mut self, delivery: &Delivery, acked: u64) -> bool {
        let mss = self.mss as u64;
        match (&self.repair.recovery, acked) {
            (_, 0) => {
                self.repair.duplicate_acks += u32::from(delivery.plain_duplicate);
                self.repair.is_open()
                    && delivery.plain_duplicate
                    && u64::from(self.repair.duplicate_acks) == DUPLICATE_THRESHOLD
                    && self.flight.lose_first(mss) > 0
            }
            (Recovery::Fast { .. }, _) => {
                // RFC 6582 3.2 step 3: a partial acknowledgment ends where the next loss begins.
                let segments = u32::try_from(acked.div_ceil(mss)).unwrap_or(u32::MAX);
                self.repair.duplicate_acks = self.repair.duplicate_acks.saturating_sub(segments);
                self.flight.lose_first(mss) > 0
            }
            _ => {
                self.repair.duplicate_acks = 0;
                false
            }
        }
    }

    /// An acknowledgment that moved by `acked` bytes may say that the network is congested (RFC 3168 6.1.2).
    pub(super) fn on_echo(&mut self, env: &mut Env<'_>, segment: &Segment, acked: u64) {
        // What was under way when the window was cut is of the same window of data, its last byte included.
        let later = self.una > self.repair.cut_until;
        if self.ecn.is_echo(segment) && acked > 0 && later && self.repair.is_open() {
            env.counters.window_cuts_for_marks += u64::from(self.cut_window(Signal::Mark, self.repair.carried));
        }
    }

    /// A loss was found without an ACK: its first segment may leave at once.
    pub(super) fn on_late_loss(&mut self, env: &mut Env<'_>) {
        if self.repair.is_open() {
            self.begin_fast_recovery(env, 0);
        } else if let Recovery::Fast { pace, .. } = &mut self.repair.recovery {
            pace.allowance = pace.allowance.max(self.mss as u64);
        }
    }

    /// Cuts the window, unless it was cut for something sent in the same round trip (RFC 5681 3.2, RFC 3168 6.1.2).
    /// `carried`: what the network had to carry when it happened.
    pub(super) fn cut_window(&mut self, signal: Signal, carried: u64) -> bool {
        let first = self.una >= self.repair.cut_until;
        if first {
            self.congestion.on_congestion(signal, carried);
            self.repair.cut_until = self.next;
            self.ecn.owe_cut_notice();
        }
        first
    }

    /// `delivered`: bytes that arrived with the news.
    fn begin_fast_recovery(&mut self, env: &mut Env<'_>, delivered: u64) {
        if self.peer.sack {
            env.counters.sack_recoveries += 1;
        } else {
            env.counters.reno_recoveries += 1;
        }
        let outstanding = self.outstanding();
        self.cut_window(Signal::Loss, self.repair.carried);
        self.repair.undo =
            Some(Box::new(Undo { from: self.una, first_retransmit: None, unreported: 0, resent: false }));
        let pace = ProportionalRate {
            // RFC 9937 6.1: what had arrived before is not delivered again.
            flight_at_start: (outstanding - self.flight.sacked() + delivered).max(1),
            delivered: 0,
            sent: 0,
            latest: 0,
            good: false,
            allowance: self.mss as u64,
        };
        self.repair.recovery = Recovery::Fast { until: self.next, pace: Box::new(pace) };
        self.repair.tail_probe = None;
        self.deadlines.probe = None;
    }

    /// The retransmission timer fired: everything is taken for lost (RFC 6298 5.4, RFC 5681 3.1).
    pub(super) fn begin_timeout_recovery(&mut self, env: &mut Env<'_>) {
        if !self.state.is_opening() {
            // RFC 5681 (4): the threshold is held when the window was cut already, and what is missing was sent again
            // since.
            let first = self.una >= self.repair.cut_until;
            self.congestion.on_timeout(first.then_some(self.repair.carried));
            self.repair.cut_until = self.next;
            self.ecn.owe_cut_notice();
        } else if self.backoff.exponent() > 0 {
            // RFC 6928 2: one lost SYN says little, two say that one segment is enough to begin with.
            self.congestion.adopt(self.mss as u64, u64::MAX);
        }
        if !matches!(self.repair.recovery, Recovery::Timeout { .. }) || self.backoff.exponent() == 0 {
            self.repair.undo =
                Some(Box::new(Undo { from: self.una, first_retransmit: None, unreported: 0, resent: false }));
        }
        if self.una_is_sacked() {
            env.counters.sack_reneging += 1;
            self.flight.forget_sacks();
        }
        self.flight.lose_all();
        self.repair.recovery = Recovery::Timeout { until: self.next };
        self.repair.duplicate_acks = 0;
        self.repair.tail_probe = None;
        self.deadlines.probe = None;
        self.deadlines.reorder = None;
    }

    fn end_recovery(&mut self) {
        if matches!(self.repair.recovery, Recovery::Fast { .. }) {
            self.repair.rack.on_recovered();
        }
        self.repair.recovery = Recovery::Open;
        self.repair.duplicate_acks = 0;
    }

    /// Whether the first unacknowledged byte was reported as received.
    fn una_is_sacked(&self) -> bool {
        self.flight.first().is_some_and(|first| first.state == super::flight::Fate::Sacked)
    }

    /// Notes a retransmission, for undo and pace.
    pub(super) fn note_resent(&mut self, bytes: u64, timestamp: Option<u32>) {
        // A tail probe is sent outside of any recovery.
        let open = self.repair.is_open();
        if let Some(undo) = self.repair.undo.as_mut().filter(|_| !open) {
            if !undo.resent {
                undo.first_retransmit = timestamp;
            }
            undo.resent = true;
            undo.unreported += bytes;
        }
        self.note_sent(bytes);
    }

    /// Notes that bytes left, for the pace.
    pub(super) fn note_sent(&mut self, bytes: u64) {
        if let Recovery::Fast { pace, .. } = &mut self.repair.recovery {
            pace.sent += bytes;
            pace.allowance = pace.allowance.saturating_sub(bytes);
        }
    }

    fn note_duplicate(&mut self, duplicate: &Range<u64>) {
        self.repair.rack.on_too_early(self.una, self.next);
        if let Some(undo) = &mut self.repair.undo
            && duplicate.start >= undo.from
        {
            undo.unreported = undo.unreported.saturating_sub(duplicate.end - duplicate.start);
        }
    }

    /// Whether what was sent again had arrived the first time: the echoed timestamp is older than the first
    /// retransmission (RFC 3522), every retransmission was reported as a duplicate (RFC 3708), or something that was
    /// not sent again after a timeout arrives (RFC 5682 3.1, F-RTO with selective acknowledgments).
    fn was_spurious(&self, segment: &Segment, delivery: &Delivery, acked: u64) -> bool {
        let Some(undo) = self.repair.undo.as_deref().filter(|undo| undo.resent) else { return false };
        let echoed_older = match (undo.first_retransmit, segment.options.timestamps) {
            (Some(first), Some(timestamps)) => {
                acked > 0 && timestamps.echo != 0 && Seq(timestamps.echo).before(Seq(first))
            }
            _ => false,
        };
        let still_came = delivery.given_up && matches!(self.repair.recovery, Recovery::Timeout { .. });
        echoed_older || undo.unreported == 0 || still_came
    }

    fn take_back(&mut self, env: &mut Env<'_>, by_duplicates: bool) {
        self.repair.undo = None;
        self.congestion.on_spurious();
        self.repair.cut_until = self.una;
        if by_duplicates {
            env.counters.dsack_undos += 1;
        } else {
            env.counters.full_undos += 1;
        }
        if !self.repair.is_open() {
            // Not a recovery that ended: it says nothing for the reordering window, but that it was too small.
            self.repair.rack.on_too_early(self.una, self.next);
            self.flight.lose_nothing();
            self.repair.recovery = Recovery::Open;
            self.repair.duplicate_acks = 0;
        }
        self.backoff.reset();
    }

    /// RFC 8985 7.4.2: what acknowledgments tell of a probe. True if this one reports that the probe arrived twice.
    fn end_tail_probe(&mut self, env: &mut Env<'_>, delivery: &Delivery) -> bool {
        let Some(probe) = self.repair.tail_probe else { return false };
        // A FIN may not be counted among what came twice.
        let is_end = |end: u64| end == probe.end || end + 1 == probe.end && self.fin_position() == Some(end);
        let twice = probe.retransmission && delivery.duplicate.as_ref().is_some_and(|range| is_end(range.end));
        if twice {
            self.repair.tail_probe = None;
        } else if self.una > probe.end {
            // What came behind it is acknowledged, and nobody told that it came twice.
            self.conclude_tail_probe(env);
        } else if self.una == probe.end && (delivery.repeated || !probe.retransmission) {
            // An ACK for each of the two, from a peer that does not say that one came twice; or new data.
            self.repair.tail_probe = None;
        }
        twice
    }

    /// Nothing tells that the original of a probe arrived.
    fn conclude_tail_probe(&mut self, env: &mut Env<'_>) {
        if let Some(probe) = self.repair.tail_probe.take()
            && probe.retransmission
            && self.repair.is_open()
        {
            // The probe repaired a loss that nothing else will tell of.
            env.counters.loss_probe_recoveries += 1;
            self.cut_window(Signal::Loss, probe.carried);
            self.repair.undo = None;
        }
    }

    /// Notes that a probe was sent.
    pub(super) fn begin_tail_probe(&mut self, env: &mut Env<'_>, retransmission: bool) {
        // One that is acknowledged would have been reported by now, had it come twice.
        self.conclude_tail_probe(env);
        self.repair.tail_probe = Some(TailProbe { end: self.next, retransmission, carried: self.repair.carried });
        self.deadlines.probe = None;
    }

    /// Arms the timers of what was sent: the retransmission timeout and, sooner, the tail loss probe.
    pub(super) fn arm_after_progress(&mut self, env: &Env<'_>) {
        self.deadlines.retransmit = Some(env.now + self.timeout(env.config));
        self.arm_tail_probe(env);
    }

    /// RFC 8985 7.2.
    pub(super) fn arm_tail_probe(&mut self, env: &Env<'_>) {
        let eligible = self.peer.sack
            && self.repair.is_open()
            && self.flight.sacked() == 0
            && self.repair.tail_probe.is_none_or(|probe| self.una >= probe.end)
            && !self.state.is_opening();
        self.deadlines.probe = None;
        if let Some(smoothed) = self.rtt.smoothed().filter(|_| eligible && !self.flight.is_empty()) {
            let mut wait = smoothed * 2 + PROBE_MARGIN;
            if self.flight.in_flight() <= self.mss as u64 {
                wait += PEER_DELAYED_ACK;
            }
            let at = env.now + wait;
            if self.deadlines.retransmit.is_none_or(|timeout| at < timeout) {
                self.deadlines.probe = Some(at);
            }
        }
    }
}

impl ProportionalRate {
    /// `bytes` arrived; `good`: and the ACK moved forward without telling of a further loss.
    fn on_delivery(&mut self, bytes: u64, good: bool) {
        self.delivered += bytes;
        self.latest = bytes;
        self.good = good;
    }

    /// Works out what may be sent, with `pipe` bytes in flight on the way down to `threshold`.
    fn allow(&mut self, pipe: u64, threshold: u64, mss: u64, missing: bool) {
        let budget = if pipe > threshold {
            // RFC 9937 6: in proportion to the reduction.
            let share = (u128::from(self.delivered) * u128::from(threshold)).div_ceil(u128::from(self.flight_at_start));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(self.sent)
        } else {
            // As in slow start as long as acknowledgments show no further loss, else one for one.
            let limit = self.delivered.saturating_sub(self.sent).max(self.latest);
            let limit = if self.good { limit + mss } else { limit };
            limit.min(threshold - pipe)
        };
        // The first retransmission does not wait.
        self.allowance = if self.sent == 0 && missing { budget.max(mss) } else { budget };
    }
}

/// Linux's least probe timeout beyond two round trips.
const PROBE_MARGIN: Duration = Duration::from_millis(2);
/// How long a peer may delay the acknowledgment of a single segment.
const PEER_DELAYED_ACK: Duration = Duration::from_millis(40);
