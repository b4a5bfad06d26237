//! Engines that work from memory to memory.

use crate::{Context, Engine};
use offload_api::{Job, JobOutcome};

/// An engine that works from memory to memory, behind the job queues of a lookaside accelerator (`nic_sim::lookaside`).
///
/// See [`Engines`](crate::Engines) for an example of an accelerator's list of engines.
pub trait JobEngine: Engine {
    /// Does a job for a context, and appends the result to the job's target, which is not to grow. It leaves source and target
    /// where they are. Of a job that it says failed, what it wrote is taken off again.
    fn run(&mut self, context: Context<'_, Self>, job: &mut Job, counters: &mut Self::Counters) -> JobOutcome;
}
