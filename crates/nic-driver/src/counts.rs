//! Counters of contexts, per engine.

use nic_rings::{ContextCounters, EngineDescription};
use offload_api::Handle;
use offload_base::counters::CounterSet;

/// Counters of all engines' contexts, by engine number. The last element counts for unknown engine numbers.
#[derive(Debug)]
pub(super) struct EngineCounts(Vec<ContextCounters>);

impl EngineCounts {
    pub(super) fn new(engines: usize) -> EngineCounts {
        EngineCounts(vec![ContextCounters::default(); engines + 1])
    }

    pub(super) fn for_context(&mut self, handle: Handle) -> &mut ContextCounters {
        self.for_engine(handle.engine())
    }

    pub(super) fn for_engine(&mut self, engine: u8) -> &mut ContextCounters {
        let last = self.0.len() - 1;
        &mut self.0[usize::from(engine).min(last)]
    }

    pub(super) fn get(&self, engine: u8) -> ContextCounters {
        self.0.get(usize::from(engine)).copied().unwrap_or_default()
    }

    /// Adds the counters to `set`, under the names published by each engine.
    pub(super) fn add_to(&self, engines: &[EngineDescription], set: &mut CounterSet) {
        engines.iter().zip(&self.0).for_each(|(engine, counters)| set.add(&engine.published(counters)));
    }
}
