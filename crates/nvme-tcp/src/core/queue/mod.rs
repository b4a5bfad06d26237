//! One connection of a host, which is one queue: commands and PDUs in, PDUs and completions out.
//!
//! ```text
//!   submit -> Queue -- poll_transmit -> stream -- handle_segment -> Queue -- poll_finished -> completion, buffer
//! ```
//!
//! Connecting, keeping alive, reconnecting and replaying are the host's ([`crate::host`]).
//!
//! Invariants: a command identifier is in use from its capsule until the response is here and all data that were asked
//! for have left. Its upper bits change with each use, so what is late for an earlier command is not taken for a later
//! one's. A command whose buffer a device has does not come to its end before all of the buffer is back. A command that was submitted comes back exactly once, with its buffer:
//! finished, or given up. Nothing the controller sends makes the queue hold more than the caller submitted.
//!
//! - [`Submission`], [`Payload`], [`Finished`]: what goes in and comes out; [`Buffer`]: memory that commands read into;
//! - `receiving`: what controllers send; `endings`: how commands end; `landing`: buffers that a device has pieces of.

mod buffer;
mod endings;
mod landing;
mod receiving;
mod submission;

pub use buffer::Buffer;
pub use submission::{Abandoned, Finished, Order, Payload, QueueConfig, QueueError, Submission, SubmitError};

use crate::namespace::Pieces;
use crate::wire::{
    Completion, FatalError, FatalStatus, Framing, InitializeRequest, Limits, Pdu, Receiver, Sealing, Sgl, Side, WirePdu,
};
use bytes::Bytes;
use core::task::Waker;
use core::time::Duration;
use landing::{Bell, Landing};
use offload_api::{NvmeTcpLimits, RxSegment};
use offload_base::{Instant, Seq, time};
use std::collections::VecDeque;
use std::sync::Arc;

/// The state machine of one connection.
///
/// ```
/// use nvme_tcp::core::queue::{Abandoned, Finished, Order, Payload, Queue, QueueConfig, QueueError, Submission};
/// use nvme_tcp::wire::commands;
/// use offload_base::Instant;
///
/// let mut queue = Queue::new(Instant::ZERO, QueueConfig { depth: 16, ..QueueConfig::default() });
/// assert_eq!(queue.poll_transmit().unwrap().head[0], 0x00, "ICReq");
/// assert!(!queue.is_open(), "the controller has not answered");
/// assert_eq!(queue.room(), 0);
/// let submission = Submission { command: commands::keep_alive(), payload: Payload::None };
/// assert!(queue.submit(Instant::ZERO, submission).is_err());
/// assert!(matches!(queue.abandon(7), Abandoned::Finished), "no command has this identifier");
/// let (orders, finished): (Option<Order>, Option<Finished>) = (queue.poll_order(), queue.poll_finished());
/// assert!(orders.is_none() && finished.is_none());
/// queue.handle_end();
/// assert_eq!(queue.error(), Some(&QueueError::Closed));
/// ```
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    receiver: Receiver,
    framing: Framing,
    state: State,
    /// MAXH2CDATA.
    max_data: u32,
    /// By the lower bits of the identifier.
    slots: Vec<Slot>,
    free: Vec<u16>,
    submitted: u64,
    /// When what was submitted is overdue; some of it is finished already.
    deadlines: VecDeque<(Instant, u16)>,
    opening_until: Instant,
    receiving: Option<Receiving>,
    out: VecDeque<Outgoing>,
    finished: VecDeque<Finished>,
    /// The limits of a device that places data for the queue.
    placement: Option<NvmeTcpLimits>,
    emulation: bool,
    orders: VecDeque<Order>,
    bell: Arc<Bell>,
    /// Commands that wait for their buffers to come back.
    homing: Vec<u16>,
    error: Option<QueueError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for ICResp.
    Opening,
    Open,
    /// Sends what is left, then closes.
    Closing,
}

