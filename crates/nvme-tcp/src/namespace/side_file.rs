//! The side file of a file of blocks, with the list of unreadable bytes.
//!
//! ```text
//!   nvme-tcp: bytes that are not to be read, version 1
//!   4096 8192           from the first on, to before the second
//!   end
//! ```
//!
//! Invariant: the side file holds a complete list, the old one or the new one, even if the process or the machine
//! fails: a new list is written beside it, synced, and renamed. If no block is marked, the side file is absent, or
//! after a failed sync it is empty.

use super::open_error::{MarksFault, OpenError};
use super::system::{self, FileSystem};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The side file of one file of blocks.
#[derive(Debug)]
pub(super) struct SideFile {
    system: Arc<dyn FileSystem>,
    path: PathBuf,
    /// Whether the last [`sync`](Self::sync) failed.
    in_doubt: AtomicBool,
}

impl SideFile {
    /// Creates the side file of the blocks at `path`, which is absolute and without links.
    pub(super) fn for_file(path: &Path, system: &Arc<dyn FileSystem>) -> SideFile {
        SideFile {
            system: system.clone(),
            path: system::with_suffix(path, ".uncorrectable"),
            in_doubt: AtomicBool::new(false),
        }
    }

    /// Reads the list for a file of `capacity` bytes, and makes it durable, because a sync may have failed in the
    /// process before. Fails if the content was not written by [`replace`](Self::replace).
    pub(super) fn read(&self, capacity: u64) -> Result<Vec<Range<u64>>, OpenError> {
        let about = OpenError::about(&self.path);
        let content = match self.system.read(&self.path, MAX_BYTES + 1) {
            Ok(Some(content)) => content,
            Ok(None) => return Ok(Vec::new()),
            Err(error) => return Err(about(error)),
        };
        let read = |content: Vec<u8>| parse(str::from_utf8(&content).map_err(|_| MarksFault::NotText)?, capacity);
        let ranges = read(content).map_err(|fault| OpenError::Marks { path: self.path.clone(), fault })?;
        // A sync of a folder without changes since a failed sync would have no effect.
        self.in_doubt.store(true, Ordering::Relaxed);
        self.replace(&ranges).and_then(|()| self.sync()).map_err(about)?;
        Ok(ranges)
    }

    /// Stores `ranges`; [`sync`](Self::sync) makes them durable. After an error, the old ranges are stored.
    pub(super) fn replace(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        match ranges {
            // After a failed sync, the removal may be lost. A second removal would change nothing on the medium, but an
            // empty list does.
            [] if !self.in_doubt.load(Ordering::Relaxed) => self.system.remove(&self.path),
            _ => system::replace(&*self.system, &self.path, text(ranges).as_bytes()),
        }
    }

    /// Makes the stored list durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let synced = system::sync_name(&*self.system, &self.path);
        self.in_doubt.store(synced.is_err(), Ordering::Relaxed);
        synced
    }
}

fn text(ranges: &[Range<u64>]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for range in ranges {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", range.start, range.end);
    }
    text.push_str(LAST_LINE);
    text.push('\n');
    text
}

fn parse(text: &str, capacity: u64) -> Result<Vec<Range<u64>>, MarksFault> {
    if text.len() as u64 > MAX_BYTES {
        return Err(MarksFault::TooLong { most: MAX_BYTES });
    }
    let mut lines = (1..).zip(text.lines());
    if lines.next() != Some((1, FIRST_LINE)) {
        return Err(MarksFault::FirstLine { wanted: FIRST_LINE });
    }
    let mut ranges = Vec::new();
    let mut from = 0;
    for (line, content) in lines.by_ref() {
        if content == LAST_LINE {
            return match lines.next() {
                Some((line, _)) => Err(MarksFault::BehindEnd { line }),
                None if !text.ends_with('\n') => Err(MarksFault::CutShort { line }),
                None => Ok(ranges),
            };
        }
        let range = content.split_once(' ').and_then(|(start, end)| Some(parse_number(start)?..parse_number(end)?));
        let range = range.filter(|range| range.start >= from && range.start < range.end);
        let range = range.ok_or(MarksFault::Range { line })?;
        if range.end > capacity {
            return Err(MarksFault::Beyond { line, capacity });
        }
        // Adjacent ranges are an error, because the writer always joins them.
        from = range.end + 1;
        ranges.push(range);
    }
    Err(MarksFault::NoEnd)
}

