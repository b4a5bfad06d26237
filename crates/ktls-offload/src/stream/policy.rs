//! The retransmission policy: moves a flow to software if retransmissions make the device too expensive.
//!
//! For each retransmitted packet the device reads the earlier bytes of its record again, and does so once more when the
//! stream continues at its previous position. Software is cheaper for a flow with persistent retransmissions. The flow
//! returns to the device when retransmissions become rare.
//!
//! Invariant: the policy returns only flows that it took off the device itself.

use offload_api::SentBytes;

/// The retransmission policy of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetransmitPolicy {
    most: Option<f64>,
    /// Bytes sent at the last evaluation.
    looked: SentBytes,
    /// Wire bytes queued since the last evaluation.
    queued: u64,
    /// Whether the policy took the flow off the device.
    holds: bool,
}

/// The policy's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetransmitDecision {
    Stay,
    ToSoftware,
    ToDevice,
}

impl RetransmitPolicy {
    /// Creates a policy with the limit `most`, a share of retransmitted bytes. `None` disables the policy.
    pub(super) fn new(most: Option<f64>) -> RetransmitPolicy {
        RetransmitPolicy { most, looked: SentBytes::default(), queued: 0, holds: false }
    }

    /// Changes the limit.
    pub(super) fn set_most(&mut self, most: Option<f64>) {
        self.most = most;
    }

    /// Notes that `bytes` more were queued. Returns true if an evaluation is due.
    pub(super) fn note_queued(&mut self, bytes: u64) -> bool {
        self.queued += bytes;
        self.queued >= STRETCH
    }

    /// Notes that `bytes` more are about to be queued for the device after `sent` left, and returns true. If the flow
    /// should leave the device first, returns false and notes nothing.
    pub(super) fn admits(&mut self, bytes: u64, sent: SentBytes) -> bool {
        // Works on a copy: a refused write must leave the measurement as it was.
        let mut after = *self;
        let admits = !after.note_queued(bytes) || after.judge(sent, true) == RetransmitDecision::Stay;
        if admits {
            *self = after;
        }
        admits
    }

    /// Restarts the measurement, because the flow moved for another reason.
    pub(super) fn begin(&mut self, sent: SentBytes) {
        *self = RetransmitPolicy { looked: sent, ..RetransmitPolicy::new(self.most) };
    }

    /// Returns the bytes sent at the last evaluation.
    pub(super) fn looked(&self) -> SentBytes {
        self.looked
    }

    /// Returns whether the policy took the flow off the device.
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Evaluates the bytes sent since the last evaluation, if they are enough.
    pub(super) fn judge(&mut self, sent: SentBytes, on_device: bool) -> RetransmitDecision {
        let stretch = sent.since(self.looked);
        // Too few bytes for a reliable decision.
        if stretch.total < STRETCH {
            return RetransmitDecision::Stay;
        }
        (self.looked, self.queued) = (sent, 0);
        let share = stretch.share_again();
        match (self.most, on_device) {
            (Some(most), true) if share > most => {
                self.holds = true;
                RetransmitDecision::ToSoftware
            }
            // Half the limit: a flow close to the limit would otherwise alternate between device and software.
            (Some(most), false) if self.holds && share <= most / 2.0 => RetransmitDecision::ToDevice,
            (None, false) if self.holds => RetransmitDecision::ToDevice,
            _ => RetransmitDecision::Stay,
        }
    }
}

/// Default limit: the share of retransmitted bytes above which a flow moves to software.
pub(super) const MAX_RETRANSMIT_SHARE: f64 = 0.02;
/// Bytes sent between two evaluations: some 2,900 full segments. With 1 % random loss, five standard deviations
/// separate the measured share from 2 %.
const STRETCH: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy with a limit of 2 %, and the bytes sent so far.
    struct TestFlow(RetransmitPolicy, SentBytes);

    impl TestFlow {
        fn new() -> TestFlow {
            TestFlow(RetransmitPolicy::new(Some(0.02)), SentBytes::default())
        }

        /// Sends one stretch, of which `share` are retransmissions.
        fn stretch(&mut self, share: f64, on_device: bool) -> RetransmitDecision {
            self.1.total += STRETCH;
            self.1.again += (STRETCH as f64 * share) as u64;
            self.0.judge(self.1, on_device)
        }
    }

    #[test]
    fn a_flow_leaves_above_the_limit_and_returns_well_below_it() {
        let mut flow = TestFlow::new();
        assert_eq!(flow.stretch(0.019, true), RetransmitDecision::Stay);
        assert_eq!(flow.stretch(0.021, true), RetransmitDecision::ToSoftware);
        assert_eq!(flow.stretch(0.015, false), RetransmitDecision::Stay, "too near the limit");
        assert_eq!(flow.stretch(0.009, false), RetransmitDecision::ToDevice);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.0, true), RetransmitDecision::Stay);
    }

    #[test]
    fn flow_removed_by_other_code_stays_off_the_device() {
        let mut flow = TestFlow::new();
        assert_eq!(flow.stretch(0.0, false), RetransmitDecision::Stay);
        assert_eq!(flow.stretch(0.5, true), RetransmitDecision::ToSoftware);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.0, false), RetransmitDecision::Stay);
    }

    #[test]
    fn flows_never_leave_and_always_return_without_a_limit() {
        let mut flow = TestFlow::new();
        assert_eq!(flow.stretch(0.5, true), RetransmitDecision::ToSoftware);
        flow.0.set_most(None);
        assert_eq!(flow.stretch(0.5, false), RetransmitDecision::ToDevice);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.9, true), RetransmitDecision::Stay);
    }

    #[test]
    fn write_without_a_verdict_is_admitted_and_counted() {
        let mut flow = TestFlow::new();
        assert!(flow.0.admits(STRETCH, flow.1), "queued, and nothing has left");
        flow.1 = SentBytes { total: STRETCH, again: 0 };
        assert!(flow.0.admits(1, flow.1));
        assert_eq!((flow.0.looked, flow.0.queued), (flow.1, 0), "a calm stretch is over");
        flow.1 = SentBytes { total: STRETCH * 2, again: STRETCH };
        assert!(flow.0.admits(STRETCH - 1, flow.1));
        assert!(!flow.0.admits(1, flow.1));
        assert_eq!((flow.0.queued, flow.0.holds()), (STRETCH - 1, false), "as it was");
        assert!(flow.0.note_queued(1));
        assert_eq!(flow.0.judge(flow.1, true), RetransmitDecision::ToSoftware);
    }

    #[test]
    fn a_look_takes_a_stretch() {
        let mut policy = RetransmitPolicy::new(Some(0.02));
        assert!(!policy.note_queued(STRETCH - 1));
        assert!(policy.note_queued(1));
        // Queued bytes are not sent bytes: less than a stretch was sent, so there is no decision.
        assert_eq!(policy.judge(SentBytes { total: STRETCH - 1, again: STRETCH - 1 }, true), RetransmitDecision::Stay);
    }
}
