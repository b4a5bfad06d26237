//! The way from an agent to its mirror: a Unix socket, or a port that a machine has of its host.

use rustix::fd::{AsFd, BorrowedFd};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// An open way to a mirror.
///
/// ```
/// use linux_mirror::{Channel, Listener};
///
/// let folder = tempfile::tempdir()?;
/// let listener = Listener::bind(&folder.path().join("sas"))?;
/// let mut channel = Channel::connect(listener.path())?;
/// channel.write_all(b"hello")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub enum Channel {
    /// To a process of the same machine.
    Socket(UnixStream),
    /// A virtio-serial port. It has no connections: the other end may come and go.
    Port(File),
}

impl Channel {
    /// Opens the way at `path`.
    ///
    /// # Errors
    /// If nobody is there.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let kind = std::fs::metadata(path)?.file_type();
        Ok(match kind.is_char_device() {
            true => Channel::Port(OpenOptions::new().read(true).write(true).open(path)?),
            false => Channel::Socket(UnixStream::connect(path)?),
        })
    }

    /// Takes some of what the mirror says, once [`as_fd`](Self::as_fd) is readable; 0: nothing for the moment.
    ///
    /// # Errors
    /// If the mirror has gone.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Channel::Socket(socket) => socket.read(bytes),
            Channel::Port(port) => port.read(bytes),
        };
        match read {
            Ok(0) => match self {
                Channel::Socket(_) => Err(ErrorKind::UnexpectedEof.into()),
                // The host is not there. It asks when it comes back.
                Channel::Port(_) => {
                    std::thread::sleep(ABSENT);
                    Ok(0)
                }
            },
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(0),
            other => other,
        }
    }

    /// Says something to the mirror.
    ///
    /// # Errors
    /// If it has gone.
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

/// How long an agent waits for a host that is not there.
const ABSENT: Duration = Duration::from_millis(200);
