//! A connection of a controller, which is one queue: PDUs in, PDUs and jobs out.
//!
//! Invariants:
//! - A command identifier is in use from the command's capsule to its completion.
//! - Data are accepted only where requested: every H2CData byte is the next byte of an outstanding request.
//! - A host cannot make the connection hold unlimited memory. The queue's entries limit the commands, the budget and
//!   the capsule size limit their data, and the budget plus one answer limits unsent answers. The target's memory
//!   limits all hosts together.
//! - When a Disconnect is answered, no command of the queue is running. When a Connect is answered, no command of the
//!   queue's earlier connections is running.
//!
//! Modules: `data`: requests for data; `gathered`: received data; `execution`: execution and completion of commands.

mod data;
mod execution;
mod gathered;

use super::fabrics::QueueProperties;
use super::job::{Job, JobResult};
use super::memory::{MemoryAccount, MemoryCharge};
use super::work::{Backlog, QueueWork};
use super::{Target, TransportConfig, admin, io};
use crate::namespace::IoOutcome;
use crate::wire::{
    AdminOpcode, Command, ConnectData, ConnectionSide, DataDirection, FabricsType, FatalError, FatalStatus,
    InitializeRequest, InitializeResponse, IoOpcode, Pdu, PduFraming, PduItem, PduLimits, PduReceiver, SglKind, Status,
    WirePdu,
};
use bytes::Bytes;
use core::time::Duration;
use gathered::GatheredData;
use offload_api::RxSegment;
use offload_base::{Instant, time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Identifier of a connection of a [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

/// The state machine of one connection.
///
/// ```
/// use nvme_tcp::core::controller::{Connection, ConnectionId, JobResult, Job};
/// use nvme_tcp::target::{Target, TargetConfig};
/// use nvme_tcp::wire::{PduFraming, InitializeRequest, Pdu};
/// use offload_api::{RxMeta, RxSegment};
/// use offload_base::{Instant, Seq};
///
/// /// Carries out what hosts have asked for.
/// fn work(now: Instant, connection: &mut Connection, target: &mut Target) {
///     while let Some(job) = connection.poll_job() {
///         let job: Job = job; // it may go to another thread
///         let done: JobResult = job.run();
///         connection.complete(now, done, target);
///     }
/// }
///
/// let mut target = Target::new(TargetConfig::default()).unwrap();
/// let mut connection = target.accept(Instant::ZERO);
/// let (first, second): (ConnectionId, ConnectionId) = (connection.id(), target.accept(Instant::ZERO).id());
/// assert_ne!(first, second);
/// let request = Pdu::InitializeRequest(InitializeRequest::default());
/// for piece in PduFraming::default().frame(&request, []).into_pieces() {
///     let segment = RxSegment { seq: Seq(0), data: piece.try_into_mut().unwrap().into(), meta: RxMeta::default() };
///     connection.handle_segment(Instant::ZERO, segment, &mut target);
/// }
/// work(Instant::ZERO, &mut connection, &mut target);
/// let answer = connection.poll_transmit().unwrap();
/// assert_eq!((answer.head[0], answer.len()), (0x01, 128));
/// ```
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    config: TransportConfig,
    account: Arc<MemoryAccount>,
    receiver: PduReceiver,
    framing: PduFraming,
    state: ConnectionState,
    /// The target had no memory for this connection.
    refused: bool,
    /// Time by which the host must have sent its Connect. `None` once it has.
    deadline: Option<Instant>,
    /// Maximum number of outstanding requests to transfer of a command.
    requests_each: u32,
    queue: Option<QueueProperties>,
    commands: BTreeMap<u16, IncomingCommand>,
    /// Requests by TTAG, up to the highest tag ever used.
    requests: Vec<Option<DataRequest>>,
    free_tags: Vec<u16>,
    /// Commands with data still to be requested, in order of arrival.
    unasked: VecDeque<u16>,
    /// Total size of the commands that were admitted, that is, requested data for.
    asked_bytes: usize,
    /// Data bytes received so far.
    receiving: Option<DataDestination>,
    /// Bytes of data received so far.
    received: u64,
    jobs: VecDeque<Job>,
    /// The running commands of an I/O queue. `None` for other queues.
    work: Option<Arc<QueueWork>>,
    /// Jobs handed out and not completed.
    jobs_out: usize,
    /// The identifier of an unanswered Connect, and the earlier commands of the queue that must end first.
    connecting: Option<(u16, Backlog)>,
    /// Bytes of reads that are running, or read and not yet sent.
    read_bytes: usize,
    out: VecDeque<WirePdu>,
    /// Bytes of all PDUs in `out`.
    out_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// Waiting for ICReq.
    Opening,
    Open,
    /// Waiting for running jobs before the Disconnect with this identifier is answered.
    Disconnecting(u16),
    /// Sending the queued PDUs, then closing.
    Closing,
}

/// A command that is not completed.
#[derive(Debug)]
struct IncomingCommand {
    command: Command,
    /// Number of commands received on the queue before this command.
    number: u64,
    /// Error found before the data arrived.
    refused: Option<Status>,
    data: GatheredData,
    /// Memory charged for the data.
    charge: Option<MemoryCharge>,
    /// Bytes expected, requested, and received.
    total: u32,
    asked: u32,
    received: u32,
    outstanding: u32,
    admitted: bool,
    /// All data are present and execution has begun.
    started: bool,
}

/// An outstanding R2T.
#[derive(Clone, Copy, Debug)]
struct DataRequest {
    command: u16,
    next: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct DataDestination {
    /// The command; `None` if the data are to be discarded.
    command: Option<u16>,
    offset: u32,
    /// End of the requested range.
    end: u32,
    /// TTAG of the answered request.
    tag: Option<u16>,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        now: Instant,
        config: TransportConfig,
        account: Arc<MemoryAccount>,
    ) -> Connection {
        // The queue is not known yet, so the limit must admit the 8 KiB of Admin and Fabrics commands (3.3.2.1).
        let limits = PduLimits { max_in_capsule: config.in_capsule.max(ADMIN_CAPSULE), ..PduLimits::default() };
        Connection {
            id,
            config,
            account,
            receiver: PduReceiver::new(ConnectionSide::Controller, PduLimits { max_data: config.max_data, ..limits }),
            framing: PduFraming::default(),
            state: ConnectionState::Opening,
            refused: false,
            // A peer that opens a connection and then stays silent is closed.
            deadline: Some(now + CONNECT_TIME),
            requests_each: 1,
            queue: None,
            commands: BTreeMap::new(),
            requests: Vec::new(),
            free_tags: Vec::new(),
            unasked: VecDeque::new(),
            asked_bytes: 0,
            receiving: None,
            received: 0,
            jobs: VecDeque::new(),
            work: None,
            jobs_out: 0,
            connecting: None,
            read_bytes: 0,
            out: VecDeque::new(),
            out_bytes: 0,
        }
    }

    /// Marks the connection as refused for lack of memory. It closes at once.
    pub(super) fn refused(self) -> Connection {
        Connection { state: ConnectionState::Closing, refused: true, ..self }
    }

    /// Returns whether the target had no memory for the connection. The host cannot be told why; reset the stream.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns whether the host has opened a queue by a Connect.
    pub fn is_connected(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns whether requested data have not arrived.
    pub(crate) fn expects_data(&self) -> bool {
        self.state == ConnectionState::Open && self.free_tags.len() < self.requests.len()
    }

    /// Returns the number of data bytes received so far.
    pub(crate) fn data_received(&self) -> u64 {
        self.received
    }

    /// Returns the identifier, as in [`Target::take_wakeups`].
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Handles the next range of the stream. If [`wants_input`](Self::wants_input) becomes false within the range, the
    /// rest waits for [`resume`](Self::resume).
    pub fn handle_segment(&mut self, now: Instant, segment: RxSegment, target: &mut Target) {
        if matches!(self.state, ConnectionState::Disconnecting(_) | ConnectionState::Closing) {
            return;
        }
        self.receiver.push(segment);
        self.resume(now, target);
    }

    /// Continues with received data that waits until answers are sent.
    pub fn resume(&mut self, now: Instant, target: &mut Target) {
        while self.wants_input() {
            match self.receiver.poll().and_then(|received| self.handle_received(now, received, target)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let data = error.header.clone();
                    self.queue_pdu(&error.pdu(ConnectionSide::Controller), [data]);
                    self.close(target);
                }
            }
        }
    }

    /// Handles the end or the loss of the stream.
    pub fn handle_end(&mut self, target: &mut Target) {
        self.close(target);
        self.out.clear();
        self.out_bytes = 0;
    }

    /// Handles expired deadlines.
    pub fn handle_timeout(&mut self, now: Instant, target: &mut Target) {
        // The stage changes with time only for an admin queue, which carries the keep-alive timer.
        if let Some(queue) = self.queue.filter(|queue| queue.id == 0)
            && let Some(session) = target.sessions.get_mut(&queue.controller)
        {
            session.watch(now);
        }
        if self.next_event(target).is_some_and(|due| due <= now) {
            self.close(target);
        }
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_event(&self, target: &Target) -> Option<Instant> {
        if self.state == ConnectionState::Closing {
            return None;
        }
        // Keep-alive belongs to the admin queue, so I/O connections have no such deadline.
        let admin = self.queue.filter(|queue| queue.id == 0);
        let alive = admin.and_then(|queue| target.sessions.get(&queue.controller)?.alive_until());
        time::earliest(self.deadline, alive)
    }

    /// Handles a wakeup: an event of the target that concerns this connection.
    pub fn handle_wakeup(&mut self, target: &mut Target) {
        let Some(queue) = self.queue else { return };
        let session = target.sessions.get_mut(&queue.controller);
        // The controller may have ended, or another connection may have taken the queue after a reset.
        let Some(session) = session.filter(|session| match queue.id {
            0 => session.admin() == self.id,
            id => session.has_queue(id, self.id),
        }) else {
            self.close(target);
            return;
        };
        let mut events = SmallVec::<[(u16, u64); 4]>::new();
        if queue.id == 0 {
            events.extend(core::iter::from_fn(|| session.poll_event()));
        }
        for (command, result) in events {
            self.complete_with(command, Status::SUCCESS, result, target);
        }
        self.finish_connect(target);
        self.handle_aborts(target);
        self.ask();
        if self.unasked.is_empty() && self.jobs.is_empty() {
            // The commands that waited for memory are over, so the account's place in the line is no longer needed.
            self.account.stop_waiting();
        }
    }

    /// Returns the next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<WirePdu> {
        let pdu = self.out.pop_front()?;
        self.out_bytes -= pdu.len() as usize;
        self.read_bytes -= pdu.data.iter().map(Bytes::len).sum::<usize>().min(self.read_bytes);
        Some(pdu)
    }

    /// Returns the next job. Return its result with [`complete`](Self::complete).
    pub fn poll_job(&mut self) -> Option<Job> {
        let reads = self.jobs.front()?.reads;
        // Limited, so that one queue leaves storage time to the other queues.
        if self.jobs_out >= JOBS_OUT {
            return None;
        }
        // If the host does not take its answers, no more is read for it. One read is always allowed, whatever its size.
        if self.read_bytes > 0 && self.read_bytes + reads > self.config.budget {
            return None;
        }
        // A read is charged when it starts. A write was charged before its data were requested.
        let charge = if reads > 0 { Some(self.account.take_or_wait(reads)?) } else { None };
        let command = self.jobs.front()?.command;
        let running = match self.work.as_ref().map(|work| work.begin(command)) {
            // The session has ended; this connection will be woken and close.
            Some(None) => {
                self.jobs.clear();
                return None;
            }
            running => running.flatten(),
        };
        self.read_bytes += reads;
        self.jobs_out += 1;
        self.jobs.pop_front().map(|job| Job { running, charge: charge.or(job.charge), ..job })
    }

    /// Takes the result of a job.
    pub fn complete(&mut self, now: Instant, done: JobResult, target: &mut Target) {
        let _ = now;
        self.jobs_out = self.jobs_out.saturating_sub(1);
        self.read_bytes -= done.reads.min(self.read_bytes);
        if self.state == ConnectionState::Closing {
            return;
        }
        let IoOutcome { status, data } = done.outcome;
        if let Some(queue) = self.queue.filter(|queue| queue.id == 0)
            && let Some(session) = target.sessions.get_mut(&queue.controller)
        {
            // The only job of an admin queue is the flush of a shutdown. Shutdown completes even if the flush failed:
            // the command's status reports the failure, and waiting would not help.
            session.shut_down();
        }
        if status.is_success() && !data.is_empty() {
            self.send_data(done.command, data, target);
        } else {
            self.complete_with(done.command, status, 0, target);
        }
        self.finish_disconnect(target);
    }

    /// Returns whether the connection receives no more. The stream can be closed once
    /// [`poll_transmit`](Self::poll_transmit) returns `None`.
    pub fn is_closing(&self) -> bool {
        self.state == ConnectionState::Closing
    }

    /// Returns whether all PDUs were taken by [`poll_transmit`](Self::poll_transmit).
    pub fn is_drained(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns whether no job is waiting or running, and all answers were taken by
    /// [`poll_transmit`](Self::poll_transmit). Commands that wait for their data do not count.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.jobs_out == 0 && self.out.is_empty()
    }

    /// Returns whether more should be received. False while the host does not take its answers.
    pub fn wants_input(&self) -> bool {
        // While a Connect waits for old commands, no command of the new connection may overtake them.
        let listens =
            matches!(self.state, ConnectionState::Opening | ConnectionState::Open) && self.connecting.is_none();
        let is_io = self.work.is_some();
        let most = if is_io { self.config.budget } else { ADMIN_ANSWERS.min(self.config.budget) };
        listens && self.out.len() < OUT_PDUS && self.out_bytes <= most
    }

    /// Returns whether to continue polling the receiver.
    fn handle_received(
        &mut self,
        now: Instant,
        received: Option<PduItem>,
        target: &mut Target,
    ) -> Result<bool, FatalError> {
        match received {
            // A PDU that is not allowed in this state is a fatal sequence error (3.5).
            None => return Ok(false),
            Some(PduItem::Header { pdu, data }) => match (self.state, pdu) {
                (ConnectionState::Opening, Pdu::InitializeRequest(request)) => self.initialize(&request, target)?,
                (ConnectionState::Open, Pdu::Command(command)) => self.handle_command(now, command, data, target)?,
                (ConnectionState::Open, Pdu::HostData(header)) => self.handle_data(&header)?,
                // A TermReq is never answered, because the host has already closed its end.
                (_, Pdu::HostTermination(_)) => self.close(target),
                _ => return Err(self.fatal(FatalStatus::SequenceError, 0)),
            },
            Some(PduItem::Data(segment)) => self.take_data(segment),
            Some(PduItem::DataEnd { intact }) => self.end_data(now, intact, target),
        }
        Ok(true)
    }

    fn initialize(&mut self, request: &InitializeRequest, target: &mut Target) -> Result<(), FatalError> {
        if request.version != 0 {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8));
        }
        if request.alignment > MAX_ALIGNMENT {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 10));
        }
        // ICReq is the first sign of a real host, so the full cost of a connection is charged only here.
        if !self.account.promise(STREAM_BYTES, STREAM_DATA) {
            target.refused_connections += 1;
            self.refused = true;
            self.close(target);
            return Ok(());
        }
        let header_digest = request.header_digest && self.config.header_digest;
        let data_digest = request.data_digest && self.config.data_digest;
        let response = InitializeResponse {
            version: 0,
            alignment: self.config.alignment,
            header_digest,
            data_digest,
            max_data: self.config.max_data,
        };
        self.queue_pdu(&Pdu::InitializeResponse(response), []);
        // The digests apply from the next PDU on. ICResp itself has none.
        self.framing = PduFraming { header_digest, data_digest, alignment: request.alignment };
        let limits = self.receiver.limits();
        self.receiver.set_limits(PduLimits { header_digest, data_digest, alignment: self.config.alignment, ..limits });
        self.requests_each = request.max_requests.saturating_add(1).min(self.config.requests.max(1));
        self.state = ConnectionState::Open;
        Ok(())
    }

    fn handle_command(
        &mut self,
        now: Instant,
        command: Command,
        data: u32,
        target: &mut Target,
    ) -> Result<(), FatalError> {
        self.check_framing(&command, data)?;
        if let Some(queue) = self.queue.as_mut() {
            // The queue head advances for each command taken, executed or not.
            queue.head = (queue.head + 1) % queue.entries;
        }
        let id = command.identifier();
        if self.commands.contains_key(&id) {
            let completion = self.completion(id, Status::COMMAND_ID_CONFLICT, 0);
            self.queue_pdu(&Pdu::Response(completion), []);
            // The in-capsule data of the rejected command are received and dropped.
            self.receiving = Some(DataDestination { command: None, offset: 0, end: data, tag: None });
            return Ok(());
        }
        let refused = self.refusal(now, &command, target);
        // In-capsule data arrive unrequested: the queue's memory covers one capsule for each entry.
        let charge = (data > 0).then(|| self.account.keep());
        let number = self.work.as_ref().map_or(0, |work| work.receive());
        // A refused command must not be asked for data: the host would send data that nobody reads.
        let is_asked = data == 0 && refused.is_none() && command.transfer() == DataDirection::ToController;
        let total = if is_asked { command.sgl().length } else { data };
        let incoming = IncomingCommand {
            command,
            number,
            refused,
            data: GatheredData::default(),
            charge,
            total,
            asked: data,
            received: 0,
            outstanding: 0,
            admitted: false,
            started: false,
        };
        self.commands.insert(id, incoming);
        if data > 0 {
            self.receiving = Some(DataDestination { command: Some(id), offset: 0, end: data, tag: None });
        } else if total > 0 {
            self.unasked.push_back(id);
            self.ask();
        } else {
            self.start(now, id, target);
        }
        Ok(())
    }

    /// Checks that a capsule and its data fit the queue and the connection.
    fn check_framing(&self, command: &Command, data: u32) -> Result<(), FatalError> {
        let unsupported = |at| Err(self.fatal(FatalStatus::UnsupportedParameter, at));
        let entries = self.queue.map_or(1, |queue| usize::from(queue.entries));
        if self.commands.len() >= entries {
            // More commands than the queue has entries.
            return Err(self.fatal(FatalStatus::SequenceError, 0));
        }
        let (sgl, transfer) = (command.sgl(), command.transfer());
        // An SGL type that the transport does not support makes the amount of data unknown, which is fatal to the
        // stream (3.3.2).
        let in_capsule = sgl.kind() == Some(SglKind::InCapsule);
        if transfer != DataDirection::None && sgl.kind().is_none() && sgl.length > 0 {
            return unsupported(8 + 39);
        }
        if data == 0 && !(in_capsule && transfer == DataDirection::ToController) {
            return Ok(());
        }
        if !in_capsule {
            return unsupported(8 + 39);
        }
        if sgl.length > self.receiver.limits().max_in_capsule {
            return Err(self.fatal(FatalStatus::LimitExceeded, 8 + 32));
        }
        if sgl.length != data { unsupported(8 + 32) } else { Ok(()) }
    }

    /// Returns the error with which a command ends without being executed.
    fn refusal(&self, now: Instant, command: &Command, target: &mut Target) -> Option<Status> {
        let (sgl, transfer) = (command.sgl(), command.transfer());
        let in_capsule = sgl.kind() == Some(SglKind::InCapsule);
        // Errors here fail the command only: the stream stays in order, because the amount of data is known.
        match self.expected_data(now, command, target) {
            Err(status) => Some(status),
            // NVMe over Fabrics does not support PRPs.
            Ok(_) if command.flags() & DATA_POINTER != SGL => Some(Status::INVALID_FIELD),
            // The PDU header carries the length of the data, so the stream stays in order.
            Ok(_) if in_capsule && sgl.address != 0 => Some(Status::INVALID_SGL_OFFSET),
            Ok(expected) if transfer == DataDirection::ToController && expected != sgl.length => {
                Some(Status::INVALID_SGL_LENGTH)
            }
            Ok(_) if transfer == DataDirection::ToHost && in_capsule => Some(Status::INVALID_SGL_TYPE),
            Ok(_) => None,
        }
    }

    /// Returns the number of data bytes that must come with the command, or an error in the command.
    fn expected_data(&self, now: Instant, command: &Command, target: &mut Target) -> Result<u32, Status> {
        if command.opcode() == AdminOpcode::Fabrics as u8 {
            return match FabricsType::from_u8(command.fabrics_type()) {
                Some(FabricsType::Connect) => Ok(ConnectData::LEN as u32),
                Some(_) => Ok(0),
                None => Err(Status::INVALID_FIELD),
            };
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let session = target.sessions.get_mut(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
        if queue.id > 0 {
            session.note_use(now);
        }
        if !session.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        if command.flags() & FUSED != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if queue.id == 0 {
            return admin::data_len(command);
        }
        if IoOpcode::from_u8(command.opcode()) == Some(IoOpcode::Flush) {
            return Ok(0);
        }
        let namespace = self.namespace(command.namespace(), target)?;
        io::check(command, &namespace, self.config.max_transfer_bytes())
    }

    fn queue_pdu(&mut self, pdu: &Pdu, data: impl IntoIterator<Item = Bytes>) {
        let pdu = self.framing.frame(pdu, data);
        self.out_bytes += pdu.len() as usize;
        self.out.push_back(pdu);
    }

    /// Closes the connection after sending the queued PDUs. Ends the controller if this is its admin queue.
    fn close(&mut self, target: &mut Target) {
        if self.state == ConnectionState::Closing {
            return;
        }
        // Running jobs complete later, find this state, and are dropped.
        self.state = ConnectionState::Closing;
        self.commands.clear();
        self.jobs.clear();
        self.unasked.clear();
        self.account.stop_waiting();
        if let Some(queue) = self.queue {
            match target.sessions.get_mut(&queue.controller) {
                Some(session) if queue.id == 0 && session.admin() == self.id => target.end_session(queue.controller),
                Some(session) => session.remove_queue(queue.id, self.id),
                None => {}
            }
        }
    }

    /// Returns an error about the field at `offset` of the last PDU.
    fn fatal(&self, status: FatalStatus, offset: u32) -> FatalError {
        FatalError::new(status, offset, self.receiver.header())
    }
}

/// Returns the maximum memory of an I/O queue's entries: commands, answers, and in-capsule data.
pub(super) const fn queue_bytes(entries: u16, in_capsule: u32) -> usize {
    QUEUE_BYTES + entries as usize * (ENTRY_BYTES + in_capsule as usize)
}

/// Bytes that a stream costs before its host has sent an ICReq.
pub(super) const OPENING_BYTES: usize = 8 << 10;
/// Maximum bytes that a connection costs after ICReq: its receive buffer, and answers that the host has not taken.
pub(super) const STREAM_BYTES: usize = 128 << 10;
/// Bytes promised for data of commands on a connection without an I/O queue: two of the largest capsules.
pub(super) const STREAM_DATA: usize = 16 << 10;
/// Bytes that an I/O queue costs beside its entries: answers that the host has not taken, and requests for data.
const QUEUE_BYTES: usize = 128 << 10;
/// Bytes that an entry costs: a command with its place in a tree and a queue, which may both be half empty, and its job
/// or its answer.
const ENTRY_BYTES: usize = 2 * (size_of::<IncomingCommand>() + size_of::<Job>()) + 64;
/// Bytes of in-capsule data that Admin and Fabrics commands may always have (3.3.2.1).
const ADMIN_CAPSULE: u32 = 8192;
/// Maximum HPDA and CPDA.
const MAX_ALIGNMENT: u8 = 31;
/// Time within which a host must send ICReq and Connect.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Maximum number of running jobs of a queue.
const JOBS_OUT: usize = 128;
/// Number of queued PDUs above which no more is received.
const OUT_PDUS: usize = 256;
/// Bytes of unsent answers above which no more is received, except on an I/O queue.
const ADMIN_ANSWERS: usize = 64 << 10;
/// FUSE, bits 1:0 of byte 1.
const FUSED: u8 = 0b11;
/// PSDT, bits 7:6 of byte 1; 01b is an SGL without separate metadata.
const DATA_POINTER: u8 = 0b11 << 6;
const SGL: u8 = 0b01 << 6;
