//! Errors of opening a file as storage.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why [`FileStorage::open`](super::FileStorage::open) refuses a file. The message names the file and the
/// remedy.
///
/// ```
/// use nvme_tcp::namespace::{FileStorage, MarksFault, OpenError};
///
/// let path = std::env::temp_dir().join(format!("fault-{}.img", std::process::id()));
/// let marks = path.with_extension("img.uncorrectable");
/// std::fs::write(&path, vec![0; 1 << 20])?;
/// std::fs::write(&marks, "nvme-tcp: bytes that are not to be read, version 1\n0 4096\n")?;
///
/// let refused = FileStorage::open(&path, false).err();
/// assert!(matches!(refused, Some(OpenError::Marks { fault: MarksFault::NoEnd, .. })));
/// # std::fs::remove_file(path)?;
/// # std::fs::remove_file(marks)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is served already. Two servers of the same bytes would not see each other's writes.
    #[error("{}: it is served already: end the program that serves it, or serve a copy", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The list of unreadable blocks beside the file is damaged.
    #[error(
        "{}: {fault}: restore the list, or remove it to make all blocks readable",
        path.display()
    )]
    Marks {
        /// Path of the list.
        path: PathBuf,
        /// The fault.
        fault: MarksFault,
    },
    /// The file with the UUID of the blocks is damaged.
    #[error(
        "{}: it does not hold a valid UUID: restore it, or remove it so that hosts see a new disk",
        path.display()
    )]
    Identity {
        /// Path of the UUID file.
        path: PathBuf,
    },
    /// The system reported an error for the file or a side file.
    #[error("{}: {error}", path.display())]
    System {
        /// Path of the file concerned.
        path: PathBuf,
        /// Error of the system.
        #[source]
        error: io::Error,
    },
}

/// Fault in a list of unreadable blocks, with its line number.
///
/// ```
/// use nvme_tcp::namespace::MarksFault;
///
/// assert_eq!(MarksFault::CutShort { line: 7 }.to_string(), "line 7 is cut short");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarksFault {
    /// The list is longer than any valid list.
    #[error("it has more than {most} bytes")]
    TooLong {
        /// Maximum bytes.
        most: u64,
    },
    /// The file is not text.
    #[error("it is not text")]
    NotText,
    /// The file has another format or version.
    #[error("line 1 is not \"{wanted}\"")]
    FirstLine {
        /// First line of a valid list.
        wanted: &'static str,
    },
    /// A line is not a range of bytes, or does not lie after the previous range.
    #[error("line {line} is not a range of bytes behind the range before")]
    Range {
        /// Line number, from 1.
        line: u32,
    },
    /// A range exceeds the file of blocks.
    #[error("line {line} is beyond the end of the file of blocks, which has {capacity} bytes")]
    Beyond {
        /// Line number, from 1.
        line: u32,
        /// Size of the file of blocks in bytes.
        capacity: u64,
    },
    /// There are lines after the end mark.
    #[error("line {line} is behind the end mark")]
    BehindEnd {
        /// Line number, from 1.
        line: u32,
    },
    /// The last line has no newline.
    #[error("line {line} is cut short")]
    CutShort {
        /// Line number, from 1.
        line: u32,
    },
    /// The end mark is missing.
    #[error("its end mark is missing")]
    NoEnd,
}

impl OpenError {
    /// Wraps a system error about `path`.
    pub(super) fn about(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.to_owned();
        move |error| OpenError::System { path, error }
    }

    /// Returns the matching I/O error kind.
    pub(super) fn kind(&self) -> io::ErrorKind {
        match self {
            OpenError::InUse { .. } => io::ErrorKind::WouldBlock,
            OpenError::Marks { .. } | OpenError::Identity { .. } => io::ErrorKind::InvalidData,
            OpenError::System { error, .. } => error.kind(),
        }
    }
}

/// For programs that distinguish I/O errors by kind.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
