//! Lanes: commands on their way to a queue and back. Commands wait here while there is no connection.
//!
//! Invariants: every ticket is completed exactly once: when the command ends, when the command is cancelled, or when
//! the task that owns the command is lost. A command that may change something is not completed as cancelled while the
//! command may still be executed.

use super::abandoned_commands::AbandonedCommands;
use super::error::{CommandError, HostError, ReadError};
use super::inspected_namespace::InspectedNamespace;
use super::scope::CommandScope;
use super::{Association, CommandOutcome, lock};
use crate::core::queue::{Buffer, CommandData, Submission};
use crate::wire::Completion;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use offload_base::{Instant, time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The future of a command without a buffer.
///
/// If the future is dropped, by a timeout or a `select!`, the command is [abandoned](CommandFuture::cancel). A command
/// that changes something, such as a write, may still be executed, but not after later commands: a command that is
/// submitted after the drop for some of the same blocks, on any queue, is sent only when the abandoned command can no
/// longer be executed. For the exception, see [`cancel`](CommandFuture::cancel).
///
/// ```
/// use nvme_tcp::host::{CommandError, Disk, CommandFuture};
///
/// /// Sends two writes at once, then a flush, so that both are on the medium.
/// async fn twice(disk: &Disk, data: [bytes::Bytes; 2]) -> Result<(), CommandError> {
///     let [first, second]: [CommandFuture; 2] = [disk.write(0, [data[0].clone()]), disk.write(8, [data[1].clone()])];
///     first.await?;
///     second.await?;
///     disk.flush().await.map(|_| ())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a command is abandoned when its future is dropped"]
pub struct CommandFuture(pub(super) PendingCommand);

/// The future of a command that reads into a buffer. It always returns the buffer. If a task of the host was lost,
/// the buffer is empty. If the future is dropped, the command is abandoned.
///
/// See [`Host`](crate::Host) for an example.
#[derive(Debug)]
#[must_use = "a command is abandoned when its future is dropped"]
pub struct ReadFuture(pub(super) PendingCommand);

/// The commands of one queue.
#[derive(Debug)]
pub(super) struct CommandLane {
    given_up: Arc<AbandonedCommands>,
    state: Mutex<LaneState>,
}

#[derive(Debug, Default)]
struct LaneState {
    pending: VecDeque<LaneEntry>,
    /// Commands that wait until the given time before a retry, or, without a time, until their namespace is confirmed.
    resting: Vec<(Option<Instant>, LaneEntry)>,
    cancelled: Vec<Arc<CommandTicket>>,
    instruction: Option<LaneInstruction>,
    ended: Option<HostError>,
    waker: Option<Waker>,
}

/// Instructions to the task of a queue.
#[derive(Clone, Debug)]
pub(super) enum LaneInstruction {
    /// Connect to this controller.
    Open(Arc<Association>),
    /// Close the connection.
    Cut,
    /// Stop permanently.
    End,
}

/// A command that waits to be sent.
#[derive(Debug)]
pub(super) struct LaneEntry {
    pub(super) submission: Submission,
    pub(super) ticket: OwnedTicket,
    pub(super) counts: RetryCounts,
    /// Whether the command was sent on a lost connection. The old controller may execute the command until there is a
    /// new connection.
    pub(super) was_sent: bool,
}

/// Retries of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryCounts {
    /// Retries that the controller's status allowed.
    pub(super) retries: u32,
    /// Resubmissions after a lost connection.
    pub(super) replays: u32,
    /// Retries because of a temporary status.
    pub(super) temporary: Option<TemporaryFailure>,
}

/// Duration and number of retries because of a temporary status.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemporaryFailure {
    /// Generation of the connection. `since` and `times` restart with the next connection.
    pub(super) generation: u64,
    pub(super) since: Instant,
    pub(super) times: u32,
}

/// The link between a command and its future.
#[derive(Debug)]
pub(super) struct CommandTicket {
    scope: CommandScope,
    /// The inspected namespace of the command. `None` for other commands.
    known: Option<Arc<InspectedNamespace>>,
    state: Mutex<TicketState>,
}

/// A ticket, held by the task that has to complete it.
#[derive(Debug)]
pub(super) struct OwnedTicket(Arc<CommandTicket>);

#[derive(Debug, Default)]
struct TicketState {
    outcome: Option<CommandOutcome>,
    settled: bool,
    cancelled: bool,
    /// The list of abandoned commands that contains the ticket, if one does.
    listed: Option<Arc<AbandonedCommands>>,
    /// Identifier in the current queue. `None` if the command is not in a queue.
    id: Option<u16>,
    waker: Option<Waker>,
}

