//! The location of the receive direction, on the device or in software: requests to the device, resynchronization, and
//! the outcome of each changed key.
//!
//! Invariant: each changed key has one of three counted outcomes, like a transmit key. Initially at most
//! [`KEYS_AT_ONCE`] changed keys go to a device, then one for each [`RECORDS_A_KEY`] records of data.

use super::offload::{NotOffloaded, RxOffload};
use super::resync::Resync;
use crate::counters::TlsCounters;
use crate::record::receive::{BoundaryAnswer, Record, RecordReceiver};
use offload_api::{ContextBackoff, ContextRefusal, DeviceEvent, Handle, ResyncMode, SegmentStream, TlsContexts};
use offload_base::Seq;
use tracing::{Span, debug};

#[derive(Debug)]
pub(super) struct ReceiveLocation {
    state: RxOffload,
    again: ContextBackoff,
    resync: Resync,
    /// Whether the latest key is waiting for the device.
    key_pending: bool,
    allowance: Allowance,
    /// Span of the stream.
    span: Span,
}

/// The number of changed receive keys that may still go to a device. Each costs the device the creation and the removal
/// of a context, and the peer only one record. If a peer changes keys without sending data, its keys stay in software
/// until data arrive again.
#[derive(Debug)]
struct Allowance {
    keys: u8,
    records: u8,
}

impl ReceiveLocation {
    /// Creates the direction in software. Events belong to `span`, the span of the stream.
    pub(super) fn new(span: Span) -> ReceiveLocation {
        ReceiveLocation {
            state: RxOffload::Software,
            again: ContextBackoff::default(),
            resync: Resync::default(),
            key_pending: false,
            allowance: Allowance { keys: KEYS_AT_ONCE, records: 0 },
            span,
        }
    }

    pub(super) fn state(&self) -> RxOffload {
        self.state
    }

    /// Returns the context, working or being installed.
    pub(super) fn context(&self) -> Option<Handle> {
        match self.state {
            RxOffload::Adding(handle) | RxOffload::Device(handle) => Some(handle),
            RxOffload::Software | RxOffload::Refused(_) | RxOffload::Deferred => None,
        }
    }

    /// Returns the context, if it works.
    pub(super) fn working(&self) -> Option<Handle> {
        match self.state {
            RxOffload::Device(handle) => Some(handle),
            _ => None,
        }
    }

    /// Returns whether the direction is on a device or about to move there.
    pub(super) fn wants_context(&self) -> bool {
        matches!(self.state, RxOffload::Deferred | RxOffload::Adding(_) | RxOffload::Device(_))
    }

    /// Returns whether device events must be processed before anything is read.
    pub(super) fn is_unsettled(&self) -> bool {
        matches!(self.state, RxOffload::Adding(_)) || self.again.is_due()
    }

    /// Returns whether a request to the device is planned, now or later.
    pub(super) fn waits(&self) -> bool {
        self.again.waits()
    }

    /// Returns whether a repeated request is due.
    pub(super) fn is_due(&self) -> bool {
        self.again.is_due()
    }

    /// Plans a request for the time when the start of the next record is known.
    pub(super) fn defer(&mut self) {
        self.state = RxOffload::Deferred;
    }

    /// Plans a request, immediately even after a refusal, for a caller that wants a current answer.
    pub(super) fn ask(&mut self) {
        self.state = RxOffload::Deferred;
        if self.again.waits() {
            self.again.begin();
        }
    }

    /// Returns whether the device is left alone for a while because it removed contexts repeatedly.
    pub(super) fn rests_after_loss(&self) -> bool {
        self.state == RxOffload::Deferred && self.again.rests_after_loss()
    }

    /// Makes a delayed request due at once, for a caller that waits.
    pub(super) fn hurry(&mut self) {
        self.again.hurry();
    }

    /// Returns whether a request is due once the start of the next record is known.
    pub(super) fn is_to_be_asked_for(&self) -> bool {
        self.state == RxOffload::Deferred && (!self.again.waits() || self.again.is_due())
    }

    /// Returns the reason against a request now, regardless of the device. Reading more data removes the reason.
    pub(super) fn holds_back(&mut self, receiver: &mut RecordReceiver) -> Option<NotOffloaded> {
        let may_ask = !self.key_pending || self.allowance.keys > 0;
        if may_ask && receiver.has_room_for_context() {
            return None;
        }
        self.again.begin();
        Some(if may_ask { NotOffloaded::Unread } else { NotOffloaded::KeyUpdates })
    }

    /// Notes a request to the device.
    pub(super) fn note_asked(&mut self, counters: &mut TlsCounters) {
        counters.offload_retried += u64::from(self.again.was_refused());
    }

    /// Notes that the device is installing a context that begins at `start`.
    pub(super) fn note_added(&mut self, handle: Handle, mode: ResyncMode, start: Seq, counters: &mut TlsCounters) {
        // Only changed keys count. The first key, and a return after a loss, cost nothing.
        self.allowance.keys -= u8::from(self.key_pending);
        self.state = RxOffload::Adding(handle);
        counters.offload_later += u64::from(self.again.end());
        self.resync = Resync::new(mode, start);
    }

    /// Notes a temporary refusal.
    pub(super) fn note_refused(&mut self, refused: ContextRefusal) {
        self.again.note_refused(refused);
    }

    /// Notes a permanent refusal, or that there is no device.
    pub(super) fn refuse(&mut self, reason: NotOffloaded) {
        self.again.end();
        self.state = RxOffload::Refused(reason);
    }

