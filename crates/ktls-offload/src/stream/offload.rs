//! Moves the directions of a stream to a device and back.
//!
//! Invariant: a transmit context is used only while the transport has a sealer for its key. A receive context begins at
//! a record that has not arrived. The device's success or failure never changes the bytes on the wire.

use super::KtlsStream;
use super::policy::RetransmitDecision;
use crate::record::receive::Record;
use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use offload_api::{ContextRefusal, DeviceEvent, Direction, Handle, ResyncMode, SegmentStream, TlsContexts};
use offload_base::tasks::TaskRole;
use std::io;
use tracing::{debug, trace};

/// The directions that a device is asked to take.
///
/// ```
/// use ktls_offload::Offload;
///
/// assert_eq!(Offload::BOTH, Offload { tx: true, rx: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The transmit direction.
    pub tx: bool,
    /// The receive direction.
    pub rx: bool,
}

impl Offload {
    /// Both directions.
    pub const BOTH: Offload = Offload { tx: true, rx: true };
}

/// The outcome of an offload request.
///
/// ```
/// use ktls_offload::{NotOffloaded, Offloaded, OffloadOutcome};
///
/// let offloaded = Offloaded { tx: OffloadOutcome::NotAsked, rx: OffloadOutcome::Refused(NotOffloaded::NoDevice) };
/// assert!(matches!(offloaded.rx, OffloadOutcome::Refused(why) if !why.passes()), "software receives, to the end");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloaded {
    /// Outcome of the transmit direction.
    pub tx: OffloadOutcome,
    /// Outcome of the receive direction.
    pub rx: OffloadOutcome,
}

/// The outcome of an offload request for one direction.
///
/// ```
/// use ktls_offload::{NotOffloaded, OffloadOutcome};
///
/// assert_eq!(OffloadOutcome::Refused(NotOffloaded::NoDevice).handle(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadOutcome {
    /// The direction was not requested.
    NotAsked,
    /// The device has the direction. A transmit context works from the next record on, a receive context once
    /// [`ready`](KtlsStream::ready) returns.
    Device(Handle),
    /// The device gets the receive direction when the start of the next record is known: a header is incomplete, or the
    /// transport cannot tell the next sequence number yet. [`ready`](KtlsStream::ready) waits for this too.
    Deferred,
    /// The direction stays in software; temporarily if the reason [passes](NotOffloaded::passes).
    Refused(NotOffloaded),
}

impl OffloadOutcome {
    /// Returns the context, if the device has the direction.
    pub fn handle(self) -> Option<Handle> {
        match self {
            OffloadOutcome::Device(handle) => Some(handle),
            _ => None,
        }
    }
}

/// The reason for which a direction stays in software.
///
/// See [`OffloadOutcome`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotOffloaded {
    /// The transport has no device.
    #[error("there is no device below this stream")]
    NoDevice,
    /// The device has no TLS engine.
    #[error("the device does not do TLS")]
    NoTls,
    /// The device refused.
    #[error("{0}")]
    Device(#[from] ContextRefusal),
    /// The device removed the context without being asked. A device may do so when its resources run out.
    #[error("the device gave the context up; it is asked again with later records")]
    Lost,
    /// Too many earlier contexts decrypted data that are still unread; the application must read first.
    #[error("too many earlier contexts decrypted data that is still unread: read from the stream first")]
    Unread,
    /// The peer changed keys too often relative to its data. The device gets the present key after more data.
    #[error("the peer changes keys more often than it sends data")]
    KeyUpdates,
    /// The direction is closed or failed.
    #[error("the direction is closed")]
    Closed,
}

impl NotOffloaded {
    /// Returns whether the reason is temporary. The device is then [asked again](KtlsStream::offload).
    pub fn passes(self) -> bool {
        match self {
            NotOffloaded::Device(refused) => refused.passes(),
            NotOffloaded::Unread | NotOffloaded::KeyUpdates | NotOffloaded::Lost => true,
            NotOffloaded::NoDevice | NotOffloaded::NoTls | NotOffloaded::Closed => false,
        }
    }
}

