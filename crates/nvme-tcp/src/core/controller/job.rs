//! Jobs on namespaces, and immediate replies to commands.

use super::memory::MemoryCharge;
use super::work::CommandGuard;
use crate::namespace::{DataPieces, IoOutcome, IoStep, Namespace, Operation, RangeLock};
use crate::wire::Status;
use bytes::Bytes;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A job on namespaces.
#[derive(Debug)]
pub struct Job {
    pub(super) command: u16,
    pub(super) namespaces: SmallVec<[Arc<Namespace>; 1]>,
    pub(super) operation: Operation,
    pub(super) reads: usize,
    /// Memory charged for the data.
    pub(super) charge: Option<MemoryCharge>,
    pub(super) running: Option<CommandGuard>,
    /// Number of completed namespaces, and progress within the next.
    pub(super) progress: (usize, u64),
    pub(super) turn: Option<RangeLock>,
}

/// The result of a [`Job`].
#[derive(Debug)]
pub struct JobResult {
    pub(super) command: u16,
    pub(super) outcome: IoOutcome,
    pub(super) reads: usize,
}

impl Job {
    pub(super) fn new(
        command: u16,
        namespaces: SmallVec<[Arc<Namespace>; 1]>,
        operation: Operation,
        charge: Option<MemoryCharge>,
    ) -> Job {
        let block = namespaces.first().map_or(0, |namespace| namespace.block_size() as usize);
        let reads = match &operation {
            Operation::Read { blocks, .. } => *blocks as usize * block,
            _ => 0,
        };
        Job { command, namespaces, operation, reads, charge, running: None, progress: (0, 0), turn: None }
    }

    /// Returns whether [`run`](Self::run) may block on a device. If so, call [`advance`](Self::advance) on a thread
    /// that may block.
    pub fn may_block(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.may_block())
    }

    /// Runs the job to its end. If the storage panics, the command fails.
    pub fn run(mut self) -> JobResult {
        loop {
            if let Some(outcome) = self.step() {
                return self.done(outcome);
            }
        }
    }

    /// Runs a short part of the job. Returns its result if the job has ended. Otherwise `later` is called with the job
    /// when it can be advanced again: at once if there is more to do, or when the conflicting operation ends. No thread
    /// blocks on a conflict.
    pub fn advance(self, later: impl FnOnce(Job) + Send + 'static) -> Option<JobResult> {
        if self.turn.is_none()
            && let (at, done) = self.progress
            && let Some(namespace) = self.namespaces.get(at).cloned()
        {
            // Waiting for a range must not block the thread: the job itself moves into the waiter and comes back with
            // its turn.
            let span = namespace.span(&self.operation, done);
            let mut waiting = Some((self, later));
            let turn = namespace.turns().take(span, || {
                let waiting = waiting.take();
                move |turn| {
                    if let Some((job, later)) = waiting {
                        later(Job { turn: Some(turn), ..job });
                    }
                }
            });
            let (job, later) = waiting?;
            return Job { turn, ..job }.advance_in_turn(later);
        }
        self.advance_in_turn(later)
    }

    fn advance_in_turn(mut self, later: impl FnOnce(Job)) -> Option<JobResult> {
        let outcome = match self.running.as_ref().is_some_and(CommandGuard::is_aborted) {
            true => Some(IoOutcome { status: Status::ABORTED_BY_REQUEST, data: DataPieces::new() }),
            false => self.step(),
        };
        // Released first, so that jobs waiting for these blocks come before the rest of this job.
        self.turn = None;
        match outcome {
            Some(outcome) => Some(self.done(outcome)),
            None => {
                later(self);
                None
            }
        }
    }

    /// Runs the next part of the job. Returns the outcome if that was the last part.
    fn step(&mut self) -> Option<IoOutcome> {
        let (at, done) = self.progress;
        let success = || IoOutcome { status: Status::SUCCESS, data: DataPieces::new() };
        let Some(namespace) = self.namespaces.get(at) else { return Some(success()) };
        // A namespace survives a panic: its locks ignore poisoning, and no lock guards a half-made change.
        let step = catch_unwind(AssertUnwindSafe(|| namespace.step(&self.operation, done)))
            .unwrap_or_else(|_| IoStep::Done(IoOutcome { status: Status::INTERNAL_ERROR, data: DataPieces::new() }));
        match step {
            IoStep::More(done) => self.progress = (at, done),
            IoStep::Done(outcome) if outcome.status.is_success() && at + 1 < self.namespaces.len() => {
                self.progress = (at + 1, 0);
            }
            IoStep::Done(outcome) => return Some(outcome),
        }
        None
    }

    fn done(self, mut outcome: IoOutcome) -> JobResult {
        if self.reads > 0
            && let Some(charge) = self.charge
            && let Some(last) = outcome.data.last_mut()
        {
            // The data are sent and released in order, so the charge is attached to the last piece.
            *last = charge.attach(core::mem::take(last));
        }
        drop(self.running);
        JobResult { command: self.command, outcome, reads: self.reads }
    }
}

/// Immediate result of a command.
#[derive(Debug)]
pub(super) enum Reply {
    /// Success; the value is the completion's result.
    Result(u64),
    /// Success with data.
    Data(DataPieces),
    /// Success; the named command, which was waiting, is aborted.
    Aborted(u16),
    /// Failure; the value is the completion's result.
    Failed(Status, u64),
    /// No answer yet.
    Waits,
    /// A job on namespaces.
    Job(SmallVec<[Arc<Namespace>; 1]>, Operation),
}

impl Reply {
    pub(super) fn data(data: Vec<u8>) -> Reply {
        Reply::Data(DataPieces::from_iter([Bytes::from(data)]))
    }
}
