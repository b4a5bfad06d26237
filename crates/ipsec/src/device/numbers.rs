//! Sequence numbers that outlive the process: they are written down before they are used.
//!
//! Writing takes as long as the disk does, and the packet waits; it is seldom. A packet whose number cannot be written
//! down is dropped, and the next one tries again a second later.

use crate::keying::{KeyingError, SaId};
use crate::memory::{KeyMemory, Mark, Marks, SPENT};
use crate::sad::{Sa, Sad};
use offload_api::{Direction, SaParams};
use offload_base::Instant;

/// Invariant: the mark of a key that has a store is never below a number that an SA of the key has used.
impl KeyMemory {
    /// Has an SA to be go on after what was written down of its key.
    ///
    /// # Errors
    /// If the last number of the key is no longer known, or another process uses the key.
    pub(super) fn go_on_after_mark(&self, params: &mut SaParams) -> Result<Marks, KeyingError> {
        match self.claim(params)? {
            None => Ok(Marks::NONE),
            Some(SPENT) => Err(KeyingError::KeyReused),
            Some(mark) => {
                params.last_number = params.last_number.max(mark);
                Ok(Marks::at(mark))
            }
        }
    }

    /// Whether an SA may use its numbers up to `number`: if not yet, they are written down.
    pub(super) fn may_use(&self, now: Instant, sa: &mut Sa, number: u64) -> bool {
        if sa.marks.cover(number) {
            return true;
        }
        if !sa.marks.may_try(now) {
            return false;
        }
        let limit = offload_esp::number::limit(sa.params.esn);
        // What is spent says nothing of numbers.
        let others = self.mark(&sa.params).filter(|mark| *mark != SPENT).unwrap_or(0);
        let mark = match sa.params.direction {
            Direction::Transmit => Marks::for_sent(number, limit),
            // Another SA may share it: by the same SPI, and the same key, from elsewhere.
            Direction::Receive => sa.marks.for_received(now, number, limit).max(others),
        };
        let written = self.write(&[sa.mark(mark)]);
        match written {
            Ok(()) => sa.marks.note(now, mark),
            Err(_) => sa.marks.note_failure(now),
        }
        written.is_ok()
    }

    /// Writes down that all numbers of an SA are used: from here on, somebody else counts them.
    pub(super) fn give_away(&self, sa: &mut Sa) -> Result<(), KeyingError> {
        let limit = offload_esp::number::limit(sa.params.esn);
        if sa.number() >= limit {
            return Err(KeyingError::UsedUp);
        }
        self.write(&[sa.mark(limit)]).map_err(|_| KeyingError::NotWritten)?;
        // What was written down stays.
        (sa.marks, sa.lent) = (Marks::NONE, true);
        Ok(())
    }

    /// Writes numbers down as they are, not ahead.
    pub(super) fn settle(&self, sad: &mut Sad) {
        if !self.has_store() {
            return;
        }
        let ids: Vec<SaId> = sad.ids().collect();
        let all = || ids.iter().filter_map(|id| sad.find(*id)).filter(|sa| sa.marks.are_kept());
        if !all().any(|sa| sa.marks.are_beyond(sa.used_up_to())) {
            return;
        }
        // Of all: the marks of some may be those of others as well.
        let marks: Vec<Mark<'_>> = all().map(|sa| sa.mark(sa.used_up_to())).collect();
        // If it fails, what stays ahead costs numbers, and nothing else. But it may be there all the same: then a process that
        // begins anew goes on from there, and nothing beyond may be used without being written down again.
        let _there_or_not = self.write(&marks);
        for id in ids {
            if let Some(sa) = sad.find_mut(id).filter(|sa| sa.marks.are_kept()) {
                sa.marks.settle(sa.used_up_to());
            }
        }
    }
}

/// An SA is about to go. Others that receive by its key and SPI, from elsewhere, have its numbers written down too.
pub(super) fn leave_to_others(sad: &mut Sad, id: SaId) {
    let Some(gone) = sad.find(id).filter(|sa| sa.params.direction == Direction::Receive) else { return };
    // As a rule, nobody does: then all the others need not be asked.
    if !gone.marks.are_kept() || sad.users_of(Direction::Receive, &gone.params.key) < 2 {
        return;
    }
    let (used, spi, key) = (gone.used_up_to(), gone.params.spi, gone.params.key.clone());
    let shares = |sa: &Sa| {
        let SaParams { direction, spi: its_spi, key: its_key, .. } = &sa.params;
        *direction == Direction::Receive && *its_spi == spi && its_key.is_same_as(&key)
    };
    let others: Vec<SaId> = sad.ids().filter(|other| *other != id && sad.find(*other).is_some_and(shares)).collect();
    for other in others {
        sad.find_mut(other).into_iter().for_each(|sa| sa.marks.remember(used));
    }
}

impl Sa {
    /// How far numbers are used, by SAs as well that are gone and received by the same key and SPI.
    fn used_up_to(&self) -> u64 {
        self.marks.at_least(self.number())
    }

    fn mark(&self, number: u64) -> Mark<'_> {
        let SaParams { direction, key, spi, .. } = &self.params;
        Mark { direction: *direction, key, spi: *spi, number }
    }
}
