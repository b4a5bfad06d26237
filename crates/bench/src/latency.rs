//! Latencies of requests, and the cost of each.

use core::time::Duration;
use hdrhistogram::Histogram;
use offload_base::cost::{self, CpuReport, Domain, WORKS, WorkKind};
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Percentiles in microseconds, within 0.1 %.
///
/// See [`Http`](crate::http::Http) for an example.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

/// Latencies of the requests of many tasks, in one histogram. A histogram takes a quarter of a megabyte; one per task
/// would cost measured CPU time.
#[derive(Clone)]
pub(crate) struct Latencies(Arc<Mutex<Histogram<u64>>>);

impl Latencies {
    /// Creates an empty histogram. Must precede the measurement.
    pub(crate) fn new() -> Latencies {
        let nanoseconds = Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3).expect("the bounds are in order");
        Latencies(Arc::new(Mutex::new(nanoseconds)))
    }

    /// Records a latency. The CPU time of recording is not charged to the host.
    pub(crate) fn record(&self, took: Duration) {
        let _application = cost::work(WorkKind::Application);
        self.histogram().saturating_record(took.as_nanos() as u64);
    }

    /// Returns the number of recorded latencies.
    pub(crate) fn count(&self) -> u64 {
        self.histogram().len()
    }

    /// Returns the percentiles.
    pub(crate) fn percentiles(&self) -> Latency {
        let latencies = self.histogram();
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: latencies.max() as f64 / 1e3 }
    }

    fn histogram(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the CPU time of `host` per request, in microseconds.
pub(crate) fn per_request(report: &CpuReport, host: Domain, requests: u64) -> f64 {
    let work = WORKS.iter().filter(|work| **work != WorkKind::Application);
    let spent: f64 = work.map(|work| report.cpu(host, *work).as_nanos() as f64).sum();
    spent / 1e3 / requests.max(1) as f64
}

const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;
