//! The end of a wire, whichever of them somebody chose.

use super::{AttachCounters, DgramPort, Gone, StreamPort};
use core::fmt;
use nic_sim::wire::Port;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What a wire leads to outside: a port to [attach](crate::Builder::attach), what it counts, and whether it is gone.
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
    /// A QEMU's `-netdev dgram`: the socket this side receives at, and the other side's. It is never gone: guests come and go.
    ///
    /// # Errors
    /// As [`DgramPort::bind`].
    pub fn dgram(ours: &Path, theirs: &Path) -> io::Result<End> {
        Ok(End::with("guest", DgramPort::bind(ours, theirs)?, DgramPort::counters, Gone::default()))
    }

    /// A QEMU's `-netdev stream`, which connects to the socket at `path`. It is never gone.
    ///
    /// # Errors
    /// As [`StreamPort::listen_unix`].
    pub fn stream(path: &Path) -> io::Result<End> {
        Ok(End::with("guest", StreamPort::listen_unix(path)?, StreamPort::counters, Gone::default()))
    }

    /// A TAP of this machine, which is made if it is not there. Gone when somebody deletes it.
    ///
    /// # Errors
    /// If it cannot be opened; if this was built without the feature `tap`.
    #[cfg(feature = "tap")]
    pub fn tap(name: &str) -> io::Result<End> {
        use super::{TapConfig, TapPort};
        let port = TapPort::open(TapConfig::named(name)).map_err(io::Error::other)?;
        let gone = port.gone();
        Ok(End::with(name, port, TapPort::counters, gone))
    }

    /// A TAP of this machine, which this was built without.
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
        let looked_at = port.clone();
        let counters = Box::new(move || counters(&looked_at.lock().unwrap_or_else(PoisonError::into_inner)));
        End { name: name.into(), port, counters, gone }
    }

    /// What it is called: a TAP by its name, all others `guest`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port.
    pub fn port(&self) -> Arc<Mutex<dyn Port>> {
        self.port.clone()
    }

    /// What was counted so far.
    pub fn counters(&self) -> AttachCounters {
        (self.counters)()
    }

    /// Ready when it has gone for good, with what to tell of that.
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
