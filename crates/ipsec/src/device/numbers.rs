//! Numbers that outlive the process are written down before they are used.
//!
//! Writing takes as long as the disk does, and the packet waits; it is seldom. What cannot be written down is dropped, and
//! tried again a second later.

use super::SecureDevice;
use crate::keying::{KeyingError, SaId};
use crate::memory::{Mark, Marks, SPENT};
use crate::sad::Sa;
use offload_api::{Direction, SaParams};
use offload_base::Instant;

impl SecureDevice {
    /// Has an SA to be go on after what was written down of its key.
    ///
    /// # Errors
    /// If the last number of the key is no longer known, or another process uses the key.
    pub(super) fn go_on_after_mark(&self, params: &mut SaParams) -> Result<Marks, KeyingError> {
        match self.memory.claim(params)? {
            None => Ok(Marks::NONE),
            Some(SPENT) => Err(KeyingError::KeyReused),
            Some(mark) => {
                params.last_number = params.last_number.max(mark);
                Ok(Marks::at(mark))
            }
        }
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
        let limit = offload_esp::number::limit(sa.params.esn);
        // What is spent says nothing of numbers.
        let others = memory.mark(&sa.params).filter(|mark| *mark != SPENT).unwrap_or(0);
        let mark = match sa.params.direction {
            Direction::Transmit => Marks::for_sent(number, limit),
            // Another SA may share it: by the same SPI, and the same key, from elsewhere.
            Direction::Receive => sa.marks.for_received(now, number, limit).max(others),
        };
        let written = memory.write(&[sa.mark(mark)]);
        match written {
            Ok(()) => sa.marks.note(now, mark),
            Err(_) => sa.marks.note_failure(now),
        }
        written.is_ok()
    }

    /// Writes down that all numbers of an SA are used: from here on, somebody else counts them.
    pub(super) fn give_numbers_away(&mut self, id: SaId) -> Result<(), KeyingError> {
        let Self { sad, memory, .. } = self;
        let Some(sa) = sad.find_mut(id) else { return Err(KeyingError::NotFound) };
        let limit = offload_esp::number::limit(sa.params.esn);
        if sa.number() >= limit {
            return Err(KeyingError::UsedUp);
        }
        memory.write(&[sa.mark(limit)]).map_err(|_| KeyingError::NotWritten)?;
        // What was written down stays.
        (sa.marks, sa.lent) = (Marks::NONE, true);
        Ok(())
    }

    /// An SA is about to go. Others that receive by its key and SPI, from elsewhere, have its numbers written down too.
    pub(super) fn leave_numbers(&mut self, id: SaId) {
        let Some(gone) = self.sad.find(id).filter(|sa| sa.params.direction == Direction::Receive) else { return };
        // As a rule, nobody does: then all the others need not be asked.
        if !gone.marks.are_kept() || self.sad.users_of(Direction::Receive, &gone.params.key) < 2 {
            return;
        }
        let (used, spi, key) = (gone.used_up_to(), gone.params.spi, gone.params.key.clone());
        let shares = |sa: &Sa| {
            let SaParams { direction, spi: its_spi, key: its_key, .. } = &sa.params;
            *direction == Direction::Receive && *its_spi == spi && its_key.is_same_as(&key)
        };
        let others: Vec<SaId> =
            self.sad.ids().filter(|other| *other != id && self.sad.find(*other).is_some_and(shares)).collect();
        for other in others {
            self.sad.find_mut(other).into_iter().for_each(|sa| sa.marks.remember(used));
        }
    }

    /// Writes numbers down as they are, not ahead.
    pub(super) fn settle_numbers(&mut self) {
        if !self.memory.has_store() {
            return;
        }
        let ids: Vec<SaId> = self.sad.ids().collect();
        let all = || ids.iter().filter_map(|id| self.sad.find(*id)).filter(|sa| sa.marks.are_kept());
        if !all().any(is_ahead) {
            return;
        }
        // Of all: the marks of some may be those of others as well.
        let marks: Vec<Mark<'_>> = all().map(|sa| sa.mark(sa.used_up_to())).collect();
        // If it fails, what stays ahead costs numbers, and nothing else. But it may be there all the same: then a process that
        // begins anew goes on from there, and nothing beyond may be used without being written down again.
        let _there_or_not = self.memory.write(&marks);
        for id in ids {
            if let Some(sa) = self.sad.find_mut(id).filter(|sa| sa.marks.are_kept()) {
                sa.marks.settle(sa.used_up_to());
            }
        }
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

/// Whether more is written down than was used.
fn is_ahead(sa: &Sa) -> bool {
    sa.marks.are_beyond(sa.used_up_to())
}

impl Drop for SecureDevice {
    fn drop(&mut self) {
        self.settle_numbers();
    }
}
