//! How long requests took, and what each of them cost.

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
    /// Half of them are shorter.
    pub p50: f64,
    /// Nine tenths are shorter.
    pub p90: f64,
    /// 99 % are shorter.
    pub p99: f64,
    /// 99.9 % are shorter.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// How long requests of many tasks took, in one histogram: it has a quarter of a megabyte, which a task for itself would pay
/// for with CPU time that is measured.
#[derive(Clone)]
pub(crate) struct Latencies(Arc<Mutex<Histogram<u64>>>);

impl Latencies {
    /// None so far. To be made before anything is measured.
    pub(crate) fn new() -> Latencies {
        let nanoseconds = Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3).expect("the bounds are in order");
        Latencies(Arc::new(Mutex::new(nanoseconds)))
    }

    /// A request took so long. What that takes is not the host's.
    pub(crate) fn record(&self, took: Duration) {
        let _application = cost::work(WorkKind::Application);
        self.histogram().saturating_record(took.as_nanos() as u64);
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.histogram().len()
    }

    /// Their percentiles.
    pub(crate) fn percentiles(&self) -> Latency {
        let latencies = self.histogram();
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: latencies.max() as f64 / 1e3 }
    }

    fn histogram(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time of `host` per request, in microseconds.
pub(crate) fn per_request(report: &CpuReport, host: Domain, requests: u64) -> f64 {
    let work = WORKS.iter().filter(|work| **work != WorkKind::Application);
    let spent: f64 = work.map(|work| report.cpu(host, *work).as_nanos() as f64).sum();
    spent / 1e3 / requests.max(1) as f64
}

const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;
