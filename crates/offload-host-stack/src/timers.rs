//! One deadline a connection, in the order of time.
//!
//! Invariant: a connection has at most one entry, never later than its deadline. A deadline that moves away (as
//! the retransmission timer does with every ACK) costs nothing: the entry stays, and the turn that finds it due early
//! sets it anew. One that is no more takes its entry along if there are many: a host with many connections, each of which
//! has something under way now and then, would have a turn for each of them later, and find nothing to do.

use crate::flow_table::ConnectionId;
use offload_base::Instant;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    entries: BTreeSet<(Instant, ConnectionId)>,
}

/// Where a connection's entry is, kept with the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerSlot(Option<Instant>);

impl TimerQueue {
    /// Makes sure that `id` comes up at `deadline` or before.
    pub(crate) fn set(&mut self, id: ConnectionId, slot: &mut TimerSlot, deadline: Option<Instant>) {
        match (slot.0, deadline) {
            (Some(_), None) if self.entries.len() > FEW_ENTRIES => self.clear(id, slot),
            (_, None) => {}
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

    /// Forgets `id`.
    pub(crate) fn clear(&mut self, id: ConnectionId, slot: &mut TimerSlot) {
        if let Some(present) = slot.0.take() {
            self.entries.remove(&(present, id));
        }
    }

    /// Takes the first connection whose entry is due; its slot is to be [`fired`](TimerSlot::fired).
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<ConnectionId> {
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
    /// The entry was taken out of the queue.
    pub(crate) fn fired(&mut self) {
        self.0 = None;
    }
}

/// So many connections may come up for nothing: that is not worth a change of the order.
const FEW_ENTRIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_moves_forward_and_only_forward() {
        let (mut queue, mut slot) = (TimerQueue::default(), TimerSlot::default());
        let id = ConnectionId(1);
        let at = Instant::from_nanos;
        queue.set(id, &mut slot, Some(at(50)));
        queue.set(id, &mut slot, Some(at(90)));
        assert_eq!(queue.next(), Some(at(50)), "later: nothing moves");
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
    fn of_many_those_without_a_deadline_do_not_come_up() {
        let mut queue = TimerQueue::default();
        let mut slots = [TimerSlot::default(); 2 * FEW_ENTRIES];
        let (now, later) = (Instant::from_nanos(50), Instant::from_nanos(60));
        for (number, slot) in (0..).zip(&mut slots) {
            queue.set(ConnectionId(number), slot, Some(now));
        }
        for (number, slot) in (0..).zip(&mut slots) {
            queue.set(ConnectionId(number), slot, None);
        }
        assert_eq!(queue.entries.len(), FEW_ENTRIES, "a few may");
        queue.set(ConnectionId(0), &mut slots[0], Some(later));
        assert_eq!(queue.entries.len(), FEW_ENTRIES + 1, "and one that has one again does");
    }
}
