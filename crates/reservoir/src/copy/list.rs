//! Lists the files to copy: the sources, and the files in folders among them.

use super::place::{Place, Side, Sides};
use super::{Copy, CopyError};
use crate::mtime::Resolution;
use crate::name::Name;
use crate::remote::{Found, Listed};
use crate::storage::{About, Kind};
use core::ops::Range;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// A file to copy.
///
/// ```
/// use offload_reservoir::Shell;
/// use offload_reservoir::copy::{Copy, Item, Place, Plain};
/// use std::io;
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn listed(there: &std::path::Path) -> Result<Vec<Item>, Box<dyn core::error::Error>> {
/// std::fs::create_dir(there.join("run"))?;
/// std::fs::write(there.join("run/data"), "text")?;
/// let nowhere = Plain::new(|_: &str, _| Err::<tokio::io::DuplexStream, _>(io::ErrorKind::NotFound.into()));
/// let copy = Copy::new(Shell::tokio(), Arc::new(nowhere));
/// # Ok(
/// copy.list(&[Place::local(&there.join("run"))?], &Place::local(&there.join("copy"))?).await?
/// # )
/// # }
/// # let items = listed(there)?;
/// assert_eq!((items[0].size(), items[0].path()), (4, "/data"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Item {
    pub(super) from: (Side, Name),
    pub(super) to: (Side, Name),
    pub(super) about: About,
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

impl Item {
    pub(super) fn new(from: (Side, Name), to: (Side, Name), found: Looked, blocks: Option<Vec<Range<u64>>>) -> Item {
        let Looked { about, resolution, tag, is_reservoir } = found;
        let path = from.1.to_url();
        Item { from, to, about, resolution, tag, is_reservoir, path, blocks, refused: None }
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
        let has = |(side, name): &(Side, Name)| matches!(side, Side::Remote(server, _) if server.has_query(name));
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

pub(super) async fn list(copy: &Copy, sources: &[Place], to: &Place) -> Result<Vec<Item>, CopyError> {
    let mut sides = Sides::new(copy);
    let (to_side, to_name) = sides.open(to)?;
    if to.has_query() && sources.len() > 1 {
        return Err(CopyError::Unusable(format!("{to}: {ONE_FILE}")));
    }
    // As with `cp`: several sources, or an existing folder, mean a place inside the destination.
    let into = !to.has_query() && (to.has_slash() || sources.len() > 1 || is_folder(copy, &to_side, &to_name).await?);
    let mut items = Vec::new();
    for source in sources {
        let (side, name) = sides.open(source)?;
        let found = look(copy, &side, &name).await?;
        let is_folder = found.about.kind == Kind::Folder;
        if is_folder && (source.has_query() || to.has_query()) {
            return Err(CopyError::Unusable(format!("{}: {ONE_FILE}", if to.has_query() { to } else { source })));
        }
        // `folder/` means the contents of the folder.
        let target = match source.last().filter(|_| into && !(is_folder && source.has_slash())) {
            Some(last) => to_name.join(&last)?,
            None => to_name.clone(),
        };
        let listing = Listing { copy, side, to: to_side.clone() };
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
pub(super) async fn file(copy: &Copy, source: &Place, to: &Place) -> Result<Item, CopyError> {
    let mut sides = Sides::new(copy);
    let ((side, from), (to_side, to)) = (sides.open(source)?, sides.open(to)?);
    let unusable = |side: &Side, name: &Name, why| CopyError::Unusable(format!("{}: {why}", side.shown(name)));
    let found = look(copy, &side, &from).await?;
    if found.about.kind != Kind::File {
        return Err(unusable(&side, &from, "this is no file"));
    }
    if is_folder(copy, &to_side, &to).await? {
        return Err(unusable(&to_side, &to, "this is a folder"));
    }
    let below = Name::root();
    Ok(Listing { copy, side, to: to_side }.item(from, to, &below, found))
}

struct Listing<'a> {
    copy: &'a Copy,
    side: Side,
    to: Side,
}

impl Listing<'_> {
    fn item(&self, from: Name, to: Name, below: &Name, found: Looked) -> Item {
        let (from, to) = ((self.side.clone(), from), (self.to.clone(), to));
        Item { path: below.to_url(), ..Item::new(from, to, found, None) }
    }

    /// Creates an item that reports an entry which cannot be copied.
    fn refused(&self, from: &Name, to: &Name, below: &Name, why: String) -> Item {
        let about = About::without_inode(Kind::Other, 0, SystemTime::UNIX_EPOCH);
        let found = Looked { about, resolution: Resolution::Unknown, tag: None, is_reservoir: false };
        Item { refused: Some(why), ..self.item(from.clone(), to.clone(), below, found) }
    }

    /// Lists a folder recursively. Entries that cannot be copied are listed too, so that they are reported.
    async fn folder(&self, from: Name, to: Name, items: &mut Vec<Item>) -> Result<(), CopyError> {
        // A stack instead of recursion, because a tree can be deep.
        let mut folders = vec![Name::root()];
        while let Some(below) = folders.pop() {
            let at = joined(&from, &below)?;
            let mut entries = self.entries(&at).await?;
            // A fixed order makes plans and resumed copies reproducible.
            entries.sort_by(|one, other| one.part.cmp(&other.part));
            let before = items.len() + folders.len();
            for Listed { part, about, resolution, tag } in entries {
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
                    Kind::Folder => folders.push(inside),
                    Kind::File => {
                        let is_reservoir = matches!(&self.side, Side::Remote(server, _) if !server.is_bucket());
                        items.push(self.item(source, target, &inside, Looked { about, resolution, tag, is_reservoir }));
                    }
                    Kind::Other => items.push(self.refused(&source, &target, &inside, NO_FILE.into())),
                }
            }
            // Folders with files are created with the files.
            if items.len() + folders.len() == before {
                let about = About::without_inode(Kind::Folder, 0, SystemTime::UNIX_EPOCH);
                let found = Looked { about, resolution: Resolution::Unknown, tag: None, is_reservoir: false };
                items.push(self.item(at, joined(&to, &below)?, &below, found));
            }
        }
        Ok(())
    }

    async fn entries(&self, at: &Name) -> Result<Vec<Listed>, CopyError> {
        match &self.side {
            Side::Remote(server, _) => Ok(server.list(at).await?),
            Side::Local(folder, _) => {
                let (folder, name) = (folder.clone(), at.clone());
                let listed = self.copy.shell.blocking(move || {
                    let listed = |entry: io::Result<(_, About)>| {
                        entry.map(|(part, about)| {
                            let (resolution, tag) = (Resolution::Nanoseconds, Some(about.entity_tag()));
                            Listed { part, about, resolution, tag }
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

pub(super) struct Looked {
    pub(super) about: About,
    pub(super) resolution: Resolution,
    pub(super) tag: Option<String>,
    pub(super) is_reservoir: bool,
}

/// Describes a source, which must exist.
async fn look(copy: &Copy, side: &Side, name: &Name) -> Result<Looked, CopyError> {
    let local = |error| CopyError::Local { path: PathBuf::from(side.shown(name)), error };
    let found = glance(copy, side, name).await?;
    found.ok_or_else(|| local(io::ErrorKind::NotFound.into()))
}

/// Describes an entry, if it exists.
pub(super) async fn glance(copy: &Copy, side: &Side, name: &Name) -> Result<Option<Looked>, CopyError> {
    match side {
        Side::Remote(server, _) => {
            let found = server.head(name).await?;
            Ok(found.map(|Found { about, resolution, tag, is_reservoir, .. }| Looked {
                about,
                resolution,
                tag,
                is_reservoir,
            }))
        }
        Side::Local(folder, _) => {
            let (folder, at) = (folder.clone(), name.clone());
            match copy.shell.blocking(move || folder.about(&at)).await {
                Ok(about) => {
                    let (resolution, tag) = (Resolution::Nanoseconds, Some(about.entity_tag()));
                    Ok(Some(Looked { about, resolution, tag, is_reservoir: false }))
                }
                // Other errors are reported, because the entry may exist.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(CopyError::Local { path: PathBuf::from(side.shown(name)), error }),
            }
        }
    }
}

/// Returns whether a destination is a folder. A write-only token cannot see folders.
async fn is_folder(copy: &Copy, side: &Side, name: &Name) -> Result<bool, CopyError> {
    if name == &Name::root() {
        return Ok(true);
    }
    match glance(copy, side, name).await {
        Ok(found) => Ok(found.is_some_and(|found| found.about.kind == Kind::Folder)),
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
    use crate::copy::{Copy, Plain};
    use crate::rooted::Rooted;
    use crate::storage::{Entries, Folder, OpenFolder, Stored};
    use crate::{Limits, Server, Shell};
    use std::sync::Arc;

    /// A folder with invalid names in its listing.
    struct Odd(Rooted);

    impl Folder for Odd {
        fn list(&self, name: &Name) -> io::Result<Entries> {
            let about = About::without_inode(Kind::File, 4, SystemTime::UNIX_EPOCH);
            let odd = ["..".into(), "x".repeat(256).into()].map(|part| Ok((part, about)));
            Ok(Box::new(odd.into_iter().chain(self.0.list(name)?)))
        }

        fn open(&self, name: &Name) -> io::Result<Arc<dyn Stored>> {
            self.0.open(name)
        }

        fn open_or_create(&self, name: &Name) -> io::Result<Arc<dyn Stored>> {
            self.0.open_or_create(name)
        }

        fn about(&self, name: &Name) -> io::Result<About> {
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
        let server = Server::new(Arc::new(Odd(Rooted::open(&run).unwrap())), Shell::tokio(), Limits::default());
        let server = server.open_to_all();
        let dial = Plain::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = server.clone();
            tokio::spawn(async move { server.serve(theirs, "memory").await });
            Ok(ours)
        });
        let copy = Copy::new(Shell::tokio(), Arc::new(dial));
        let remote = Place::parse("https://server/", None).unwrap();
        let local = Place::local(&run).unwrap();
        for (source, to, whys) in
            [(local, "one", vec![NO_FILE]), (remote, "two", vec!["`..` has", NO_FILE, "longer than 255"])]
        {
            let target = outer.path().join(to);
            let outcome = copy.run(&[source], &Place::local(&target).unwrap()).await.unwrap();
            assert_eq!((outcome.copied, outcome.failed.len()), (1, whys.len()), "{:?}", outcome.failed);
            for ((_, told), why) in outcome.failed.iter().zip(whys) {
                assert!(told.contains(why), "{told}");
            }
            assert_eq!(std::fs::read(target.join("data")).unwrap(), b"text");
        }
    }
}
