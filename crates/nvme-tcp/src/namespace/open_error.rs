//! Why a file of blocks is not served.

use std::io;
use std::path::{Path, PathBuf};

/// Why [`FileStorage::open`](super::FileStorage::open) does not serve a file. It says which file, and what to do.
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
    /// Two that serve the same bytes would not know of each other's writes.
    #[error("{}: it is served already: end the program that serves it, or serve a copy", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The list of unreadable blocks beside the file is not one that was kept.
    #[error(
        "{}: {fault}: bring the list back as it was, or remove it for all blocks to be readable",
        path.display()
    )]
    Marks {
        /// The list.
        path: PathBuf,
        /// What is wrong with it.
        fault: MarksFault,
    },
    /// The file that keeps by what hosts recognise the blocks does not hold a UUID.
    #[error(
        "{}: it does not hold a UUID as it was kept: bring it back, or remove it for hosts to see another disk",
        path.display()
    )]
    Identity {
        /// The file of the UUID.
        path: PathBuf,
    },
    /// The system could not do something with the file or one beside it.
    #[error("{}: {error}", path.display())]
    System {
        /// With which file.
        path: PathBuf,
        /// What it says.
        #[source]
        error: io::Error,
    },
}

/// What is wrong with a list of unreadable blocks, and in which line.
///
/// ```
/// use nvme_tcp::namespace::MarksFault;
///
/// assert_eq!(MarksFault::CutShort { line: 7 }.to_string(), "line 7 is cut short");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarksFault {
    /// It is longer than any list that is kept.
    #[error("it has more than {most} bytes")]
    TooLong {
        /// What it may have.
        most: u64,
    },
    /// It is not text.
    #[error("it is not text")]
    NotText,
    /// It is another file, or of another version.
    #[error("line 1 is not \"{wanted}\"")]
    FirstLine {
        /// How a list begins.
        wanted: &'static str,
    },
    /// A line is not a range of bytes behind those before.
    #[error("line {line} is no range of bytes behind those before")]
    Range {
        /// Which, from 1.
        line: u32,
    },
    /// A range ends behind the blocks.
    #[error("line {line} is beyond the end of the file of blocks, which has {capacity} bytes")]
    Beyond {
        /// Which, from 1.
        line: u32,
        /// Bytes of the file of blocks.
        capacity: u64,
    },
    /// The list goes on behind its end.
    #[error("line {line} is behind the end")]
    BehindEnd {
        /// Which, from 1.
        line: u32,
    },
    /// The last line has no end of line.
    #[error("line {line} is cut short")]
    CutShort {
        /// Which, from 1.
        line: u32,
    },
    /// The line that ends a list is missing.
    #[error("it has no end")]
    NoEnd,
}

impl OpenError {
    /// What the system says about `path`.
    pub(super) fn about(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.to_owned();
        move |error| OpenError::System { path, error }
    }

    /// Of which kind it is as an error of input and output.
    pub(super) fn kind(&self) -> io::ErrorKind {
        match self {
            OpenError::InUse { .. } => io::ErrorKind::WouldBlock,
            OpenError::Marks { .. } | OpenError::Identity { .. } => io::ErrorKind::InvalidData,
            OpenError::System { error, .. } => error.kind(),
        }
    }
}

/// For programs that tell errors of input and output apart by kind only.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
