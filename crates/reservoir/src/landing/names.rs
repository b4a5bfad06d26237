//! Names of a file being received: the hidden names of its data and journal, and its final name.

use super::{LandingError, LandingFile};
use crate::attributes::Attributes;
use crate::name::Name;
use crate::storage::{self, Folder, Rights, StoredFile};
use http_rules::{Preconditions, UnmetPrecondition};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

/// The state of the hidden names. Another upload may use them after the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LandingState {
    Open,
    /// The file has its name and these rights, but the name may not be on the medium.
    Renamed(Rights),
    Finished,
    Discarded,
}

impl LandingFile {
    /// Sets the mode of the source. The file gets this mode reduced by the process' umask. A file with an
    /// [explicit mode](Self::keep) gets that mode, and a replacing file gets the rights of the replaced file.
    pub fn inherit(&self, mode: u32) {
        *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner) = Some(mode);
    }

    /// Completes the file: renames it to its final name, with the modification time `modified`.
    ///
    /// # Errors
    /// If blocks are missing, or the medium fails. The file can be resumed.
    pub fn finish(&self, modified: Option<SystemTime>) -> Result<(), LandingError> {
        let missing = self.blocks.count() - self.present();
        if missing > 0 {
            return Err(LandingError::Missing { name: self.name.clone(), missing });
        }
        let mut end = self.end();
        match *end {
            LandingState::Open | LandingState::Renamed(_) => {
                // Journals of other shares would otherwise stay forever.
                self.gather_beyond(1)?;
                self.sync_and_rename(&mut end, modified).map_err(|error| match error.downcast() {
                    Ok(unmet) => {
                        // The client learns of this error. A later request without preconditions may still complete the
                        // file.
                        *self.preconditions() = Preconditions::default();
                        LandingError::Unmet(self.name.clone(), unmet)
                    }
                    Err(error) => LandingError::Medium(self.name.clone(), error),
                })?;
            }
            LandingState::Finished => {}
            LandingState::Discarded => return Err(LandingError::NotBegun(self.name.clone())),
        }
        *end = LandingState::Finished;
        Ok(())
    }

    /// Tests without waiting whether the name may have to be [secured](Self::secure). True also during the rename.
    pub(crate) fn may_be_renamed(&self) -> bool {
        self.end.try_lock().map_or(true, |end| matches!(*end, LandingState::Renamed(_)))
    }

    /// Syncs the file's name, if an attempt to [finish](Self::finish) renamed the file and then failed.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn secure(&self) -> Result<(), LandingError> {
        let is_renamed = matches!(*self.end(), LandingState::Renamed(_));
        if is_renamed { self.finish(None) } else { Ok(()) }
    }

    fn sync_and_rename(&self, end: &mut LandingState, modified: Option<SystemTime>) -> io::Result<()> {
        let mut rights = None;
        if let LandingState::Renamed(had) = *end {
            if !self.take_name_back(end)? {
                // Another file has taken the name.
                return self.folder.remove(&self.name.journal());
            }
            rights = Some(had);
        }
        // The preconditions were met at the first rename.
        let is_met = rights.is_some();
        let folder = self.folder.open_folder(&self.name.folder())?;
        let Attributes { mode, extended } = self.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // An earlier upload of the file may have set other attributes.
        let set = |mode| self.data.set_attributes(&Attributes { mode, extended: extended.clone() });
        let source = *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner);
        let rights = match (rights, mode) {
            (Some(had), None) => had,
            (None, None) => self.folder.rights(&self.name, source)?,
            (_, mode) => Rights { mode, owner: None },
        };
        let mode = rights.owned(&*self.data);
        // A read-only mode is set last, because an interrupted upload must remain writable.
        let writable = mode.map(|mode| mode | 0o600);
        set(writable)?;
        if let Some(time) = modified {
            self.data.set_modified(time)?;
        }
        // Data first: after a crash the final name must not refer to lost data.
        let synced = self.sync(self.epoch());
        let named = synced.and_then(|()| match is_met {
            true => self.folder.rename(&self.name.unfinished(), &self.name),
            false => self.give_name(),
        });
        if let Err(error) = named {
            // The file may wait for its name for a long time, so it must stay private.
            let _ = set(mode.map(|_| 0o600));
            return Err(error);
        }
        *end = LandingState::Renamed(rights);
        let lasts = if mode == writable { Ok(()) } else { set(mode) }.and_then(|()| folder.sync_names());
        if let Err(error) = lasts {
            if self.preconditions().is_for_new_file() && self.take_name_back(end).is_ok_and(|is_back| is_back) {
                // The client retries with the precondition that the name is free, and could take this file for its own
                // lost response.
                let _ = set(mode.map(|_| 0o600));
            }
            return Err(error);
        }
        self.folder.remove(&self.name.journal())
    }

    /// Renames the file back to its hidden name. Returns `false` if another file has the final name. After a failed
    /// sync of names, a name counts as lost, and a further sync without changed names would write nothing.
    fn take_name_back(&self, end: &mut LandingState) -> io::Result<bool> {
        if !is_there(&*self.folder, &self.name, &*self.data)? {
            return Ok(false);
        }
        self.folder.rename(&self.name, &self.name.unfinished())?;
        *end = LandingState::Open;
        Ok(true)
    }

    /// Renames the file, if the preconditions are met at this moment. Otherwise the error is [`Unmet`].
    fn give_name(&self) -> io::Result<()> {
        let preconditions = self.preconditions();
        // The journal is locked, so no other server or copy can create this name in between.
        storage::evaluate(&*self.folder, &self.name, &preconditions)?.map_err(io::Error::other)?;
        let (from, to) = (self.name.unfinished(), &self.name);
        if !preconditions.is_for_new_file() {
            return self.folder.rename(&from, to);
        }
        // Other programs may create the name in between, so check and rename are one step.
        self.folder.rename_to_new(&from, to).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other(UnmetPrecondition::Failed),
            _ => error,
        })
    }

    /// Removes the unfinished file, unless it was completed.
    ///
    /// # Errors
    /// If the files cannot be removed.
    pub fn discard(&self) -> io::Result<()> {
        let mut end = self.end();
        // The name of a renamed file may not last yet. Its journal stays, so that a later caller secures the name.
        if matches!(*end, LandingState::Finished | LandingState::Discarded | LandingState::Renamed(_)) {
            return Ok(());
        }
        // The data belong to the first share.
        let data = (self.share == 0).then(|| self.name.unfinished());
        for name in data.into_iter().chain([self.name.journal_of(self.share)]) {
            match self.folder.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *end = LandingState::Discarded;
        Ok(())
    }
}

