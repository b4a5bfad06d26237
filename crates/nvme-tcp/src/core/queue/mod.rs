//! A connection of a host, which is one queue: commands and PDUs in, PDUs and completions out.
//!
//! ```text
//!   submit -> Queue -- poll_transmit -> stream -- handle_segment -> Queue -- poll_finished -> completion, buffer
//! ```
//!
//! Connecting, keep-alive, reconnecting and resubmission are the task of [`crate::host`].
//!
//! Invariants:
//! - A command identifier is in use until the response has arrived and all requested data have been sent. Its upper
//!   bits change with each use, so that a late PDU for an earlier command is not taken for a later one.
//! - A command with a buffer at a device does not complete before the whole buffer is back.
//! - A submitted command comes back exactly once, with its buffer: finished or unfinished.
//! - The controller cannot make the queue hold more memory than the caller submitted.
//!
//! [`Submission`], [`CommandData`], [`FinishedCommand`]: input and output; [`Buffer`]: memory for reads. Modules:
//! `receiving`: PDUs from the controller; `endings`: completion of commands; `landing`: buffers lent to a device.

mod buffer;
mod endings;
mod landing;
mod receiving;
mod submission;

pub use buffer::Buffer;
pub use submission::{
    AbandonResult, CommandData, DeviceOrder, FinishedCommand, QueueConfig, QueueError, Submission, SubmitError,
};

use crate::namespace::DataPieces;
use crate::wire::{
    Completion, ConnectionSide, DataEncryption, FatalError, FatalStatus, InitializeRequest, Pdu, PduFraming, PduLimits,
    PduReceiver, Sgl, WirePdu,
};
use bytes::Bytes;
use core::task::Waker;
use core::time::Duration;
use landing::{BufferBell, LentBuffer};
use offload_api::{NvmeTcpLimits, RxSegment};
use offload_base::{Instant, Seq, time};
use std::collections::VecDeque;
use std::sync::Arc;

/// The state machine of one connection.
///
/// ```
/// use nvme_tcp::core::queue::{
///     AbandonResult, CommandData, DeviceOrder, FinishedCommand, Queue, QueueConfig, QueueError, Submission,
/// };
/// use nvme_tcp::wire::commands;
/// use offload_base::Instant;
///
/// let mut queue = Queue::new(Instant::ZERO, QueueConfig { depth: 16, ..QueueConfig::default() });
/// assert_eq!(queue.poll_transmit().unwrap().head[0], 0x00, "ICReq");
/// assert!(!queue.is_open(), "the controller has not answered");
/// assert_eq!(queue.room(), 0);
/// let submission = Submission { command: commands::keep_alive(), payload: CommandData::None };
/// assert!(queue.submit(Instant::ZERO, submission).is_err());
/// assert!(matches!(queue.abandon(7), AbandonResult::Complete), "no command has this identifier");
/// let (orders, finished): (Option<DeviceOrder>, Option<FinishedCommand>) = (queue.poll_order(), queue.poll_finished());
/// assert!(orders.is_none() && finished.is_none());
/// queue.handle_end();
/// assert_eq!(queue.error(), Some(&QueueError::Closed));
/// ```
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    receiver: PduReceiver,
    framing: PduFraming,
    state: NvmeQueueState,
    /// MAXH2CDATA.
    max_data: u32,
    /// Slots by the lower bits of the identifier.
    slots: Vec<CommandSlot>,
    free: Vec<u16>,
    submitted: u64,
    /// Deadlines of submitted commands, some of them already finished.
    deadlines: VecDeque<(Instant, u16)>,
    opening_until: Instant,
    receiving: Option<ReadDestination>,
    out: VecDeque<OutgoingPdu>,
    finished: VecDeque<FinishedCommand>,
    /// The limits of the device that places data for the queue. `None` without such a device.
    placement: Option<NvmeTcpLimits>,
    emulation: bool,
    orders: VecDeque<DeviceOrder>,
    bell: Arc<BufferBell>,
    /// Commands that wait for their buffers to come back.
    homing: Vec<u16>,
    error: Option<QueueError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvmeQueueState {
    /// Waiting for ICResp.
    Opening,
    Open,
    /// Sending the queued PDUs, then closing.
    Closing,
}

#[derive(Debug, Default)]
struct CommandSlot {
    uses: u16,
    active: Option<ActiveCommand>,
}

