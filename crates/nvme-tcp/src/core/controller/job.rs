//! Work on namespaces, and what commands come to.

use super::memory::Charge;
use super::work::Running;
use crate::namespace::{Namespace, Operation, Outcome, Pieces, Step, Turn};
use crate::wire::Status;
use bytes::Bytes;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Work on namespaces.
#[derive(Debug)]
pub struct Job {
    pub(super) command: u16,
    pub(super) namespaces: SmallVec<[Arc<Namespace>; 1]>,
    pub(super) operation: Operation,
    pub(super) reads: usize,
    /// The memory that its data take.
    pub(super) charge: Option<Charge>,
    pub(super) running: Option<Running>,
    /// Namespaces that it is done with, and how far it is with the next.
    pub(super) progress: (usize, u64),
    pub(super) turn: Option<Turn>,
}

/// A [`Job`] that was carried out.
#[derive(Debug)]
pub struct Done {
    pub(super) command: u16,
    pub(super) outcome: Outcome,
    pub(super) reads: usize,
}

impl Job {
    pub(super) fn new(
        command: u16,
        namespaces: SmallVec<[Arc<Namespace>; 1]>,
        operation: Operation,
        charge: Option<Charge>,
    ) -> Job {
        let block = namespaces.first().map_or(0, |namespace| namespace.block_size() as usize);
        let reads = match &operation {
            Operation::Read { blocks, .. } => *blocks as usize * block,
            _ => 0,
        };
        Job { command, namespaces, operation, reads, charge, running: None, progress: (0, 0), turn: None }
    }

    /// Whether [`run`](Self::run) may wait for a device, and [`advance`](Self::advance) is better called, where nobody
    /// waits for it.
    pub fn may_block(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.may_block())
    }

    /// Carries it out. Storage that panics fails the command.
    pub fn run(mut self) -> Done {
        loop {
            if let Some(outcome) = self.step() {
                return self.done(outcome);
            }
        }
    }

    /// Carries out a part of it that is not long. `None`: `later` is called with it when it is to be advanced again, at
    /// once if there is more to do, else when the work is over that is in its way. No thread waits for that.
    pub fn advance(self, later: impl FnOnce(Job) + Send + 'static) -> Option<Done> {
        if self.turn.is_none()
            && let (at, done) = self.progress
            && let Some(namespace) = self.namespaces.get(at).cloned()
        {
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

    fn advance_in_turn(mut self, later: impl FnOnce(Job)) -> Option<Done> {
        let outcome = match self.running.as_ref().is_some_and(Running::is_aborted) {
            true => Some(Outcome { status: Status::ABORTED_BY_REQUEST, data: Pieces::new() }),
            false => self.step(),
        };
        // Jobs that wait for this one go on before it does.
        self.turn = None;
        match outcome {
            Some(outcome) => Some(self.done(outcome)),
            None => {
                later(self);
                None
            }
        }
    }

    /// The next part of it; how it ended, if that was the last.
    fn step(&mut self) -> Option<Outcome> {
        let (at, done) = self.progress;
        let success = || Outcome { status: Status::SUCCESS, data: Pieces::new() };
        let Some(namespace) = self.namespaces.get(at) else { return Some(success()) };
        // A namespace recovers from a panic: its locks are taken poisoned or not, and guard no half-made change.
        let step = catch_unwind(AssertUnwindSafe(|| namespace.step(&self.operation, done)))
            .unwrap_or_else(|_| Step::Done(Outcome { status: Status::INTERNAL_ERROR, data: Pieces::new() }));
        match step {
            Step::More(done) => self.progress = (at, done),
            Step::Done(outcome) if outcome.status.is_success() && at + 1 < self.namespaces.len() => {
                self.progress = (at + 1, 0);
            }
            Step::Done(outcome) => return Some(outcome),
        }
        None
    }

    fn done(self, mut outcome: Outcome) -> Done {
        if self.reads > 0
            && let Some(charge) = self.charge
            && let Some(last) = outcome.data.last_mut()
        {
            // They are sent, and let go, in order.
            *last = charge.attach(core::mem::take(last));
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
