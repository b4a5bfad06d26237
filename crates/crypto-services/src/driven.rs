//! A fabric whose instances a controller decides on, window by window.

use crate::controller::control;
use crate::{Change, Controller, Fabric, FabricConfig};
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;

/// A fabric and its controller. Its owner takes what has left the fabric after each [`step`](Self::step), and offers what waits.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) fabric: Fabric,
    controller: Box<dyn Controller + Send>,
    window_ns: f64,
    /// When the controller decides next.
    window_end_ns: f64,
    /// Windows in a row without work in which it changed nothing.
    quiet: u32,
    changes: VecDeque<Change>,
}

impl Driven {
    /// Without chains. The controller decides once a window.
    pub(crate) fn new(config: FabricConfig, window: Duration, controller: Box<dyn Controller + Send>) -> Driven {
        let window_ns = (window.as_nanos() as f64).max(1.0);
        Driven {
            // Without a place nothing would ever pass.
            fabric: Fabric::new(FabricConfig { queue: config.queue.max(1), ..config }),
            controller,
            window_ns,
            window_end_ns: window_ns,
            quiet: 0,
            changes: VecDeque::new(),
        }
    }

    /// The last 4,096 changes that the controller made.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// The controller has something to decide about.
    pub(crate) fn wake(&mut self) {
        self.quiet = 0;
    }

    /// Does the next thing that is due by `now_ns`, and tells when that was; `None`: there is nothing more until then. `idle`: no packet is in
    /// the fabric or waits for it.
    pub(crate) fn step(&mut self, now_ns: f64, idle: bool) -> Option<f64> {
        if idle && self.quiet >= QUIET && self.window_end_ns <= now_ns {
            // Nothing happened, and the controller has settled: it will decide the same until something does.
            let windows = ((now_ns - self.window_end_ns) / self.window_ns).floor() + 1.0;
            self.window_end_ns += windows * self.window_ns;
        }
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

    /// When the next thing is due, if there is anything to do at all.
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

/// Nanoseconds from the beginning, as fabrics count.
pub(crate) fn to_ns(at: Instant) -> f64 {
    (at - Instant::ZERO).as_nanos() as f64
}

/// Windows without a change after which a controller has settled: many times as many as one keeps in mind.
const QUIET: u32 = 1000;
/// Changes that are kept.
const CHANGES_MAX: usize = 4096;
