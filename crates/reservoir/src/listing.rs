//! Folder entries as lines, for people and for programs.

use crate::name::{decoded, escaped};
use crate::storage::{FileInfo, FileKind};
use http_rules::date::{from_nanoseconds, nanoseconds};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A folder entry.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct ListingLine {
    /// Escaped as in a URL, so that any name fits into a line.
    name: String,
    folder: bool,
    /// Whether the entry is neither a file nor a folder, or cannot be opened by its name.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    other: bool,
    #[serde(default)]
    size: u64,
    /// Modification time in nanoseconds since 1970, negative before.
    #[serde(default)]
    modified: i128,
    /// The entity tag. `None` for a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

impl ListingLine {
    /// Creates the entry of a name. Pipes, devices and links that lead out of the root are listed too, so that users
    /// learn of files that cannot be copied.
    pub(crate) fn from_info(part: &OsStr, about: &FileInfo) -> ListingLine {
        let (folder, other) = (about.kind == FileKind::Folder, about.kind == FileKind::Other);
        let (modified, tag) = (nanoseconds(about.modified), (about.kind == FileKind::File).then(|| about.entity_tag()));
        ListingLine { name: escaped(part.as_bytes()), folder, other, size: about.size, modified, tag }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers") + "\n"
    }

    pub(crate) fn to_text(&self) -> String {
        format!("{}{}\n", self.name, if self.folder { "/" } else { "" })
    }

    /// Parses a line into the name, the attributes and, if present, the entity tag.
    pub(crate) fn from_json(line: &str) -> Option<(OsString, FileInfo, Option<String>)> {
        let entry: ListingLine = serde_json::from_str(line).ok()?;
        let kind = match entry {
            ListingLine { other: true, .. } => FileKind::Other,
            ListingLine { folder: true, .. } => FileKind::Folder,
            _ => FileKind::File,
        };
        let about = FileInfo::without_inode(kind, entry.size, from_nanoseconds(entry.modified)?);
        Some((OsString::from_vec(decoded(&entry.name)?), about, entry.tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_and_any_time_come_through() {
        for name in [&b"plain"[..], b"a\nb", b"\xff\xfe", b"100%"] {
            for time in [1_700_000_000_123_456_789, 0, -1, -315_619_200_000_000_001, 300_000_000_000_000_000_005] {
                let about = FileInfo::without_inode(FileKind::File, 1 << 50, from_nanoseconds(time).unwrap());
                let line = ListingLine::from_info(OsStr::from_bytes(name), &about).to_json();
                assert_eq!(line.matches('\n').count(), 1);
                let expected = (OsStr::from_bytes(name).to_owned(), about, Some(about.entity_tag()));
                assert_eq!(ListingLine::from_json(&line), Some(expected));
                let about = FileInfo { kind: FileKind::Other, ..about };
                let line = ListingLine::from_info(OsStr::from_bytes(name), &about).to_json();
                assert_eq!(ListingLine::from_json(&line), Some((OsStr::from_bytes(name).to_owned(), about, None)));
            }
        }
        assert_eq!(ListingLine::from_json("{}"), None);
        let late = "{\"name\":\"a\",\"folder\":false,\"modified\":99999999999999999999999999999999999999}";
        assert_eq!(ListingLine::from_json(late), None);
        assert_eq!(ListingLine::from_json("{\"name\":\"%\",\"folder\":false}"), None);
    }
}
