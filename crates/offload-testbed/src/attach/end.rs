//! Outside ends of a wire, of a kind chosen at run time.

use super::{AttachCounters, DgramPort, Gone, StreamPort};
use core::fmt;
use nic_sim::wire::Port;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The outside end of a wire: a port to [attach](crate::Builder::attach), its counters, and whether the outside still
/// exists.
///
/// ```
/// use offload_base::Seed;
/// use offload_testbed::attach::End;
/// use offload_testbed::wire::LinkConfig;
/// use offload_testbed::{ClockKind, NicConfig, TcpConfig, Testbed};
///
/// # let folder = std::env::temp_dir().join(format!("end-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let end = End::dgram(&folder.join("ours"), &folder.join("theirs"))?;
/// let bed = Testbed::builder(Seed(1))
///     .clock(ClockKind::Real)
///     .host("server", NicConfig::default(), TcpConfig::default())
///     .attach(0, end.name(), end.port(), LinkConfig::default())
///     .build()?;
/// assert_eq!(end.counters().rx_frames, 0);
/// # drop(bed);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct End {
    name: String,
    port: Arc<Mutex<dyn Port>>,
    counters: Box<dyn Fn() -> AttachCounters + Send + Sync>,
    gone: Gone,
}

impl End {
    /// Opens a peer of QEMU's `-netdev dgram`, given the path this side receives at and the guest's. The end is never
    /// gone, because guests may come back.
    ///
    /// # Errors
    /// As [`DgramPort::bind`].
    pub fn dgram(ours: &Path, theirs: &Path) -> io::Result<End> {
        Ok(End::with("guest", DgramPort::bind(ours, theirs)?, DgramPort::counters, Gone::default()))
    }

    /// Opens a peer of QEMU's `-netdev stream`, which connects to the socket at `path`. The end is never gone.
    ///
    /// # Errors
    /// As [`StreamPort::listen_unix`].
    pub fn stream(path: &Path) -> io::Result<End> {
        Ok(End::with("guest", StreamPort::listen_unix(path)?, StreamPort::counters, Gone::default()))
    }

    /// Opens a TAP of this machine, or creates one. The end is gone when the TAP is deleted.
    ///
    /// # Errors
    /// If the TAP cannot be opened, or this build lacks the feature `tap`.
    #[cfg(feature = "tap")]
    pub fn tap(name: &str) -> io::Result<End> {
        use super::{TapConfig, TapPort};
        let port = TapPort::open(TapConfig::named(name)).map_err(io::Error::other)?;
        let gone = port.gone();
        Ok(End::with(name, port, TapPort::counters, gone))
    }

    /// Refuses a TAP, because this build lacks the feature `tap`.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "tap"))]
    pub fn tap(_: &str) -> io::Result<End> {
        let remedy = "this was built without TAPs: build with --features tap, or use --dgram";
        Err(io::Error::new(io::ErrorKind::Unsupported, remedy))
    }

    fn with<P: Port + Send + 'static>(name: &str, port: P, counters: fn(&P) -> AttachCounters, gone: Gone) -> End {
        let port = Arc::new(Mutex::new(port));
        // The port moves into its task, so the counters are read through the shared lock.
        let looked_at = port.clone();
        let counters = Box::new(move || counters(&looked_at.lock().unwrap_or_else(PoisonError::into_inner)));
        End { name: name.into(), port, counters, gone }
    }

    /// Returns the name: a TAP's own name, otherwise `guest`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port.
    pub fn port(&self) -> Arc<Mutex<dyn Port>> {
        self.port.clone()
    }

    /// Returns the port's counters.
    pub fn counters(&self) -> AttachCounters {
        (self.counters)()
    }

    /// Waits until the end is gone for good, and returns an error that says so.
    pub async fn gone(&self) -> io::Error {
        self.gone.wait().await;
        io::Error::new(io::ErrorKind::NetworkDown, format!("{} is gone: somebody has deleted it", self.name))
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("name", &self.name).field("gone", &self.gone).finish_non_exhaustive()
    }
}
