//! Loss recovery: fast recovery (RFC 6675, paced by RFC 9937's PRR), recovery after a timeout, tail loss probes (RFC
//! 8985 7), and undo of spurious recoveries (RFC 3522's timestamps, RFC 3708's duplicates).

use super::congestion::CongestionSignal;
use super::connection::{Connection, ConnectionEnv};
use super::loss::{DUPLICATE_THRESHOLD, RackDetector};
use super::segment::Segment;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;
use offload_base::Seq;

/// Phase of loss recovery.
#[derive(Clone, Debug)]
enum RecoveryPhase {
    /// No loss is known.
    Open,
    /// A loss was detected. All data sent before `until` belong to the same event.
    Fast { until: u64, pace: Box<ProportionalRate> },
    /// The retransmission timer fired. Data sent before `until` are sent again as acknowledgments arrive.
    Timeout { until: u64 },
}

/// Proportional rate reduction (RFC 9937 6): data leave in proportion to delivered data.
#[derive(Clone, Copy, Debug)]
struct ProportionalRate {
    flight_at_start: u64,
    delivered: u64,
    sent: u64,
    /// Bytes delivered by the latest ACK.
    latest: u64,
    /// Whether the latest ACK advanced and reported no further loss.
    good: bool,
    /// Bytes that may be sent now.
    allowance: u64,
}

/// Evidence for whether a recovery was spurious.
#[derive(Clone, Copy, Debug)]
struct UndoEvidence {
    /// First unacknowledged position at the start of the recovery.
    from: u64,
    /// Timestamp of the first retransmission.
    first_retransmit: Option<u32>,
    /// Retransmitted bytes without a duplicate report so far.
    unreported: u64,
    /// Whether any data were retransmitted.
    resent: bool,
}

/// A tail loss probe in flight (RFC 8985 7.4.1).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    /// Position after the last byte sent, at the time of the probe.
    end: u64,
    /// Whether the probe is a retransmission; another probe carries new data.
    retransmission: bool,
    /// Value of `carried` at the time of the probe.
    carried: u64,
}

/// Information in an ACK about delivered data.
#[derive(Clone, Debug, Default)]
pub(super) struct AckDelivery {
    /// Newly delivered bytes.
    pub(super) bytes: u64,
    /// Whether some of them arrived after data that were sent later.
    pub(super) late: bool,
    /// A range that the peer received twice.
    pub(super) duplicate: Option<Range<u64>>,
    /// Whether the ACK is a duplicate ACK, while data are in flight.
    pub(super) plain_duplicate: bool,
    /// Whether the ACK is a duplicate ACK without SACK blocks.
    pub(super) repeated: bool,
    /// Whether data arrived that were declared lost and had not been retransmitted.
    pub(super) given_up: bool,
    /// Round-trip time of the latest delivered data, if they were sent once.
    pub(super) rtt: Option<Duration>,
}

/// State of loss recovery, private to this file.
///
/// Invariant: undo information and the tail probe belong to the latest recovery or probe, and are dropped with it.
#[derive(Debug)]
pub(super) struct LossRecovery {
    recovery: RecoveryPhase,
    undo: Option<Box<UndoEvidence>>,
    tail_probe: Option<TailProbe>,
    /// Whether a tail loss probe is to be sent.
    tail_probe_owed: bool,
    /// Number of consecutive duplicate ACKs, for peers without SACK.
    duplicate_acks: u32,
    /// End of the window of data for which the congestion window was last reduced.
    cut_until: u64,
    /// Bytes outstanding after the latest transmission of new data: the load that the network has carried. At the time
    /// of a loss, less may be outstanding, because a peer that joins received packets acknowledges whole windows at
    /// once.
    carried: u64,
    rack: RackDetector,
}

impl Default for LossRecovery {
    fn default() -> LossRecovery {
        LossRecovery {
            recovery: RecoveryPhase::Open,
            undo: None,
            tail_probe: None,
            tail_probe_owed: false,
            duplicate_acks: 0,
            cut_until: 0,
            carried: 0,
            rack: RackDetector::new(),
        }
    }
}

