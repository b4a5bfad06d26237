//! The connection from an agent to its mirror: a Unix socket, or a virtio-serial port.

use rustix::fd::{AsFd, BorrowedFd};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// An open connection to a mirror.
///
/// ```
/// use linux_mirror::{Channel, MirrorListener};
///
/// let folder = tempfile::tempdir()?;
/// let listener = MirrorListener::bind(&folder.path().join("sas"))?;
/// let mut channel = Channel::connect(listener.path())?;
/// channel.write_all(b"hello")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub enum Channel {
    /// A Unix socket, to a process on the same machine.
    Socket(UnixStream),
    /// A virtio-serial port. It has no connections: the host may close and reopen its end.
    Port(File),
}

impl Channel {
    /// Opens the connection at `path`.
    ///
    /// # Errors
    /// Fails if nothing listens at `path`.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let kind = std::fs::metadata(path)?.file_type();
        Ok(match kind.is_char_device() {
            true => Channel::Port(OpenOptions::new().read(true).write(true).open(path)?),
            false => Channel::Socket(UnixStream::connect(path)?),
        })
    }

    /// Reads bytes from the mirror, once [`as_fd`](Self::as_fd) is readable. Returns 0 if no bytes are available now.
    ///
    /// # Errors
    /// Fails if the mirror has closed the connection.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Channel::Socket(socket) => socket.read(bytes),
            Channel::Port(port) => port.read(bytes),
        };
        match read {
            Ok(0) => match self {
                Channel::Socket(_) => Err(ErrorKind::UnexpectedEof.into()),
                // The host's end is closed. When it opens, the mirror asks for a snapshot.
                Channel::Port(_) => {
                    std::thread::sleep(ABSENT_HOST_DELAY);
                    Ok(0)
                }
            },
            // A spurious wake-up is no end of the connection.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(0),
            other => other,
        }
    }

    /// Writes all bytes to the mirror.
    ///
    /// # Errors
    /// Fails if the mirror has closed the connection.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Channel::Socket(socket) => socket.write_all(bytes),
            Channel::Port(port) => port.write_all(bytes),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Channel::Socket(socket) => socket.as_fd(),
            Channel::Port(port) => port.as_fd(),
        }
    }
}

/// Time that an agent waits while the host's end is closed.
const ABSENT_HOST_DELAY: Duration = Duration::from_millis(200);