/// Opens and locks the journal of a share, until the journal is closed.
pub(crate) fn lock_journal(folder: &dyn Folder, name: &Name, share: u16) -> Result<Arc<dyn StoredFile>, LandingError> {
    let of_share = name.journal_of(share);
    let medium = |error| LandingError::Medium(name.clone(), error);
    loop {
        let journal = folder.open_or_create(&of_share).map_err(medium)?;
        if !journal.try_lock().map_err(medium)? {
            return Err(LandingError::Taken(name.clone()));
        }
        // The previous owner may have removed the journal in between. The lock would then be on an unreachable file.
        if is_there(folder, &of_share, &*journal).map_err(medium)? {
            return Ok(journal);
        }
    }
}

/// Syncs the name of a finished file, if necessary. A journal without hidden file shows that a sync of names has
/// failed.
///
/// # Errors
/// If another process writes the file, or the medium fails.
pub(crate) fn secure_name(folder: &dyn Folder, name: &Name) -> Result<(), LandingError> {
    if folder.about(&name.journal()).is_err() || folder.about(&name.unfinished()).is_ok() {
        return Ok(());
    }
    let _journal_lock = lock_journal(folder, name, 0)?;
    // Before the lock was taken, another process may have left an upload there.
    if folder.about(&name.unfinished()).is_ok() {
        return Ok(());
    }
    let secured = folder.open_folder(&name.folder()).and_then(|above| {
        // A sync of names without a change would write nothing.
        folder.rename(name, &name.unfinished())?;
        folder.rename(&name.unfinished(), name)?;
        above.sync_names()?;
        folder.remove(&name.journal())
    });
    secured.map_err(|error| LandingError::Medium(name.clone(), error))
}

/// Returns whether an open file is the one found under its name.
pub(super) fn is_there(folder: &dyn Folder, name: &Name, journal: &dyn StoredFile) -> io::Result<bool> {
    match folder.open(name) {
        Ok(found) => Ok(found.identity()? == journal.identity()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