/// The progress of the receive direction towards a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxOffload {
    /// Offload was not requested.
    Software,
    /// Requested and refused.
    Refused(NotOffloaded),
    /// Waiting until the start of the next record is known.
    Deferred,
    /// The device is installing the context.
    Adding(Handle),
    /// The device opens records.
    Device(Handle),
}

impl<S: SegmentStream> KtlsStream<S> {
    /// Moves directions to the device below, from the next record on. Refused directions stay in software. After a
    /// device reset both directions continue in software and return by themselves: the transmit direction with the next
    /// write, the receive direction when the start of the next record is known.
    ///
    /// A context that the device removes without being asked counts as refused for lack of space. The direction
    /// continues in software and returns with the next record, after a second such loss with the second record, and so
    /// on.
    ///
    /// A temporarily refused direction ([`NotOffloaded::passes`]) is requested again without another call, when it has
    /// a record for the device. For lack of space, the request is repeated with the next record, the second after that,
    /// the fourth and so on, up to every 32nd; if the device is busy or resetting, with each record. An idle stream
    /// makes no requests. [`TlsCounters`](crate::TlsCounters) count the repeated requests and the directions that the
    /// device then accepted. After a permanent refusal only another call of this function asks again.
    ///
    /// Also receives all data that the transport has ready.
    pub fn offload(&mut self, ask: Offload) -> Offloaded {
        // Uses the stream's own waker, so that a task waiting in a read is not forgotten.
        let waker = self.waiting.waker();
        let mut cx = Context::from_waker(&waker);
        self.poll_events(None, &cx);
        let tx = if ask.tx { self.offload_transmit() } else { OffloadOutcome::NotAsked };
        let rx = if ask.rx { self.offload_receive(&mut cx) } else { OffloadOutcome::NotAsked };
        Offloaded { tx, rx }
    }

    /// Waits until the device works on the receive direction or has refused it. The application should let the peer
    /// send only afterwards: software must open earlier records, and the device may lose synchronization because of
    /// them.
    ///
    /// Never waits for space on the device, because the streams that occupy the space may wait for this stream. A
    /// temporary refusal is therefore an answer too: the stream begins in software and moves to the device later by
    /// itself, see [`offload`](Self::offload). After a temporary refusal each call asks the device once more.
    ///
    /// # Errors
    /// None: a reader gets the error that ended the connection, after the received data.
    pub async fn ready(&mut self) -> io::Result<OffloadOutcome> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Polls for the location of the receive direction; see [`ready`](Self::ready).
    ///
    /// # Errors
    /// The errors of [`ready`](Self::ready).
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<OffloadOutcome>> {
        loop {
            self.poll_events(Some(TaskRole::Reader), cx);
            let before = self.rx.state();
            if self.rx.rests_after_loss() {
                // An immediate request could lead to an immediate loss, in an endless loop.
                return Poll::Ready(Ok(OffloadOutcome::Refused(NotOffloaded::Lost)));
            }
            // The caller waits for a current answer.
            self.rx.hurry();
            if let Some(reason) = self.add_deferred(cx) {
                // The caller waits, so a temporary refusal is an answer too.
                return Poll::Ready(Ok(OffloadOutcome::Refused(reason)));
            }
            // A new state may be final already, so it is examined before waiting.
            if self.rx.state() != before {
                continue; // the device may have answered by now
            }
            match self.rx.state() {
                RxOffload::Software => return Poll::Ready(Ok(OffloadOutcome::NotAsked)),
                RxOffload::Refused(reason) => return Poll::Ready(Ok(OffloadOutcome::Refused(reason))),
                RxOffload::Device(handle) => return Poll::Ready(Ok(OffloadOutcome::Device(handle))),
                RxOffload::Adding(_) => return Poll::Pending,
                RxOffload::Deferred => {
                    // Data that arrived before the end are still to be read.
                    let ended = match ready!(self.poll_range(cx)) {
                        Ok(true) => continue,
                        Ok(false) => Ok(()),
                        Err(error) => Err(error),
                    };
                    self.receive.keep_end(ended);
                    self.give_up_deferred();
                }
            }
        }
    }

