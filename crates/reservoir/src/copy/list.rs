//! Lists the files to copy: the sources, and the files in folders among them.

use super::place::{CopyEnd, CopyEnds, CopyLocation};
use super::{Copy, CopyError};
use crate::mtime::Resolution;
use crate::name::Name;
use crate::remote::{FolderEntry, RemoteFile};
use crate::storage::{FileInfo, FileKind};
use core::ops::Range;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// A file to copy.
///
/// ```
/// use offload_reservoir::Shell;
/// use offload_reservoir::copy::{Copy, CopyItem, CopyLocation, PlainDialer};
/// use std::io;
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn listed(there: &std::path::Path) -> Result<Vec<CopyItem>, Box<dyn core::error::Error>> {
/// std::fs::create_dir(there.join("run"))?;
/// std::fs::write(there.join("run/data"), "text")?;
/// let nowhere = PlainDialer::new(|_: &str, _| Err::<tokio::io::DuplexStream, _>(io::ErrorKind::NotFound.into()));
/// let copy = Copy::new(Shell::tokio(), Arc::new(nowhere));
/// # Ok(
/// copy.list(&[CopyLocation::local(&there.join("run"))?], &CopyLocation::local(&there.join("copy"))?).await?
/// # )
/// # }
/// # let items = listed(there)?;
/// assert_eq!((items[0].size(), items[0].path()), (4, "/data"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CopyItem {
    pub(super) from: (CopyEnd, Name),
    pub(super) to: (CopyEnd, Name),
    pub(super) about: FileInfo,
    /// The resolution of the source's modification time.
    pub(super) resolution: Resolution,
    /// The entity tag of the source.
    pub(super) tag: Option<String>,
    pub(super) is_reservoir: bool,
    /// Path below the source, as in a URL.
    path: String,
    /// The runs of blocks to copy here, if other parts copy the rest.
    pub(super) blocks: Option<Vec<Range<u64>>>,
    /// The reason for which the entry cannot be copied. Such items are reported as failed.
    pub(super) refused: Option<String>,
}

impl CopyItem {
    pub(super) fn new(
        from: (CopyEnd, Name),
        to: (CopyEnd, Name),
        found: FoundEntry,
        blocks: Option<Vec<Range<u64>>>,
    ) -> CopyItem {
        let FoundEntry { about, resolution, tag, is_reservoir } = found;
        let path = from.1.to_url();
        CopyItem { from, to, about, resolution, tag, is_reservoir, path, blocks, refused: None }
    }

    /// Returns the modification time. `None` if the source does not tell it.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        Some(self.about.modified).filter(|_| self.resolution != Resolution::Unknown)
    }

    pub(super) fn time(&self) -> (SystemTime, Resolution) {
        (self.about.modified, self.resolution)
    }

    /// Tests whether one of the ends is a URL with a query.
    pub(super) fn has_query(&self) -> bool {
        let has = |(side, name): &(CopyEnd, Name)| matches!(side, CopyEnd::Remote(server, _) if server.has_query(name));
        has(&self.from) || has(&self.to)
    }

    /// Returns whether a block is copied here.
    pub(super) fn has(&self, block: u64) -> bool {
        self.blocks.as_ref().is_none_or(|mine| mine.iter().any(|run| run.contains(&block)))
    }

    /// Returns the number of bytes copied here.
    pub(super) fn bytes_here(&self, block: u64) -> u64 {
        let of_run = |run: &Range<u64>| (run.end * block).min(self.size()) - (run.start * block).min(self.size());
        self.blocks.as_ref().map_or(self.size(), |mine| mine.iter().map(of_run).sum())
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.about.size
    }

    /// Returns the path below the source.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the source's name, for messages and as the identity of a resumable copy.
    pub(super) fn source(&self) -> String {
        self.from.0.shown(&self.from.1)
    }

    /// Returns a text that identifies this version of the source.
    pub(super) fn version(&self) -> String {
        let tag = self.tag.clone().unwrap_or_else(|| self.about.entity_tag());
        format!("{} {} {tag}", self.source(), self.about.size)
    }
}