#[derive(Debug)]
struct ActiveCommand {
    id: u16,
    /// Number of the submission, for the order of resubmission.
    order: u64,
    submission: Submission,
    /// The command's buffer, if a device has it.
    landing: Option<LentBuffer>,
    /// Bytes of the command's data in either direction.
    total: u32,
    /// End of the last requested range.
    asked: u32,
    /// Requests with data still to be sent.
    outstanding: u32,
    received: u32,
    damaged: bool,
    response: Option<Completion>,
    /// The task gave the command up.
    abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReadDestination {
    id: u16,
    offset: u32,
    success: bool,
}

#[derive(Debug)]
struct OutgoingPdu {
    pdu: WirePdu,
    /// The command with a request that is fully answered by this PDU, if any.
    answers: Option<u16>,
}

impl CommandSlot {
    fn is(&self, id: u16) -> bool {
        self.active.as_ref().is_some_and(|active| active.id == id)
    }
}

impl Queue {
    /// Creates a queue on a stream that was opened at `now`.
    ///
    /// # Panics
    /// If the depth is outside its limits.
    pub fn new(now: Instant, config: QueueConfig) -> Queue {
        assert!((1..=MAX_DEPTH).contains(&config.depth), "a queue has room for 1 to {MAX_DEPTH} commands");
        let request = InitializeRequest {
            version: 0,
            alignment: config.alignment,
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            max_requests: config.requests.max(1) - 1,
        };
        // The size of the command limits the data of a PDU, so the receiver needs no limit.
        let limits = PduLimits { max_data: u32::MAX, ..PduLimits::default() };
        let pdu = PduFraming::default().frame(&Pdu::InitializeRequest(request), []);
        Queue {
            config,
            receiver: PduReceiver::new(ConnectionSide::Host, limits),
            framing: PduFraming::default(),
            state: NvmeQueueState::Opening,
            max_data: 0,
            slots: (0..config.depth).map(|_| CommandSlot::default()).collect(),
            // Reversed, so that low slots are used first.
            free: (0..config.depth).rev().collect(),
            submitted: 0,
            deadlines: VecDeque::new(),
            opening_until: now + OPENING_TIME,
            receiving: None,
            out: VecDeque::from([OutgoingPdu { pdu, answers: None }]),
            finished: VecDeque::new(),
            placement: None,
            emulation: false,
            orders: VecDeque::new(),
            bell: Arc::default(),
            homing: Vec::new(),
            error: None,
        }
    }

    /// Returns whether the connection is open for commands.
    pub fn is_open(&self) -> bool {
        self.state == NvmeQueueState::Open
    }

    /// Returns how many commands can be submitted now.
    pub fn room(&self) -> usize {
        if self.state == NvmeQueueState::Open { self.free.len() } else { 0 }
    }

    /// Sets the maximum in-capsule data of later commands.
    pub fn set_in_capsule(&mut self, bytes: u32) {
        self.config.in_capsule = bytes;
    }

    /// Submits a command and returns its identifier.
    ///
    /// # Errors
    /// The command comes back if there is no [room](Self::room), if its data are to be encrypted and are not whole
    /// blocks of the volume, or if its volume was erased.
    #[expect(clippy::result_large_err, reason = "the error is the command itself, which moves by value either way")]
    pub fn submit(&mut self, now: Instant, submission: Submission) -> Result<u16, SubmitError> {
        let id = self.submit_open_ended(submission)?;
        if self.deadlines.len() >= 4 * self.slots.len() {
            // Commands that finish behind a slow one keep their deadlines. At most one deadline per slot is live, so
            // this removes at least three of four.
            let slots = &self.slots;
            self.deadlines.retain(|(_, id)| slots[usize::from(id & INDEX_MASK)].is(*id));
        }
        self.deadlines.push_back((now + self.config.command_timeout, id));
        Ok(id)
    }

