//! The mirror's Unix socket, accessible to its owner only.

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening Unix socket for agents. It has mode 0600, and is removed when dropped.
///
/// ```
/// use linux_mirror::MirrorListener;
/// use std::os::unix::net::UnixStream;
///
/// let folder = tempfile::tempdir()?;
/// let listener = MirrorListener::bind(&folder.path().join("sas"))?;
/// let _agent = UnixStream::connect(listener.path())?;
/// let (_stream, _) = listener.socket().accept()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct MirrorListener {
    socket: UnixListener,
    path: PathBuf,
}

impl MirrorListener {
    /// Listens at `path`, replacing a socket at which no process listens any more.
    ///
    /// # Errors
    /// Fails if the path holds another kind of file, another process listens there, or the folder is not writable.
    pub fn bind(path: &Path) -> io::Result<MirrorListener> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket()) {
            match UnixStream::connect(path) {
                // Another process accepted the connection, so the socket is in use and must not be removed.
                Ok(_) => return Err(ErrorKind::AddrInUse.into()),
                Err(_) => std::fs::remove_file(path)?,
            }
        }
        let socket = UnixListener::bind(path)?;
        let listener = MirrorListener { socket, path: path.to_owned() };
        // An agent may connect before the mode is set. The caller's owner check covers it.
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Returns the listening socket. Call [`is_of_owner`] for each accepted agent.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MirrorListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns whether the process at the other end runs as this process's user, or as root (`SO_PEERCRED`).
///
/// ```
/// let (one, _other) = std::os::unix::net::UnixStream::pair()?;
/// assert!(linux_mirror::is_of_owner(&one)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Fails if the kernel does not report the peer's user.
pub fn is_of_owner(stream: impl std::os::fd::AsFd) -> io::Result<bool> {
    let peer = socket_peercred(stream)?.uid;
    Ok(peer == geteuid() || peer.is_root())
}
