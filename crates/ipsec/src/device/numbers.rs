//! Numbers that outlive the process are written down before they are used.
//!
//! Writing takes as long as the disk does, and the packet waits; it is seldom. What cannot be written down is dropped, and
//! tried again a second later.

use super::SecureDevice;
use crate::memory::{Mark, Marks};
use crate::sad::Sa;
use offload_api::{Direction, SaId, SaParams};
use offload_base::Instant;

impl SecureDevice {
    /// Has an SA to be go on after what was written down of its key.
    pub(super) fn go_on_after_mark(&self, params: &mut SaParams) -> Marks {
        let Some(mark) = self.memory.mark(params.direction, &params.key) else { return Marks::NONE };
        params.last_number = params.last_number.max(mark);
        Marks::at(mark)
    }

    /// Whether an SA may use its numbers up to `number`: if not yet, they are written down.
    pub(super) fn may_use(&mut self, now: Instant, id: SaId, number: u64) -> bool {
        let Self { sad, memory, .. } = self;
        let Some(sa) = sad.find_mut(id) else { return false };
        if sa.marks.cover(number) {
            return true;
        }
        if !sa.marks.may_try(now) {
            return false;
        }
        let mark = match sa.params.direction {
            Direction::Transmit => Marks::for_sent(number, esp::number::limit(sa.params.esn)),
            Direction::Receive => sa.marks.for_received(now, number),
        };
        let written = memory.write(&[Mark { direction: sa.params.direction, key: &sa.params.key, number: mark }]);
        match written {
            Ok(()) => sa.marks.note(now, mark),
            Err(_) => sa.marks.note_failure(now),
        }
        written.is_ok()
    }

    /// Writes numbers down as they are, not ahead.
    pub(super) fn settle_numbers(&mut self) {
        if !self.memory.has_store() {
            return;
        }
        let ids: Vec<SaId> = self.sad.ids().filter(|id| self.sad.find(*id).is_some_and(is_ahead)).collect();
        let of_all = ids.iter().filter_map(|id| self.sad.find(*id));
        let marks: Vec<Mark<'_>> = of_all
            .map(|sa| Mark { direction: sa.params.direction, key: &sa.params.key, number: sa.number() })
            .collect();
        // What stays ahead costs numbers, and nothing else.
        if marks.is_empty() || self.memory.write(&marks).is_err() {
            return;
        }
        for id in ids {
            self.sad.find_mut(id).into_iter().for_each(|sa| sa.marks.settle(sa.number()));
        }
    }
}

/// Whether more is written down than was used.
fn is_ahead(sa: &Sa) -> bool {
    sa.marks.are_kept() && !sa.marks.are_at(sa.number())
}

impl Drop for SecureDevice {
    fn drop(&mut self) {
        self.settle_numbers();
    }
}