    /// Submits a command without a timeout, for example one that waits for events.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    #[expect(clippy::result_large_err, reason = "the error is the command itself, which moves by value either way")]
    pub(crate) fn submit_open_ended(&mut self, mut submission: Submission) -> Result<u16, SubmitError> {
        if submission.payload.is_erased() {
            return Err(SubmitError::Erased(submission));
        }
        if let Some(bytes) = submission.not_blocks() {
            return Err(SubmitError::NotBlocks(submission, bytes));
        }
        let index = match self.state {
            NvmeQueueState::Open => self.free.pop(),
            _ => None,
        };
        let Some(index) = index else { return Err(SubmitError::NoRoom(submission)) };
        let slot = &mut self.slots[usize::from(index)];
        // The upper bits change with each use of the slot, so that late PDUs for an earlier command are detected.
        slot.uses = slot.uses.wrapping_add(1);
        let id = index | slot.uses << INDEX_BITS;
        let (total, sgl, (in_capsule, sealing)) = match &submission.payload {
            CommandData::None => (0, Sgl::transport(0), Default::default()),
            CommandData::Read(buffer) => (buffer.len() as u32, Sgl::transport(buffer.len() as u32), Default::default()),
            CommandData::Write(pieces) | CommandData::Encrypt(pieces, _) => {
                let total = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
                match total <= self.config.in_capsule {
                    true => (total, Sgl::in_capsule(total), submission.part(0..total)),
                    false => (total, Sgl::transport(total), Default::default()),
                }
            }
        };
        let asked = if in_capsule.is_empty() { 0 } else { total };
        let command = submission.command.with_identifier(id).with_sgl(sgl);
        if let CommandData::Read(buffer) = &mut submission.payload {
            // The buffer may have been used on a connection that was lost.
            buffer.close();
        }
        let landing = match (&mut submission.payload, self.placement) {
            (CommandData::Read(buffer), Some(limits)) if limits.is_worthwhile(buffer.len(), buffer.parts().len()) => {
                let first = submission.command.first_block();
                let volume = buffer.volume().cloned().map(|volume| (volume, first));
                let (landing, buffer) = LentBuffer::lend(core::mem::take(buffer), first, &self.bell);
                self.orders.push_back(DeviceOrder::Place { command: id, buffer, volume });
                Some(landing)
            }
            _ => None,
        };
        slot.active = Some(ActiveCommand {
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

    /// Gives a command up. A read's buffer comes back, and its data are dropped on arrival. Any other command finishes
    /// with its answer, because the controller may execute the command until then.
    ///
    /// The controller is not told. Abort is best effort, a controller accepts only a few at a time, and the identifier
    /// stays in use until the response arrives, whatever the result of an Abort. The buffer comes back without an
    /// Abort.
    pub fn abandon(&mut self, id: u16) -> AbandonResult {
        let Some(active) = self.active(id).filter(|active| !active.abandoned) else { return AbandonResult::Complete };
        // The controller may still request a write's data, so they have to be kept until the answer.
        if !matches!(active.submission.payload, CommandData::Read(_)) {
            return AbandonResult::Unanswered;
        }
        active.abandoned = true;
        if active.landing.is_some() {
            self.recall_buffer(id);
            return AbandonResult::Later;
        }
        AbandonResult::Now(core::mem::take(&mut active.submission.payload))
    }

    /// Handles the next range of the stream.
    pub fn handle_segment(&mut self, segment: RxSegment) {
        if self.state == NvmeQueueState::Closing {
            return;
        }
        self.receiver.push(segment);
        while self.state != NvmeQueueState::Closing {
            match self.receiver.poll().and_then(|received| self.handle_received(received)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // Pending PDUs are pointless now. The TermReq must be the last PDU.
                    self.out.clear();
                    self.send(
                        &error.pdu(ConnectionSide::Host),
                        DataPieces::from_iter([error.header.clone()]),
                        None,
                        None,
                    );
                    self.close(error.into());
                }
            }
        }
    }

    /// Handles the end or the loss of the stream.
    pub fn handle_end(&mut self) {
        self.out.clear();
        self.close(QueueError::Closed);
    }

    /// Closes the connection if a deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_event().is_some_and(|due| due <= now) {
            self.close(QueueError::TimedOut);
        }
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_event(&mut self) -> Option<Instant> {
        // Deadlines of finished commands are removed here, when they reach the front.
        while let Some((_, id)) = self.deadlines.front() {
            let id = *id;
            if self.active(id).is_some() {
                break;
            }
            self.deadlines.pop_front();
        }
        let opening = (self.state == NvmeQueueState::Opening).then_some(self.opening_until);
        let overdue = self.deadlines.front().map(|(due, _)| *due);
        if self.state == NvmeQueueState::Closing { None } else { time::earliest(opening, overdue) }
    }

    /// Returns the next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<WirePdu> {
        let OutgoingPdu { pdu, answers } = self.out.pop_front()?;
        // With the last data of a request, the controller may send another one for this command.
        if let Some(id) = answers
            && let Some(active) = self.active(id)
        {
            active.outstanding -= 1;
            self.finish_if_done(id);
        }
        Some(pdu)
    }

    /// Sets the limits of the device that places data from now on; `None` ends placement.
    pub(crate) fn set_placement(&mut self, limits: Option<NvmeTcpLimits>) {
        self.placement = limits;
        if limits.is_some() {
            self.receiver.log_starts();
        }
    }

    /// Sets whether data of segments that begin with the magic byte are not copied (`Offload::Emulate`, for
    /// measurements).
    pub(crate) fn set_emulation(&mut self, emulation: bool) {
        self.emulation = emulation;
    }

