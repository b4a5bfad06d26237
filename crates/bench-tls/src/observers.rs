//! The observers of a run: its capture, its timeline, its progress, and its counters while it goes.

use crate::bounded;
use crate::live::{self, Live};
use core::fmt;
use core::future::Future;
use offload_testbed::bed::{Builder, Testbed};
use offload_testbed::{Capture, Tracer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The observers of one run, which do not affect its counts.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::bulk::{Bulk, Mode};
/// use offload_bench_tls::observers::Observers;
/// use offload_bench_tls::payload::Payload;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let seen = Arc::new(AtomicU64::new(0));
/// let noted = seen.clone();
/// let observers = Observers {
///     progress: Some(Arc::new(move |bytes| noted.store(bytes, Ordering::Relaxed))),
///     ..Observers::default()
/// };
/// Bulk { observers, ..Bulk::new(Mode::TlsNic, Payload::seeded(Seed(1), 100_000)) }.run()?;
/// assert_eq!(seen.load(Ordering::Relaxed), 100_000);
/// # Ok::<(), offload_bench_tls::bulk::BulkError>(())
/// ```
#[derive(Clone, Default)]
pub struct Observers {
    /// The capture of all frames that the first host's NIC sends and receives.
    pub capture: Option<Capture>,
    /// The timeline of the run.
    pub tracer: Option<Tracer>,
    /// Called with the number of bytes that arrived so far.
    pub progress: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    /// Called with the counters at equal steps of the run's clock.
    pub live: Option<Live>,
    /// The number of bytes that arrived so far.
    pub received: Arc<AtomicU64>,
}

impl Observers {
    /// Attaches the capture and the timeline to the testbed.
    pub fn attach(&self, builder: Builder) -> Builder {
        let builder = builder.traced(self.tracer.as_ref());
        match &self.capture {
            Some(capture) => builder.captured(capture),
            None => builder,
        }
    }

    /// Runs `future` for at most an hour of the testbed's clock, and samples the hosts for [`live`](Self::live). Hosts
    /// 0 and 1 are the sender and the receiver.
    ///
    /// # Errors The error of `future`, or [`io::ErrorKind::TimedOut`].
    pub fn run<T, E: From<io::Error>>(
        &self,
        bed: &mut Testbed,
        mode: impl ToString,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let hosts = live::Hosts::in_testbed(bed, mode);
        bounded::run(bed, live::watched(self.live.clone(), hosts, self.received.clone(), future))
    }

    /// Reports that the receiver has `bytes` more bytes.
    pub fn arrived(&self, bytes: u64) {
        // Several connections of a run may report at the same time.
        let all = self.received.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.progress {
            progress(all);
        }
    }

    /// Returns the capture as the log of TLS secrets.
    pub fn key_log(&self) -> Option<Arc<dyn rustls::KeyLog>> {
        self.capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn finish(&self) -> io::Result<()> {
        self.capture.as_ref().map_or(Ok(()), Capture::finish)
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("live", &self.live).finish_non_exhaustive()
    }
}
