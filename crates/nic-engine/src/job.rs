//! Engines that work from memory to memory.

use crate::{Context, Engine};
use offload_api::{Job, JobOutcome};

/// An engine that works from memory to memory, behind the job queues of a lookaside accelerator (`nic_sim::lookaside`).
///
/// See [`Engines`](crate::Engines) for an example of an accelerator's list of engines.
pub trait JobEngine: Engine {
    /// Runs a job for a context, appends the result to the job's target within its capacity, and counts the job. Source and
    /// target stay in the job. If the job fails, the device removes the appended bytes.
    fn run(&mut self, context: Context<'_, Self>, job: &mut Job, counters: &mut Self::Counters) -> JobOutcome;
}