pub(super) async fn list(copy: &Copy, sources: &[CopyLocation], to: &CopyLocation) -> Result<Vec<CopyItem>, CopyError> {
    let mut sides = CopyEnds::new(copy);
    let (to_side, to_name) = sides.open(to)?;
    if to.has_query() && sources.len() > 1 {
        return Err(CopyError::Unusable(format!("{to}: {ONE_FILE}")));
    }
    // As with `cp`: several sources, or an existing folder, mean a place inside the destination.
    let into = !to.has_query() && (to.has_slash() || sources.len() > 1 || is_folder(copy, &to_side, &to_name).await?);
    let mut items = Vec::new();
    for source in sources {
        let (side, name) = sides.open(source)?;
        let found = find_source(copy, &side, &name).await?;
        let is_folder = found.about.kind == FileKind::Folder;
        if is_folder && (source.has_query() || to.has_query()) {
            return Err(CopyError::Unusable(format!("{}: {ONE_FILE}", if to.has_query() { to } else { source })));
        }
        // `folder/` means the contents of the folder.
        let target = match source.last().filter(|_| into && !(is_folder && source.has_slash())) {
            Some(last) => to_name.join(&last)?,
            None => to_name.clone(),
        };
        let listing = FolderLister { copy, side, to: to_side.clone() };
        if is_folder {
            listing.folder(name, target, &mut items).await?;
        } else {
            let last = name.last().map_or_else(Name::root, |last| Name::root().join(last).unwrap_or_default());
            items.push(listing.item(name, target, &last, found));
        }
    }
    Ok(items)
}

/// Returns the item that copies the file at `source` to the exact name `to`.
#[cfg(feature = "third-party")]
pub(super) async fn file(copy: &Copy, source: &CopyLocation, to: &CopyLocation) -> Result<CopyItem, CopyError> {
    let mut sides = CopyEnds::new(copy);
    let ((side, from), (to_side, to)) = (sides.open(source)?, sides.open(to)?);
    let unusable = |side: &CopyEnd, name: &Name, why| CopyError::Unusable(format!("{}: {why}", side.shown(name)));
    let found = find_source(copy, &side, &from).await?;
    if found.about.kind != FileKind::File {
        return Err(unusable(&side, &from, "this is no file"));
    }
    if is_folder(copy, &to_side, &to).await? {
        return Err(unusable(&to_side, &to, "this is a folder"));
    }
    let below = Name::root();
    Ok(FolderLister { copy, side, to: to_side }.item(from, to, &below, found))
}

struct FolderLister<'a> {
    copy: &'a Copy,
    side: CopyEnd,
    to: CopyEnd,
}

