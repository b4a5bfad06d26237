//! When sending again costs a device more than it saves.
//!
//! Each packet that is sent again has the device read the bytes of its record before it once more, and each return to
//! the place it came from does the same. A flow that does so all the time is cheaper to seal in software; it goes back
//! to the device when it has become calm.
//!
//! Invariant: only a flow that the policy itself took off the device is ever handed back by it.

use offload_api::SentBytes;

/// The policy of one flow's transmit direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetransmitPolicy {
    most: Option<f64>,
    /// What had left when it was looked at last.
    looked: SentBytes,
    /// Wire bytes queued since.
    queued: u64,
    /// The policy took the flow off the device.
    holds: bool,
}

/// What the policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Stay,
    ToSoftware,
    ToDevice,
}

impl RetransmitPolicy {
    /// Takes a flow off the device above `most`, the share of bytes sent that had been sent before; `None`: never.
    pub(super) fn new(most: Option<f64>) -> RetransmitPolicy {
        RetransmitPolicy { most, looked: SentBytes::default(), queued: 0, holds: false }
    }

    /// The same flow, under another limit.
    pub(super) fn set_most(&mut self, most: Option<f64>) {
        self.most = most;
    }

    /// `bytes` more were queued. True: enough for another look.
    pub(super) fn note_queued(&mut self, bytes: u64) -> bool {
        self.queued += bytes;
        self.queued >= STRETCH
    }

    /// `bytes` more are to be queued for the device, and `sent` have left. False, and nothing is noted: not before a
    /// verdict is carried out.
    pub(super) fn admits(&mut self, bytes: u64, sent: SentBytes) -> bool {
        let mut after = *self;
        let admits = !after.note_queued(bytes) || after.judge(sent, true) == Verdict::Stay;
        if admits {
            *self = after;
        }
        admits
    }

    /// Somebody else decided where the flow is: the policy begins anew.
    pub(super) fn begin(&mut self, sent: SentBytes) {
        *self = RetransmitPolicy { looked: sent, ..RetransmitPolicy::new(self.most) };
    }

    /// What had left when it was looked at last.
    pub(super) fn looked(&self) -> SentBytes {
        self.looked
    }

    /// Whether the policy took the flow off the device.
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Judges the stretch that ends with `sent`.
    pub(super) fn judge(&mut self, sent: SentBytes, on_device: bool) -> Verdict {
        let stretch = sent.since(self.looked);
        if stretch.total < STRETCH {
            return Verdict::Stay;
        }
        (self.looked, self.queued) = (sent, 0);
        let share = stretch.share_again();
        match (self.most, on_device) {
            (Some(most), true) if share > most => {
                self.holds = true;
                Verdict::ToSoftware
            }
            // Well below, or one that is near the limit would go back and forth.
            (Some(most), false) if self.holds && share <= most / 2.0 => Verdict::ToDevice,
            (None, false) if self.holds => Verdict::ToDevice,
            _ => Verdict::Stay,
        }
    }
}

/// Above this share of bytes sent again, a flow goes to software unless somebody says otherwise.
pub(super) const MOST_SENT_AGAIN: f64 = 0.02;
/// Bytes sent between two looks: some 2,900 full segments. Where one in a hundred is lost by chance, it takes five
/// standard deviations to look like one in fifty.
const STRETCH: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy at 2 %, and what has left so far.
    struct Flow(RetransmitPolicy, SentBytes);

    impl Flow {
        fn new() -> Flow {
            Flow(RetransmitPolicy::new(Some(0.02)), SentBytes::default())
        }

        /// A stretch of which `share` was sent again.
        fn stretch(&mut self, share: f64, on_device: bool) -> Verdict {
            self.1.total += STRETCH;
            self.1.again += (STRETCH as f64 * share) as u64;
            self.0.judge(self.1, on_device)
        }
    }

    #[test]
    fn a_flow_leaves_above_the_limit_and_returns_well_below_it() {
        let mut flow = Flow::new();
        assert_eq!(flow.stretch(0.019, true), Verdict::Stay);
        assert_eq!(flow.stretch(0.021, true), Verdict::ToSoftware);
        assert_eq!(flow.stretch(0.015, false), Verdict::Stay, "too near the limit");
        assert_eq!(flow.stretch(0.009, false), Verdict::ToDevice);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.0, true), Verdict::Stay);
    }

    #[test]
    fn what_others_took_off_the_device_stays_off() {
        let mut flow = Flow::new();
        assert_eq!(flow.stretch(0.0, false), Verdict::Stay);
        assert_eq!(flow.stretch(0.5, true), Verdict::ToSoftware);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.0, false), Verdict::Stay);
    }

    #[test]
    fn without_a_limit_nothing_leaves_and_what_left_returns() {
        let mut flow = Flow::new();
        assert_eq!(flow.stretch(0.5, true), Verdict::ToSoftware);
        flow.0.set_most(None);
        assert_eq!(flow.stretch(0.5, false), Verdict::ToDevice);
        flow.0.begin(flow.1);
        assert_eq!(flow.stretch(0.9, true), Verdict::Stay);
    }

    #[test]
    fn what_needs_no_verdict_is_admitted_and_judged_all_the_same() {
        let mut flow = Flow::new();
        assert!(flow.0.admits(STRETCH, flow.1), "queued, and nothing has left");
        flow.1 = SentBytes { total: STRETCH, again: 0 };
        assert!(flow.0.admits(1, flow.1));
        assert_eq!((flow.0.looked, flow.0.queued), (flow.1, 0), "a calm stretch is over");
        flow.1 = SentBytes { total: STRETCH * 2, again: STRETCH };
        assert!(flow.0.admits(STRETCH - 1, flow.1));
        assert!(!flow.0.admits(1, flow.1));
        assert_eq!((flow.0.queued, flow.0.holds()), (STRETCH - 1, false), "as it was");
        assert!(flow.0.note_queued(1));
        assert_eq!(flow.0.judge(flow.1, true), Verdict::ToSoftware);
    }

    #[test]
    fn a_look_takes_a_stretch() {
        let mut policy = RetransmitPolicy::new(Some(0.02));
        assert!(!policy.note_queued(STRETCH - 1));
        assert!(policy.note_queued(1));
        // Queued is not sent: no verdict on less than a stretch that left.
        assert_eq!(policy.judge(SentBytes { total: STRETCH - 1, again: STRETCH - 1 }, true), Verdict::Stay);
    }
}
