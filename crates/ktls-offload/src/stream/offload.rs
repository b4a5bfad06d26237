//! Handing the directions of a stream to a device, and taking them back.
//!
//! Invariant: a transmit context is used only while the transport has a sealer for its key; a receive context begins at
//! a record that has not arrived. What the device then does or does not do changes who works, never the bytes.

use super::KtlsStream;
use super::policy::Verdict;
use crate::record::receive::Record;
use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use offload_api::{ContextRefusal, DeviceEvent, Direction, Handle, ResyncMode, SegmentStream, TlsContexts};
use offload_base::tasks::TaskRole;
use std::io;
use tracing::{debug, trace};

/// Which directions a device is asked to take.
///
/// ```
/// use ktls_offload::Offload;
///
/// assert_eq!(Offload::BOTH, Offload { tx: true, rx: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// What this end sends.
    pub tx: bool,
    /// What this end receives.
    pub rx: bool,
}

impl Offload {
    /// Both directions.
    pub const BOTH: Offload = Offload { tx: true, rx: true };
}

/// What became of a request to offload.
///
/// ```
/// use ktls_offload::{NotOffloaded, Offloaded, Outcome};
///
/// let offloaded = Offloaded { tx: Outcome::NotAsked, rx: Outcome::Refused(NotOffloaded::NoDevice) };
/// assert!(matches!(offloaded.rx, Outcome::Refused(why) if !why.passes()), "software receives, to the end");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloaded {
    /// What this end sends.
    pub tx: Outcome,
    /// What this end receives.
    pub rx: Outcome,
}

/// What became of a request for one direction.
///
/// ```
/// use ktls_offload::{NotOffloaded, Outcome};
///
/// assert_eq!(Outcome::Refused(NotOffloaded::NoDevice).handle(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not asked for.
    NotAsked,
    /// The device has it. A transmit context works from the next record on; a receive context once
    /// [`ready`](KtlsStream::ready) says so.
    Device(Handle),
    /// The device will get it as soon as it is known where the next record begins: half a header has arrived, or nothing
    /// yet over a transport that cannot tell where it will. [`ready`](KtlsStream::ready) waits for that too. (Receiving
    /// only.)
    Deferred,
    /// It stays in software: for the time being, if the reason [passes](NotOffloaded::passes).
    Refused(NotOffloaded),
}

impl Outcome {
    /// The context, if there is one.
    pub fn handle(self) -> Option<Handle> {
        match self {
            Outcome::Device(handle) => Some(handle),
            _ => None,
        }
    }
}

/// Why a direction stays in software.
///
/// See [`Outcome`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotOffloaded {
    /// The transport has no device.
    #[error("there is no device below this stream")]
    NoDevice,
    /// The device does nothing about TLS.
    #[error("the device does not do TLS")]
    NoTls,
    /// The device would not.
    #[error("{0}")]
    Device(#[from] ContextRefusal),
    /// The device had it and gave it up unasked, as it may what it cannot do in the end.
    #[error("the device gave the context up; it is asked again with later records")]
    Lost,
    /// Too many contexts came and went, and what they decrypted is still unread: read on.
    #[error("too many earlier contexts decrypted data that is still unread: read from the stream first")]
    Unread,
    /// The peer changed its key too often for the data that it sent: the device gets the present one when more has come.
    #[error("the peer changes keys more often than it sends data")]
    KeyUpdates,
    /// The direction is closed, or failed.
    #[error("the direction is closed")]
    Closed,
}

impl NotOffloaded {
    /// Whether the device may take it later. Then it is [asked again](KtlsStream::offload).
    pub fn passes(self) -> bool {
        match self {
            NotOffloaded::Device(refused) => refused.passes(),
            NotOffloaded::Unread | NotOffloaded::KeyUpdates | NotOffloaded::Lost => true,
            NotOffloaded::NoDevice | NotOffloaded::NoTls | NotOffloaded::Closed => false,
        }
    }
}

