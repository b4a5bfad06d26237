//! Versions of a file, and their entity tags.

use crate::date;
use crate::tag::EntityTag;
use http::HeaderValue;
use std::fs::Metadata;
use std::time::{Duration, SystemTime};

/// The attributes of one version of a file, as reported by the system.
///
/// Users can set the time of modification, so two versions may share it. Users cannot set the time of the inode's last
/// change.
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
    /// Inode number.
    pub inode: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Time of the last modification (mtime), which users may have set.
    pub modified: SystemTime,
    /// Time of the inode's last change (ctime), or a change counter if the medium has no such time.
    pub changed: SystemTime,
}

impl FileVersion {
    /// Reads the version from a file's metadata.
    #[cfg(unix)]
    pub fn from_metadata(metadata: &Metadata) -> FileVersion {
        use std::os::unix::fs::MetadataExt;
        FileVersion {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: FileVersion::change_time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Converts a ctime, reported as seconds and nanoseconds.
    pub fn change_time(seconds: i64, nanoseconds: i64) -> SystemTime {
        let time = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        date::from_nanoseconds(time).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns the strong entity tag. The tag has a constant length, and does not reveal the inode number.
    pub fn entity_tag(&self) -> EntityTag {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.inode.to_be_bytes()).update(&self.size.to_be_bytes());
        hash.update(&date::nanoseconds(self.modified).to_be_bytes());
        hash.update(&date::nanoseconds(self.changed).to_be_bytes());
        let hash = hash.finalize().to_hex();
        // Half of the hash keeps the fields short, and collisions of 128 bits do not occur by chance.
        EntityTag::strong(&hash[..TAG_DIGITS])
    }

    /// Returns the `Last-Modified` of an answer sent at `now`. Returns `None` if dates of HTTP cannot express the time
    /// of modification.
    pub fn last_modified(&self, now: SystemTime) -> Option<HeaderValue> {
        // RFC 9110 8.8.2.1: the date must not be later than the answer.
        let date = date::format(self.modified.min(now))?;
        HeaderValue::try_from(date).ok()
    }

    /// Tests whether no other version can have had the same `Last-Modified` (RFC 9110 8.8.2.2). This requires that the
    /// bytes were written in the second of the inode's last change, and that this second is over. A change in the
    /// second after it may be another write with a reset time.
    pub(crate) fn has_strong_date(&self, now: SystemTime) -> bool {
        let is_own = date::seconds(self.modified) == date::seconds(self.changed);
        is_own && now.checked_sub(Duration::from_secs(2)).is_some_and(|before| before >= self.changed)
    }
}

/// Number of hexadecimal digits in a tag: half of a BLAKE3 hash.
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

    /// The ctime still differs after a user has reset the time of modification.
    #[test]
    fn restored_time_does_not_restore_the_tag() {
        let there = tempfile::tempdir().unwrap();
        let path = there.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let long_ago = FileTimes::new().set_modified(at(1_000_000_000, 0));
        file.set_times(long_ago).unwrap();
        let before = FileVersion::from_metadata(&file.metadata().unwrap());
        // The file system's clock has ticks of several milliseconds.
        loop {
            std::fs::write(&path, "two").unwrap();
            file.set_times(long_ago).unwrap();
            let after = FileVersion::from_metadata(&file.metadata().unwrap());
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
