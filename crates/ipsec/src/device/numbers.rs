//! Sequence numbers that outlive the process: they are written to a store before they are used.
//!
//! A write blocks the packet for as long as the disk takes, but is rare. If a number cannot be written, its packet is
//! dropped, and writing is tried again a second later.

use crate::keying::{KeyingError, SaId};
use crate::memory::{KeyMemory, NumberMark, SPENT, SaMarks};
use crate::sad::{Sa, Sad};
use offload_api::{Direction, SaParams};
use offload_base::Instant;

/// Invariant: the mark of a key that has a store is never below a number that an SA of the key has used.
impl KeyMemory {
    /// Makes a new SA continue after the number that the store has for its key.
    ///
    /// # Errors
    /// If the store has forgotten the key's last number, or another process uses the key.
    pub(super) fn continue_after_mark(&self, params: &mut SaParams) -> Result<SaMarks, KeyingError> {
        match self.claim(params)? {
            None => Ok(SaMarks::NONE),
            Some(SPENT) => Err(KeyingError::KeyReused),
            Some(mark) => {
                params.last_number = params.last_number.max(mark);
                Ok(SaMarks::at(mark))
            }
        }
    }

    /// Tests whether an SA may use its numbers up to `number`, and writes them to the store if necessary.
    pub(super) fn may_use(&self, now: Instant, sa: &mut Sa, number: u64) -> bool {
        if sa.marks.cover(number) {
            return true;
        }
        if !sa.marks.may_try(now) {
            return false;
        }
        let limit = offload_esp::number::limit(sa.params.esn);
        // The mark of a spent key is no sequence number.
        let others = self.mark(&sa.params).filter(|mark| *mark != SPENT).unwrap_or(0);
        let mark = match sa.params.direction {
            Direction::Transmit => SaMarks::for_sent(number, limit),
            // Another SA may share the mark: same SPI and key, other source.
            Direction::Receive => sa.marks.for_received(now, number, limit).max(others),
        };
        let written = self.write(&[sa.mark(mark)]);
        match written {
            Ok(()) => sa.marks.note(now, mark),
            Err(_) => sa.marks.note_failure(now),
        }
        written.is_ok()
    }

    /// Writes to the store that all numbers of an SA are used, because another component counts them from now on.
    pub(super) fn write_last_number(&self, sa: &mut Sa) -> Result<(), KeyingError> {
        let limit = offload_esp::number::limit(sa.params.esn);
        if sa.number() >= limit {
            return Err(KeyingError::UsedUp);
        }
        self.write(&[sa.mark(limit)]).map_err(|_| KeyingError::NotWritten)?;
        // The written mark stays in the store.
        (sa.marks, sa.lent) = (SaMarks::NONE, true);
        Ok(())
    }

    /// Replaces the marks, which are ahead, by the exact numbers.
    pub(super) fn write_exact_numbers(&self, sad: &mut Sad) {
        if !self.has_store() {
            return;
        }
        let ids: Vec<SaId> = sad.ids().collect();
        let all = || ids.iter().filter_map(|id| sad.find(*id)).filter(|sa| sa.marks.are_kept());
        if !all().any(|sa| sa.marks.are_beyond(sa.used_up_to())) {
            return;
        }
        // Written for all SAs, because SAs may share a mark.
        let marks: Vec<NumberMark<'_>> = all().map(|sa| sa.mark(sa.used_up_to())).collect();
        // A failure costs only the numbers between the exact one and the old mark. But the write may have succeeded in
        // part, and the next process would then continue from the exact numbers. So these SAs must write again before
        // they use further numbers.
        let _ = self.write(&marks);
        for id in ids {
            if let Some(sa) = sad.find_mut(id).filter(|sa| sa.marks.are_kept()) {
                sa.marks.set_exact(sa.used_up_to());
            }
        }
    }
}

/// Before an SA is removed, passes its numbers on to the SAs that receive by the same key and SPI from other sources.
pub(super) fn pass_numbers_on(sad: &mut Sad, id: SaId) {
    let Some(gone) = sad.find(id).filter(|sa| sa.params.direction == Direction::Receive) else { return };
    // Usually the key has one user, and the scan over all SAs can be skipped.
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
    /// Returns the highest used number, including numbers of removed SAs with the same key and SPI.
    fn used_up_to(&self) -> u64 {
        self.marks.at_least(self.number())
    }

    fn mark(&self, number: u64) -> NumberMark<'_> {
        let SaParams { direction, key, spi, .. } = &self.params;
        NumberMark { direction: *direction, key, spi: *spi, number }
    }
}