/// How far the receive direction is on its way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxOffload {
    /// Nobody asked.
    Software,
    /// Asked, and turned down.
    Refused(NotOffloaded),
    /// Waiting for the next record's place to be known.
    Deferred,
    /// The device has the context and is installing it.
    Adding(Handle),
    /// The device works.
    Device(Handle),
}

impl<S: SegmentStream> KtlsStream<S> {
    /// Hands directions to the device below, from the next record on. Whatever it refuses stays in software. After a
    /// reset both go on in software and return by themselves: what this end sends with the next write, what it receives
    /// as soon as it is known where the next record begins.
    ///
    /// A context that the device gives up unasked counts as refused for want of space: the direction goes on in software and
    /// returns with the next record, after a second such loss with the second record, and so on.
    ///
    /// A direction that was refused for a reason that [passes](NotOffloaded::passes) is asked for again without further
    /// ado, when it has a record for the device. For want of space that is with the next record, then with the second
    /// after that, the fourth and so on, up to every 32nd; if the device is busy or being reset, with each. A stream that
    /// is idle asks nothing. [`TlsCounters`](crate::TlsCounters) tell how often the device was asked again, and how many
    /// directions it took then. If the device refuses for good, nobody asks but this function.
    ///
    /// Takes in what the transport has received.
    pub fn offload(&mut self, ask: Offload) -> Offloaded {
        // A task that waits in a read goes on waiting.
        let waker = self.waiting.waker();
        let mut cx = Context::from_waker(&waker);
        self.poll_events(None, &cx);
        let tx = if ask.tx { self.offload_transmit() } else { Outcome::NotAsked };
        let rx = if ask.rx { self.offload_receive(&mut cx) } else { Outcome::NotAsked };
        Offloaded { tx, rx }
    }