/// The future of any command.
#[derive(Debug)]
pub(super) struct PendingCommand {
    ticket: Arc<CommandTicket>,
    lane: Option<Arc<CommandLane>>,
}

/// Instructions and commands for the task of a queue.
#[derive(Debug, Default)]
pub(super) struct LaneBatch {
    pub(super) instruction: Option<LaneInstruction>,
    pub(super) entries: Vec<LaneEntry>,
    /// Cancelled commands that were sent and change nothing.
    pub(super) cancelled: Vec<Arc<CommandTicket>>,
    /// When the next waiting retry is due.
    pub(super) rested: Option<Instant>,
}

impl CommandFuture {
    /// Abandons the command. The future ends with [`CommandError::Cancelled`] unless the command had already ended,
    /// even if the controller then reports success.
    ///
    /// A command that changes nothing, or that was not sent yet, ends at once. A command that was sent and may change
    /// something, such as a write, ends when it can no longer be executed: when the controller has answered in any way,
    /// or when the host is connected again after a loss. Commands submitted after the future has ended therefore run
    /// after this command. Commands for some of the same blocks that are submitted before the future ends are held
    /// until it ends.
    ///
    /// The exception is a host without a keep-alive that loses a silent controller: such a host cannot know when the
    /// controller notices. The future then ends with [`CommandError::Uncertain`], held commands are sent, and the
    /// abandoned command may be executed last.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl ReadFuture {
    /// Abandons the command. The future ends with [`CommandError::Cancelled`] and the buffer, unless the command has
    /// already ended.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Future for CommandFuture {
    type Output = Result<Completion, CommandError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, _)| result)
    }
}

impl Future for ReadFuture {
    type Output = Result<Buffer, ReadError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, payload)| {
            let buffer = match payload {
                CommandData::Read(buffer) => buffer,
                CommandData::None | CommandData::Write(_) | CommandData::Encrypt(..) => Buffer::default(),
            };
            match result {
                Ok(_) => Ok(buffer),
                Err(error) => Err(ReadError { error, buffer }),
            }
        })
    }
}

