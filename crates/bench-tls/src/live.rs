//! Samples of a running run: the counters of its hosts at equal steps of the run's clock.

use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_testbed::BedHost;
use offload_testbed::bed::Testbed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An observer of a running run, with its interval.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::bulk::{Bulk, Mode};
/// use offload_bench_tls::live::{HostSample, Live, Sample};
/// use offload_bench_tls::observers::Observers;
/// use offload_bench_tls::payload::Payload;
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let (every, noted) = (Duration::from_micros(20), seen.clone());
/// let live = Live::new(every, move |sample: &Sample| {
///     let receiver: &HostSample = &sample.receiver;
///     assert!(receiver.contexts <= 2, "one a direction");
///     noted.lock().unwrap().push(sample.received);
/// });
/// let observers = Observers { live: Some(live), ..Observers::default() };
/// Bulk { observers, ..Bulk::new(Mode::TlsNic, Payload::seeded(Seed(1), 1 << 20)) }.run()?;
/// let seen = seen.lock().unwrap();
/// assert!(seen.is_sorted() && seen.last() == Some(&(1 << 20)), "the last look is at the end");
/// # Ok::<(), offload_bench_tls::bulk::BulkError>(())
/// ```
#[derive(Clone)]
pub struct Live {
    every: Duration,
    show: Arc<dyn Fn(&Sample) + Send + Sync>,
}

impl Live {
    /// Calls `show` once per `every` of the run's clock, at least one nanosecond, and once at the end.
    pub fn new(every: Duration, show: impl Fn(&Sample) + Send + Sync + 'static) -> Live {
        Live { every: every.max(Duration::from_nanos(1)), show: Arc::new(show) }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("every", &self.every).finish_non_exhaustive()
    }
}

/// The state of a run at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The mode of the run.
    pub mode: String,
    /// Time since the start, on the run's clock, with its setup.
    pub at: Duration,
    /// Bytes that the receiving application has.
    pub received: u64,
    /// The sending host.
    pub sender: HostSample,
    /// The receiving host.
    pub receiver: HostSample,
}

/// The state of one host.
#[derive(Clone, Debug)]
pub struct HostSample {
    /// Counters of the stack, the driver and the NIC.
    pub counters: CounterSet,
    /// Contexts of the NIC.
    pub contexts: usize,
}

/// Runs `future` and samples the hosts meanwhile. Hosts 0 and 1 are the sender and the receiver.
pub(crate) async fn watched<T>(
    live: Option<Live>,
    bed: Hosts,
    received: Arc<AtomicU64>,
    future: impl Future<Output = T>,
) -> T {
    let Some(live) = live else { return future.await };
    let (mut future, runtime) = (pin!(future), bed.sender.runtime());
    let show = || (live.show)(&bed.sample(received.load(Ordering::Relaxed)));
    loop {
        let mut step = pin!(runtime.sleep(live.every));
        // The run is polled first, so that its end is seen at once.
        let ended = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => step.as_mut().poll(cx).map(|()| None),
        });
        let ended = ended.await;
        // A sample follows the end too, so that the last one shows the final counters.
        show();
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// The two hosts of a run.
pub(crate) struct Hosts {
    mode: String,
    sender: BedHost,
    receiver: BedHost,
    began: Instant,
}

impl Hosts {
    pub(crate) fn in_testbed(bed: &Testbed, mode: impl ToString) -> Hosts {
        let (sender, receiver) = (bed.host(0).clone(), bed.host(1).clone());
        Hosts { mode: mode.to_string(), sender, receiver, began: bed.now() }
    }

    fn sample(&self, received: u64) -> Sample {
        let host = |host: &BedHost| {
            let mut counters = CounterSet::default();
            host.count(&mut counters);
            HostSample { counters, contexts: host.device_contexts() }
        };
        Sample {
            mode: self.mode.clone(),
            at: self.sender.now() - self.began,
            received,
            sender: host(&self.sender),
            receiver: host(&self.receiver),
        }
    }
}