#[derive(Debug, Default)]
struct Slot {
    uses: u16,
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    id: u16,
    /// Which submission it was.
    order: u64,
    submission: Submission,
    /// Its buffer, if a device has it.
    landing: Option<Landing>,
    /// Bytes of its data, either way.
    total: u32,
    /// Where the data that were asked for last end.
    asked: u32,
    /// Requests whose data have not all left.
    outstanding: u32,
    received: u32,
    damaged: bool,
    response: Option<Completion>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
struct Receiving {
    id: u16,
    offset: u32,
    success: bool,
}

#[derive(Debug)]
struct Outgoing {
    pdu: WirePdu,
    /// With this PDU, a request of this command is answered.
    answers: Option<u16>,
}

impl Slot {
    fn is(&self, id: u16) -> bool {
        self.active.as_ref().is_some_and(|active| active.id == id)
    }
}

impl Queue {
    /// A queue whose stream was opened at `now`.
    ///
    /// # Panics
    /// If the depth is not within its bounds.
    pub fn new(now: Instant, config: QueueConfig) -> Queue {
        assert!((1..=MAX_DEPTH).contains(&config.depth), "a queue has room for 1 to {MAX_DEPTH} commands");
        let request = InitializeRequest {
            version: 0,
            alignment: config.alignment,
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            max_requests: config.requests.max(1) - 1,
        };
        // The command that a PDU is for limits the data it may carry.
        let limits = Limits { max_data: u32::MAX, ..Limits::default() };
        let pdu = Framing::default().frame(&Pdu::InitializeRequest(request), []);
        Queue {
            config,
            receiver: Receiver::new(Side::Host, limits),
            framing: Framing::default(),
            state: State::Opening,
            max_data: 0,
            slots: (0..config.depth).map(|_| Slot::default()).collect(),
            free: (0..config.depth).rev().collect(),
            submitted: 0,
            deadlines: VecDeque::new(),
            opening_until: now + OPENING_TIME,
            receiving: None,
            out: VecDeque::from([Outgoing { pdu, answers: None }]),
            finished: VecDeque::new(),
            placement: None,
            emulation: false,
            orders: VecDeque::new(),
            bell: Arc::default(),
            homing: Vec::new(),
            error: None,
        }
    }

    /// The connection is opened: commands can be submitted.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// How many commands can be submitted now.
    pub fn room(&self) -> usize {
        if self.state == State::Open { self.free.len() } else { 0 }
    }

    /// From now on, data up to this many bytes go along in capsules.
    pub fn set_in_capsule(&mut self, bytes: u32) {
        self.config.in_capsule = bytes;
    }

    /// Sends a command; returns its identifier.
    ///
    /// # Errors
    /// The command comes back without [room](Self::room), if it has data to be encrypted that are no blocks of their volume, and if its
    /// volume was erased.
    #[expect(clippy::result_large_err, reason = "the error is the command itself, which moves by value either way")]
    pub fn submit(&mut self, now: Instant, submission: Submission) -> Result<u16, SubmitError> {
        let id = self.submit_open_ended(submission)?;
        if self.deadlines.len() >= 4 * self.slots.len() {
            // Behind a command that takes its time; at least three of four go.
            let slots = &self.slots;
            self.deadlines.retain(|(_, id)| slots[usize::from(id & INDEX_MASK)].is(*id));
        }
        self.deadlines.push_back((now + self.config.command_timeout, id));
        Ok(id)
    }