    /// Waits until it is answered whether the receive direction is on the device: until the device works, or has refused.
    /// The peer should hear that only now: a record that it sends before has to be opened in software, and may cost the
    /// device its place.
    ///
    /// It never waits for room, which others would have to make, and they may be waiting for this stream: a refusal is an
    /// answer, also one that [passes](NotOffloaded::passes). The stream then begins in software, and goes to the device
    /// later by itself, see [`offload`](Self::offload). Each call asks the device once more, if it refused for the time
    /// being.
    ///
    /// # Errors
    /// None: what ended the connection is told to who reads, behind what had arrived by then.
    pub async fn ready(&mut self) -> io::Result<Outcome> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Polls for what [`ready`](Self::ready) waits for.
    ///
    /// # Errors
    /// As there.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Outcome>> {
        loop {
            self.poll_events(Some(TaskRole::Reader), cx);
            let before = self.rx.state();
            if self.rx.rests_after_loss() {
                // To ask at once might be to lose it at once, without an end.
                return Poll::Ready(Ok(Outcome::Refused(NotOffloaded::Lost)));
            }
            // Somebody waits for the answer of now.
            self.rx.hurry();
            if let Some(reason) = self.add_deferred(cx) {
                // Somebody waits, so a refusal is an answer, also one that passes.
                return Poll::Ready(Ok(Outcome::Refused(reason)));
            }
            if self.rx.state() != before {
                continue; // the device may have spoken by now
            }
            match self.rx.state() {
                RxOffload::Software => return Poll::Ready(Ok(Outcome::NotAsked)),
                RxOffload::Refused(reason) => return Poll::Ready(Ok(Outcome::Refused(reason))),
                RxOffload::Device(handle) => return Poll::Ready(Ok(Outcome::Device(handle))),
                RxOffload::Adding(_) => return Poll::Pending,
                RxOffload::Deferred => {
                    // What arrived before the end is still to be read.
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

    /// The context that records are left to, if there is one.
    pub fn transmit_context(&self) -> Option<Handle> {
        self.send.context()
    }

    /// The context that opens records, if it works already.
    pub fn receive_context(&self) -> Option<Handle> {
        self.rx.working()
    }

    fn offload_transmit(&mut self) -> Outcome {
        match self.add_transmit_context() {
            Ok(handle) => Outcome::Device(handle),
            Err(reason) => {
                debug!(parent: &self.span, %reason, "transmit offload refused");
                self.counters.offload_refused += u64::from(reason != NotOffloaded::Closed);
                self.tx.end_asking();
                self.tx.note_refused(reason);
                Outcome::Refused(reason)
            }
        }
    }

    /// Hands the transmit direction to the device, if it is not there already.
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

    fn offload_receive(&mut self, cx: &mut Context<'_>) -> Outcome {
        if let Some(handle) = self.rx.context() {
            return Outcome::Device(handle);
        }
        if !self.receive.is_open() {
            return Outcome::Refused(NotOffloaded::Closed);
        }
        let mut able = Err(NotOffloaded::NoDevice);
        self.stream
            .control(&mut |_, device| able = TlsContexts::from_contexts(device).map(|_| ()).ok_or(NotOffloaded::NoTls));
        if let Err(reason) = able {
            debug!(parent: &self.span, %reason, "receive offload refused");
            self.counters.offload_refused += 1;
            self.rx.refuse_unasked(reason);
            return Outcome::Refused(reason);
        }
        self.rx.ask();
        if let Some(reason) = self.add_deferred(cx) {
            self.counters.offload_refused += 1;
            return Outcome::Refused(reason);
        }
        match self.rx.state() {
            RxOffload::Adding(handle) => Outcome::Device(handle),
            RxOffload::Refused(reason) => Outcome::Refused(reason),
            _ => Outcome::Deferred,
        }
    }

    /// Adds the receive context, if one is waiting for the next record's place to be known, and it is. Gives the reason if
    /// it is refused for the time being.
    pub(super) fn add_deferred(&mut self, cx: &mut Context<'_>) -> Option<NotOffloaded> {
        if !self.rx.is_to_be_asked_for() {
            return None;
        }
        if let Some(reason) = self.rx.holds_back(self.receive.receiver()) {
            return Some(reason);
        }
        // What has arrived the device will not see again: its context has to begin behind all of it.
        self.receive.take_in(&mut self.stream, cx);
        if let Some(seq) = self.stream.next_seq() {
            self.receive.receiver().begin_at(seq);
        }
        let (start, number) = match self.receive.receiver().next_boundary() {
            Ok(boundary) => boundary?,
            // What arrived is no record: reading tells, and no context will begin behind it.
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
            // After a reset every flow comes at once, more than the device takes at a time.
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

    /// There will be no next record for a context to begin with.
    fn give_up_deferred(&mut self) {
        self.rx.refuse(NotOffloaded::Closed);
        self.rx.abort_rekey(&mut self.counters);
    }

    /// Hands the transmit direction to the device, if it is to get it and it is time to ask. Called before a record of
    /// data.
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

    /// Acts on what happened to the device, if the stream has anything there.
    pub(super) fn watch_device(&mut self, task: TaskRole, cx: &Context<'_>) {
        let waits = self.tx.waits() || self.rx.waits();
        if waits || self.send.context().is_some() || self.rx.context().is_some() {
            self.poll_events(Some(task), cx);
        }
    }

    /// Acts on what happened to the device; `task` waits for more of it.
    pub(super) fn poll_events(&mut self, task: Option<TaskRole>, cx: &Context<'_>) {
        if let Some(task) = task {
            // Said before the transport is asked, or its answer might come in between.
            self.waiting.wait(task, cx);
        }
        self.hear(task, None);
    }

    /// Acts on `first` and on whatever else happened to the device; `task` waits for more of it.
    pub(super) fn hear(&mut self, task: Option<TaskRole>, first: Option<DeviceEvent>) {
        // The transport wakes one, and what it tells may be for any of the tasks.
        let waker = self.waiting.waker();
        let mut heard = first.is_some();
        first.into_iter().for_each(|event| self.act_on(event));
        while let Poll::Ready(event) = self.stream.poll_device_event(&mut Context::from_waker(&waker)) {
            heard = true;
            self.act_on(event);
        }
        match task {
            Some(task) if heard => self.waiting.wake_others(task),
            None if heard => self.waiting.wake_all(),
            _ => {}
        }
    }

    fn act_on(&mut self, event: DeviceEvent) {
        if self.concerns_above(&event) {
            self.above.tell(event);
        }
        match event {
            DeviceEvent::Ready { handle, .. } if self.rx.state() == RxOffload::Adding(handle) => {
                debug!(parent: &self.span, ?handle, "receive direction offloaded");
                self.rx.note_ready(handle, &mut self.counters);
                self.note_places();
            }
            DeviceEvent::Removed { handle, .. } => {
                // Contexts that were given back come here too.
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
                // The news may be older than the contexts: then the device still has them.
                debug!(parent: &self.span, "device was reset");
                self.counters.device_resets += 1;
                self.tx.note_reset(self.send.context().is_some());
                let had_receive = self.rx.wants_context();
                self.lose_transmit();
                self.lose_receive();
                self.give_back_unused();
                if had_receive {
                    self.rx.note_reset();
                }
            }
            _ => self.rx.on_resync(event, &mut self.stream, self.receive.receiver(), &mut self.counters),
        }
    }

    /// Whether a protocol above is to hear of an event: it is about a context that is not TLS's, or about all.
    fn concerns_above(&self, event: &DeviceEvent) -> bool {
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

    /// Whether this is, or was, a context of TLS.
    fn is_ours(&self, handle: Handle) -> bool {
        self.contexts.knows(handle) || self.receive.records().knows_context(handle)
    }

    /// Takes note of a record, for the help that the receive context may need.
    pub(super) fn note_record(&mut self, record: &Record) {
        if self.receive.records().earlier_keys() > 0 {
            self.receive.receiver().drop_earlier_keys(self.stream.furthest_seq());
        }
        self.rx.note_record(record, &mut self.counters);
    }

    /// Has the transmit direction go where its retransmissions say.
    pub(super) fn consult_policy(&mut self) {
        let context = self.send.context();
        if context.is_none() && !self.tx.policy().holds() {
            return;
        }
        match self.tx.policy().judge(self.stream.sent(), context.is_some()) {
            Verdict::Stay => {}
            Verdict::ToSoftware => {
                if self.send.come_back() {
                    self.give_back_unused();
                    self.count_transmit_software();
                    debug!(parent: &self.span, "too many retransmissions: transmit direction left the device");
                    self.counters.tx_policy_sw += 1;
                }
            }
            Verdict::ToDevice => {
                if self.offload_transmit().handle().is_some() {
                    self.counters.tx_policy_device += 1;
                }
            }
        }
    }

    /// The device no longer has the transmit context. What is queued for it the transport has sealed.
    fn lose_transmit(&mut self) {
        if self.send.come_back() {
            self.count_transmit_software();
        }
        self.tx.keep_key_in_software(&mut self.counters);
        self.note_places();
    }

    /// The device no longer has the receive context. What it decrypted before still counts.
    fn lose_receive(&mut self) {
        self.count_receive_software();
        self.rx.lose(&mut self.counters);
        self.note_places();
    }

    /// Takes the receive context, if there is one, off the device.
    pub(super) fn leave_receive_context(&mut self) {
        self.count_receive_software();
        self.rx.leave();
        self.give_back_unused();
        self.note_places();
    }

    /// Gives back the contexts that neither direction uses any more.
    pub(super) fn give_back_unused(&mut self) {
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

    /// Counts where the directions are. One that ended is nowhere.
    pub(super) fn note_places(&mut self) {
        let transmit = self.send.is_open().then(|| self.send.context().is_some());
        let receive = self.receive.is_open().then_some(self.rx.working().is_some());
        self.counters.curr_tx_device = u64::from(transmit == Some(true));
        self.counters.curr_tx_sw = u64::from(transmit == Some(false));
        self.counters.curr_rx_device = u64::from(receive == Some(true));
        self.counters.curr_rx_sw = u64::from(receive == Some(false));
    }
}
