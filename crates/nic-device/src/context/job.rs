//! An engine that works from memory to memory, whatever engine it is.

use super::hosted::{AnyEngine, Hosted};
use crate::engine::JobEngine;
use offload_api::{Job, Outcome};

/// What any engine can do that works from memory to memory. Contexts are on the NIC.
pub(crate) trait AnyJob: AnyEngine {
    /// [`JobEngine::run`]; nothing without a context.
    fn run(&mut self, job: &mut Job) -> Option<Outcome>;
}

impl<E: JobEngine> AnyJob for Hosted<E> {
    fn run(&mut self, job: &mut Job) -> Option<Outcome> {
        let Hosted { engine, slab, .. } = self;
        Some(engine.run(slab.get(job.session)?, job))
    }
}
