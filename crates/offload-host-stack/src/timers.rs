//! Deadlines of connections, ordered by time.
//!
//! Invariant: a connection has at most one entry, and the entry is never later than the connection's deadline. A
//! deadline that moves to a later time costs nothing (the retransmission timer moves with every ACK): the entry stays,
//! and the early timer event inserts the new deadline. A cancelled deadline keeps its entry while the queue is short.
//! In a long queue the entry is removed at once, because a host with many mostly idle connections would otherwise wake
//! once for each stale entry.

use crate::flow_table::FlowId;
use offload_base::Instant;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    entries: BTreeSet<(Instant, FlowId)>,
}

/// Position of a connection's entry in the queue, stored in the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerSlot(Option<Instant>);

impl TimerQueue {
    /// Ensures that `id` becomes due at `deadline` or earlier.
    pub(crate) fn set(&mut self, id: FlowId, slot: &mut TimerSlot, deadline: Option<Instant>) {
        match (slot.0, deadline) {
            (Some(_), None) if self.entries.len() > FEW_ENTRIES => self.clear(id, slot),
            (_, None) => {}
            // The entry is early enough. When it is due, the caller finds the later deadline and sets a new entry.
            (Some(present), Some(deadline)) if present <= deadline => {}
            (present, Some(deadline)) => {
                if let Some(present) = present {
                    self.entries.remove(&(present, id));
                }
                self.entries.insert((deadline, id));
                slot.0 = Some(deadline);
            }
        }
    }

    /// Removes the entry of `id`.
    pub(crate) fn clear(&mut self, id: FlowId, slot: &mut TimerSlot) {
        if let Some(present) = slot.0.take() {
            self.entries.remove(&(present, id));
        }
    }

    /// Takes the first due connection. The caller must then call [`fired`](TimerSlot::fired) on its slot.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<FlowId> {
        let (at, id) = *self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.pop_first();
        Some(id)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first().map(|(at, _)| *at)
    }
}

impl TimerSlot {
    /// Records that the queue no longer has the entry.
    pub(crate) fn fired(&mut self) {
        self.0 = None;
    }
}

/// Queue length up to which stale entries stay: so few needless wake-ups cost less than changes of the order.
const FEW_ENTRIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_moves_to_earlier_deadlines_only() {
        let (mut queue, mut slot) = (TimerQueue::default(), TimerSlot::default());
        let id = FlowId(1);
        let at = Instant::from_nanos;
        queue.set(id, &mut slot, Some(at(50)));
        queue.set(id, &mut slot, Some(at(90)));
        assert_eq!(queue.next(), Some(at(50)), "a later deadline moves no entry");
        queue.set(id, &mut slot, Some(at(20)));
        assert_eq!((queue.next(), queue.entries.len()), (Some(at(20)), 1));
        assert_eq!(queue.pop_due(at(19)), None);
        assert_eq!(queue.pop_due(at(20)), Some(id));
        slot.fired();
        queue.set(id, &mut slot, Some(at(90)));
        queue.clear(id, &mut slot);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn long_queue_drops_cancelled_entries() {
        let mut queue = TimerQueue::default();
        let mut slots = [TimerSlot::default(); 2 * FEW_ENTRIES];
        let (now, later) = (Instant::from_nanos(50), Instant::from_nanos(60));
        for (number, slot) in (0..).zip(&mut slots) {
            queue.set(FlowId(number), slot, Some(now));
        }
        for (number, slot) in (0..).zip(&mut slots) {
            queue.set(FlowId(number), slot, None);
        }
        assert_eq!(queue.entries.len(), FEW_ENTRIES, "a short queue keeps cancelled entries");
        queue.set(FlowId(0), &mut slots[0], Some(later));
        assert_eq!(queue.entries.len(), FEW_ENTRIES + 1, "a new deadline gets a new entry");
    }
}
