//! Names of a file that arrives: the hidden names of its data and its journal, and its own name once it is whole.

use super::{Landing, LandingError};
use crate::attributes::Attributes;
use crate::name::Name;
use crate::storage::{self, Folder, Rights, Stored};
use http_rules::{Preconditions, UnmetPrecondition};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

/// What became of its hidden names, which another one may have since.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Open,
    /// The file has its name and these rights, but the name may not be on the medium.
    Renamed(Rights),
    Finished,
    Discarded,
}

impl Landing {
    /// Sets the rights of the source. The file gets the bits that the process' umask leaves, unless it replaces a file, whose rights it takes
    /// over, or [has](Self::keep) a mode of its own.
    pub fn inherit(&self, mode: u32) {
        *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner) = Some(mode);
    }

    /// The file is whole: gives it its name, and the time when it was `modified`.
    ///
    /// # Errors
    /// If it is not whole, or the medium fails. It can be taken up again.
    pub fn finish(&self, modified: Option<SystemTime>) -> Result<(), LandingError> {
        let missing = self.blocks.count() - self.present();
        if missing > 0 {
            return Err(LandingError::Missing { name: self.name.clone(), missing });
        }
        let mut end = self.end();
        match *end {
            End::Open | End::Renamed(_) => {
                // Nothing else of them is left then.
                self.gather_beyond(1)?;
                self.settle(&mut end, modified).map_err(|error| match error.downcast() {
                    Ok(unmet) => {
                        // This error tells the client. A later request without preconditions finishes the file nevertheless.
                        *self.preconditions() = Preconditions::default();
                        LandingError::Unmet(self.name.clone(), unmet)
                    }
                    Err(error) => LandingError::Medium(self.name.clone(), error),
                })?;
            }
            End::Finished => {}
            End::Discarded => return Err(LandingError::NotBegun(self.name.clone())),
        }
        *end = End::Finished;
        Ok(())
    }

    /// Tests without waiting whether the name may have to be [secured](Self::secure): also while the file gets it.
    pub(crate) fn may_be_renamed(&self) -> bool {
        self.end.try_lock().map_or(true, |end| matches!(*end, End::Renamed(_)))
    }

    /// Brings the file's name to the medium, if an attempt to [finish](Self::finish) gave the name and failed to do so.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn secure(&self) -> Result<(), LandingError> {
        let is_renamed = matches!(*self.end(), End::Renamed(_));
        if is_renamed { self.finish(None) } else { Ok(()) }
    }

    fn settle(&self, end: &mut End, modified: Option<SystemTime>) -> io::Result<()> {
        let mut rights = None;
        if let End::Renamed(had) = *end {
            if !self.take_name_back(end)? {
                // Another file has taken the name.
                return self.folder.remove(&self.name.journal());
            }
            rights = Some(had);
        }
        // The preconditions were met when the file got its name the first time.
        let is_met = rights.is_some();
        let folder = self.folder.open_folder(&self.name.folder())?;
        let Attributes { mode, extended } = self.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A copy before this one may have given it others.
        let set = |mode| self.data.set_attributes(&Attributes { mode, extended: extended.clone() });
        let source = *self.source_mode.lock().unwrap_or_else(PoisonError::into_inner);
        let rights = match (rights, mode) {
            (Some(had), None) => had,
            (None, None) => self.folder.rights(&self.name, source)?,
            (_, mode) => Rights { mode, owner: None },
        };
        let mode = rights.owned(&*self.data);
        // A file that is not to be written could not be taken up again, should this be cut off: that comes last.
        let writable = mode.map(|mode| mode | 0o600);
        set(writable)?;
        if let Some(time) = modified {
            self.data.set_modified(time)?;
        }
        let synced = self.sync(self.epoch());
        let named = synced.and_then(|()| match is_met {
            true => self.folder.rename(&self.name.unfinished(), &self.name),
            false => self.give_name(),
        });
        if let Err(error) = named {
            // It may wait for its name for long, and get other rights then.
            let _first_error_counts = set(mode.map(|_| 0o600));
            return Err(error);
        }
        *end = End::Renamed(rights);
        let lasts = if mode == writable { Ok(()) } else { set(mode) }.and_then(|()| folder.sync_names());
        if let Err(error) = lasts {
            if self.preconditions().is_for_new_file() && self.take_name_back(end).is_ok_and(|is_back| is_back) {
                // The client's next attempt expects that there is none, and may take this one for the answer of a request that was lost.
                let _first_error_counts = set(mode.map(|_| 0o600));
            }
            return Err(error);
        }
        self.folder.remove(&self.name.journal())
    }

    /// Gives the file its hidden name again; `false` if another file has its name. A name counts as lost once a sync of names has failed, and a
    /// sync of names that nobody changes would write nothing.
    fn take_name_back(&self, end: &mut End) -> io::Result<bool> {
        if !is_there(&*self.folder, &self.name, &*self.data)? {
            return Ok(false);
        }
        self.folder.rename(&self.name, &self.name.unfinished())?;
        *end = End::Open;
        Ok(true)
    }

    /// Renames the file, if the preconditions are met at this moment. The error is [`UnmetPrecondition`] if they are not.
    fn give_name(&self) -> io::Result<()> {
        let preconditions = self.preconditions();
        // The journal is locked, so no other server or copy gives a file this name in between.
        storage::evaluate(&*self.folder, &self.name, &preconditions)?.map_err(io::Error::other)?;
        let (from, to) = (self.name.unfinished(), &self.name);
        if !preconditions.is_for_new_file() {
            return self.folder.rename(&from, to);
        }
        // Other programs may create the name in between: here one step does both.
        self.folder.rename_to_new(&from, to).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other(UnmetPrecondition::Failed),
            _ => error,
        })
    }

    /// Removes what there is of it, unless it is the file by now.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn discard(&self) -> io::Result<()> {
        let mut end = self.end();
        // The journal of a file whose name may not last stays, so that a later caller secures the name.
        if matches!(*end, End::Finished | End::Discarded | End::Renamed(_)) {
            return Ok(());
        }
        // The data are the first share's.
        let data = (self.share == 0).then(|| self.name.unfinished());
        for name in data.into_iter().chain([self.name.journal_of(self.share)]) {
            match self.folder.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *end = End::Discarded;
        Ok(())
    }
}