    /// The same for a command that may take as long as it likes, as one that waits for events does.
    ///
    /// # Errors
    /// As there.
    #[expect(clippy::result_large_err, reason = "the error is the command itself, which moves by value either way")]
    pub(crate) fn submit_open_ended(&mut self, mut submission: Submission) -> Result<u16, SubmitError> {
        if submission.payload.is_erased() {
            return Err(SubmitError::Erased(submission));
        }
        if let Some(bytes) = submission.not_blocks() {
            return Err(SubmitError::NotBlocks(submission, bytes));
        }
        let index = match self.state {
            State::Open => self.free.pop(),
            _ => None,
        };
        let Some(index) = index else { return Err(SubmitError::NoRoom(submission)) };
        let slot = &mut self.slots[usize::from(index)];
        slot.uses = slot.uses.wrapping_add(1);
        let id = index | slot.uses << INDEX_BITS;
        let (total, sgl, (in_capsule, sealing)) = match &submission.payload {
            Payload::None => (0, Sgl::transport(0), Default::default()),
            Payload::Read(buffer) => (buffer.len() as u32, Sgl::transport(buffer.len() as u32), Default::default()),
            Payload::Write(pieces) | Payload::Encrypt(pieces, _) => {
                let total = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
                match total <= self.config.in_capsule {
                    true => (total, Sgl::in_capsule(total), submission.part(0..total)),
                    false => (total, Sgl::transport(total), Default::default()),
                }
            }
        };
        let asked = if in_capsule.is_empty() { 0 } else { total };
        let command = submission.command.with_identifier(id).with_sgl(sgl);
        if let Payload::Read(buffer) = &mut submission.payload {
            // It may have been read into before, on a connection that was lost.
            buffer.close();
        }
        let landing = match (&mut submission.payload, self.placement) {
            (Payload::Read(buffer), Some(limits)) if limits.is_worthwhile(buffer.len(), buffer.parts().len()) => {
                let first = submission.command.first_block();
                let volume = buffer.volume().cloned().map(|volume| (volume, first));
                let (landing, buffer) = Landing::lend(core::mem::take(buffer), first, &self.bell);
                self.orders.push_back(Order::Place { command: id, buffer, volume });
                Some(landing)
            }
            _ => None,
        };
        slot.active = Some(Active {
            id,
            order: self.submitted,
            submission,
            landing,
            total,
            asked,
            outstanding: 0,
            received: 0,
            damaged: false,
            response: None,
            abandoned: false,
        });
        self.submitted += 1;
        self.send(&Pdu::Command(command), in_capsule, sealing, None);
        Ok(id)
    }

    /// Nobody waits for the command any more: a read's buffer comes back, and its data are dropped as they come. Any other
    /// command finishes when it is answered, for it may be carried out until then.
    ///
    /// The controller is not told: Abort is best effort, a controller takes a few of them at a time, and the identifier is
    /// in use until the response is here whatever an Abort comes to. The buffer depends on neither.
    pub fn abandon(&mut self, id: u16) -> Abandoned {
        let Some(active) = self.active(id).filter(|active| !active.abandoned) else { return Abandoned::Finished };
        if !matches!(active.submission.payload, Payload::Read(_)) {
            return Abandoned::Unanswered;
        }
        active.abandoned = true;
        if active.landing.is_some() {
            self.send_home(id);
            return Abandoned::Later;
        }
        Abandoned::Now(core::mem::take(&mut active.submission.payload))
    }

    /// Takes the next range of the stream.
    pub fn handle_segment(&mut self, segment: RxSegment) {
        if self.state == State::Closing {
            return;
        }
        self.receiver.push(segment);
        while self.state != State::Closing {
            match self.receiver.poll().and_then(|received| self.handle_received(received)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.out.clear();
                    self.send(&error.pdu(Side::Host), Pieces::from_iter([error.header.clone()]), None, None);
                    self.close(error.into());
                }
            }
        }
    }

