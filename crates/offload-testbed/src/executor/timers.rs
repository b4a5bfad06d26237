//! The event queue: deadlines in nanoseconds. Equal deadlines fire in the order of setting.

use super::shared::ExecutorState;
use core::task::{Context, Poll, Waker};
use offload_base::{Alarm, Instant};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Wakers by deadline. Invariant: an alarm has at most one entry, and its owner stores the entry's key.
#[derive(Debug, Default)]
pub(super) struct AlarmQueue {
    entries: BTreeMap<(Instant, u64), Waker>,
    next_number: u64,
}

impl AlarmQueue {
    /// Moves the entry at `place` to the deadline of `next`, and stores the new key in `place`.
    pub(super) fn set(&mut self, place: &mut Option<(Instant, u64)>, next: Option<(Instant, &Waker)>) {
        // An unchanged deadline keeps its place among equal deadlines.
        if let (Some(present), Some((deadline, waker))) = (*place, next)
            && present.0 == deadline
            && let Some(entry) = self.entries.get_mut(&present)
        {
            entry.clone_from(waker);
            return;
        }
        if let Some(present) = place.take() {
            self.entries.remove(&present);
        }
        if let Some((deadline, waker)) = next {
            let new = (deadline, self.next_number);
            self.next_number += 1;
            self.entries.insert(new, waker.clone());
            *place = Some(new);
        }
    }

    /// Returns the first deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Takes the first entry if its deadline has come by `now`.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.entries.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

/// A task's entry in the event queue.
#[derive(Debug)]
pub(super) struct TaskAlarm {
    shared: Arc<ExecutorState>,
    place: Option<(Instant, u64)>,
}

impl TaskAlarm {
    pub(super) fn new(shared: Arc<ExecutorState>) -> TaskAlarm {
        TaskAlarm { shared, place: None }
    }

    fn clear(&mut self) {
        if self.place.is_some() {
            self.shared.set_alarm(&mut self.place, None);
        }
    }
}

impl Alarm for TaskAlarm {
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        match deadline {
            // `Instant::MAX` is a deadline that never comes, and needs no entry.
            None | Some(Instant::MAX) => {
                self.clear();
                Poll::Pending
            }
            Some(deadline) if deadline <= self.shared.now() => {
                self.clear();
                Poll::Ready(())
            }
            Some(deadline) => {
                self.shared.set_alarm(&mut self.place, Some((deadline, cx.waker())));
                Poll::Pending
            }
        }
    }
}

impl Drop for TaskAlarm {
    fn drop(&mut self) {
        self.clear();
    }
}
