//! Keys that change while a device works with them (KeyUpdate, RFC 8446 section 4.6.3).
//!
//! A transmit direction comes back to software with its new key. Its old context is needed until the last record of the
//! old key is acknowledged; when it is gone, the next write takes the new key to the device. A receive direction knows by
//! the KeyUpdate's place in the stream which records have which key; its new context begins behind all that has arrived.
//!
//! Invariant: each changed key ends as one of three, counted: the device got it, software kept it (the device refused, was
//! reset, or the key changed again first), or the direction ended before that was known, which is once at most. Keys of a
//! direction that was in software stay there.

use super::{KtlsStream, Side};
use crate::error::TlsError;
use crate::messages;
use crate::record::ContentType;
use crate::record::send::{Content, Sender};
use crate::sealer::NoKey;
use offload_api::{Handle, Layer, SegmentStream};

/// What is to become of the latest keys.
#[derive(Debug, Default)]
pub(super) struct Rekeys {
    transmit: Course,
    receive_pending: bool,
    allowance: Allowance,
}

/// How many changed receive keys may still go to a device. Each costs it a context made and one taken away, and the peer
/// no more than a record: one that changes keys for nothing else is left to software until it sends data again.
///
/// Invariant: in any stretch, at most [`KEYS_AT_ONCE`] and one for each [`RECORDS_A_KEY`] records of data.
#[derive(Debug)]
struct Allowance {
    keys: u8,
    records: u8,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { keys: KEYS_AT_ONCE, records: 0 }
    }
}

impl Rekeys {
    /// A record of data arrived.
    pub(super) fn note_data(&mut self) {
        let Allowance { keys, records } = &mut self.allowance;
        if *keys == KEYS_AT_ONCE {
            return;
        }
        *records += 1;
        if *records == RECORDS_A_KEY {
            (*keys, *records) = (*keys + 1, 0);
        }
    }

    /// Whether the receive direction may ask for a context.
    pub(super) fn may_ask(&self) -> bool {
        !self.receive_pending || self.allowance.keys > 0
    }

    /// It got one.
    pub(super) fn note_context(&mut self) {
        self.allowance.keys -= u8::from(self.receive_pending);
    }
}

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

impl<S: SegmentStream> KtlsStream<S> {
    pub(super) fn receive_key_update(&mut self, requested: bool) -> Result<(), TlsError> {
        self.counters.rx_rekey_received += 1;
        let rekeyed = match self.schedule.next_receive_key() {
            Ok(key) => self.receiver.rekey(key),
            Err(error) => Err(error.into()),
        };
        match &rekeyed {
            Ok(()) => self.counters.rx_rekey_ok += 1,
            Err(_) => self.counters.rx_rekey_error += 1,
        }
        rekeyed?;
        self.keep_receive_key_in_software();
        let to_device = self.wants_receive_context();
        self.leave_receive_context();
        self.rekeys.receive_pending = to_device;
        if to_device {
            self.defer_receive_context();
        } else {
            self.counters.rx_rekey_sw += 1;
        }
        if requested && self.write == Side::Open {
            // RFC 8446 section 4.6.3: before our next data at the latest, and once for any number of requests. The
            // first goes at once; the peer cannot have the queue grow by asking on.
            self.update_owed = true;
            if !self.update_answered {
                self.send_key_update(false)?;
                self.stream.flush();
            }
        }
        Ok(())
    }

    /// Sends a KeyUpdate and goes on with the next key, in software.
    pub(super) fn send_key_update(&mut self, request: bool) -> Result<(), TlsError> {
        let before = self.sender.context();
        match self.announce_next_key(request) {
            Ok(fresh) => {
                self.retire_sealer();
                self.sender = fresh;
            }
            Err(error) => {
                self.counters.tx_rekey_error += 1;
                self.fail(error.clone());
                return Err(error);
            }
        }
        self.sender.lower_limit(self.records_per_key);
        self.counters.tx_rekey_ok += 1;
        let pending = self.rekeys.transmit != Course::Settled;
        match before {
            Some(context) => {
                self.rekeys.transmit = Course::Waiting(context);
                self.give_back_unused();
                self.count_transmit_software();
                self.policy.begin(self.stream.sent());
            }
            // This key waits in the place of the one before, which no device will have, or was in software as that was.
            None => self.counters.tx_rekey_sw += 1,
        }
        debug_assert!(!pending || before.is_none(), "a direction that waits for a context has none");
        self.update_owed = false;
        self.update_answered = true;
        Ok(())
    }

    /// Sends a KeyUpdate; gives what has the key that comes after it. What can go wrong does so before the peer hears of
    /// a new key: the alert about it has the old one.
    fn announce_next_key(&mut self, request: bool) -> Result<Sender, TlsError> {
        // The schedule does not go back, so it is asked only if the record about it can be made.
        if self.sender.is_used_up() {
            return Err(TlsError::KeyExhausted);
        }
        let key = self.schedule.next_transmit_key()?;
        let mut fresh = Sender::new(0, key).map_err(|unsupported| TlsError::Schedule(unsupported.into()))?;
        fresh.set_pad_to(self.pad_to);
        self.record(ContentType::Handshake, Content::Lent(&messages::key_update(request)))?;
        Ok(fresh)
    }

    /// The present transmit key protects nothing more: the transport may forget it with its last byte.
    pub(super) fn retire_sealer(&mut self) {
        if self.sender.forget_sealer() {
            self.stream.install(Layer::FIRST, Box::new(NoKey));
        }
    }

    /// The new key is to go to the device, once nothing is left that the old one's context is needed for. Called before a
    /// record of data.
    pub(super) fn install_transmit_key(&mut self) {
        if self.rekeys.transmit == Course::Due && !self.waits_to_ask() {
            self.want_transmit_context();
        }
    }

    /// A context is gone, so nothing is under way that it was needed for.
    pub(super) fn note_context_gone(&mut self, gone: Handle) {
        if self.rekeys.transmit == Course::Waiting(gone) {
            self.rekeys.transmit = Course::Due;
        }
    }

    /// Whether a transmit key may still go to a device.
    pub(super) fn waits_to_install(&self) -> bool {
        self.rekeys.transmit != Course::Settled
    }

    /// The device has the transmit key.
    pub(super) fn note_transmit_key_on_device(&mut self) {
        self.counters.tx_rekey_device += u64::from(self.settle_transmit());
    }

    pub(super) fn keep_transmit_key_in_software(&mut self) {
        self.counters.tx_rekey_sw += u64::from(self.settle_transmit());
    }

    pub(super) fn abort_transmit_rekey(&mut self) {
        self.counters.tx_rekey_aborted += u64::from(self.settle_transmit());
    }

    /// The device works with the receive key.
    pub(super) fn note_receive_key_on_device(&mut self) {
        self.counters.rx_rekey_device += u64::from(core::mem::take(&mut self.rekeys.receive_pending));
    }

    pub(super) fn keep_receive_key_in_software(&mut self) {
        self.counters.rx_rekey_sw += u64::from(core::mem::take(&mut self.rekeys.receive_pending));
    }

    pub(super) fn abort_receive_rekey(&mut self) {
        self.counters.rx_rekey_aborted += u64::from(core::mem::take(&mut self.rekeys.receive_pending));
    }

    /// True if a key waited to be decided on.
    fn settle_transmit(&mut self) -> bool {
        core::mem::take(&mut self.rekeys.transmit) != Course::Settled
    }
}

/// Changed receive keys that a device gets whatever else arrives.
const KEYS_AT_ONCE: u8 = 8;
/// Records of data for each one after those.
const RECORDS_A_KEY: u8 = 16;