impl LossRecovery {
    /// Returns whether no loss is known.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.recovery, RecoveryPhase::Open)
    }

    /// Returns whether acknowledged bytes grow the congestion window.
    pub(super) fn grows_window(&self) -> bool {
        !matches!(self.recovery, RecoveryPhase::Fast { .. })
    }

    /// Returns to the open phase, without undo information.
    pub(super) fn open(&mut self) {
        self.recovery = RecoveryPhase::Open;
        self.undo = None;
    }

    /// Drops the undo information, which an idle connection does not need.
    pub(super) fn forget(&mut self) {
        self.undo = None;
    }

    /// Starts the retransmission of all data up to `until` without a congestion response. Returns false if another
    /// recovery is under way.
    pub(super) fn resend_until(&mut self, until: u64) -> bool {
        let open = self.is_open();
        if open {
            self.recovery = RecoveryPhase::Timeout { until };
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

    /// Records the outstanding bytes after new data were sent.
    pub(super) fn note_carried(&mut self, outstanding: u64) {
        self.carried = outstanding;
    }

    pub(super) fn rack(&mut self) -> &mut RackDetector {
        &mut self.rack
    }
}

impl Connection {
    /// Returns the bytes that congestion control admits now. A recovery may always send its first segment.
    pub(super) fn congestion_allowance(&self) -> u64 {
        match &self.repair.recovery {
            // Nothing is in flight, so no ACK can admit more.
            RecoveryPhase::Fast { pace, .. } if self.pipe() == 0 => pace.allowance.max(self.mss as u64),
            RecoveryPhase::Fast { pace, .. } => pace.allowance,
            _ => self.congestion.window().saturating_sub(self.pipe()),
        }
    }

    /// Returns the rate for the device, in bytes per second. `None` without pacing.
    pub(super) fn pace(&self) -> Option<NonZeroU64> {
        self.pace.rate_for(self.congestion.window(), self.congestion.threshold(), self.rtt.smoothed())
    }

    /// Returns the bytes believed to be in the network. Without SACK, each duplicate ACK shows that one segment has
    /// left.
    fn pipe(&self) -> u64 {
        let left = if self.peer.sack { 0 } else { u64::from(self.repair.duplicate_acks) * self.mss as u64 };
        self.flight.in_flight().saturating_sub(left)
    }

    /// Responds to an ACK that advanced the first unacknowledged position by `acked` bytes.
    pub(super) fn recover(
        &mut self,
        env: &mut ConnectionEnv<'_>,
        segment: &Segment,
        delivery: &AckDelivery,
        acked: u64,
    ) {
        let of_probe = self.end_tail_probe(env, delivery);
        if let Some(duplicate) = &delivery.duplicate {
            env.counters.dsacks_received += 1;
            // A tail probe is sent by a timer, so its duplicate is no sign of reordering.
            if !of_probe {
                self.note_duplicate(duplicate);
            }
        }
        if acked > 0 && self.una_is_sacked() {
            // RFC 2018 8: the peer has discarded data that it had reported.
            env.counters.sack_reneging += 1;
            self.flight.forget_sacks();
        }
        if self.was_spurious(segment, delivery, acked) {
            self.undo_recovery(env, delivery.duplicate.is_some());
        }
        match self.repair.recovery {
            RecoveryPhase::Fast { until, .. } | RecoveryPhase::Timeout { until } if self.una >= until => {
                self.end_recovery()
            }
            _ => {}
        }
        // Losses are detected after the end of a recovery, so that a new loss starts a new event.
        let lost = self.detect_losses(env, delivery, acked);
        if lost && self.repair.is_open() {
            self.begin_fast_recovery(env, delivery.bytes);
        }
        let (pipe, threshold, mss) = (self.pipe(), self.congestion.threshold(), self.mss as u64);
        let missing = self.flight.lost() > 0;
        if let RecoveryPhase::Fast { pace, .. } = &mut self.repair.recovery {
            // Without SACK, a duplicate ACK shows that one segment arrived.
            let bytes = if delivery.plain_duplicate { delivery.bytes.max(mss) } else { delivery.bytes };
            pace.on_delivery(bytes, acked > 0 && !lost);
            pace.allow(pipe, threshold, mss, missing);
        }
    }

    /// Detects losses. Returns whether there are new ones.
    pub(super) fn detect_losses(&mut self, env: &mut ConnectionEnv<'_>, delivery: &AckDelivery, acked: u64) -> bool {
        if !self.peer.sack {
            return self.count_duplicates(delivery, acked);
        }
        let recovering = !self.repair.is_open();
        let overdue = self.repair.rack.detect(env.now, &mut self.flight, &self.rtt, recovering, self.mss as u64);
        self.deadlines.reorder = overdue.next;
        env.counters.lost_retransmits += u64::from(overdue.retransmits_lost);
        overdue.lost > 0
    }

    /// Detects losses from duplicate ACKs (RFC 6582), for peers without SACK.
    fn count_duplicates(&mut self, delivery: &AckDelivery, acked: u64) -> bool {
        let mss = self.mss as u64;
        match (&self.repair.recovery, acked) {
            (_, 0) => {
                self.repair.duplicate_acks += u32::from(delivery.plain_duplicate);
                self.repair.is_open()
                    && delivery.plain_duplicate
                    && u64::from(self.repair.duplicate_acks) == DUPLICATE_THRESHOLD
                    && self.flight.lose_first(mss) > 0
            }
            (RecoveryPhase::Fast { .. }, _) => {
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

    /// Responds to a congestion report in an acknowledgment that advanced by `acked` bytes (RFC 3168 6.1.2).
    pub(super) fn on_echo(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment, acked: u64) {
        // Data in flight at the last reduction, including the last byte, belong to the same window of data.
        let later = self.una > self.repair.cut_until;
        if self.ecn.is_echo(segment) && acked > 0 && later && self.repair.is_open() {
            env.counters.window_cuts_for_marks +=
                u64::from(self.cut_window(CongestionSignal::Mark, self.repair.carried));
        }
    }

    /// Responds to a loss detected by a timer. Its first segment may leave at once.
    pub(super) fn on_late_loss(&mut self, env: &mut ConnectionEnv<'_>) {
        if self.repair.is_open() {
            self.begin_fast_recovery(env, 0);
        } else if let RecoveryPhase::Fast { pace, .. } = &mut self.repair.recovery {
            pace.allowance = pace.allowance.max(self.mss as u64);
        }
    }

    /// Reduces the congestion window, unless it was reduced for data of the same round trip (RFC 5681 3.2, RFC 3168
    /// 6.1.2). `carried` is the load of the network at that time. Returns whether the window was reduced.
    pub(super) fn cut_window(&mut self, signal: CongestionSignal, carried: u64) -> bool {
        let first = self.una >= self.repair.cut_until;
        if first {
            self.congestion.on_congestion(signal, carried);
            self.repair.cut_until = self.next;
            self.ecn.owe_cwr();
        }
        first
    }

    /// Enters fast recovery. `delivered` are the bytes delivered by the ACK that revealed the loss.
    fn begin_fast_recovery(&mut self, env: &mut ConnectionEnv<'_>, delivered: u64) {
        if self.peer.sack {
            env.counters.sack_recoveries += 1;
        } else {
            env.counters.reno_recoveries += 1;
        }
        let outstanding = self.outstanding();
        self.cut_window(CongestionSignal::Loss, self.repair.carried);
        self.repair.undo =
            Some(Box::new(UndoEvidence { from: self.una, first_retransmit: None, unreported: 0, resent: false }));
        let pace = ProportionalRate {
            // RFC 9937 6.1: data delivered before do not count.
            flight_at_start: (outstanding - self.flight.sacked() + delivered).max(1),
            delivered: 0,
            sent: 0,
            latest: 0,
            good: false,
            allowance: self.mss as u64,
        };
        self.repair.recovery = RecoveryPhase::Fast { until: self.next, pace: Box::new(pace) };
        self.repair.tail_probe = None;
        self.deadlines.probe = None;
    }

    /// Responds to the retransmission timeout: all data are declared lost (RFC 6298 5.4, RFC 5681 3.1).
    pub(super) fn begin_timeout_recovery(&mut self, env: &mut ConnectionEnv<'_>) {
        if !self.state.is_opening() {
            // RFC 5681 (4): the threshold stays if the window was already reduced for these data and they have been
            // sent again since.
            let first = self.una >= self.repair.cut_until;
            self.congestion.on_timeout(first.then_some(self.repair.carried));
            self.repair.cut_until = self.next;
            self.ecn.owe_cwr();
        } else if self.backoff.exponent() > 0 {
            // RFC 6928 2: one lost SYN may be an accident. After two, the initial window is one segment.
            self.congestion.adopt(self.mss as u64, u64::MAX);
        }
        if !matches!(self.repair.recovery, RecoveryPhase::Timeout { .. }) || self.backoff.exponent() == 0 {
            self.repair.undo =
                Some(Box::new(UndoEvidence { from: self.una, first_retransmit: None, unreported: 0, resent: false }));
        }
        if self.una_is_sacked() {
            env.counters.sack_reneging += 1;
            self.flight.forget_sacks();
        }
        self.flight.lose_all();
        self.repair.recovery = RecoveryPhase::Timeout { until: self.next };
        self.repair.duplicate_acks = 0;
        self.repair.tail_probe = None;
        self.deadlines.probe = None;
        self.deadlines.reorder = None;
    }

    fn end_recovery(&mut self) {
        if matches!(self.repair.recovery, RecoveryPhase::Fast { .. }) {
            self.repair.rack.on_recovered();
        }
        self.repair.recovery = RecoveryPhase::Open;
        self.repair.duplicate_acks = 0;
    }

    /// Returns whether the first unacknowledged byte was selectively acknowledged.
    fn una_is_sacked(&self) -> bool {
        self.flight.first().is_some_and(|first| first.state == super::flight::FlightRangeState::Sacked)
    }

    /// Records a retransmission, for undo and pacing.
    pub(super) fn note_resent(&mut self, bytes: u64, timestamp: Option<u32>) {
        // A tail probe is not a part of any recovery.
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

    /// Records sent bytes, for pacing.
    pub(super) fn note_sent(&mut self, bytes: u64) {
        if let RecoveryPhase::Fast { pace, .. } = &mut self.repair.recovery {
            pace.sent += bytes;
            pace.allowance = pace.allowance.saturating_sub(bytes);
        }
    }

    fn note_duplicate(&mut self, duplicate: &Range<u64>) {
        self.repair.rack.widen_reordering_window(self.una, self.next);
        if let Some(undo) = &mut self.repair.undo
            && duplicate.start >= undo.from
        {
            undo.unreported = undo.unreported.saturating_sub(duplicate.end - duplicate.start);
        }
    }

    /// Returns whether the recovery was spurious. Three signs show this: an echoed timestamp older than the first
    /// retransmission (RFC 3522); duplicate reports for all retransmissions (RFC 3708); or, after a timeout, the
    /// arrival of data that were not sent again (RFC 5682 3.1, F-RTO with SACK).
    fn was_spurious(&self, segment: &Segment, delivery: &AckDelivery, acked: u64) -> bool {
        let Some(undo) = self.repair.undo.as_deref().filter(|undo| undo.resent) else { return false };
        let echoed_older = match (undo.first_retransmit, segment.options.timestamps) {
            (Some(first), Some(timestamps)) => {
                acked > 0 && timestamps.echo != 0 && Seq(timestamps.echo).before(Seq(first))
            }
            _ => false,
        };
        let still_came = delivery.given_up && matches!(self.repair.recovery, RecoveryPhase::Timeout { .. });
        echoed_older || undo.unreported == 0 || still_came
    }

    fn undo_recovery(&mut self, env: &mut ConnectionEnv<'_>, by_duplicates: bool) {
        self.repair.undo = None;
        self.congestion.on_spurious();
        self.repair.cut_until = self.una;
        if by_duplicates {
            env.counters.dsack_undos += 1;
        } else {
            env.counters.full_undos += 1;
        }
        if !self.repair.is_open() {
            // This recovery did not end normally. It only shows that the reordering window was too small.
            self.repair.rack.widen_reordering_window(self.una, self.next);
            self.flight.undo_losses();
            self.repair.recovery = RecoveryPhase::Open;
            self.repair.duplicate_acks = 0;
        }
        self.backoff.reset();
    }

    /// Evaluates an acknowledgment of a tail probe (RFC 8985 7.4.2). Returns whether the peer received the probe as a
    /// duplicate.
    fn end_tail_probe(&mut self, env: &mut ConnectionEnv<'_>, delivery: &AckDelivery) -> bool {
        let Some(probe) = self.repair.tail_probe else { return false };
        // A peer may not count a FIN as a part of the duplicate.
        let is_end = |end: u64| end == probe.end || end + 1 == probe.end && self.fin_position() == Some(end);
        let twice = probe.retransmission && delivery.duplicate.as_ref().is_some_and(|range| is_end(range.end));
        if twice {
            self.repair.tail_probe = None;
        } else if self.una > probe.end {
            // Data after the probe are acknowledged without a duplicate report.
            self.conclude_tail_probe(env);
        } else if self.una == probe.end && (delivery.repeated || !probe.retransmission) {
            // Either each of the two copies was acknowledged by a peer without duplicate reports, or the probe carried
            // new data.
            self.repair.tail_probe = None;
        }
        twice
    }

    /// Ends a tail probe without a sign that its original arrived.
    fn conclude_tail_probe(&mut self, env: &mut ConnectionEnv<'_>) {
        if let Some(probe) = self.repair.tail_probe.take()
            && probe.retransmission
            && self.repair.is_open()
        {
            // The probe repaired a loss that nothing else reveals.
            env.counters.loss_probe_recoveries += 1;
            self.cut_window(CongestionSignal::Loss, probe.carried);
            self.repair.undo = None;
        }
    }

    /// Records the transmission of a tail probe.
    pub(super) fn begin_tail_probe(&mut self, env: &mut ConnectionEnv<'_>, retransmission: bool) {
        // If the previous probe had arrived as a duplicate, its acknowledgment would have reported this by now.
        self.conclude_tail_probe(env);
        self.repair.tail_probe = Some(TailProbe { end: self.next, retransmission, carried: self.repair.carried });
        self.deadlines.probe = None;
    }

    /// Arms the retransmission timer and the tail loss probe after progress.
    pub(super) fn arm_after_progress(&mut self, env: &ConnectionEnv<'_>) {
        self.deadlines.retransmit = Some(env.now + self.timeout(env.config));
        self.arm_tail_probe(env);
    }

    /// Arms the tail loss probe (RFC 8985 7.2).
    pub(super) fn arm_tail_probe(&mut self, env: &ConnectionEnv<'_>) {
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
    /// Records the delivery of `bytes`. `good` means that the ACK advanced without a further loss.
    fn on_delivery(&mut self, bytes: u64, good: bool) {
        self.delivered += bytes;
        self.latest = bytes;
        self.good = good;
    }

    /// Computes the bytes that may be sent, with `pipe` bytes in flight during the reduction to `threshold`.
    fn allow(&mut self, pipe: u64, threshold: u64, mss: u64, missing: bool) {
        let budget = if pipe > threshold {
            // RFC 9937 6: in proportion to the reduction.
            let share = (u128::from(self.delivered) * u128::from(threshold)).div_ceil(u128::from(self.flight_at_start));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(self.sent)
        } else {
            // Like slow start while acknowledgments show no further loss; otherwise one byte per delivered byte.
            let limit = self.delivered.saturating_sub(self.sent).max(self.latest);
            let limit = if self.good { limit + mss } else { limit };
            limit.min(threshold - pipe)
        };
        // The first retransmission leaves at once.
        self.allowance = if self.sent == 0 && missing { budget.max(mss) } else { budget };
    }
}

/// Linux's minimum of the probe timeout beyond two round trips.
const PROBE_MARGIN: Duration = Duration::from_millis(2);
/// Maximum delay of a peer's acknowledgment for a single segment.
const PEER_DELAYED_ACK: Duration = Duration::from_millis(40);
