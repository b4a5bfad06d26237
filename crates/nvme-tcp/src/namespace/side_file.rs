//! What a file of blocks cannot hold, kept in a file beside it: which of them are to be unreadable.
//!
//! ```text
//!   nvme-tcp: bytes that are not to be read, version 1
//!   4096 8192           from the first on, to before the second
//!   end
//! ```
//!
//! Invariant: the file holds one list whole, the old one or the new one, whenever the process or the machine ends: a new
//! one is written beside it, made durable, and takes its place. There is none as long as nothing is marked.

use super::system::{self, System};
use core::ops::Range;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The list beside one file of blocks.
#[derive(Debug)]
pub(super) struct SideFile {
    system: Arc<dyn System>,
    path: PathBuf,
}

impl SideFile {
    /// The one of the blocks at `path`, an absolute path without links.
    pub(super) fn of(path: &Path, system: &Arc<dyn System>) -> SideFile {
        SideFile { system: system.clone(), path: system::with_suffix(path, ".uncorrectable") }
    }

    /// What it holds about a file of `capacity` bytes. What no [`replace`](Self::replace) wrote is an error that says where.
    pub(super) fn read(&self, capacity: u64) -> io::Result<Vec<Range<u64>>> {
        let content = self.system.read(&self.path, MAX_BYTES + 1);
        let Some(content) = content.map_err(|error| self.about(error.kind(), &error.to_string()))? else {
            return Ok(Vec::new());
        };
        let text =
            String::from_utf8(content).map_err(|error| self.about(io::ErrorKind::InvalidData, &error.to_string()))?;
        parse(&text, capacity).map_err(|reason| self.about(io::ErrorKind::InvalidData, &reason))
    }

    /// Holds `ranges` from now on; [`sync`](Self::sync) makes it last. After an error it holds what it held before.
    pub(super) fn replace(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        match ranges {
            [] => self.system.remove(&self.path),
            _ => system::replace(&*self.system, &self.path, text(ranges).as_bytes()),
        }
    }

    /// Makes durable what it holds.
    pub(super) fn sync(&self) -> io::Result<()> {
        system::sync_name(&*self.system, &self.path)
    }

    fn about(&self, kind: io::ErrorKind, reason: &str) -> io::Error {
        io::Error::new(kind, format!("{}: {reason}", self.path.display()))
    }
}

fn text(ranges: &[Range<u64>]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for range in ranges {
        // Writing to a string does not fail.
        let _written = writeln!(text, "{} {}", range.start, range.end);
    }
    text.push_str(LAST_LINE);
    text.push('\n');
    text
}

fn parse(text: &str, capacity: u64) -> Result<Vec<Range<u64>>, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("more than {MAX_BYTES} bytes"));
    }
    let mut lines = (1..).zip(text.lines());
    if lines.next() != Some((1, FIRST_LINE)) {
        return Err(format!("line 1: not \"{FIRST_LINE}\""));
    }
    let mut ranges = Vec::new();
    let mut from = 0;
    for (number, line) in lines.by_ref() {
        if line == LAST_LINE {
            return match lines.next() {
                Some((number, _)) => Err(format!("line {number}: something behind the end")),
                None if !text.ends_with('\n') => Err(format!("line {number}: cut short")),
                None => Ok(ranges),
            };
        }
        let range = line.split_once(' ').and_then(|(start, end)| Some(number_in(start)?..number_in(end)?));
        let range = range.filter(|range| range.start >= from && range.start < range.end);
        let range = range.ok_or_else(|| format!("line {number}: no range of bytes behind those before"))?;
        if range.end > capacity {
            return Err(format!("line {number}: beyond the end of the file of blocks, of {capacity} bytes"));
        }
        from = range.end + 1;
        ranges.push(range);
    }
    Err("it has no end".into())
}

/// Digits and nothing else.
fn number_in(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const FIRST_LINE: &str = "nvme-tcp: bytes that are not to be read, version 1";
const LAST_LINE: &str = "end";
/// Much more than the longest list takes.
const MAX_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::system::{Real, with_suffix};
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn side_of(path: &Path) -> SideFile {
        SideFile::of(path, &(Arc::new(Real) as Arc<dyn System>))
    }

    fn blocks(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nvme-tcp-side-{}-{name}", std::process::id()));
        fs::write(&path, b"").unwrap();
        path
    }

    #[test]
    fn a_list_is_the_old_one_or_the_new_one() {
        let path = blocks("list");
        let side = side_of(&path);
        assert_eq!(side.read(100).unwrap(), []);
        let (old, new) = (vec![3..7, 9..10], vec![3..5, 20..100]);
        side.replace(&old).unwrap();
        assert_eq!(side.read(100).unwrap(), old);
        // Ended while the next was written: at any byte of it.
        let next = text(&new);
        for cut in 0..next.len() {
            fs::write(with_suffix(&side.path, ".new"), &next[..cut]).unwrap();
            assert_eq!(side_of(&path).read(100).unwrap(), old);
        }
        side.replace(&new).unwrap();
        assert_eq!(side.read(100).unwrap(), new);
        side.replace(&[]).unwrap();
        assert!(!side.path.exists());
        side.replace(&[]).unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_list_is_refused_by_name() {
        let path = blocks("refused");
        let side = side_of(&path);
        let list = |lines: &str| format!("{FIRST_LINE}\n{lines}");
        for (text, reason) in [
            (String::new(), "line 1: not"),
            ("1 2\nend\n".into(), "line 1: not"),
            (list(""), "no end"),
            (list("1 2\n"), "no end"),
            (list("end"), "line 2: cut short"),
            (list("1 2\nend\n3 4\n"), "line 4: something behind the end"),
            (list("2 1\nend\n"), "line 2: no range"),
            (list("1 1\nend\n"), "line 2: no range"),
            (list("1 2\n2 3\nend\n"), "line 3: no range"),
            (list("5 6\n1 2\nend\n"), "line 3: no range"),
            (list("+1 2\nend\n"), "line 2: no range"),
            (list("1  2\nend\n"), "line 2: no range"),
            (list("1 99999999999999999999\nend\n"), "line 2: no range"),
            (list("1 2\n90 101\nend\n"), "line 3: beyond the end"),
        ] {
            fs::write(&side.path, &text).unwrap();
            let error = side.read(100).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
            let said = error.to_string();
            assert!(said.contains(reason) && said.contains("refused.uncorrectable: "), "{text:?}: {said}");
        }
        fs::write(&side.path, [0xff, 0xfe]).unwrap();
        assert_eq!(side.read(100).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::remove_file(&side.path).unwrap();
        fs::remove_file(&path).unwrap();
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(gaps in prop::collection::vec((0u64..1000, 1u64..1 << 40), 0..50)) {
            let (mut at, mut ranges) = (0, Vec::new());
            for (gap, length) in gaps {
                ranges.push(at + gap..at + gap + length);
                at += gap + length + 1;
            }
            prop_assert_eq!(parse(&text(&ranges), at), Ok(ranges));
        }

        #[test]
        fn anything_is_read_or_refused(lines in prop::collection::vec("[0-9 end]{0,6}", 0..6)) {
            let _either = parse(&format!("{FIRST_LINE}\n{}", lines.join("\n")), 1000);
        }
    }
}
