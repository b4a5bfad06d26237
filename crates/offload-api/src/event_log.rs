//! A collector of `tracing` spans and events.

use core::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// A collector of spans and events of all levels, for tests. (Feature `mock`.)
///
/// ```
/// use offload_api::EventLog;
///
/// let (sum, lines) = EventLog::collect(|| {
///     tracing::debug!(port = 443, "connected");
///     1 + 1
/// });
/// assert_eq!((sum, lines), (2, vec!["message=connected port=443".to_owned()]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<Mutex<Vec<String>>>,
}

impl EventLog {
    /// Runs `work`. Returns its result and the fields of each span and event that this thread reported meanwhile. The
    /// line of an event begins with the fields of its span if the event names a span.
    pub fn collect<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
        let log = EventLog::default();
        // `tracing` caches a callsite as disabled if its first event comes from another thread and there is only one
        // dispatcher. A second dispatcher prevents that for tests that run in parallel.
        let dispatchers = [Dispatch::new(log.clone()), Dispatch::new(log.clone())];
        let result = tracing::dispatcher::with_default(&dispatchers[0], work);
        (result, core::mem::take(&mut *log.lines()))
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spans(&self) -> MutexGuard<'_, Vec<String>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut line: EventLine, record: impl FnOnce(&mut dyn Visit)) -> String {
        record(&mut line);
        self.lines().push(line.0.clone());
        line.0
    }
}

impl Subscriber for EventLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let line = self.push(EventLine::default(), |line| span.record(line));
        let mut spans = self.spans();
        spans.push(line);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.push(EventLine::default(), |line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // Ids are positions in `spans`, counted from 1.
        let span = event.parent().map(|id| self.spans()[id.into_u64() as usize - 1].clone());
        self.push(EventLine(span.unwrap_or_default()), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct EventLine(String);

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing into a string cannot fail.
        let _ = write!(self.0, "{space}{field}={value:?}");
    }
}