impl FolderLister<'_> {
    fn item(&self, from: Name, to: Name, below: &Name, found: FoundEntry) -> CopyItem {
        let (from, to) = ((self.side.clone(), from), (self.to.clone(), to));
        CopyItem { path: below.to_url(), ..CopyItem::new(from, to, found, None) }
    }

    /// Creates an item that reports an entry which cannot be copied.
    fn refused(&self, from: &Name, to: &Name, below: &Name, why: String) -> CopyItem {
        let about = FileInfo::without_inode(FileKind::Other, 0, SystemTime::UNIX_EPOCH);
        let found = FoundEntry { about, resolution: Resolution::Unknown, tag: None, is_reservoir: false };
        CopyItem { refused: Some(why), ..self.item(from.clone(), to.clone(), below, found) }
    }

    /// Lists a folder recursively. Entries that cannot be copied are listed too, so that they are reported.
    async fn folder(&self, from: Name, to: Name, items: &mut Vec<CopyItem>) -> Result<(), CopyError> {
        // A stack instead of recursion, because a tree can be deep.
        let mut folders = vec![Name::root()];
        while let Some(below) = folders.pop() {
            let at = joined(&from, &below)?;
            let mut entries = self.entries(&at).await?;
            // A fixed order makes plans and resumed copies reproducible.
            entries.sort_by(|one, other| one.part.cmp(&other.part));
            let before = items.len() + folders.len();
            for FolderEntry { part, about, resolution, tag } in entries {
                let path = below.path().join(&part);
                if self.copy.exclude.iter().any(|pattern| pattern.fits_path(&path)) {
                    continue;
                }
                let refused = |bad: &dyn core::fmt::Display| self.refused(&at, &to, &below, format!("in it, {bad}"));
                let inside = match below.join(&part) {
                    Ok(inside) => inside,
                    Err(bad) => {
                        items.push(refused(&bad));
                        continue;
                    }
                };
                let (source, target) = match (joined(&from, &inside), joined(&to, &inside)) {
                    (Ok(source), Ok(target)) => (source, target),
                    (Err(bad), _) | (_, Err(bad)) => {
                        items.push(refused(&bad));
                        continue;
                    }
                };
                match about.kind {
                    FileKind::Folder => folders.push(inside),
                    FileKind::File => {
                        let is_reservoir = matches!(&self.side, CopyEnd::Remote(server, _) if !server.is_bucket());
                        items.push(self.item(
                            source,
                            target,
                            &inside,
                            FoundEntry { about, resolution, tag, is_reservoir },
                        ));
                    }
                    FileKind::Other => items.push(self.refused(&source, &target, &inside, NO_FILE.into())),
                }
            }
            // Folders with files are created with the files.
            if items.len() + folders.len() == before {
                let about = FileInfo::without_inode(FileKind::Folder, 0, SystemTime::UNIX_EPOCH);
                let found = FoundEntry { about, resolution: Resolution::Unknown, tag: None, is_reservoir: false };
                items.push(self.item(at, joined(&to, &below)?, &below, found));
            }
        }
        Ok(())
    }

    async fn entries(&self, at: &Name) -> Result<Vec<FolderEntry>, CopyError> {
        match &self.side {
            CopyEnd::Remote(server, _) => Ok(server.list(at).await?),
            CopyEnd::Local(folder, _) => {
                let (folder, name) = (folder.clone(), at.clone());
                let listed = self.copy.shell.blocking(move || {
                    let listed = |entry: io::Result<(_, FileInfo)>| {
                        entry.map(|(part, about)| {
                            let (resolution, tag) = (Resolution::Nanoseconds, Some(about.entity_tag()));
                            FolderEntry { part, about, resolution, tag }
                        })
                    };
                    folder.list(&name)?.map(listed).collect()
                });
                listed.await.map_err(|error| CopyError::Local { path: PathBuf::from(self.side.shown(at)), error })
            }
        }
    }
}

fn joined(above: &Name, below: &Name) -> Result<Name, CopyError> {
    Ok(below.path().components().try_fold(above.clone(), |name, part| name.join(part.as_os_str()))?)
}

pub(super) struct FoundEntry {
    pub(super) about: FileInfo,
    pub(super) resolution: Resolution,
    pub(super) tag: Option<String>,
    pub(super) is_reservoir: bool,
}

/// Describes a source, which must exist.
async fn find_source(copy: &Copy, side: &CopyEnd, name: &Name) -> Result<FoundEntry, CopyError> {
    let local = |error| CopyError::Local { path: PathBuf::from(side.shown(name)), error };
    let found = find_entry(copy, side, name).await?;
    found.ok_or_else(|| local(io::ErrorKind::NotFound.into()))
}

/// Describes an entry, if it exists.
pub(super) async fn find_entry(copy: &Copy, side: &CopyEnd, name: &Name) -> Result<Option<FoundEntry>, CopyError> {
    match side {
        CopyEnd::Remote(server, _) => {
            let found = server.head(name).await?;
            Ok(found.map(|RemoteFile { about, resolution, tag, is_reservoir, .. }| FoundEntry {
                about,
                resolution,
                tag,
                is_reservoir,
            }))
        }
        CopyEnd::Local(folder, _) => {
            let (folder, at) = (folder.clone(), name.clone());
            match copy.shell.blocking(move || folder.about(&at)).await {
                Ok(about) => {
                    let (resolution, tag) = (Resolution::Nanoseconds, Some(about.entity_tag()));
                    Ok(Some(FoundEntry { about, resolution, tag, is_reservoir: false }))
                }
                // Other errors are reported, because the entry may exist.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(CopyError::Local { path: PathBuf::from(side.shown(name)), error }),
            }
        }
    }
}

