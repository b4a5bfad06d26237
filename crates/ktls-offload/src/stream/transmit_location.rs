//! The location of the transmit direction, on the device or in software: requests to the device, the retransmission
//! policy, and the outcome of each changed key.
//!
//! Invariant: each changed key has one of three counted outcomes. The device got the key; or software kept the key,
//! because the device refused, was reset, or the key changed again first; or the direction ended before, at most once.
//! Keys of a direction in software stay there.

use super::offload::NotOffloaded;
use super::policy::{MAX_RETRANSMIT_SHARE, RetransmitPolicy};
use crate::counters::TlsCounters;
use offload_api::{ContextBackoff, Handle, SentBytes};

#[derive(Debug)]
pub(super) struct TransmitLocation {
    again: ContextBackoff,
    policy: RetransmitPolicy,
    rekey: RekeyState,
}

/// The pending outcome of the latest key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RekeyState {
    /// The outcome is decided.
    #[default]
    Settled,
    /// The context of the old key still has records in flight.
    Waiting(Handle),
    /// The device may get the new key.
    Due,
}

impl Default for TransmitLocation {
    fn default() -> TransmitLocation {
        let policy = RetransmitPolicy::new(Some(MAX_RETRANSMIT_SHARE));
        TransmitLocation { again: ContextBackoff::default(), policy, rekey: RekeyState::Settled }
    }
}

impl TransmitLocation {
    /// Returns whether a request to the device is planned, now or later.
    pub(super) fn waits(&self) -> bool {
        self.again.waits() || self.rekey != RekeyState::Settled
    }

    /// Returns whether the direction should move to a device or return there.
    pub(super) fn wants_context(&self) -> bool {
        self.waits() || self.policy.holds()
    }

    /// Returns whether to ask the device before the next record of data. A new key may move to the device once the old
    /// key's context is no longer needed.
    pub(super) fn asks_before_record(&mut self) -> bool {
        if self.rekey == RekeyState::Due && !self.again.waits() {
            self.again.begin();
        }
        if !self.again.waits() {
            return false;
        }
        self.again.note_unit();
        self.again.is_due()
    }

    /// Notes a request to the device.
    pub(super) fn note_asked(&mut self, counters: &mut TlsCounters) {
        counters.offload_retried += u64::from(self.again.was_refused());
    }

    /// Notes that the device took the direction with its key after `sent` had left.
    pub(super) fn note_taken(&mut self, sent: SentBytes, counters: &mut TlsCounters) {
        self.policy.begin(sent);
        counters.tx_device += 1;
        counters.offload_later += u64::from(self.again.end());
        counters.tx_rekey_device += u64::from(self.take_rekey_state());
    }

    /// Notes a refusal.
    pub(super) fn note_refused(&mut self, reason: NotOffloaded) {
        match reason {
            NotOffloaded::Device(refused) if refused.passes() => self.again.note_refused(refused),
            _ => {
                self.again.end();
            }
        }
    }

    /// Cancels repeated requests, because the application made a new one.
    pub(super) fn end_asking(&mut self) {
        self.again.end();
    }

    /// Notes that a context is gone. Its records are all acknowledged.
    pub(super) fn note_gone(&mut self, gone: Handle) {
        if self.rekey == RekeyState::Waiting(gone) {
            self.rekey = RekeyState::Due;
        }
    }

    /// Notes that the device removed the context without being asked.
    pub(super) fn note_lost(&mut self) {
        self.again.note_lost();
    }

    /// Notes a device reset, which frees space for other contexts. `had` tells whether the device had the direction.
    pub(super) fn note_reset(&mut self, had: bool) {
        if self.waits() || had {
            self.again.begin();
        }
    }

    /// Notes a key change. `before` is the context of the previous key.
    pub(super) fn change_key(
        &mut self,
        before: Option<Handle>,
        sent: impl FnOnce() -> SentBytes,
        counters: &mut TlsCounters,
    ) {
        let pending = self.rekey != RekeyState::Settled;
        debug_assert!(!pending || before.is_none(), "a direction that waits for a context has none");
        match before {
            Some(context) => {
                self.rekey = RekeyState::Waiting(context);
                self.policy.begin(sent());
            }
            // Either the new key takes the waiting key's place, and no device gets the waiting one; or the direction
            // was in software, and the new key stays there.
            None => counters.tx_rekey_sw += 1,
        }
    }

    pub(super) fn keep_key_in_software(&mut self, counters: &mut TlsCounters) {
        counters.tx_rekey_sw += u64::from(self.take_rekey_state());
    }

    /// Notes the end of the direction.
    pub(super) fn abort_rekey(&mut self, counters: &mut TlsCounters) {
        counters.tx_rekey_aborted += u64::from(self.take_rekey_state());
    }

    /// Decides the latest key's outcome. Returns true if that was pending.
    fn take_rekey_state(&mut self) -> bool {
        core::mem::take(&mut self.rekey) != RekeyState::Settled
    }

    pub(super) fn policy(&mut self) -> &mut RetransmitPolicy {
        &mut self.policy
    }
}