/// Parses digits. `str::parse` alone would accept a sign.
fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const FIRST_LINE: &str = "nvme-tcp: bytes that are not to be read, version 1";
const LAST_LINE: &str = "end";
/// Maximum bytes of a list, much more than the longest list has.
const MAX_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::system::{RealSystem, with_suffix};
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn side_file_for(path: &Path) -> SideFile {
        SideFile::for_file(path, &(Arc::new(RealSystem) as Arc<dyn FileSystem>))
    }

    fn blocks(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nvme-tcp-side-{}-{name}", std::process::id()));
        fs::write(&path, b"").unwrap();
        path
    }

    #[test]
    fn list_is_replaced_atomically() {
        let path = blocks("list");
        let side = side_file_for(&path);
        assert_eq!(side.read(100).unwrap(), []);
        let (old, new) = (vec![3..7, 9..10], vec![3..5, 20..100]);
        side.replace(&old).unwrap();
        assert_eq!(side.read(100).unwrap(), old);
        // The process may have ended at any byte of the next list.
        let next = text(&new);
        for cut in 0..next.len() {
            fs::write(with_suffix(&side.path, ".new"), &next[..cut]).unwrap();
            assert_eq!(side_file_for(&path).read(100).unwrap(), old);
        }
        side.replace(&new).unwrap();
        assert_eq!(side.read(100).unwrap(), new);
        side.replace(&[]).unwrap();
        assert!(!side.path.exists());
        side.replace(&[]).unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn damaged_list_is_refused_by_name() {
        let path = blocks("refused");
        let side = side_file_for(&path);
        let list = |lines: &str| format!("{FIRST_LINE}\n{lines}");
        // The longest valid size is 1 MiB.
        let lines = list("1 2\nend\n");
        let long = |bytes: usize| [lines.as_str(), &" ".repeat(bytes - lines.len())].concat();
        let first_line = MarksFault::FirstLine { wanted: FIRST_LINE };
        for (text, wanted) in [
            (String::new(), first_line),
            ("1 2\nend\n".into(), first_line),
            (list(""), MarksFault::NoEnd),
            (list("1 2\n"), MarksFault::NoEnd),
            (list("end"), MarksFault::CutShort { line: 2 }),
            (list("1 2\nend\n3 4\n"), MarksFault::BehindEnd { line: 4 }),
            (long(1 << 20), MarksFault::BehindEnd { line: 4 }),
            (long((1 << 20) + 1), MarksFault::TooLong { most: 1 << 20 }),
            (list("2 1\nend\n"), MarksFault::Range { line: 2 }),
            (list("1 1\nend\n"), MarksFault::Range { line: 2 }),
            (list("1 2\n2 3\nend\n"), MarksFault::Range { line: 3 }),
            (list("5 6\n1 2\nend\n"), MarksFault::Range { line: 3 }),
            (list("+1 2\nend\n"), MarksFault::Range { line: 2 }),
            (list("1  2\nend\n"), MarksFault::Range { line: 2 }),
            (list("1 99999999999999999999\nend\n"), MarksFault::Range { line: 2 }),
            (list("1 2\n90 101\nend\n"), MarksFault::Beyond { line: 3, capacity: 100 }),
        ] {
            fs::write(&side.path, &text).unwrap();
            let error = side.read(100).unwrap_err();
            let said = error.to_string();
            let OpenError::Marks { path, fault } = &error else { panic!("{text:?}: {said}") };
            assert_eq!((path, *fault), (&side.path, wanted), "{text:?}");
            assert!(said.contains("refused.uncorrectable: ") && said.contains("or remove it"), "{said}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
        }
        fs::write(&side.path, [0xff, 0xfe]).unwrap();
        assert!(matches!(side.read(100), Err(OpenError::Marks { fault: MarksFault::NotText, .. })));
        // An unreadable directory must not count as an empty list.
        fs::remove_file(&side.path).unwrap();
        fs::create_dir(&side.path).unwrap();
        assert!(matches!(side.read(100), Err(OpenError::System { path, .. }) if path == side.path));
        fs::remove_dir(&side.path).unwrap();
        fs::write(&side.path, "").unwrap();
        fs::remove_file(&side.path).unwrap();
        fs::remove_file(&path).unwrap();
    }

    proptest! {
        #[test]
        fn list_round_trips(gaps in prop::collection::vec((0u64..1000, 1u64..1 << 40), 0..50)) {
            let (mut at, mut ranges) = (0, Vec::new());
            for (gap, length) in gaps {
                ranges.push(at + gap..at + gap + length);
                at += gap + length + 1;
            }
            prop_assert_eq!(parse(&text(&ranges), at), Ok(ranges));
        }

        #[test]
        fn random_lists_do_not_panic(lines in prop::collection::vec("[0-9 end]{0,6}", 0..6)) {
            let _ = parse(&format!("{FIRST_LINE}\n{}", lines.join("\n")), 1000);
        }
    }
}
