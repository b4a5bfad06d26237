//! The limit of open files (`RLIMIT_NOFILE`), which a server's connections and files share.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Raises the soft limit to the hard one, and returns how many files this process may open. `None` if there is no
/// limit.
///
/// The soft limit is 1024 by default, for programs that call `select`. Other programs may use the hard limit.
///
/// # Errors
/// If the system refuses.
///
/// ```
/// # #[cfg(feature = "descriptors")]
/// # {
/// let limit = offload_base::descriptors::raise_limit()?;
/// assert!(limit.is_none_or(|limit| limit > 3));
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn raise_limit() -> io::Result<Option<u64>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum)
}
