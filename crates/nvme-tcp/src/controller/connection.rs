//! One connection of a controller, which is one queue: PDUs in, PDUs and work out.
//!
//! Invariants: a command identifier is in use from its capsule to its completion. Data are taken only where they were
//! asked for: every H2CData byte lies where the next byte of an outstanding request does. What a host can make the
//! connection hold is bounded: commands by the queue's entries, their data by the budget and the capsule size, answers
//! it does not take by the budget and one answer.

use super::fabrics::{self, Queue};
use super::work::{Running, Work};
use super::{Target, TransportConfig, admin, io};
use crate::namespace::{Namespace, Operation, Outcome, Pieces};
use crate::nvme::command::{FabricsType, Transfer};
use crate::nvme::fabrics::ConnectData;
use crate::nvme::log::ErrorEntry;
use crate::nvme::{AdminOpcode, Command, Completion, IoOpcode, SglKind, Status};
use crate::pdu::{
    DataHeader, FatalError, FatalStatus, Framing, InitializeRequest, InitializeResponse, Limits, Pdu, ReadyToTransfer,
    Received, Receiver, Side, WirePdu,
};
use bytes::Bytes;
use core::time::Duration;
use offload_api::RxSegment;
use offload_base::{Instant, time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Names a connection of a [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

/// The state machine of one connection.
///
/// ```
/// use nvme_tcp::controller::{Target, TargetConfig};
/// use nvme_tcp::pdu::InitializeRequest;
/// use nvme_tcp::{Framing, Pdu};
/// use offload_api::{RxMeta, RxSegment};
/// use offload_base::{Instant, Seq};
///
/// let mut target = Target::new(TargetConfig::default());
/// let mut connection = target.accept(Instant::ZERO);
/// let request = Pdu::InitializeRequest(InitializeRequest::default());
/// for piece in Framing::default().frame(&request, []).into_pieces() {
///     let segment = RxSegment { seq: Seq(0), data: piece.try_into_mut().unwrap().into(), meta: RxMeta::default() };
///     connection.handle_segment(Instant::ZERO, segment, &mut target);
/// }
/// let answer = connection.poll_transmit().unwrap();
/// assert_eq!((answer.head[0], answer.len()), (0x01, 128));
/// ```
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    config: TransportConfig,
    receiver: Receiver,
    framing: Framing,
    state: State,
    /// When the host has to have connected.
    deadline: Option<Instant>,
    /// Requests to transfer a command may have outstanding.
    requests_each: u32,
    queue: Option<Queue>,
    commands: BTreeMap<u16, Incoming>,
    /// By TTAG, up to the greatest that was in use.
    requests: Vec<Option<Request>>,
    free_tags: Vec<u16>,
    /// Commands whose data are still to be asked for, in the order they came.
    unasked: VecDeque<u16>,
    /// Bytes of all commands that were asked for data.
    asked_bytes: usize,
    /// Where the data being received go.
    receiving: Option<Receiving>,
    jobs: VecDeque<Job>,
    /// An I/O queue's: what its controller has under way.
    work: Option<Arc<Work>>,
    /// Bytes being read, and read but not sent.
    read_bytes: usize,
    out: VecDeque<WirePdu>,
    /// Of all in `out`.
    out_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for ICReq.
    Opening,
    Open,
    /// Sends what is left, then closes.
    Closing,
}

/// A command without its completion.
#[derive(Debug)]
struct Incoming {
    command: Command,
    /// What is wrong with it already.
    refused: Option<Status>,
    data: Vec<(u32, Bytes)>,
    /// Bytes expected, asked for, and received.
    total: u32,
    asked: u32,
    received: u32,
    outstanding: u32,
    admitted: bool,
    /// At work: everything is there.
    started: bool,
}

/// An R2T that is being answered.
#[derive(Clone, Copy, Debug)]
struct Request {
    command: u16,
    next: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Receiving {
    /// `None`: of a PDU whose data nobody wants.
    command: Option<u16>,
    offset: u32,
    /// The request these data answer.
    tag: Option<u16>,
}

/// Work on namespaces.
#[derive(Debug)]
pub struct Job {
    command: u16,
    namespaces: SmallVec<[Arc<Namespace>; 1]>,
    operation: Operation,
    reads: usize,
    running: Option<Running>,
}

/// A [`Job`] that was carried out.
#[derive(Debug)]
pub struct Done {
    command: u16,
    outcome: Outcome,
    reads: usize,
}

impl Job {
    /// Whether [`run`](Self::run) may wait for a device, and had better be run where nobody waits for it.
    pub fn may_block(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.may_block())
    }

    /// Carries it out. Storage that panics fails the command.
    pub fn run(self) -> Done {
        let mut outcome = Outcome { status: Status::SUCCESS, data: Pieces::new() };
        for namespace in &self.namespaces {
            // A namespace recovers from a panic: its locks are taken poisoned or not, and guard no half-made change.
            outcome = catch_unwind(AssertUnwindSafe(|| namespace.execute(&self.operation)))
                .unwrap_or_else(|_| Outcome { status: Status::INTERNAL_ERROR, data: Pieces::new() });
            if !outcome.status.is_success() {
                break;
            }
        }
        drop(self.running);
        Done { command: self.command, outcome, reads: self.reads }
    }
}

/// What a command comes to at once.
#[derive(Debug)]
pub(super) enum Reply {
    /// Success, with this in the completion.
    Result(u64),
    /// Success, with data.
    Data(Pieces),
    /// Success, and the command named, which waited, is aborted.
    Aborted(u16),
    /// Failure, with this in the completion.
    Failed(Status, u64),
    /// Nothing yet.
    Waits,
    /// Work on namespaces.
    Job(SmallVec<[Arc<Namespace>; 1]>, Operation),
}

impl Reply {
    pub(super) fn data(data: Vec<u8>) -> Reply {
        Reply::Data(Pieces::from_iter([Bytes::from(data)]))
    }
}

impl Connection {
    pub(super) fn new(id: ConnectionId, now: Instant, config: TransportConfig) -> Connection {
        let limits = Limits { max_in_capsule: config.in_capsule.max(ADMIN_CAPSULE), ..Limits::default() };
        Connection {
            id,
            config,
            receiver: Receiver::new(Side::Controller, Limits { max_data: config.max_data, ..limits }),
            framing: Framing::default(),
            state: State::Opening,
            deadline: Some(now + CONNECT_TIME),
            requests_each: 1,
            queue: None,
            commands: BTreeMap::new(),
            requests: Vec::new(),
            free_tags: Vec::new(),
            unasked: VecDeque::new(),
            asked_bytes: 0,
            receiving: None,
            jobs: VecDeque::new(),
            work: None,
            read_bytes: 0,
            out: VecDeque::new(),
            out_bytes: 0,
        }
    }

    /// By which [`Target::take_wakeups`] names it.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Takes the next range of the stream. What is in it after [`wants_input`](Self::wants_input) has become false is
    /// heeded by [`resume`](Self::resume).
    pub fn handle_segment(&mut self, now: Instant, segment: RxSegment, target: &mut Target) {
        if self.state == State::Closing {
            return;
        }
        self.receiver.push(segment);
        self.resume(now, target);
    }

    /// Goes on with what was received, once answers have gone that it waited for.
    pub fn resume(&mut self, now: Instant, target: &mut Target) {
        while self.wants_input() {
            match self.receiver.poll().and_then(|received| self.handle_received(now, received, target)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let data = error.header.clone();
                    self.queue_pdu(&error.pdu(Side::Controller), [data]);
                    self.close(target);
                }
            }
        }
    }

    /// The stream has ended, or was lost.
    pub fn handle_end(&mut self, target: &mut Target) {
        self.close(target);
        self.out.clear();
        self.out_bytes = 0;
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant, target: &mut Target) {
        if self.next_event(target).is_some_and(|due| due <= now) {
            self.close(target);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn next_event(&self, target: &Target) -> Option<Instant> {
        if self.state == State::Closing {
            return None;
        }
        let admin = self.queue.filter(|queue| queue.id == 0);
        let alive = admin.and_then(|queue| target.sessions.get(&queue.controller)?.alive_until());
        time::earliest(self.deadline, alive)
    }

    /// Something happened to the target that concerns this connection.
    pub fn handle_wakeup(&mut self, target: &mut Target) {
        let Some(queue) = self.queue else { return };
        let session = target.sessions.get_mut(&queue.controller);
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
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<WirePdu> {
        let pdu = self.out.pop_front()?;
        self.out_bytes -= pdu.len() as usize;
        self.read_bytes -= pdu.data.iter().map(Bytes::len).sum::<usize>().min(self.read_bytes);
        Some(pdu)
    }

    /// The next piece of work; it comes back by [`complete`](Self::complete).
    pub fn poll_job(&mut self) -> Option<Job> {
        let reads = self.jobs.front()?.reads;
        // A host that does not take what it reads is not read for; but one read is always possible.
        if self.read_bytes > 0 && self.read_bytes + reads > self.config.budget {
            return None;
        }
        let running = match self.work.as_ref().map(Work::begin) {
            // The controller is gone, as this connection is about to hear.
            Some(None) => {
                self.jobs.clear();
                return None;
            }
            running => running.flatten(),
        };
        self.read_bytes += reads;
        self.jobs.pop_front().map(|job| Job { running, ..job })
    }

    /// Takes work back.
    pub fn complete(&mut self, now: Instant, done: Done, target: &mut Target) {
        let _later = now;
        self.read_bytes -= done.reads.min(self.read_bytes);
        if self.state == State::Closing {
            return;
        }
        let Outcome { status, data } = done.outcome;
        if let Some(queue) = self.queue.filter(|queue| queue.id == 0)
            && let Some(session) = target.sessions.get_mut(&queue.controller)
        {
            // What an admin queue does to namespaces is to flush them at a shutdown. If that fails, the command's status
            // tells; it would fail again, so there is nothing for a host to wait for.
            session.shut_down();
        }
        if status.is_success() && !data.is_empty() {
            self.send_data(done.command, data, target);
        } else {
            self.complete_with(done.command, status, 0, target);
        }
    }

    /// Nothing more is received; once [`poll_transmit`](Self::poll_transmit) has nothing left, the stream can go.
    pub fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Whether everything was taken by [`poll_transmit`](Self::poll_transmit).
    pub fn is_drained(&self) -> bool {
        self.out.is_empty()
    }

    /// True while more should be received: a host that sends commands faster than it takes the answers is waited for.
    pub fn wants_input(&self) -> bool {
        self.state != State::Closing && self.out.len() < OUT_PDUS && self.out_bytes <= self.config.budget
    }

    /// Returns whether there may be more.
    fn handle_received(
        &mut self,
        now: Instant,
        received: Option<Received>,
        target: &mut Target,
    ) -> Result<bool, FatalError> {
        match received {
            None => return Ok(false),
            Some(Received::Header { pdu, data }) => match (self.state, pdu) {
                (State::Opening, Pdu::InitializeRequest(request)) => self.initialize(&request)?,
                (State::Open, Pdu::Command(command)) => self.handle_command(now, command, data, target)?,
                (State::Open, Pdu::HostData(header)) => self.handle_data(&header)?,
                (_, Pdu::HostTermination(_)) => self.close(target),
                _ => return Err(self.fatal(FatalStatus::SequenceError, 0)),
            },
            Some(Received::Data(segment)) => self.take_data(segment),
            Some(Received::DataEnd { intact }) => self.end_data(now, intact, target),
        }
        Ok(true)
    }

    fn initialize(&mut self, request: &InitializeRequest) -> Result<(), FatalError> {
        if request.version != 0 {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8));
        }
        if request.alignment > MAX_ALIGNMENT {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 10));
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
        self.framing = Framing { header_digest, data_digest, alignment: request.alignment };
        let limits = self.receiver.limits();
        self.receiver.set_limits(Limits { header_digest, data_digest, alignment: self.config.alignment, ..limits });
        self.requests_each = request.max_requests.saturating_add(1).min(self.config.requests.max(1));
        self.state = State::Open;
        Ok(())
    }

    fn handle_command(
        &mut self,
        now: Instant,
        command: Command,
        data: u32,
        target: &mut Target,
    ) -> Result<(), FatalError> {
        let entries = self.queue.map_or(1, |queue| usize::from(queue.entries));
        if self.commands.len() >= entries {
            // More than the queue has room for.
            return Err(self.fatal(FatalStatus::SequenceError, 0));
        }
        let sgl = command.sgl();
        let in_capsule = sgl.kind() == Some(SglKind::InCapsule);
        if command.transfer() != Transfer::None && sgl.kind().is_none() && sgl.length > 0 {
            return Err(self.fatal(FatalStatus::UnsupportedParameter, 8 + 39));
        }
        if data > 0 || (in_capsule && command.transfer() == Transfer::ToController) {
            if !in_capsule {
                return Err(self.fatal(FatalStatus::UnsupportedParameter, 8 + 39));
            }
            if sgl.address != 0 {
                return Err(self.fatal(FatalStatus::UnsupportedParameter, 8 + 24));
            }
            if sgl.length > self.receiver.limits().max_in_capsule {
                return Err(self.fatal(FatalStatus::LimitExceeded, 8 + 32));
            }
            if sgl.length != data {
                return Err(self.fatal(FatalStatus::UnsupportedParameter, 8 + 32));
            }
        }
        if let Some(queue) = self.queue.as_mut() {
            queue.head = (queue.head + 1) % queue.entries;
        }
        let id = command.identifier();
        if self.commands.contains_key(&id) {
            let completion = self.completion(id, Status::COMMAND_ID_CONFLICT, 0);
            self.queue_pdu(&Pdu::Response(completion), []);
            self.receiving = Some(Receiving { command: None, offset: 0, tag: None });
            return Ok(());
        }
        let expected = self.expected_data(&command, target);
        let wanted = command.transfer() == Transfer::ToController;
        let refused = match expected {
            Err(status) => Some(status),
            // NVMe over Fabrics knows no PRPs.
            Ok(_) if command.flags() & DATA_POINTER != SGL => Some(Status::INVALID_FIELD),
            Ok(expected) if wanted && expected != sgl.length => Some(Status::INVALID_SGL_LENGTH),
            Ok(_) if command.transfer() == Transfer::ToHost && in_capsule => Some(Status::INVALID_SGL_TYPE),
            Ok(_) => None,
        };
        let total = if data > 0 || refused.is_some() || !wanted { data } else { sgl.length };
        let incoming = Incoming {
            command,
            refused,
            data: Vec::new(),
            total,
            asked: data,
            received: 0,
            outstanding: 0,
            admitted: false,
            started: false,
        };
        self.commands.insert(id, incoming);
        if data > 0 {
            self.receiving = Some(Receiving { command: Some(id), offset: 0, tag: None });
        } else if total > 0 {
            self.unasked.push_back(id);
            self.ask();
        } else {
            self.start(now, id, target);
        }
        Ok(())
    }

    /// Bytes of data the command has to come with, or what is wrong with it.
    fn expected_data(&self, command: &Command, target: &Target) -> Result<u32, Status> {
        if command.opcode() == AdminOpcode::Fabrics as u8 {
            return match FabricsType::from_u8(command.fabrics_type()) {
                Some(FabricsType::Connect) => Ok(ConnectData::LEN as u32),
                Some(_) => Ok(0),
                None => Err(Status::INVALID_FIELD),
            };
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let session = target.sessions.get(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
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

    /// Asks for data of commands that wait, as far as budget and tags go.
    fn ask(&mut self) {
        while let Some(&id) = self.unasked.front() {
            let Some(incoming) = self.commands.get_mut(&id) else {
                self.unasked.pop_front();
                continue;
            };
            let total = incoming.total as usize;
            if !incoming.admitted {
                if self.asked_bytes > 0 && self.asked_bytes + total > self.config.budget {
                    return;
                }
                incoming.admitted = true;
                self.asked_bytes += total;
            }
            while incoming.asked < incoming.total && incoming.outstanding < self.requests_each {
                let Some(tag) = self.free_tags.pop().or_else(|| {
                    let tag = u16::try_from(self.requests.len()).ok().filter(|tag| *tag < TAGS)?;
                    self.requests.push(None);
                    Some(tag)
                }) else {
                    return;
                };
                // All but the last end at a multiple of 4 bytes.
                let length = (self.config.request_bytes & !3).max(4).min(incoming.total - incoming.asked);
                let offset = incoming.asked;
                self.requests[usize::from(tag)] = Some(Request { command: id, next: offset, end: offset + length });
                incoming.asked += length;
                incoming.outstanding += 1;
                let request = ReadyToTransfer { command: id, tag, offset, length };
                let pdu = self.framing.frame(&Pdu::ReadyToTransfer(request), []);
                self.out_bytes += pdu.len() as usize;
                self.out.push_back(pdu);
            }
            // The rest, if any, when a request of it is answered.
            self.unasked.pop_front();
        }
    }

    fn handle_data(&mut self, header: &DataHeader) -> Result<(), FatalError> {
        if header.tag >= TAGS {
            return Err(self.fatal(FatalStatus::SequenceError, 10));
        }
        let Some(Some(request)) = self.requests.get(usize::from(header.tag)).copied() else {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 10));
        };
        if request.command != header.command {
            return Err(self.fatal(FatalStatus::SequenceError, 8));
        }
        if header.offset != request.next {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 12));
        }
        if header.length > request.end - request.next {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 16));
        }
        if header.last != (request.next + header.length == request.end) {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 1));
        }
        self.receiving =
            Some(Receiving { command: Some(header.command), offset: header.offset, tag: Some(header.tag) });
        Ok(())
    }

    fn take_data(&mut self, segment: RxSegment) {
        let Some(receiving) = self.receiving.as_mut() else { return };
        let length = segment.data.len() as u32;
        let offset = receiving.offset;
        receiving.offset += length;
        if let Some(incoming) = receiving.command.and_then(|id| self.commands.get_mut(&id)) {
            incoming.received += length;
            if incoming.refused.is_none() {
                incoming.data.push((offset, segment.data.freeze()));
            }
        }
    }

    fn end_data(&mut self, now: Instant, intact: bool, target: &mut Target) {
        let Some(Receiving { command: Some(id), offset, tag }) = self.receiving.take() else { return };
        let Some(incoming) = self.commands.get_mut(&id) else { return };
        if !intact && incoming.refused.is_none() {
            // NVMe/TCP Transport Specification 1.0, 3.3.1.1.2: not fatal to the connection, but to the command.
            incoming.refused = Some(Status::TRANSIENT_TRANSPORT_ERROR);
            incoming.data.clear();
        }
        if let Some(tag) = tag
            && let Some(Some(request)) = self.requests.get_mut(usize::from(tag))
        {
            request.next = offset;
            if request.next == request.end {
                self.requests[usize::from(tag)] = None;
                self.free_tags.push(tag);
                incoming.outstanding -= 1;
                if incoming.asked < incoming.total {
                    self.unasked.push_front(id);
                }
            }
        }
        if incoming.received == incoming.total {
            self.start(now, id, target);
        }
        self.ask();
    }

    /// Everything of the command is here.
    fn start(&mut self, now: Instant, id: u16, target: &mut Target) {
        let Some(incoming) = self.commands.get_mut(&id) else { return };
        incoming.started = true;
        incoming.data.sort_by_key(|(offset, _)| *offset);
        let data: Pieces = incoming.data.drain(..).map(|(_, bytes)| bytes).collect();
        let command = incoming.command;
        let reply = match incoming.refused {
            Some(status) => Err(status),
            None => self.execute(now, &command, data, target),
        };
        match reply {
            Ok(Reply::Result(result)) => self.complete_with(id, Status::SUCCESS, result, target),
            Ok(Reply::Data(mut data)) => {
                let data = split_pieces(&mut data, command.sgl().length as usize);
                self.send_data(id, data, target);
            }
            Ok(Reply::Aborted(aborted)) => {
                self.complete_with(aborted, Status::ABORTED_BY_REQUEST, 0, target);
                self.complete_with(id, Status::SUCCESS, 0, target);
            }
            Ok(Reply::Failed(status, result)) => self.complete_with(id, status, result, target),
            Ok(Reply::Waits) => self.handle_wakeup(target),
            Ok(Reply::Job(namespaces, operation)) => {
                let block = namespaces.first().map_or(0, |namespace| namespace.block_size() as usize);
                let reads = match &operation {
                    Operation::Read { blocks, .. } => *blocks as usize * block,
                    _ => 0,
                };
                self.jobs.push_back(Job { command: id, namespaces, operation, reads, running: None });
            }
            Err(status) => self.complete_with(id, status, 0, target),
        }
    }

    fn execute(&mut self, now: Instant, command: &Command, data: Pieces, target: &mut Target) -> Result<Reply, Status> {
        if command.opcode() == AdminOpcode::Fabrics as u8 {
            return self.execute_fabrics(now, command, &data.concat(), target);
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        if queue.id == 0 {
            return admin::execute(target, queue.controller, command, &data.concat(), now);
        }
        let session = target.sessions.get(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
        let write_cache = session.features.write_cache();
        if command.opcode() == IoOpcode::Flush as u8 && command.namespace() == u32::MAX {
            let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INTERNAL_ERROR)?;
            return Ok(Reply::Job(subsystem.namespaces.values().cloned().collect(), Operation::Flush));
        }
        let namespace = self.namespace(command.namespace(), target)?;
        // The data may have taken their time; the namespace may be another by now.
        io::check(command, &namespace, self.config.max_transfer_bytes())?;
        let operation = io::operation(command, &namespace, data, write_cache)?;
        Ok(Reply::Job(SmallVec::from_iter([namespace]), operation))
    }

    fn execute_fabrics(
        &mut self,
        now: Instant,
        command: &Command,
        data: &[u8],
        target: &mut Target,
    ) -> Result<Reply, Status> {
        let kind = FabricsType::from_u8(command.fabrics_type()).ok_or(Status::INVALID_FIELD)?;
        if kind == FabricsType::Connect {
            if self.queue.is_some() {
                return Err(Status::COMMAND_SEQUENCE_ERROR);
            }
            return Ok(match fabrics::connect(target, self.id, command, data, now) {
                Ok(queue) => {
                    self.queue = Some(queue);
                    self.deadline = None;
                    if queue.id > 0 {
                        // IOCCSZ, from here on.
                        let limits = self.receiver.limits();
                        self.receiver.set_limits(Limits { max_in_capsule: self.config.in_capsule, ..limits });
                        self.work = target.sessions.get(&queue.controller).map(|session| session.work.clone());
                    }
                    Reply::Result(u64::from(queue.controller))
                }
                Err((status, result)) => Reply::Failed(status, result),
            });
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        match (kind, queue.id) {
            (FabricsType::PropertyGet, 0) => fabrics::property_get(target, queue.controller, command),
            (FabricsType::PropertySet, 0) => {
                let set = fabrics::property_set(target, queue.controller, command)?;
                for id in set.given_up {
                    self.forget(id);
                }
                Ok(if set.flush.is_empty() { Reply::Result(0) } else { Reply::Job(set.flush, Operation::Flush) })
            }
            (FabricsType::Disconnect, 0) => Err(Status::INVALID_QUEUE_TYPE),
            (FabricsType::Disconnect, _) => {
                if command.u16(40) != 0 {
                    return Err(Status::CONNECT_FORMAT);
                }
                // Everything else on the queue ends with it.
                let others: Vec<u16> = self.commands.keys().copied().filter(|id| *id != command.identifier()).collect();
                for id in others {
                    self.complete_with(id, Status::ABORTED_QUEUE_DELETED, 0, target);
                }
                self.complete_with(command.identifier(), Status::SUCCESS, 0, target);
                self.close(target);
                Ok(Reply::Waits)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn namespace(&self, id: u32, target: &Target) -> Result<Arc<Namespace>, Status> {
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let session = target.sessions.get(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
        let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INTERNAL_ERROR)?;
        subsystem.namespaces.get(&id).cloned().ok_or(Status::INVALID_NAMESPACE)
    }

    /// Sends what the command `id` reads, and completes it.
    fn send_data(&mut self, id: u16, mut data: Pieces, target: &mut Target) {
        let total: usize = data.iter().map(Bytes::len).sum();
        self.read_bytes += total;
        // NVMe/TCP Transport Specification 1.0, 3.6.2.9: only if the host heeds no queue head. The result is zero.
        let success = self.queue.is_some_and(|queue| !queue.flow_control);
        let mut offset = 0;
        while offset < total {
            let length = (total - offset).min((self.config.data_bytes & !3).max(4) as usize);
            let last = offset + length == total;
            let header = DataHeader {
                command: id,
                tag: 0,
                offset: offset as u32,
                length: length as u32,
                last,
                success: last && success,
            };
            let pieces = split_pieces(&mut data, length);
            self.queue_pdu(&Pdu::ControllerData(header), pieces);
            offset += length;
        }
        if success && total > 0 {
            self.forget(id);
        } else {
            self.complete_with(id, Status::SUCCESS, 0, target);
        }
    }

    fn complete_with(&mut self, id: u16, status: Status, result: u64, target: &mut Target) {
        let Some(command) = self.forget(id) else { return };
        if !status.is_success()
            && let Some(queue) = self.queue
            && let Some(session) = target.sessions.get_mut(&queue.controller)
        {
            let (block, namespace) = if queue.id == 0 { (0, 0) } else { (io::range(&command).0, command.namespace()) };
            let entry = ErrorEntry { count: 0, queue: queue.id, command: id, status, block, namespace };
            session.record_error(entry);
        }
        let completion = self.completion(id, status, result);
        self.queue_pdu(&Pdu::Response(completion), []);
    }

    /// The identifier is free again.
    fn forget(&mut self, id: u16) -> Option<Command> {
        let incoming = self.commands.remove(&id)?;
        if incoming.admitted {
            self.asked_bytes -= incoming.total as usize;
            self.ask();
        }
        Some(incoming.command)
    }

    fn completion(&self, id: u16, status: Status, result: u64) -> Completion {
        // A reserved head says that there is no flow control.
        let queue_head = self.queue.map_or(0, |queue| if queue.flow_control { queue.head } else { u16::MAX });
        Completion { result, queue_head, queue: 0, command: id, status }
    }

    fn queue_pdu(&mut self, pdu: &Pdu, data: impl IntoIterator<Item = Bytes>) {
        let pdu = self.framing.frame(pdu, data);
        self.out_bytes += pdu.len() as usize;
        self.out.push_back(pdu);
    }

    /// Ends the connection once what is queued was sent, and the controller if this is its admin queue.
    fn close(&mut self, target: &mut Target) {
        if self.state == State::Closing {
            return;
        }
        self.state = State::Closing;
        self.commands.clear();
        self.jobs.clear();
        if let Some(queue) = self.queue {
            match target.sessions.get_mut(&queue.controller) {
                Some(session) if queue.id == 0 && session.admin() == self.id => target.end_session(queue.controller),
                Some(session) => session.remove_queue(queue.id, self.id),
                None => {}
            }
        }
    }

    /// An error about the field at `offset` of the PDU received last.
    fn fatal(&self, status: FatalStatus, offset: u32) -> FatalError {
        FatalError::new(status, offset, self.receiver.header())
    }
}

/// Takes `length` bytes off the front of `data`.
fn split_pieces(data: &mut Pieces, length: usize) -> Pieces {
    let mut taken = Pieces::new();
    let (mut left, mut whole) = (length, 0);
    for piece in data.iter_mut() {
        if left == 0 {
            break;
        }
        let part = piece.split_to(piece.len().min(left));
        left -= part.len();
        whole += usize::from(piece.is_empty());
        taken.push(part);
    }
    data.drain(..whole);
    taken
}

/// Admin and Fabrics commands may always have this much data in their capsule (3.3.2.1).
const ADMIN_CAPSULE: u32 = 8192;
/// HPDA and CPDA go up to here.
const MAX_ALIGNMENT: u8 = 31;
/// Transfer tags of a connection.
const TAGS: u16 = 1024;
/// In which a host has to send ICReq and Connect.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// PDUs queued at which no more is received.
const OUT_PDUS: usize = 4096;
/// FUSE, bits 1:0 of byte 1.
const FUSED: u8 = 0b11;
/// PSDT, bits 7:6 of byte 1; 01b: an SGL, and no metadata of their own.
const DATA_POINTER: u8 = 0b11 << 6;
const SGL: u8 = 0b01 << 6;
