//! The way of the transmit direction to a device and back: when the device is asked, when retransmissions say that it
//! should not have the direction, and what becomes of a key that changed.
//!
//! Invariant: each changed key ends as one of three, counted: the device got it, software kept it (the device refused, was
//! reset, or the key changed again first), or the direction ended before that was known, which is once at most. Keys of a
//! direction that was in software stay there.

use super::offload::NotOffloaded;
use super::policy::{MOST_SENT_AGAIN, RetransmitPolicy};
use crate::counters::TlsCounters;
use offload_api::{ContextBackoff, Handle, SentBytes};

#[derive(Debug)]
pub(super) struct TransmitPlace {
    again: ContextBackoff,
    policy: RetransmitPolicy,
    rekey: Course,
}

/// What is to become of the latest key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Course {
    /// It is decided.
    #[default]
    Settled,
    /// The context of the old key has work to do.
    Waiting(Handle),
    /// The device may have the new key.
    Due,
}

impl Default for TransmitPlace {
    fn default() -> TransmitPlace {
        let policy = RetransmitPolicy::new(Some(MOST_SENT_AGAIN));
        TransmitPlace { again: ContextBackoff::default(), policy, rekey: Course::Settled }
    }
}

impl TransmitPlace {
    /// Whether the device is to be asked, now or later.
    pub(super) fn waits(&self) -> bool {
        self.again.waits() || self.rekey != Course::Settled
    }

    /// Whether the direction is to come to a device, or to come back to it.
    pub(super) fn wants_context(&self) -> bool {
        self.waits() || self.policy.holds()
    }

    /// A record of data comes next: whether the device is to be asked before it. A new key is to go there once nothing is
    /// left that the old one's context is needed for.
    pub(super) fn asks_before_record(&mut self) -> bool {
        if self.rekey == Course::Due && !self.again.waits() {
            self.again.begin();
        }
        if !self.again.waits() {
            return false;
        }
        self.again.note_unit();
        self.again.is_due()
    }

    /// The device is asked.
    pub(super) fn note_asked(&mut self, counters: &mut TlsCounters) {
        counters.offload_retried += u64::from(self.again.was_refused());
    }

    /// It has taken the direction, and its key; `sent` had left by then.
    pub(super) fn note_taken(&mut self, sent: SentBytes, counters: &mut TlsCounters) {
        self.policy.begin(sent);
        counters.tx_device += 1;
        counters.offload_later += u64::from(self.again.end());
        counters.tx_rekey_device += u64::from(self.settle());
    }

    /// It has refused it.
    pub(super) fn note_refused(&mut self, reason: NotOffloaded) {
        match reason {
            NotOffloaded::Device(refused) if refused.passes() => self.again.note_refused(refused),
            _ => {
                self.again.end();
            }
        }
    }

    /// It was asked by name: whatever was before is over.
    pub(super) fn end_asking(&mut self) {
        self.again.end();
    }

    /// A context is gone, so nothing is under way that it was needed for.
    pub(super) fn note_gone(&mut self, gone: Handle) {
        if self.rekey == Course::Waiting(gone) {
            self.rekey = Course::Due;
        }
    }

    /// The device gave the context up unasked.
    pub(super) fn note_lost(&mut self) {
        self.again.note_lost();
    }

    /// The device was reset, and its places are free; `had`: it had the direction.
    pub(super) fn note_reset(&mut self, had: bool) {
        if self.waits() || had {
            self.again.begin();
        }
    }

    /// The key changed; `before` is the context that the one before had.
    pub(super) fn change_key(
        &mut self,
        before: Option<Handle>,
        sent: impl FnOnce() -> SentBytes,
        counters: &mut TlsCounters,
    ) {
        let pending = self.rekey != Course::Settled;
        debug_assert!(!pending || before.is_none(), "a direction that waits for a context has none");
        match before {
            Some(context) => {
                self.rekey = Course::Waiting(context);
                self.policy.begin(sent());
            }
            // This key waits in the place of the one before, which no device will have, or was in software as that was.
            None => counters.tx_rekey_sw += 1,
        }
    }

    pub(super) fn keep_key_in_software(&mut self, counters: &mut TlsCounters) {
        counters.tx_rekey_sw += u64::from(self.settle());
    }

    /// The direction ends.
    pub(super) fn abort_rekey(&mut self, counters: &mut TlsCounters) {
        counters.tx_rekey_aborted += u64::from(self.settle());
    }

    /// True if a key waited to be decided on.
    fn settle(&mut self) -> bool {
        core::mem::take(&mut self.rekey) != Course::Settled
    }

    pub(super) fn policy(&mut self) -> &mut RetransmitPolicy {
        &mut self.policy
    }
}
