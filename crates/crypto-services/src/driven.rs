//! A fabric with a controller that decides window by window.

use crate::controller::control;
use crate::{Controller, Fabric, FabricConfig, InstanceChange};
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;

/// A fabric and its controller. After each [`step`](Self::step), the owner takes departed packets and offers waiting
/// ones.
#[derive(Debug)]
pub(crate) struct ControlledFabric {
    pub(crate) fabric: Fabric,
    controller: Box<dyn Controller + Send>,
    window_ns: f64,
    /// End of the current window.
    window_end_ns: f64,
    /// Consecutive windows without work and without changes.
    quiet: u32,
    changes: VecDeque<InstanceChange>,
}

impl ControlledFabric {
    /// Creates a fabric without chains. The controller decides at the end of each window.
    pub(crate) fn new(
        config: FabricConfig,
        window: Duration,
        controller: Box<dyn Controller + Send>,
    ) -> ControlledFabric {
        let window_ns = (window.as_nanos() as f64).max(1.0);
        ControlledFabric {
            // A queue needs at least one place, or no packet could pass.
            fabric: Fabric::new(FabricConfig { queue: config.queue.max(1), ..config }),
            controller,
            window_ns,
            window_end_ns: window_ns,
            quiet: 0,
            changes: VecDeque::new(),
        }
    }

    /// Returns the last 4,096 decisions of the controller.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &InstanceChange> {
        self.changes.iter()
    }

    /// Ends the quiet phase of the controller, because there is new work.
    pub(crate) fn wake(&mut self) {
        self.quiet = 0;
    }

    /// Processes the next event up to `now_ns` and returns its time; `None` if there is no further event. `idle` says
    /// that no packet is in the fabric or waiting for it.
    pub(crate) fn step(&mut self, now_ns: f64, idle: bool) -> Option<f64> {
        if idle && self.quiet >= QUIET && self.window_end_ns <= now_ns {
            // Without work the controller has settled and would repeat its decisions, so whole windows are skipped.
            let windows = ((now_ns - self.window_end_ns) / self.window_ns).floor() + 1.0;
            self.window_end_ns += windows * self.window_ns;
        }
        // The fabric's events and the ends of windows are processed in the order of time.
        let event = self.next_ns();
        if event > now_ns {
            self.fabric.advance(now_ns);
            return None;
        }
        self.fabric.advance(event);
        if event >= self.window_end_ns {
            self.window_end_ns += self.window_ns;
            self.decide(event, idle);
        }
        Some(event)
    }

    /// Returns the time of the next event; `None` if idle.
    pub(crate) fn next_event(&self, idle: bool) -> Option<Instant> {
        (!idle).then(|| Instant::ZERO + Duration::from_nanos(self.next_ns().ceil() as u64))
    }

    fn next_ns(&self) -> f64 {
        self.fabric.next_event_ns().map_or(self.window_end_ns, |at| at.min(self.window_end_ns))
    }

    fn decide(&mut self, now_ns: f64, idle: bool) {
        let changes = control(&mut self.fabric, &mut *self.controller, now_ns, self.window_ns);
        let is_quiet = idle && !changes.iter().any(|of| of.done && of.from != of.decision.instances);
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        self.changes.extend(changes);
        self.changes.drain(..self.changes.len().saturating_sub(CHANGES_MAX));
    }
}

/// Converts a time to nanoseconds since the start.
pub(crate) fn to_ns(at: Instant) -> f64 {
    (at - Instant::ZERO).as_nanos() as f64
}

/// Number of quiet windows after which a controller has settled, many times a controller's memory.
const QUIET: u32 = 1000;
/// Maximum number of stored decisions.
const CHANGES_MAX: usize = 4096;
