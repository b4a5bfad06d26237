//! Key updates while a device has a direction (RFC 8446 section 4.6.3).
//!
//! A transmit direction returns to software with its new key. Its old context remains until the last record of the old
//! key is acknowledged. When that context is gone, the next write moves the new key to the device. In the receive
//! direction the position of the KeyUpdate in the stream separates the records of the two keys; the new context begins
//! after all received data.
//!
//! The outcome of each key is counted: see [`transmit_place`](super::transmit_place) and
//! [`receive_place`](super::receive_place).
//!
//! Invariant: every failure of a new key occurs before the peer learns of the key.

use super::KtlsStream;
use crate::error::TlsError;
use crate::messages;
use crate::record::ContentType;
use crate::record::send::{RecordContent, RecordSender};
use offload_api::SegmentStream;
use tracing::debug;

impl<S: SegmentStream> KtlsStream<S> {
    pub(super) fn receive_key_update(&mut self, requested: bool) -> Result<(), TlsError> {
        self.counters.rx_rekey_received += 1;
        let rekeyed = match self.schedule.next_receive_key() {
            Ok(key) => self.receive.receiver().rekey(key),
            Err(error) => Err(error.into()),
        };
        match &rekeyed {
            Ok(()) => self.counters.rx_rekey_ok += 1,
            Err(_) => self.counters.rx_rekey_error += 1,
        }
        rekeyed?;
        debug!(parent: &self.span, "receive key changed");
        // The new key replaces a previous one that was still waiting for the device.
        self.rx.keep_key_in_software(&mut self.counters);
        let to_device = self.rx.wants_context();
        self.leave_receive_context();
        self.rx.change_key(to_device, &mut self.counters);
        // A closed direction sends no more data, so it needs no new key.
        if requested && self.send.is_open() && self.send.note_update_asked() {
            self.send_key_update(false)?;
            self.stream.flush();
        }
        Ok(())
    }

    /// Sends a KeyUpdate and continues with the next key in software.
    pub(super) fn send_key_update(&mut self, request: bool) -> Result<(), TlsError> {
        let before = self.send.context();
        match self.announce_next_key(request) {
            Ok(fresh) => self.send.change_key(&mut self.stream, fresh),
            Err(error) => {
                self.counters.tx_rekey_error += 1;
                self.fail(error.clone());
                return Err(error);
            }
        }
        self.counters.tx_rekey_ok += 1;
        debug!(parent: &self.span, "transmit key changed");
        if before.is_some() {
            self.release_unused_contexts();
            self.count_transmit_software();
        }
        self.tx.change_key(before, || self.stream.sent(), &mut self.counters);
        Ok(())
    }

    /// Sends a KeyUpdate and returns a sender with the next key. All failures occur before the peer learns of the new
    /// key, so that the alert is still sealed with the old one.
    fn announce_next_key(&mut self, request: bool) -> Result<RecordSender, TlsError> {
        // The schedule cannot go back, so the key is requested only if the KeyUpdate can be sealed.
        if self.send.is_used_up() {
            return Err(TlsError::KeyExhausted);
        }
        let key = self.schedule.next_transmit_key()?;
        let fresh = self.send.fresh(key).map_err(|unsupported| TlsError::Schedule(unsupported.into()))?;
        let update = messages::key_update(request);
        self.send.record(&mut self.stream, &mut self.counters, ContentType::Handshake, RecordContent::Lent(&update))?;
        Ok(fresh)
    }
}
