//! Counters of contexts, per engine.

use nic_rings::{ContextCounters, EngineDescription};
use offload_api::Handle;
use offload_base::counters::CounterSet;

/// Counters of all engines' contexts, by engine number. The last element counts for unknown engine numbers.
#[derive(Debug)]
pub(super) struct Counts(Vec<ContextCounters>);

impl Counts {
    pub(super) fn new(engines: usize) -> Counts {
        Counts(vec![ContextCounters::default(); engines + 1])
    }

    pub(super) fn of(&mut self, handle: Handle) -> &mut ContextCounters {
        self.of_engine(handle.engine())
    }

    pub(super) fn of_engine(&mut self, engine: u8) -> &mut ContextCounters {
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
