//! Batches of small files: read into a pack one after the other; or written under hidden names, synced together, and
//! then renamed.
//!
//! Invariant: a file gets its name only after its bytes are on the medium. If a sync fails, all files of the batch
//! count as lost. Each file is locked like a [`LandingFile`](crate::landing::LandingFile), so that a name has at most
//! one writer at a time.
//!
//! All calls block.

use crate::attributes::{Attributes, Preserve};
use crate::body::PIECE;
use crate::landing::{LandingError, lock_journal};
use crate::name::{BadName, Name};
use crate::pack::{MAX_FILE_BYTES, Packed};
use crate::storage::{FileInfo, FileKind, Folder, OpenFolder, StoredFile, read_exactly};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// Files received for a folder.
pub(crate) struct Batch {
    folder: Arc<dyn Folder>,
    into: Name,
    files: Vec<Packed>,
    bytes: usize,
    /// Folders of the written files, each opened before its files, in this order.
    folders: Vec<(Name, Arc<dyn OpenFolder>)>,
}

/// Names of files that could not be written, with the reasons.
pub(crate) type RefusedFiles = Vec<(Name, LandingError)>;

impl Batch {
    pub(crate) fn new(folder: Arc<dyn Folder>, into: Name) -> Batch {
        Batch { folder, into, files: Vec::new(), bytes: 0, folders: Vec::new() }
    }

    /// Adds a file. Returns whether the batch should be written.
    pub(crate) fn push(&mut self, file: Packed) -> bool {
        self.bytes += file.bytes.len();
        self.files.push(file);
        self.files.len() >= MAX_BATCH_FILES || self.bytes >= MAX_BATCH_BYTES
    }

