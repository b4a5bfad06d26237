//! Entries of a folder, as lines: for people, and for programs.

use crate::name::{decoded, escaped};
use crate::storage::{About, Kind};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, SystemTime};

/// One entry.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Entry {
    /// As in a URL, so that any name fits.
    name: String,
    folder: bool,
    /// Whether it is neither a file nor a folder, or cannot be had by its name.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    other: bool,
    #[serde(default)]
    size: u64,
    /// Nanoseconds since 1970.
    #[serde(default)]
    modified: u64,
}

impl Entry {
    /// Returns the entry of a name. A pipe, a device or a link that leads out is told of as well: nobody is to miss it later.
    pub(crate) fn of(part: &OsStr, about: &About) -> Entry {
        let (folder, other) = (about.kind == Kind::Folder, about.kind == Kind::Other);
        let modified = about.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let modified = u64::try_from(modified.as_nanos()).unwrap_or(0);
        Entry { name: escaped(part.as_bytes()), folder, other, size: about.size, modified }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers") + "\n"
    }

    pub(crate) fn to_text(&self) -> String {
        format!("{}{}\n", self.name, if self.folder { "/" } else { "" })
    }

    pub(crate) fn from_json(line: &str) -> Option<(OsString, About)> {
        let entry: Entry = serde_json::from_str(line).ok()?;
        let kind = match entry {
            Entry { other: true, .. } => Kind::Other,
            Entry { folder: true, .. } => Kind::Folder,
            _ => Kind::File,
        };
        let modified = SystemTime::UNIX_EPOCH + Duration::from_nanos(entry.modified);
        Some((OsString::from_vec(decoded(&entry.name)?), About { kind, size: entry.size, modified }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_and_any_time_come_through() {
        for name in [&b"plain"[..], b"a\nb", b"\xff\xfe", b"100%"] {
            let modified = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
            let about = About { kind: Kind::File, size: 1 << 50, modified };
            let line = Entry::of(OsStr::from_bytes(name), &about).to_json();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Entry::from_json(&line), Some((OsStr::from_bytes(name).to_owned(), about)));
            let about = About { kind: Kind::Other, ..about };
            let line = Entry::of(OsStr::from_bytes(name), &about).to_json();
            assert_eq!(Entry::from_json(&line), Some((OsStr::from_bytes(name).to_owned(), about)));
        }
        assert_eq!(Entry::from_json("{}"), None);
        assert_eq!(Entry::from_json("{\"name\":\"%\",\"folder\":false}"), None);
    }
}