    /// Returns the context that seals records, if there is one.
    pub fn transmit_context(&self) -> Option<Handle> {
        self.send.context()
    }

    /// Returns the context that opens records, if it works already.
    pub fn receive_context(&self) -> Option<Handle> {
        self.rx.working()
    }

    fn offload_transmit(&mut self) -> OffloadOutcome {
        match self.add_transmit_context() {
            Ok(handle) => OffloadOutcome::Device(handle),
            Err(reason) => {
                debug!(parent: &self.span, %reason, "transmit offload refused");
                // The device did not refuse a closed direction.
                self.counters.offload_refused += u64::from(reason != NotOffloaded::Closed);
                self.tx.end_asking();
                self.tx.note_refused(reason);
                OffloadOutcome::Refused(reason)
            }
        }
    }

    /// Moves the transmit direction to the device, if it is not there already.
    fn add_transmit_context(&mut self) -> Result<Handle, NotOffloaded> {
        if let Some(handle) = self.send.context() {
            return Ok(handle);
        }
        if !self.send.is_open() {
            return Err(NotOffloaded::Closed);
        }
        self.tx.note_asked(&mut self.counters);
        let handle = self.send.add_context(&mut self.stream, &mut self.contexts)?;
        debug!(parent: &self.span, ?handle, "transmit direction offloaded");
        self.tx.note_taken(self.stream.sent(), &mut self.counters);
        self.note_places();
        Ok(handle)
    }

    fn offload_receive(&mut self, cx: &mut Context<'_>) -> OffloadOutcome {
        if let Some(handle) = self.rx.context() {
            return OffloadOutcome::Device(handle);
        }
        if !self.receive.is_open() {
            return OffloadOutcome::Refused(NotOffloaded::Closed);
        }
        let mut able = Err(NotOffloaded::NoDevice);
        self.stream
            .control(&mut |_, device| able = TlsContexts::from_contexts(device).map(|_| ()).ok_or(NotOffloaded::NoTls));
        // Without a TLS engine no later request can succeed, so none is planned.
        if let Err(reason) = able {
            debug!(parent: &self.span, %reason, "receive offload refused");
            self.counters.offload_refused += 1;
            self.rx.refuse_unasked(reason);
            return OffloadOutcome::Refused(reason);
        }
        self.rx.ask();
        if let Some(reason) = self.add_deferred(cx) {
            self.counters.offload_refused += 1;
            return OffloadOutcome::Refused(reason);
        }
        match self.rx.state() {
            RxOffload::Adding(handle) => OffloadOutcome::Device(handle),
            RxOffload::Refused(reason) => OffloadOutcome::Refused(reason),
            _ => OffloadOutcome::Deferred,
        }
    }

    /// Creates the receive context if one is waiting for the next record's start and that is known. Returns the reason
    /// of a temporary refusal.
    pub(super) fn add_deferred(&mut self, cx: &mut Context<'_>) -> Option<NotOffloaded> {
        if !self.rx.is_to_be_asked_for() {
            return None;
        }
        if let Some(reason) = self.rx.holds_back(self.receive.receiver()) {
            return Some(reason);
        }
        // The device does not see bytes that already arrived, so its context must begin after all of them.
        self.receive.receive_ready_data(&mut self.stream, cx);
        if let Some(seq) = self.stream.next_seq() {
            self.receive.receiver().begin_at(seq);
        }
        let (start, number) = match self.receive.receiver().next_boundary() {
            Ok(boundary) => boundary?,
            // Received bytes are not a record. The reader gets the error, and no context can begin after them.
            Err(_) => {
                self.give_up_deferred();
                return None;
            }
        };
        self.rx.note_asked(&mut self.counters);
        let key = self.receive.records().key();
        match self.contexts.add(&mut self.stream, Direction::Receive, start, number, key) {
            Ok(handle) => {
                self.receive.receiver().add_context(handle);
                let mut mode = ResyncMode::default();
                self.stream.control(&mut |_, device| {
                    mode = TlsContexts::from_contexts(device).map(|tls| tls.resync()).unwrap_or_default()
                });
                self.rx.note_added(handle, mode, start, &mut self.counters);
                None
            }
            // After a reset all flows ask at once, which exceeds the device's installation rate.
            Err(NotOffloaded::Device(refused)) if refused.passes() => {
                trace!(parent: &self.span, %refused, "receive offload refused for now");
                self.rx.note_refused(refused);
                Some(refused.into())
            }
            Err(reason) => {
                debug!(parent: &self.span, %reason, "receive offload refused");
                self.counters.offload_refused += 1;
                self.rx.refuse(reason);
                self.rx.keep_key_in_software(&mut self.counters);
                None
            }
        }
    }

