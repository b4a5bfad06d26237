//! Shares of one file, written by several processes, each with its own journal. The process with the first share
//! gathers them.

use super::names::lock_journal;
use super::{LandingError, LandingFile};
use crate::blocks::BlockSum;
use crate::journal;
use crate::storage::StoredFile;

impl LandingFile {
    /// Takes over the blocks in the journals of all `shares`, provided that this file has them: a share may have been
    /// written to an earlier file. The writers must be done.
    ///
    /// # Errors
    /// If another process still writes a share, or the medium fails.
    pub(crate) fn gather(&self, shares: u16) -> Result<(), LandingError> {
        // From the last share down, so that a kill leaves consecutive shares, which the next attempt finds.
        self.gather_beyond(shares)?;
        for share in (1..shares).rev() {
            self.take_over(share, &*lock_journal(&*self.folder, &self.name, share)?)?;
        }
        Ok(())
    }

    /// Takes over the shares of an earlier copy with more servers than the `shares` of this one. Shares that are still
    /// locked are skipped.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn gather_beyond(&self, shares: u16) -> Result<(), LandingError> {
        let is_there = |share: &u16| self.folder.about(&self.name.journal_of(*share)).is_ok();
        let there: Vec<u16> = (shares.max(1)..).take_while(is_there).collect();
        for share in there.into_iter().rev() {
            match lock_journal(&*self.folder, &self.name, share) {
                Err(LandingError::Taken(_)) => {}
                journal => self.take_over(share, &*journal?)?,
            }
        }
        Ok(())
    }

    fn take_over(&self, share: u16, journal: &dyn StoredFile) -> Result<(), LandingError> {
        let medium = |error| LandingError::Medium(self.name.clone(), error);
        let text = self.read_journal(journal).map_err(medium)?;
        let sums = text.and_then(|text| journal::read(&text, self.blocks, &self.source)).unwrap_or_default();
        let there = |(number, sum): &(u64, BlockSum)| {
            self.sum(*number).is_none() && self.read_back(*number).is_ok_and(|read| read == *sum)
        };
        let new: Vec<_> = sums.into_iter().filter(there).collect();
        if !new.is_empty() {
            let mut state = self.state();
            state.sums.extend(new.iter().copied());
            let lines: String = new.iter().map(|(number, sum)| journal::line(*number, sum)).collect();
            self.journal.write_at(lines.as_bytes(), state.end).map_err(medium)?;
            state.end += lines.len() as u64;
            drop(state);
            // This journal must be synced before the other one is removed.
            self.journal.sync().map_err(medium)?;
        }
        self.folder.remove(&self.name.journal_of(share)).map_err(medium)
    }
}
