//! One version of a file, and its entity tag.

use crate::date;
use crate::tag::EntityTag;
use http::HeaderValue;
use std::fs::Metadata;
use std::time::{Duration, SystemTime};

/// The attributes of one version of a file, as the system tells them.
///
/// Users set the time of modification, so two versions may have the same one. They cannot set the time of the last change of the inode.
///
/// ```
/// use http_rules::FileVersion;
/// use std::time::{Duration, SystemTime};
///
/// let time = SystemTime::UNIX_EPOCH;
/// let version = FileVersion { inode: 7, size: 100, modified: time, changed: time };
/// let later = FileVersion { changed: time + Duration::from_nanos(1), ..version };
/// assert_ne!(version.entity_tag(), later.entity_tag());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Number of the inode.
    pub inode: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Time of the last modification of the bytes (mtime), as users may have set it.
    pub modified: SystemTime,
    /// Time of the last change of the inode (ctime), or a counter of changes where a medium has no such time.
    pub changed: SystemTime,
}

impl FileVersion {
    /// Reads the version out of a file's metadata.
    #[cfg(unix)]
    pub fn of(metadata: &Metadata) -> FileVersion {
        use std::os::unix::fs::MetadataExt;
        FileVersion {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: FileVersion::change_time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Puts a ctime together out of the seconds and nanoseconds that the system tells.
    pub fn change_time(seconds: i64, nanoseconds: i64) -> SystemTime {
        let time = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        date::from_nanoseconds(time).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns the strong entity tag. Its length is constant, and it does not tell the inode's number.
    pub fn entity_tag(&self) -> EntityTag {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.inode.to_be_bytes()).update(&self.size.to_be_bytes());
        hash.update(&date::nanoseconds(self.modified).to_be_bytes());
        hash.update(&date::nanoseconds(self.changed).to_be_bytes());
        let hash = hash.finalize().to_hex();
        EntityTag::strong(&hash[..TAG_DIGITS])
    }

    /// Returns the `Last-Modified` of an answer that is sent at `now`. `None`: dates of HTTP do not reach to the time of modification.
    pub fn last_modified(&self, now: SystemTime) -> Option<HeaderValue> {
        // RFC 9110 8.8.2.1: no later than the time of the answer.
        let date = date::format(self.modified.min(now))?;
        HeaderValue::try_from(date).ok()
    }

    /// Tests whether no other version can have had the same `Last-Modified` (RFC 9110 8.8.2.2): the bytes were written in the second in which
    /// the inode changed last, and that second is over. A change in the second after it may be another write, whose time was put back.
    pub(crate) fn has_strong_date(&self, now: SystemTime) -> bool {
        let is_own = date::seconds(self.modified) == date::seconds(self.changed);
        is_own && now.checked_sub(Duration::from_secs(2)).is_some_and(|before| before >= self.changed)
    }
}

/// Half of a BLAKE3 hash.
const TAG_DIGITS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};

    fn at(seconds: i64, nanoseconds: i64) -> SystemTime {
        FileVersion::change_time(seconds, nanoseconds)
    }

    #[test]
    fn each_part_of_a_version_changes_the_tag() {
        let version = FileVersion { inode: 1, size: 2, modified: at(3, 4), changed: at(5, 6) };
        let others = [
            FileVersion { inode: 2, ..version },
            FileVersion { size: 3, ..version },
            FileVersion { modified: at(3, 5), ..version },
            FileVersion { modified: at(-3, 4), ..version },
            FileVersion { modified: at(-4, 4), ..version },
            FileVersion { modified: at(300_000_000_000, 4), ..version },
            FileVersion { changed: at(5, 7), ..version },
        ];
        let tags: std::collections::HashSet<_> =
            others.iter().chain([&version]).map(|version| version.entity_tag().to_string()).collect();
        assert_eq!(tags.len(), others.len() + 1);
        assert!(tags.iter().all(|tag| tag.len() == 34 && tag.starts_with('"')), "{tags:?}");
    }

    /// If a user puts the time of modification back, the ctime still differs.
    #[test]
    fn restored_time_does_not_restore_the_tag() {
        let there = tempfile::tempdir().unwrap();
        let path = there.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let long_ago = FileTimes::new().set_modified(at(1_000_000_000, 0));
        file.set_times(long_ago).unwrap();
        let before = FileVersion::of(&file.metadata().unwrap());
        // The clock of the file system has ticks of some milliseconds.
        loop {
            std::fs::write(&path, "two").unwrap();
            file.set_times(long_ago).unwrap();
            let after = FileVersion::of(&file.metadata().unwrap());
            assert_eq!((before.inode, before.size, before.modified), (after.inode, after.size, after.modified));
            if before.changed != after.changed {
                assert_ne!(before.entity_tag(), after.entity_tag());
                break;
            }
        }
    }

    #[test]
    fn last_modified_is_never_in_the_future() {
        let version = FileVersion { inode: 1, size: 2, modified: at(1000, 5), changed: at(1000, 5) };
        let said = |now| version.last_modified(now).unwrap();
        assert_eq!(said(at(2000, 0)), "Thu, 01 Jan 1970 00:16:40 GMT");
        assert_eq!(said(at(500, 0)), "Thu, 01 Jan 1970 00:08:20 GMT");
        let ancient = FileVersion { modified: at(-62_167_219_201, 0), ..version };
        assert_eq!(ancient.last_modified(at(2000, 0)), None);
    }
}