    /// Gives up waiting: no further record will arrive for a context to begin with.
    fn give_up_deferred(&mut self) {
        self.rx.refuse(NotOffloaded::Closed);
        self.rx.abort_rekey(&mut self.counters);
    }

    /// Asks the device to take the transmit direction, if a request is due. Called before a record of data.
    pub(super) fn return_to_device(&mut self) {
        if !self.tx.asks_before_record() {
            return;
        }
        if let Err(reason) = self.add_transmit_context() {
            trace!(parent: &self.span, %reason, "transmit offload refused again");
            self.tx.note_refused(reason);
            if !reason.passes() {
                self.counters.offload_refused += 1;
                self.tx.keep_key_in_software(&mut self.counters);
            }
        }
    }

    /// Processes device events, if the stream has or awaits a context.
    pub(super) fn watch_device(&mut self, task: TaskRole, cx: &Context<'_>) {
        let waits = self.tx.waits() || self.rx.waits();
        if waits || self.send.context().is_some() || self.rx.context().is_some() {
            self.poll_events(Some(task), cx);
        }
    }

    /// Processes device events and registers `task` for further ones.
    pub(super) fn poll_events(&mut self, task: Option<TaskRole>, cx: &Context<'_>) {
        if let Some(task) = task {
            // Registers before polling the transport, because an event could arrive in between.
            self.waiting.wait(task, cx);
        }
        self.hear(task, None);
    }

    /// Processes `first` and all other pending device events, and registers `task` for further ones.
    pub(super) fn hear(&mut self, task: Option<TaskRole>, first: Option<DeviceEvent>) {
        // The transport wakes one waker, and an event may concern any task, so all tasks share a waker.
        let waker = self.waiting.waker();
        let mut heard = first.is_some();
        first.into_iter().for_each(|event| self.act_on(event));
        while let Poll::Ready(event) = self.stream.poll_device_event(&mut Context::from_waker(&waker)) {
            heard = true;
            self.act_on(event);
        }
        match task {
            // The polling task sees the change itself; the other tasks must look again.
            Some(task) if heard => self.waiting.wake_others(task),
            None if heard => self.waiting.wake_all(),
            _ => {}
        }
    }

    fn act_on(&mut self, event: DeviceEvent) {
        if self.affects_upper_protocol(&event) {
            self.above.tell(event);
        }
        match event {
            DeviceEvent::Ready { handle, .. } if self.rx.state() == RxOffload::Adding(handle) => {
                debug!(parent: &self.span, ?handle, "receive direction offloaded");
                self.rx.note_ready(handle, &mut self.counters);
                self.note_places();
            }
            DeviceEvent::Removed { handle, .. } => {
                // The device also reports contexts that this stream removed itself.
                if [self.send.context(), self.rx.context()].contains(&Some(handle)) {
                    debug!(parent: &self.span, ?handle, "device lost a context");
                }
                self.contexts.is_gone(handle);
                self.receive.receiver().note_context_gone(handle, self.stream.furthest_seq());
                self.tx.note_gone(handle);
                if self.send.context() == Some(handle) {
                    self.lose_transmit();
                    self.tx.note_lost();
                }
                if self.rx.context() == Some(handle) {
                    self.lose_receive();
                    self.rx.note_lost();
                }
            }
            DeviceEvent::Reset => {
                // The event may be older than the present contexts. The device still has these, so they are removed
                // below.
                debug!(parent: &self.span, "device was reset");
                self.counters.device_resets += 1;
                self.tx.note_reset(self.send.context().is_some());
                // Read before the losses below change the state.
                let had_receive = self.rx.wants_context();
                self.lose_transmit();
                self.lose_receive();
                self.release_unused_contexts();
                if had_receive {
                    self.rx.note_reset();
                }
            }
            _ => self.rx.on_resync(event, &mut self.stream, self.receive.receiver(), &mut self.counters),
        }
    }