impl PendingCommand {
    /// Creates the future of a command that was refused and not sent.
    pub(super) fn refused(error: CommandError, payload: CommandData) -> PendingCommand {
        let ticket = Arc::new(CommandTicket::new(CommandScope::NOTHING, None));
        OwnedTicket(ticket.clone()).complete(Err(error), payload);
        PendingCommand { ticket, lane: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CommandOutcome> {
        let mut state = lock(&self.ticket.state);
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn cancel(&self) {
        if let Some(lane) = &self.lane {
            lane.cancel(&self.ticket);
        }
    }
}

impl Drop for PendingCommand {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl LaneEntry {
    /// Creates an entry for a new command.
    pub(super) fn new(submission: Submission, ticket: OwnedTicket) -> LaneEntry {
        LaneEntry { submission, ticket, counts: RetryCounts::default(), was_sent: false }
    }

    /// Returns the error if the command must not be sent on the new connection.
    pub(super) fn refusal(&self) -> Option<CommandError> {
        if self.was_sent && self.ticket.is_cancelled() {
            return Some(CommandError::Cancelled);
        }
        self.ticket.0.known.as_ref().filter(|known| known.is_gone()).map(|known| known.error())
    }

    /// Completes the command with `error`.
    pub(super) fn complete(self, error: CommandError) {
        self.ticket.complete(Err(error), self.submission.payload);
    }

    /// Returns whether the command has to wait until its namespace has been inspected again.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.ticket.0.known.as_ref().is_some_and(|known| known.is_in_doubt())
    }

    fn may_still_change_data(&self) -> bool {
        self.was_sent && self.ticket.scope().changes()
    }
}

impl CommandLane {
    /// Creates a lane.
    pub(super) fn new(given_up: Arc<AbandonedCommands>) -> CommandLane {
        CommandLane { given_up, state: Mutex::default() }
    }

    /// Queues a command, or holds it while an overlapping abandoned command may still be executed.
    pub(super) fn submit(self: &Arc<CommandLane>, submission: Submission, ticket: CommandTicket) -> PendingCommand {
        let ticket = Arc::new(ticket);
        if let Some(entry) = self.given_up.hold_back(self, LaneEntry::new(submission, OwnedTicket(ticket.clone()))) {
            self.enqueue(entry);
        }
        PendingCommand { ticket, lane: Some(self.clone()) }
    }

    /// Queues a command.
    pub(super) fn enqueue(&self, entry: LaneEntry) {
        let mut state = lock(&self.state);
        if let Some(error) = state.ended.clone() {
            drop(state);
            entry.complete(CommandError::Lost(error));
        } else {
            state.pending.push_back(entry);
            wake(state.waker.take(), state);
        }
    }

    /// Gives the task an instruction. It replaces an earlier one, except that `End` stays.
    pub(super) fn instruct(&self, instruction: LaneInstruction) {
        let mut state = lock(&self.state);
        if !matches!(state.instruction, Some(LaneInstruction::End)) {
            state.instruction = Some(instruction);
        }
        wake(state.waker.take(), state);
    }

    /// Takes the current instruction.
    pub(super) fn take_instruction(&self, cx: &Context<'_>) -> Option<LaneInstruction> {
        self.take_work(cx, 0, Instant::ZERO).instruction
    }

    /// Takes the work due at `now`: an instruction, at most `room` commands, and cancellations.
    pub(super) fn take_work(&self, cx: &Context<'_>, room: usize, now: Instant) -> LaneBatch {
        let mut state = lock(&self.state);
        let rested = state.wake_rested(now);
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        let count = room.min(state.pending.len());
        LaneBatch {
            // `End` stays, so that each call returns it.
            instruction: if matches!(state.instruction, Some(LaneInstruction::End)) {
                Some(LaneInstruction::End)
            } else {
                state.instruction.take()
            },
            entries: state.pending.drain(..count).collect(),
            cancelled: core::mem::take(&mut state.cancelled),
            rested,
        }
    }

    /// Wakes the task of the queue.
    pub(super) fn wake(&self) {
        let mut state = lock(&self.state);
        wake(state.waker.take(), state);
    }

    /// Lets a command wait until the given time, or, without one, until its namespace is confirmed.
    pub(super) fn delay(&self, until: Option<Instant>, entry: LaneEntry) {
        let mut state = lock(&self.state);
        lock(&entry.ticket.0.state).id = None;
        // A cancelled command must not wait for its retry.
        if entry.ticket.is_cancelled() || state.ended.is_some() {
            drop(state);
            self.return_to_front(vec![entry]);
        } else {
            state.resting.push((until, entry));
        }
    }

    /// Puts commands back to the front in their order.
    pub(super) fn return_to_front(&self, entries: Vec<LaneEntry>) {
        let mut over = Vec::new();
        let mut state = lock(&self.state);
        // Reversed, because each entry is pushed to the front.
        for entry in entries.into_iter().rev() {
            if entry.ticket.is_cancelled() && !entry.may_still_change_data() {
                over.push((entry, CommandError::Cancelled));
            } else if let Some(error) = state.ended.clone() {
                over.push((entry, CommandError::Lost(error)));
            } else {
                lock(&entry.ticket.0.state).id = None;
                state.pending.push_front(entry);
            }
        }
        wake(state.waker.take(), state);
        over.into_iter().for_each(|(entry, error)| entry.complete(error));
    }

    /// Moves all commands and cancellations to `other`. Delayed retries become due at once. Returns the instruction.
    pub(super) fn hand_over(&self, cx: &Context<'_>, other: &CommandLane) -> Option<LaneInstruction> {
        let LaneBatch { instruction, entries, cancelled, .. } = self.take_work(cx, usize::MAX, Instant::ZERO);
        if !entries.is_empty() {
            other.return_to_front(entries);
        }
        let resting = core::mem::take(&mut lock(&self.state).resting);
        resting.into_iter().for_each(|(_, entry)| other.enqueue(entry));
        cancelled.iter().for_each(|ticket| other.withdraw(ticket));
        instruction
    }

    /// Fails all waiting commands and all later ones. The first error is kept.
    pub(super) fn end(&self, error: &HostError) {
        let entries: Vec<LaneEntry> = {
            let mut state = lock(&self.state);
            state.ended.get_or_insert_with(|| error.clone());
            state.instruction = Some(LaneInstruction::End);
            let resting = core::mem::take(&mut state.resting).into_iter().map(|(_, entry)| entry);
            let entries = state.pending.drain(..).chain(resting).collect();
            wake(state.waker.take(), state);
            entries
        };
        entries.into_iter().for_each(|entry| entry.complete(CommandError::Lost(error.clone())));
    }

    fn cancel(&self, ticket: &Arc<CommandTicket>) {
        {
            let mut ticket = lock(&ticket.state);
            if ticket.settled || ticket.cancelled {
                return;
            }
            ticket.cancelled = true;
        }
        self.withdraw(ticket);
    }

    /// Completes a cancelled command that waits here and cannot change data. A sent command that changes nothing is
    /// left to the queue's task. Any other sent command runs to its end, and overlapping commands wait for it.
    fn withdraw(&self, ticket: &Arc<CommandTicket>) {
        if let Some(entry) = self.given_up.withdraw(ticket) {
            return entry.complete(CommandError::Cancelled);
        }
        let mut state = lock(&self.state);
        if let Some(entry) = state.take_unsent(ticket) {
            drop(state);
            entry.complete(CommandError::Cancelled);
        } else if ticket.scope.changes() {
            drop(state);
            ticket.list(&self.given_up);
        } else {
            state.cancelled.push(ticket.clone());
            wake(state.waker.take(), state);
        }
    }
}

impl LaneState {
    /// Queues the waiting commands that are due. Returns when the next is due.
    fn wake_rested(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for (until, entry) in core::mem::take(&mut self.resting) {
            if until.map_or(!entry.is_in_doubt(), |until| until <= now) {
                self.pending.push_back(entry);
            } else {
                next = time::earliest(next, until);
                self.resting.push((until, entry));
            }
        }
        next
    }

    /// Removes the command of `ticket` if it waits here and can no longer change data.
    fn take_unsent(&mut self, ticket: &Arc<CommandTicket>) -> Option<LaneEntry> {
        // A write that was sent on a lost connection cannot be recalled: the old controller may still execute it.
        let is_it = |entry: &LaneEntry| entry.ticket.is(ticket) && !entry.may_still_change_data();
        if let Some(place) = self.pending.iter().position(is_it) {
            return self.pending.remove(place);
        }
        let place = self.resting.iter().position(|(_, entry)| is_it(entry))?;
        Some(self.resting.swap_remove(place).1)
    }
}

impl CommandTicket {
    /// Creates the ticket of a command with this scope and namespace.
    pub(super) fn new(scope: CommandScope, known: Option<Arc<InspectedNamespace>>) -> CommandTicket {
        CommandTicket { scope, known, state: Mutex::default() }
    }

    /// Returns the scope of the command.
    pub(super) fn scope(&self) -> CommandScope {
        self.scope
    }

    /// Returns the identifier in the queue.
    pub(super) fn id(&self) -> Option<u16> {
        lock(&self.state).id
    }

    /// Lists the command as abandoned, unless it has ended.
    fn list(self: &Arc<CommandTicket>, given_up: &Arc<AbandonedCommands>) {
        let mut state = lock(&self.state);
        if !state.settled && state.listed.is_none() {
            given_up.add(self.clone());
            state.listed = Some(given_up.clone());
        }
    }

    /// Completes the future. Returns the list of abandoned commands that contains the ticket.
    fn complete(
        &self,
        result: Result<Completion, CommandError>,
        payload: CommandData,
    ) -> Option<Arc<AbandonedCommands>> {
        let (waker, listed) = {
            let mut state = lock(&self.state);
            if state.settled {
                return None;
            }
            state.settled = true;
            state.outcome = Some((result, payload));
            (state.waker.take(), state.listed.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        listed
    }
}

impl OwnedTicket {
    /// Returns the scope of the command.
    pub(super) fn scope(&self) -> CommandScope {
        self.0.scope
    }

    /// Returns whether the command is for an inspected namespace.
    pub(super) fn is_inspected(&self) -> bool {
        self.0.known.is_some()
    }

    /// Notes the identifier in the queue.
    pub(super) fn enter(&self, id: u16) {
        lock(&self.0.state).id = Some(id);
    }

    /// Returns whether the command was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.0.state).cancelled
    }

    /// Returns whether this owns `ticket`.
    pub(super) fn is(&self, ticket: &Arc<CommandTicket>) -> bool {
        Arc::ptr_eq(&self.0, ticket)
    }

    /// Completes the command, which cannot be executed any more. Held commands that waited for it are queued.
    pub(super) fn complete(self, result: Result<Completion, CommandError>, payload: CommandData) {
        if let Some(given_up) = self.0.complete(result, payload) {
            given_up.remove(&self.0);
        }
    }
}

impl Drop for OwnedTicket {
    fn drop(&mut self) {
        // The loss of a task ends the host, so commands held back for this command must not be sent.
        let _ = self.0.complete(Err(CommandError::Lost(HostError::TaskLost)), CommandData::None);
    }
}

/// Releases the lock, then wakes the task.
fn wake<T>(waker: Option<Waker>, locked: T) {
    drop(locked);
    if let Some(waker) = waker {
        waker.wake();
    }
}
