//! Received bytes of each stream at equal steps, and statistics of them.

use crate::iperf::jain;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Totals of each stream, step by step. Clones share the same totals.
#[derive(Clone)]
pub(super) struct Series {
    step: Duration,
    samples: Arc<Mutex<Vec<Vec<u64>>>>,
}

/// Statistics of a part of a series, in 10^9 bits per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThroughputSpan {
    pub(super) mean: f64,
    /// The best second.
    pub(super) peak: f64,
    /// Standard deviation of the seconds.
    pub(super) deviation: f64,
    pub(super) slowest: f64,
    pub(super) fastest: f64,
    pub(super) fairness: f64,
}

impl Series {
    pub(super) fn new(step: Duration) -> Series {
        Series { step, samples: Arc::default() }
    }

    /// Appends the totals of all streams at the end of the next step.
    pub(super) fn add(&self, streams: &[u64]) {
        self.samples().push(streams.to_vec());
    }

    /// Returns the statistics between `from` and `to`.
    pub(super) fn over(&self, from: Duration, to: Duration) -> ThroughputSpan {
        let (from, to) = (self.steps(from), self.steps(to).min(self.samples().len()));
        // A run may be shorter than the excluded start.
        if from >= to {
            return ThroughputSpan::default();
        }
        let span = self.step.as_secs_f64() * (to - from) as f64;
        let gbps = |bytes: u64, seconds: f64| bytes as f64 * 8e-9 / seconds;
        let (began, ended) = (self.at(from), self.at(to));
        let streams: Vec<f64> = ended
            .iter()
            .enumerate()
            .map(|(stream, bytes)| gbps(bytes - began.get(stream).copied().unwrap_or(0), span))
            .collect();
        // The deviation uses whole seconds, because shorter steps would show single bursts.
        let second = self.steps(Duration::from_secs(1)).max(1);
        let total = |at: usize| self.at(at).iter().sum::<u64>();
        let of_second = |end: usize| gbps(total(end) - total(end - second), self.step.as_secs_f64() * second as f64);
        let seconds: Vec<f64> = (from + second..=to).step_by(second).map(of_second).collect();
        let mean = gbps(total(to) - total(from), span);
        let count = seconds.len().max(1) as f64;
        let middle = seconds.iter().sum::<f64>() / count;
        ThroughputSpan {
            mean,
            peak: (from + second..=to).map(of_second).fold(0.0, f64::max),
            deviation: (seconds.iter().map(|gbps| (gbps - middle).powi(2)).sum::<f64>() / count).sqrt(),
            slowest: streams.iter().copied().fold(f64::INFINITY, f64::min),
            fastest: streams.iter().copied().fold(0.0, f64::max),
            fairness: jain(&streams),
        }
    }

    /// Returns the end of the first second with this rate, or the whole time if no second had it.
    pub(super) fn seconds_to(&self, gbps: f64) -> f64 {
        let second = self.steps(Duration::from_secs(1)).max(1);
        let count = self.samples().len();
        let total = |at: usize| self.at(at).iter().sum::<u64>() as f64 * 8e-9;
        let span = self.step.as_secs_f64() * second as f64;
        let first = (second..=count).find(|end| (total(*end) - total(end - second)) / span >= gbps);
        first.unwrap_or(count) as f64 * self.step.as_secs_f64()
    }

    /// Returns the gigabits of each whole second.
    pub(super) fn seconds(&self) -> Vec<f64> {
        let second = self.steps(Duration::from_secs(1)).max(1);
        let count = self.samples().len();
        let total = |at: usize| self.at(at).iter().sum::<u64>() as f64 * 8e-9;
        (second..=count).step_by(second).map(|end| total(end) - total(end - second)).collect()
    }

    /// Returns the totals after `step` steps.
    fn at(&self, step: usize) -> Vec<u64> {
        if step == 0 { Vec::new() } else { self.samples()[step - 1].clone() }
    }

    fn steps(&self, span: Duration) -> usize {
        (span.as_nanos() / self.step.as_nanos().max(1)) as usize
    }

    fn samples(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two streams that send nothing for two seconds, then 1 and 3 Gb/s for four.
    fn steps() -> Series {
        let series = Series::new(Duration::from_millis(100));
        for step in 1_u64..=60 {
            let since = step.saturating_sub(20);
            series.add(&[since * 12_500_000, since * 37_500_000]);
        }
        series
    }

    #[test]
    fn statistics_cover_the_span_only() {
        let series = steps();
        let all = series.over(Duration::ZERO, Duration::from_secs(6));
        assert!((all.mean - 16.0 / 6.0).abs() < 1e-9 && (all.peak - 4.0).abs() < 1e-9, "{all:?}");
        // Two zeros and four fours: the deviation is 4 times the root of 2/6 x 4/6.
        assert!((all.deviation - 4.0 * (8.0_f64 / 36.0).sqrt()).abs() < 1e-9, "{all:?}");
        let steady = series.over(Duration::from_secs(2), Duration::from_secs(6));
        assert!((steady.mean - 4.0).abs() < 1e-9 && steady.deviation < 1e-9, "{steady:?}");
        assert!((steady.slowest - 1.0).abs() < 1e-9 && (steady.fastest - 3.0).abs() < 1e-9, "{steady:?}");
        assert!((steady.fairness - 0.8).abs() < 1e-9, "{steady:?}");
        assert_eq!(series.over(Duration::from_secs(6), Duration::from_secs(6)).mean, 0.0);
    }

    #[test]
    fn a_second_counts_from_wherever_it_begins() {
        let series = steps();
        assert!((series.seconds_to(0.9 * 4.0) - 2.9).abs() < 1e-9, "{}", series.seconds_to(3.6));
        let seconds: Vec<f64> = series.seconds().into_iter().map(f64::round).collect();
        assert_eq!(seconds, [0.0, 0.0, 4.0, 4.0, 4.0, 4.0]);
    }
}