    /// Returns the final names of the files.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.files.iter().filter_map(|file| self.name_of(file).ok()).collect()
    }

    /// Writes, syncs and renames all files. Returns the empty batch and the refused files.
    ///
    /// # Errors
    /// If the medium fails or is full. Each name then has either its new or its old file.
    pub(crate) fn land(mut self) -> io::Result<(Batch, RefusedFiles)> {
        let mut written = VecDeque::new();
        let landed = self.land_all(&mut written);
        // No client resumes these files, and they would keep a full disk full.
        for WrittenFile { name, .. } in &written {
            let _ = self.folder.remove(&name.unfinished()).and(self.folder.remove(&name.journal()));
        }
        landed.map(|refused| (self, refused))
    }

    /// Writes and renames all files of the batch. On failure, `written` has the files that were not renamed.
    fn land_all(&mut self, written: &mut VecDeque<WrittenFile>) -> io::Result<RefusedFiles> {
        let mut refused = Vec::new();
        for file in core::mem::take(&mut self.files) {
            match self.write(&file) {
                Ok(one) => written.push_back(one),
                // The following files would find no space either.
                Err(LandingError::Medium(_, error)) if is_full(&error) => return Err(error),
                Err(error) => refused.push((file.name, error)),
            }
        }
        self.bytes = 0;
        let folders = core::mem::take(&mut self.folders);
        let mut synced = BTreeSet::new();
        for (_, folder) in &folders {
            // One call syncs all files of a file system: a call per file would wait for the medium each time. A folder
            // may be a mount point of another file system.
            if synced.insert(folder.file_system()?) {
                folder.sync_files()?;
            }
        }
        let mut named = Vec::new();
        let mut landed = Ok(());
        while let Some(WrittenFile { name, data, mode, .. }) = written.front() {
            landed = self.folder.rename(&name.unfinished(), name);
            if landed.is_err() {
                break;
            }
            if let Some(mode) = mode.filter(|mode| mode & 0o600 != 0o600) {
                landed = data.set_attributes(&mode_attributes(mode));
            }
            named.extend(written.pop_front());
            if landed.is_err() {
                break;
            }
        }
        landed = landed.and_then(|()| folders.iter().try_for_each(|(_, folder)| folder.sync_names()));
        // A journal without a hidden file tells the next server that the rename may be lost.
        for WrittenFile { name, lock, .. } in named {
            landed = landed.and_then(|()| self.folder.remove(&name.journal()));
            drop(lock);
        }
        landed.map(|()| refused)
    }

    fn name_of(&self, file: &Packed) -> Result<Name, BadName> {
        let mut parts = file.name.path().components();
        parts.try_fold(self.into.clone(), |name, part| name.join(part.as_os_str()))
    }

    /// Writes one file under its hidden name.
    fn write(&mut self, file: &Packed) -> Result<WrittenFile, LandingError> {
        let name =
            self.name_of(file).map_err(|error| LandingError::Medium(file.name.clone(), io::Error::other(error)))?;
        let medium = |error| LandingError::Medium(name.clone(), error);
        if self.folder.about(&name).is_ok_and(|about| about.kind != FileKind::File) {
            return Err(LandingError::NoFile(name));
        }
        let above = name.folder();
        if !self.folders.iter().any(|(known, _)| *known == above) {
            self.folder.create_folder(&above).map_err(medium)?;
            let opened = self.folder.open_folder(&above).map_err(medium)?;
            self.folders.push((above, opened));
        }
        let lock = lock_journal(&*self.folder, &name, 0)?;
        let (data, mode) = self.fill(&name, &*lock, file).map_err(|error| {
            let _ = self.folder.remove(&name.unfinished()).and(self.folder.remove(&name.journal()));
            medium(error)
        })?;
        Ok(WrittenFile { name, lock, data, mode })
    }

    /// Writes the hidden file. Returns the file, and its final mode.
    fn fill(
        &self,
        name: &Name,
        lock: &dyn StoredFile,
        file: &Packed,
    ) -> io::Result<(Arc<dyn StoredFile>, Option<u32>)> {
        // The journal lists blocks of an earlier upload, which this file overwrites.
        if lock.about()?.size > 0 {
            lock.set_size(0)?;
            lock.sync()?;
        }
        // An upload may have the file open and still write to it.
        match self.folder.remove(&name.unfinished()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let data = self.folder.open_or_create(&name.unfinished())?;
        data.write_at(&file.bytes, 0)?;
        let mode = self.folder.rights(name, file.mode)?.owned(&*data);
        if let Some(mode) = mode {
            // A read-only mode is set last, because a file that was cut off must be writable for the next attempt.
            data.set_attributes(&mode_attributes(mode | 0o600))?;
        }
        data.set_modified(file.modified)?;
        Ok((data, mode))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A file written under its hidden name.
struct WrittenFile {
    name: Name,
    lock: Arc<dyn StoredFile>,
    data: Arc<dyn StoredFile>,
    /// The final mode of the file.
    mode: Option<u32>,
}

fn mode_attributes(mode: u32) -> Attributes {
    Attributes { mode: Some(mode), extended: Vec::new() }
}

/// A file to be packed.
pub(crate) struct PackEntry {
    pub(crate) at: Name,
    pub(crate) packed_as: Name,
    /// The file's entity tag in the list. A file with another tag now is left out.
    pub(crate) tag: Option<String>,
}

/// A part of a pack.
pub(crate) struct PackPiece {
    pub(crate) bytes: Bytes,
    /// Number of files, and their total length in bytes.
    pub(crate) files: u64,
    pub(crate) content: u64,
    /// Files left out, because they cannot be read, are too large, or have changed.
    pub(crate) left_out: Vec<Name>,
}

/// Packs files from the front of `wanted`, as many as fill a piece.
pub(crate) fn gather(folder: &dyn Folder, wanted: &mut VecDeque<PackEntry>) -> PackPiece {
    let (mut into, mut gathered) =
        (BytesMut::new(), PackPiece { bytes: Bytes::new(), files: 0, content: 0, left_out: Vec::new() });
    while into.len() < PIECE
        && let Some(PackEntry { at, packed_as, tag }) = wanted.pop_front()
    {
        match read(folder, &at, tag.as_deref()) {
            Ok((now, mode, bytes)) => {
                gathered.files += 1;
                gathered.content += bytes.len() as u64;
                Packed { name: packed_as, modified: now.modified, mode, bytes }.write(&mut into);
            }
            Err(_) => gathered.left_out.push(packed_as),
        }
    }
    gathered.bytes = into.freeze();
    gathered
}

fn read(folder: &dyn Folder, name: &Name, expected: Option<&str>) -> io::Result<(FileInfo, Option<u32>, Bytes)> {
    let file = folder.open(name)?;
    let about = file.about()?;
    if about.size > MAX_FILE_BYTES || expected.is_some_and(|expected| expected != about.entity_tag()) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mode = file.attributes(Preserve { mode: true, extended: false })?.mode;
    let mut bytes = vec![0; about.size as usize];
    read_exactly(&*file, &mut bytes, 0)?;
    // Some files of procfs have contents but size 0.
    if about.size == 0 && file.read_at(&mut [0], 0)? > 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // A file written meanwhile is neither the old nor the new version.
    if file.about()? == about { Ok((about, mode, bytes.into())) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Maximum number of files in a batch. Each is open while locked.
const MAX_BATCH_FILES: usize = 64;
const MAX_BATCH_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use crate::landing::{LandingFile, ResumeMode};
    use crate::rooted::Rooted;
    use std::time::SystemTime;

    fn packed(url: &str) -> Packed {
        let name = Name::from_url(url).unwrap();
        Packed { modified: SystemTime::UNIX_EPOCH, mode: None, bytes: Bytes::from(url.to_owned()), name }
    }

    #[test]
    fn files_land_together_and_refused_files_are_reported() {
        let there = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(there.path().join("into/folder")).unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(there.path()).unwrap());
        let name = |url: &str| Name::from_url(url).unwrap();
        // Another writer holds one of the names.
        let other = LandingFile::open(
            folder.clone(),
            &name("/into/busy"),
            Blocks::new(5, 1024).unwrap(),
            "x",
            ResumeMode::Anew,
        );
        let mut batch = Batch::new(folder.clone(), name("/into"));
        for url in ["/a/b/c", "/busy", "/folder", "/plain"] {
            assert!(!batch.push(packed(url)));
        }
        let (mut batch, refused) = batch.land().unwrap();
        let told: Vec<String> = refused.iter().map(|(name, error)| format!("{name}: {error}")).collect();
        assert!(told.len() == 2 && told[0].starts_with("/busy: ") && told[1].starts_with("/folder: "), "{told:?}");
        assert_eq!(std::fs::read(there.path().join("into/a/b/c")).unwrap(), b"/a/b/c");
        drop(other);
        batch.push(packed("/busy"));
        let (batch, refused) = batch.land().unwrap();
        assert!(refused.is_empty() && batch.files.is_empty());
        let left: Vec<_> =
            std::fs::read_dir(there.path().join("into")).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(left.len(), 4, "{left:?}");
        // Packs the files again. Missing and large files are left out.
        std::fs::write(there.path().join("into/large"), vec![0; MAX_FILE_BYTES as usize + 1]).unwrap();
        let want = |url: &str| PackEntry { at: name(&format!("/into{url}")), packed_as: name(url), tag: None };
        let gathered = gather(&*folder, &mut ["/plain", "/none", "/large", "/folder"].map(want).into());
        assert_eq!((gathered.files, gathered.content, gathered.left_out.len()), (1, 6, 3));
    }

    /// The other server of an upload in two shares does not learn that a pack has replaced the file.
    #[test]
    fn share_of_an_upload_does_not_write_to_a_packed_file() {
        let there = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(Rooted::open(there.path()).unwrap());
        let name = Name::from_url("/file").unwrap();
        let open = |share| {
            let blocks = Blocks::new(5, 1024).unwrap();
            LandingFile::open_share(folder.clone(), &name, blocks, "source", ResumeMode::Anew, share).unwrap()
        };
        let (first, second) = (open(0), open(1));
        drop(first);
        let mut batch = Batch::new(folder.clone(), Name::root());
        batch.push(packed("/file"));
        let (_, refused) = batch.land().unwrap();
        assert!(refused.is_empty());
        second.write(b"other", 0).unwrap();
        assert_eq!(std::fs::read(there.path().join("file")).unwrap(), b"/file");
    }
}