    /// The stream has ended, or was lost.
    pub fn handle_end(&mut self) {
        self.out.clear();
        self.close(QueueError::Closed);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_event().is_some_and(|due| due <= now) {
            self.close(QueueError::TimedOut);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn next_event(&mut self) -> Option<Instant> {
        while let Some((_, id)) = self.deadlines.front() {
            let id = *id;
            if self.active(id).is_some() {
                break;
            }
            self.deadlines.pop_front();
        }
        let opening = (self.state == State::Opening).then_some(self.opening_until);
        let overdue = self.deadlines.front().map(|(due, _)| *due);
        if self.state == State::Closing { None } else { time::earliest(opening, overdue) }
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<WirePdu> {
        let Outgoing { pdu, answers } = self.out.pop_front()?;
        if let Some(id) = answers
            && let Some(active) = self.active(id)
        {
            active.outstanding -= 1;
            self.finish_if_done(id);
        }
        Some(pdu)
    }

    /// From now on a device places data, within its limits; `None`: no longer.
    pub(crate) fn set_placement(&mut self, limits: Option<NvmeTcpLimits>) {
        self.placement = limits;
        if limits.is_some() {
            self.receiver.log_starts();
        }
    }

    /// From now on, data of segments that begin with the magic byte are not copied: `Offload::Emulate`, a measurement.
    pub(crate) fn set_emulation(&mut self, emulation: bool) {
        self.emulation = emulation;
    }

    /// The next order for a device, to be carried out before the next PDU is sent.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Finishes what waited for buffers that have come back; `waker` is woken when more have.
    pub(crate) fn poll_home(&mut self, waker: &Waker) {
        if !self.bell.listen(waker) {
            return;
        }
        for id in core::mem::take(&mut self.homing) {
            self.finish_if_home(id);
        }
    }

    /// How both ends frame PDUs, once the connection is open.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// HPDA, as the controller was told.
    pub fn alignment(&self) -> u8 {
        self.config.alignment
    }

    /// How many bytes are to come before the first byte of a PDU; `None`: that is not known yet.
    pub(crate) fn rest_of_pdu(&self) -> Option<u32> {
        self.receiver.rest()
    }

    /// Whether a PDU began at `seq`; `None`: that is still to come.
    pub(crate) fn began_at(&self, seq: Seq) -> Option<bool> {
        self.receiver.began_at(seq)
    }

    /// The next command that has come to its end.
    pub fn poll_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Why the connection is over, once it is; [`poll_transmit`](Self::poll_transmit) may have a last word for the
    /// controller.
    pub fn error(&self) -> Option<&QueueError> {
        self.error.as_ref()
    }

    /// What was submitted and has not finished, in that order: identifiers and commands, to be submitted again elsewhere,
    /// or, of reads that were [given up](Self::abandon), to have their buffers back. Nothing will finish any more. `None`: a device has some of their buffers, and `waker` is woken when they
    /// are back.
    pub fn poll_unfinished(&mut self, waker: &Waker) -> Option<Vec<(u16, Submission)>> {
        self.close(QueueError::Closed);
        // What it holds are pieces, maybe.
        self.receiver = Receiver::new(Side::Host, Limits::default());
        self.orders.clear();
        self.bell.listen(waker);
        for slot in &mut self.slots {
            let Some(active) = &mut slot.active else { continue };
            if active.landing.as_ref().is_some_and(|landing| !landing.is_home()) {
                return None;
            }
            if let Some(landing) = active.landing.take() {
                active.submission.payload = Payload::Read(landing.finish());
            }
        }
        let mut actives: Vec<Active> = self.slots.iter_mut().filter_map(|slot| slot.active.take()).collect();
        // Of those given up, the ones whose buffers a device had: whoever gave them up waits for these.
        actives.retain(|active| !active.abandoned || matches!(active.submission.payload, Payload::Read(_)));
        actives.sort_by_key(|active| active.order);
        Some(actives.into_iter().map(|active| (active.id, active.submission)).collect())
    }

    /// Whether data of a volume that was erased are to be sent, or were queued: nobody can make of them what belongs on the wire.
    pub(crate) fn cannot_send(&self) -> bool {
        let writes = |active: &Active| matches!(active.submission.payload, Payload::Encrypt(..));
        let mut actives = self.slots.iter().filter_map(|slot| slot.active.as_ref());
        actives.any(|active| writes(active) && active.submission.payload.is_erased())
    }

    fn active(&mut self, id: u16) -> Option<&mut Active> {
        self.slots.get_mut(usize::from(id & INDEX_MASK))?.active.as_mut().filter(|active| active.id == id)
    }

    fn send(&mut self, pdu: &Pdu, data: Pieces, sealing: Option<Sealing>, answers: Option<u16>) {
        let pdu = self.framing.frame(pdu, data).with_sealing(sealing);
        self.out.push_back(Outgoing { pdu, answers });
    }

    fn close(&mut self, error: QueueError) {
        self.state = State::Closing;
        self.error.get_or_insert(error);
    }

    /// An error about the field at `offset` of the PDU received last.
    fn fatal(&self, status: FatalStatus, offset: u32) -> FatalError {
        FatalError::new(status, offset, self.receiver.header())
    }
}

/// The lower bits of an identifier name the slot.
const INDEX_BITS: u32 = 12;
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;
/// So that no identifier is FFFFh, which stands for none.
const MAX_DEPTH: u16 = INDEX_MASK;
/// In which a controller has to answer ICReq.
const OPENING_TIME: Duration = Duration::from_secs(10);