/// Returns whether a destination is a folder. A write-only token cannot see folders.
async fn is_folder(copy: &Copy, side: &CopyEnd, name: &Name) -> Result<bool, CopyError> {
    if name == &Name::root() {
        return Ok(true);
    }
    match find_entry(copy, side, name).await {
        Ok(found) => Ok(found.is_some_and(|found| found.about.kind == FileKind::Folder)),
        Err(CopyError::Remote(crate::remote::RemoteError::Refused { status, .. })) if status == 403 => Ok(false),
        Err(error) => Err(error),
    }
}

const ONE_FILE: &str = "a URL with a query is one file: name each file, and no folder";
const NO_FILE: &str =
    "this is neither file nor folder (a link to a folder, a pipe, a device): leave it out by --exclude";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Copy, PlainDialer};
    use crate::rooted::Rooted;
    use crate::storage::{Folder, FolderEntries, OpenFolder, StoredFile};
    use crate::{Server, ServerLimits, Shell};
    use std::sync::Arc;

    /// A folder with invalid names in its listing.
    struct OddFolder(Rooted);

    impl Folder for OddFolder {
        fn list(&self, name: &Name) -> io::Result<FolderEntries> {
            let about = FileInfo::without_inode(FileKind::File, 4, SystemTime::UNIX_EPOCH);
            let odd = ["..".into(), "x".repeat(256).into()].map(|part| Ok((part, about)));
            Ok(Box::new(odd.into_iter().chain(self.0.list(name)?)))
        }

        fn open(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
            self.0.open(name)
        }

        fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn StoredFile>> {
            self.0.open_or_create(name)
        }

        fn about(&self, name: &Name) -> io::Result<FileInfo> {
            self.0.about(name)
        }

        fn create_folder(&self, name: &Name) -> io::Result<()> {
            self.0.create_folder(name)
        }

        fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
            self.0.rename(from, to)
        }

        fn remove(&self, name: &Name) -> io::Result<()> {
            self.0.remove(name)
        }

        fn open_folder(&self, name: &Name) -> io::Result<Arc<dyn OpenFolder>> {
            self.0.open_folder(name)
        }
    }

    #[tokio::test]
    async fn uncopyable_entries_are_reported_and_others_copied() {
        let outer = tempfile::tempdir().unwrap();
        let run = outer.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("data"), "text").unwrap();
        std::os::unix::fs::symlink(".", run.join("circle")).unwrap();
        let server =
            Server::new(Arc::new(OddFolder(Rooted::open(&run).unwrap())), Shell::tokio(), ServerLimits::default());
        let server = server.open_to_all();
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = server.clone();
            tokio::spawn(async move { server.serve(theirs, "memory").await });
            Ok(ours)
        });
        let copy = Copy::new(Shell::tokio(), Arc::new(dial));
        let remote = CopyLocation::parse("https://server/", None).unwrap();
        let local = CopyLocation::local(&run).unwrap();
        for (source, to, whys) in
            [(local, "one", vec![NO_FILE]), (remote, "two", vec!["`..` has", NO_FILE, "longer than 255"])]
        {
            let target = outer.path().join(to);
            let outcome = copy.run(&[source], &CopyLocation::local(&target).unwrap()).await.unwrap();
            assert_eq!((outcome.copied, outcome.failed.len()), (1, whys.len()), "{:?}", outcome.failed);
            for ((_, told), why) in outcome.failed.iter().zip(whys) {
                assert!(told.contains(why), "{told}");
            }
            assert_eq!(std::fs::read(target.join("data")).unwrap(), b"text");
        }
    }
}
