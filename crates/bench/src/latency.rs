//! How long requests took, and what each of them cost.

use hdrhistogram::Histogram;
use offload_base::cost::{Domain, Report, WORKS, Work};
use serde::Serialize;

/// Percentiles in microseconds, within 0.1 %.
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

impl Latency {
    /// The percentiles of a histogram of nanoseconds.
    pub(crate) fn of(latencies: &Histogram<u64>) -> Latency {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: latencies.max() as f64 / 1e3 }
    }
}

/// Of nanoseconds, three digits each.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3).expect("the bounds are in order")
}

/// CPU time of `host` per request, in microseconds.
pub(crate) fn per_request(report: &Report, host: Domain, requests: u64) -> f64 {
    let work = WORKS.iter().filter(|work| **work != Work::Application);
    let spent: f64 = work.map(|work| report.cpu(host, *work).as_nanos() as f64).sum();
    spent / 1e3 / requests.max(1) as f64
}

const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;