    /// Returns whether the protocol above must learn of the event: it concerns a context that is not of TLS, or all
    /// contexts.
    fn affects_upper_protocol(&self, event: &DeviceEvent) -> bool {
        let theirs = match event {
            DeviceEvent::Ready { handle, .. }
            | DeviceEvent::Removed { handle, .. }
            | DeviceEvent::KeyMissing { handle, .. }
            | DeviceEvent::ResyncRequested { handle, .. } => !self.is_ours(*handle),
            DeviceEvent::Reset => true,
            _ => false,
        };
        self.above.watches() && theirs
    }

    /// Returns whether `handle` is or was a context of this stream's TLS.
    fn is_ours(&self, handle: Handle) -> bool {
        self.contexts.knows(handle) || self.receive.records().knows_context(handle)
    }

    /// Records the position of an opened record, which the receive context may need for resynchronization.
    pub(super) fn note_record(&mut self, record: &Record) {
        if self.receive.records().earlier_keys() > 0 {
            self.receive.receiver().drop_earlier_keys(self.stream.furthest_seq());
        }
        self.rx.note_record(record, &mut self.counters);
    }

    /// Moves the transmit direction according to the retransmission policy.
    pub(super) fn consult_policy(&mut self) {
        let context = self.send.context();
        // The policy moves only flows on a device, or flows that it moved to software itself.
        if context.is_none() && !self.tx.policy().holds() {
            return;
        }
        match self.tx.policy().judge(self.stream.sent(), context.is_some()) {
            RetransmitDecision::Stay => {}
            RetransmitDecision::ToSoftware => {
                if self.send.return_to_software() {
                    self.release_unused_contexts();
                    self.count_transmit_software();
                    debug!(parent: &self.span, "too many retransmissions: transmit direction left the device");
                    self.counters.tx_policy_sw += 1;
                }
            }
            RetransmitDecision::ToDevice => {
                if self.offload_transmit().handle().is_some() {
                    self.counters.tx_policy_device += 1;
                }
            }
        }
    }

    /// Switches the transmit direction to software after the device lost its context. The transport seals queued
    /// records.
    fn lose_transmit(&mut self) {
        if self.send.return_to_software() {
            self.count_transmit_software();
        }
        self.tx.keep_key_in_software(&mut self.counters);
        self.note_places();
    }

    /// Switches the receive direction to software after the device lost its context. Earlier verdicts remain valid.
    fn lose_receive(&mut self) {
        self.count_receive_software();
        self.rx.mark_lost(&mut self.counters);
        self.note_places();
    }

    /// Removes the receive context, if there is one.
    pub(super) fn leave_receive_context(&mut self) {
        self.count_receive_software();
        self.rx.leave();
        self.release_unused_contexts();
        self.note_places();
    }

    /// Removes contexts that no direction uses any more.
    pub(super) fn release_unused_contexts(&mut self) {
        let in_use = [self.send.context(), self.rx.context()];
        self.contexts.keep_only(&mut self.stream, in_use);
    }

    pub(super) fn count_transmit_software(&mut self) {
        self.counters.tx_sw += 1;
        self.note_places();
    }

    fn count_receive_software(&mut self) {
        if self.receive.is_open() && self.rx.working().is_some() {
            self.counters.rx_sw += 1;
        }
    }

    /// Updates the `Curr` counters. A direction that ended is not counted.
    pub(super) fn note_places(&mut self) {
        let transmit = self.send.is_open().then(|| self.send.context().is_some());
        let receive = self.receive.is_open().then_some(self.rx.working().is_some());
        self.counters.curr_tx_device = u64::from(transmit == Some(true));
        self.counters.curr_tx_sw = u64::from(transmit == Some(false));
        self.counters.curr_rx_device = u64::from(receive == Some(true));
        self.counters.curr_rx_sw = u64::from(receive == Some(false));
    }
}
