//! The way of the receive direction to a device and back: when the device is asked, what it says about its place, and what
//! becomes of a key that changed.
//!
//! Invariant: a changed key ends as one of three, counted, as a transmit key does; in any stretch, at most [`KEYS_AT_ONCE`]
//! of them go to a device, and one for each [`RECORDS_A_KEY`] records of data.

use super::offload::{NotOffloaded, RxOffload};
use super::resync::Resync;
use crate::counters::TlsCounters;
use crate::record::receive::{Located, Receiver, Record};
use offload_api::{ContextBackoff, ContextRefusal, DeviceEvent, Handle, ResyncMode, SegmentStream, TlsContexts};
use offload_base::Seq;
use tracing::{Span, debug};

#[derive(Debug)]
pub(super) struct ReceivePlace {
    state: RxOffload,
    again: ContextBackoff,
    resync: Resync,
    /// The latest key is to go to the device.
    key_pending: bool,
    allowance: Allowance,
    /// Span of the stream.
    span: Span,
}

/// How many changed receive keys may still go to a device. Each costs it a context made and one taken away, and the peer
/// no more than a record: one that changes keys for nothing else is left to software until it sends data again.
#[derive(Debug)]
struct Allowance {
    keys: u8,
    records: u8,
}

impl ReceivePlace {
    /// The direction in software, of the stream with this span.
    pub(super) fn new(span: Span) -> ReceivePlace {
        ReceivePlace {
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

    /// The context, working or not yet.
    pub(super) fn context(&self) -> Option<Handle> {
        match self.state {
            RxOffload::Adding(handle) | RxOffload::Device(handle) => Some(handle),
            RxOffload::Software | RxOffload::Refused(_) | RxOffload::Deferred => None,
        }
    }

    /// The context, if it works.
    pub(super) fn working(&self) -> Option<Handle> {
        match self.state {
            RxOffload::Device(handle) => Some(handle),
            _ => None,
        }
    }

    /// Whether the direction is on a device, or on its way there.
    pub(super) fn wants_context(&self) -> bool {
        matches!(self.state, RxOffload::Deferred | RxOffload::Adding(_) | RxOffload::Device(_))
    }

    /// Whether the device's news have to be heard before anything is read.
    pub(super) fn is_unsettled(&self) -> bool {
        matches!(self.state, RxOffload::Adding(_)) || self.again.is_due()
    }

    /// Whether the device is to be asked, now or later.
    pub(super) fn waits(&self) -> bool {
        self.again.waits()
    }

    /// Whether it is time to ask it again.
    pub(super) fn is_due(&self) -> bool {
        self.again.is_due()
    }

    /// The direction goes to the device as soon as it is known where its next record begins.
    pub(super) fn defer(&mut self) {
        self.state = RxOffload::Deferred;
    }

    /// The same, for a caller that wants an answer now.
    pub(super) fn ask(&mut self) {
        self.state = RxOffload::Deferred;
        if self.again.waits() {
            self.again.begin();
        }
    }

    /// Whether the device gave the last context up so often that it is left alone for a while.
    pub(super) fn rests_after_loss(&self) -> bool {
        self.state == RxOffload::Deferred && self.again.rests_after_loss()
    }

    /// Somebody waits for the answer of now.
    pub(super) fn hurry(&mut self) {
        self.again.hurry();
    }

    /// Whether the device is to be asked once the next record's place is known.
    pub(super) fn is_to_be_asked_for(&self) -> bool {
        self.state == RxOffload::Deferred && (!self.again.waits() || self.again.is_due())
    }

    /// Why it is not asked for now, whatever the device would say. Reading on changes that.
    pub(super) fn holds_back(&mut self, receiver: &mut Receiver) -> Option<NotOffloaded> {
        let may_ask = !self.key_pending || self.allowance.keys > 0;
        if may_ask && receiver.has_room_for_context() {
            return None;
        }
        self.again.begin();
        Some(if may_ask { NotOffloaded::Unread } else { NotOffloaded::KeyUpdates })
    }

    /// The device is asked.
    pub(super) fn note_asked(&mut self, counters: &mut TlsCounters) {
        counters.offload_retried += u64::from(self.again.was_refused());
    }

    /// It installs a context that begins at `start`.
    pub(super) fn note_added(&mut self, handle: Handle, mode: ResyncMode, start: Seq, counters: &mut TlsCounters) {
        self.allowance.keys -= u8::from(self.key_pending);
        self.state = RxOffload::Adding(handle);
        counters.offload_later += u64::from(self.again.end());
        self.resync = Resync::new(mode, start);
    }

    /// It refused for the time being.
    pub(super) fn note_refused(&mut self, refused: ContextRefusal) {
        self.again.note_refused(refused);
    }

    /// It refused for good, or there is none.
    pub(super) fn refuse(&mut self, reason: NotOffloaded) {
        self.again.end();
        self.state = RxOffload::Refused(reason);
    }

    /// As [`refuse`](Self::refuse), before anything was asked.
    pub(super) fn refuse_unasked(&mut self, reason: NotOffloaded) {
        self.state = RxOffload::Refused(reason);
    }

    /// The context works.
    pub(super) fn note_ready(&mut self, handle: Handle, counters: &mut TlsCounters) {
        self.state = RxOffload::Device(handle);
        counters.rx_device += 1;
        counters.rx_rekey_device += u64::from(core::mem::take(&mut self.key_pending));
    }

    /// The device no longer has the context.
    pub(super) fn lose(&mut self, counters: &mut TlsCounters) {
        if !matches!(self.state, RxOffload::Software | RxOffload::Refused(_)) {
            self.state = RxOffload::Refused(NotOffloaded::Lost);
            self.keep_key_in_software(counters);
        }
    }

    /// It gave the context up unasked.
    pub(super) fn note_lost(&mut self) {
        self.again.note_lost();
        self.state = RxOffload::Deferred;
    }

    /// The device was reset, and is to have the direction again.
    pub(super) fn note_reset(&mut self) {
        self.again.begin();
        self.state = RxOffload::Deferred;
    }

    /// The direction is opened here.
    pub(super) fn leave(&mut self) {
        self.state = RxOffload::Software;
    }

    /// The key changed; `to_device`: the device is to have it.
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

    /// The direction ends.
    pub(super) fn abort_rekey(&mut self, counters: &mut TlsCounters) {
        counters.rx_rekey_aborted += u64::from(core::mem::take(&mut self.key_pending));
    }

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

    /// A record was given out, for the help that the context may need.
    pub(super) fn note_record(&mut self, record: &Record, counters: &mut TlsCounters) {
        if self.working().is_some() && !self.resync.note(record) {
            counters.rx_resync_given_up += 1;
        }
    }

    /// One more record was taken in, of whatever kind.
    pub(super) fn note_unit(&mut self) {
        self.again.note_unit();
    }

    /// What the device says of the context's place.
    pub(super) fn on_resync<S: SegmentStream>(
        &mut self,
        event: DeviceEvent,
        stream: &mut S,
        receiver: &mut Receiver,
        counters: &mut TlsCounters,
    ) {
        match event {
            DeviceEvent::ResyncRequested { handle, header, .. } if self.working() == Some(handle) => {
                match self.resync.log.resolve(header) {
                    Some(number) => self.answer(stream, handle, header, Some(number), counters),
                    None => {
                        self.resync.question = Some((handle, header));
                        self.answer_question(stream, receiver, counters);
                    }
                }
            }
            DeviceEvent::ResyncStarted { handle, from, to, .. } if self.working() == Some(handle) => {
                self.resync.log.start(from, to);
                // The packet's records may have been read before the news.
                for (header, number) in receiver.last_starts() {
                    self.resync.log.note(header, number);
                }
            }
            DeviceEvent::ResyncCancelled { handle, .. } if self.working() == Some(handle) => self.resync.log.cancel(),
            _ => {}
        }
    }

    /// Tells the context whether a record begins where it thinks, as soon as that is known. (An answer for a context that
    /// is gone does no harm.)
    pub(super) fn answer_question<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        receiver: &mut Receiver,
        counters: &mut TlsCounters,
    ) {
        let Some((handle, header)) = self.resync.question else { return };
        let number = match receiver.locate(header) {
            Located::NotYet => return,
            Located::Nothing => None,
            Located::Record(number) => Some(number),
        };
        self.resync.question = None;
        self.answer(stream, handle, header, number, counters);
    }

    /// Tells the context where the next record begins, if it gave nothing but ciphertext for long enough. Called when the
    /// transport has nothing more: what has arrived the device will not see again.
    pub(super) fn give_hint<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        receiver: &mut Receiver,
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

/// Changed receive keys that a device gets whatever else arrives.
const KEYS_AT_ONCE: u8 = 8;
/// Records of data for each one after those.
const RECORDS_A_KEY: u8 = 16;
