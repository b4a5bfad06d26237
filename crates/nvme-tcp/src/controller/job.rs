//! Work on namespaces, and what commands come to.

use super::memory::Charge;
use super::work::Running;
use crate::namespace::{Namespace, Operation, Outcome, Pieces};
use crate::nvme::Status;
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
}

/// A [`Job`] that was carried out.
#[derive(Debug)]
pub struct Done {
    pub(super) command: u16,
    pub(super) outcome: Outcome,
    pub(super) reads: usize,
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
