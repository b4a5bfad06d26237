//! Where agent and mirror meet: a Unix socket that only its owner may open, or a port that a machine has of its host.

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A Unix socket for agents: of mode 0600, gone when this is dropped.
///
/// ```
/// use linux_mirror::Listener;
/// use std::os::unix::net::UnixStream;
///
/// let folder = tempfile::tempdir()?;
/// let listener = Listener::bind(&folder.path().join("sas"))?;
/// let _agent = UnixStream::connect(listener.path())?;
/// let (_stream, _) = listener.socket().accept()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, in place of a socket that nobody listens at any more.
    ///
    /// # Errors
    /// If there is something else, somebody listens there, or the folder cannot be written.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket()) {
            match UnixStream::connect(path) {
                Ok(_) => return Err(ErrorKind::AddrInUse.into()),
                Err(_) => std::fs::remove_file(path)?,
            }
        }
        let socket = UnixListener::bind(path)?;
        let listener = Listener { socket, path: path.to_owned() };
        // An agent that came in between is asked for its owner, as all are.
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// What agents are accepted at. [`is_of_owner`] is to be asked of each.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _somebody_removed_it = std::fs::remove_file(&self.path);
    }
}

/// Whether the process at the other end has this process's owner, or is root (`SO_PEERCRED`).
///
/// ```
/// let (one, _other) = std::os::unix::net::UnixStream::pair()?;
/// assert!(linux_mirror::is_of_owner(&one)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the kernel does not say.
pub fn is_of_owner(stream: impl std::os::fd::AsFd) -> io::Result<bool> {
    let peer = socket_peercred(stream)?.uid;
    Ok(peer == geteuid() || peer.is_root())
}