/// The journal of a file, which is this process' until it is closed.
pub(crate) fn lock_journal(folder: &dyn Folder, name: &Name, share: u16) -> Result<Arc<dyn Stored>, LandingError> {
    let of_share = name.journal_of(share);
    let medium = |error| LandingError::Medium(name.clone(), error);
    loop {
        let journal = folder.open_or_create(&of_share).map_err(medium)?;
        if !journal.try_lock().map_err(medium)? {
            return Err(LandingError::Taken(name.clone()));
        }
        // The one that had it may have removed it in between: then the lock is on a file that nobody finds any more.
        if is_there(folder, &of_share, &*journal).map_err(medium)? {
            return Ok(journal);
        }
    }
}

/// Brings the name of a finished file to the medium, if that is not known to be there: the journal is left where a sync of names has failed.
///
/// # Errors
/// If another process writes the file, or the medium fails.
pub(crate) fn secure_name(folder: &dyn Folder, name: &Name) -> Result<(), LandingError> {
    if folder.about(&name.journal()).is_err() || folder.about(&name.unfinished()).is_ok() {
        return Ok(());
    }
    let _lock = lock_journal(folder, name, 0)?;
    // Before it was locked, another process may have left an upload there.
    if folder.about(&name.unfinished()).is_ok() {
        return Ok(());
    }
    let secured = folder.open_folder(&name.folder()).and_then(|above| {
        // A sync of names that nobody changes would write nothing.
        folder.rename(name, &name.unfinished())?;
        folder.rename(&name.unfinished(), name)?;
        above.sync_names()?;
        folder.remove(&name.journal())
    });
    secured.map_err(|error| LandingError::Medium(name.clone(), error))
}

/// Whether the journal that is open is the one that is found under its name.
pub(super) fn is_there(folder: &dyn Folder, name: &Name, journal: &dyn Stored) -> io::Result<bool> {
    match folder.open(name) {
        Ok(found) => Ok(found.identity()? == journal.identity()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