    /// Notes a permanent refusal before any request was made.
    pub(super) fn refuse_unasked(&mut self, reason: NotOffloaded) {
        self.state = RxOffload::Refused(reason);
    }

    /// Notes that the context works.
    pub(super) fn note_ready(&mut self, handle: Handle, counters: &mut TlsCounters) {
        self.state = RxOffload::Device(handle);
        counters.rx_device += 1;
        counters.rx_rekey_device += u64::from(core::mem::take(&mut self.key_pending));
    }

    /// Notes that the device no longer has the context.
    pub(super) fn mark_lost(&mut self, counters: &mut TlsCounters) {
        if !matches!(self.state, RxOffload::Software | RxOffload::Refused(_)) {
            self.state = RxOffload::Refused(NotOffloaded::Lost);
            self.keep_key_in_software(counters);
        }
    }

    /// Notes that the device removed the context without being asked.
    pub(super) fn note_lost(&mut self) {
        self.again.note_lost();
        self.state = RxOffload::Deferred;
    }

    /// Notes a device reset after which the direction should return.
    pub(super) fn note_reset(&mut self) {
        self.again.begin();
        self.state = RxOffload::Deferred;
    }

    /// Notes that software opens the direction.
    pub(super) fn leave(&mut self) {
        self.state = RxOffload::Software;
    }

    /// Notes a key change. `to_device` tells whether the device should get the new key.
    pub(super) fn change_key(&mut self, to_device: bool, counters: &mut TlsCounters) {
        self.key_pending = to_device;
        if to_device {
            self.defer();
        } else {
            counters.rx_rekey_sw += 1;
        }
    }

    pub(super) fn keep_key_in_software(&mut self, counters: &mut TlsCounters) {
        counters.rx_rekey_sw += u64::from(core::mem::take(&mut self.key_pending));
    }

    /// Notes the end of the direction.
    pub(super) fn abort_rekey(&mut self, counters: &mut TlsCounters) {
        counters.rx_rekey_aborted += u64::from(core::mem::take(&mut self.key_pending));
    }

    /// Notes a record of data.
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

    /// Notes a released record, which the context may need for resynchronization.
    pub(super) fn note_record(&mut self, record: &Record, counters: &mut TlsCounters) {
        if self.working().is_some() && !self.resync.note(record) {
            counters.rx_resync_given_up += 1;
        }
    }

    /// Counts a received record of any type.
    pub(super) fn note_unit(&mut self) {
        self.again.note_unit();
    }

    /// Processes a device event about resynchronization.
    pub(super) fn on_resync<S: SegmentStream>(
        &mut self,
        event: DeviceEvent,
        stream: &mut S,
        receiver: &mut RecordReceiver,
        counters: &mut TlsCounters,
    ) {
        match event {
            DeviceEvent::ResyncRequested { handle, header, .. } if self.working() == Some(handle) => {
                match self.resync.log.resolve(header) {
                    // The log also knows records that are too old to be remembered elsewhere.
                    Some(number) => self.answer(stream, handle, header, Some(number), counters),
                    None => {
                        // The record may not have arrived yet. The question stays open until it has.
                        self.resync.question = Some((handle, header));
                        self.answer_question(stream, receiver, counters);
                    }
                }
            }
            DeviceEvent::ResyncStarted { handle, from, to, .. } if self.working() == Some(handle) => {
                self.resync.log.start(from, to);
                // The records of the packet may have been read before the event arrived.
                for (header, number) in receiver.last_starts() {
                    self.resync.log.note(header, number);
                }
            }
            DeviceEvent::ResyncCancelled { handle, .. } if self.working() == Some(handle) => self.resync.log.cancel(),
            _ => {}
        }
    }

    /// Answers the device's question whether a record begins at a position, as soon as the answer is known. An answer
    /// for a removed context is harmless.
    pub(super) fn answer_question<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        receiver: &mut RecordReceiver,
        counters: &mut TlsCounters,
    ) {
        let Some((handle, header)) = self.resync.question else { return };
        let number = match receiver.locate(header) {
            BoundaryAnswer::NotYet => return,
            BoundaryAnswer::Nothing => None,
            BoundaryAnswer::Record(number) => Some(number),
        };
        self.resync.question = None;
        self.answer(stream, handle, header, number, counters);
    }

    /// Tells the context the start of the next record, if it has decrypted nothing for long enough. Called when the
    /// transport has no more data, because the device does not see data that already arrived.
    pub(super) fn give_hint<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        receiver: &mut RecordReceiver,
        counters: &mut TlsCounters,
    ) {
        if !self.resync.hints.is_due() {
            return;
        }
        let Some(handle) = self.working() else { return };
        let Ok(Some((header, number))) = receiver.next_boundary() else { return };
        self.resync.hints.note_given();
        self.answer(stream, handle, header, Some(number), counters);
    }

    /// Tells the context which record begins at `header`, if any.
    fn answer<S: SegmentStream>(
        &self,
        stream: &mut S,
        handle: Handle,
        header: Seq,
        number: Option<u64>,
        counters: &mut TlsCounters,
    ) {
        if self.working() != Some(handle) {
            return;
        }
        counters.rx_device_resync += u64::from(number.is_some());
        debug!(parent: &self.span, ?handle, record = number, "device told where a record begins");
        stream.control(&mut |_, device| {
            if let Some(mut tls) = TlsContexts::from_contexts(device) {
                tls.answer_resync(handle, header, number);
            }
        });
    }
}

/// Number of changed receive keys that a device gets regardless of other data.
const KEYS_AT_ONCE: u8 = 8;
/// Number of data records for each further key.
const RECORDS_A_KEY: u8 = 16;