    /// Returns the next order for a device. Execute it before sending the next PDU.
    pub fn poll_order(&mut self) -> Option<DeviceOrder> {
        self.orders.pop_front()
    }

    /// Completes commands with buffers that have come back. `waker` is woken when more have.
    pub(crate) fn poll_returned_buffers(&mut self, waker: &Waker) {
        if !self.bell.listen(waker) {
            return;
        }
        for id in core::mem::take(&mut self.homing) {
            self.finish_if_returned(id);
        }
    }

    /// Returns the framing of sent PDUs, once the connection is open.
    pub fn framing(&self) -> PduFraming {
        self.framing
    }

    /// Returns HPDA, as sent in ICReq.
    pub fn alignment(&self) -> u8 {
        self.config.alignment
    }

    /// Returns how many bytes are missing before the next PDU begins. `None` if not known yet.
    pub(crate) fn rest_of_pdu(&self) -> Option<u32> {
        self.receiver.rest()
    }

    /// Returns whether a PDU began at `seq`. `None` if the stream has not reached `seq`.
    pub(crate) fn began_at(&self, seq: Seq) -> Option<bool> {
        self.receiver.began_at(seq)
    }

    /// Returns the next finished command.
    pub fn poll_finished(&mut self) -> Option<FinishedCommand> {
        self.finished.pop_front()
    }

    /// Returns the reason why the connection is over, if it is. [`poll_transmit`](Self::poll_transmit) may still return
    /// a termination PDU.
    pub fn error(&self) -> Option<&QueueError> {
        self.error.as_ref()
    }

    /// Returns the unfinished commands in order of submission, to be submitted again on another connection, and reads
    /// that were [abandoned](Self::abandon), whose buffers go to their tasks. No command finishes after this. `None`
    /// while a device has some of the buffers; `waker` is woken when they are back.
    pub fn poll_unfinished(&mut self, waker: &Waker) -> Option<Vec<(u16, Submission)>> {
        self.close(QueueError::Closed);
        // The receiver may hold placed pieces, which have to return.
        self.receiver = PduReceiver::new(ConnectionSide::Host, PduLimits::default());
        self.orders.clear();
        self.bell.listen(waker);
        for slot in &mut self.slots {
            let Some(active) = &mut slot.active else { continue };
            if active.landing.as_ref().is_some_and(|landing| !landing.is_home()) {
                return None;
            }
            if let Some(landing) = active.landing.take() {
                active.submission.payload = CommandData::Read(landing.finish());
            }
        }
        let mut actives: Vec<ActiveCommand> = self.slots.iter_mut().filter_map(|slot| slot.active.take()).collect();
        // A command without a read buffer, abandoned before, has nothing to return.
        actives.retain(|active| !active.abandoned || matches!(active.submission.payload, CommandData::Read(_)));
        actives.sort_by_key(|active| active.order);
        Some(actives.into_iter().map(|active| (active.id, active.submission)).collect())
    }

    /// Returns whether data of an erased volume are to be sent: without the key, nobody can produce the bytes for the
    /// wire.
    pub(crate) fn cannot_send(&self) -> bool {
        let writes = |active: &ActiveCommand| matches!(active.submission.payload, CommandData::Encrypt(..));
        let mut actives = self.slots.iter().filter_map(|slot| slot.active.as_ref());
        actives.any(|active| writes(active) && active.submission.payload.is_erased())
    }

    fn active(&mut self, id: u16) -> Option<&mut ActiveCommand> {
        self.slots.get_mut(usize::from(id & INDEX_MASK))?.active.as_mut().filter(|active| active.id == id)
    }

    fn send(&mut self, pdu: &Pdu, data: DataPieces, sealing: Option<DataEncryption>, answers: Option<u16>) {
        let pdu = self.framing.frame(pdu, data).with_sealing(sealing);
        self.out.push_back(OutgoingPdu { pdu, answers });
    }

    fn close(&mut self, error: QueueError) {
        self.state = NvmeQueueState::Closing;
        self.error.get_or_insert(error);
    }

    /// Returns an error about the field at `offset` of the last PDU.
    fn fatal(&self, status: FatalStatus, offset: u32) -> FatalError {
        FatalError::new(status, offset, self.receiver.header())
    }
}

/// Bits of an identifier that name the slot.
const INDEX_BITS: u32 = 12;
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;
/// Maximum depth. One less than all indices, so that no identifier is FFFFh, which is reserved.
const MAX_DEPTH: u16 = INDEX_MASK;
/// Time within which a controller must answer ICReq.
const OPENING_TIME: Duration = Duration::from_secs(10);
