//! A drive model for virtual time: the duration of reads and writes.
//!
//! - [`Drive`]: the model, sans-IO: takes a request and the present instant, returns the completion time;
//! - [`threads`]: threads on which blocking code waits in virtual time, so that storage behind a synchronous interface
//!   takes time too.
//!
//! ```text
//!  requests of a stream > lane, at the rate of one stream  \
//!  requests of a stream > lane, at the rate of one stream   > all reads, or all writes, at the drive's rate > latency > done
//!  requests of a stream > lane, at the rate of one stream  /
//! ```
//!
//! A *stream* is a run of requests in which each begins where the previous one ended, as a drive's read-ahead sees it.
//! Invariant: over any span, a stream gets at most its own rate, and all streams together at most the drive's rate,
//! however many requests wait.

pub mod threads;

use crate::runtime::lock;
use core::ops::Range;
use core::time::Duration;
use offload_base::{Instant, Rng, Seed};
use std::sync::{Arc, Mutex};

/// Speed of a drive.
///
/// ```
/// use offload_testbed::drive::DriveConfig;
///
/// let eight_ssds = DriveConfig::EIGHT_SSDS;
/// let tenth = eight_ssds.slower(10);
/// assert_eq!((tenth.read, tenth.write, tenth.stream), (18_000_000_000, 9_500_000_000, 1_100_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveConfig {
    /// Bits per second shared by all reads, at least one.
    pub read: u64,
    /// Bits per second shared by all writes, at least one.
    pub write: u64,
    /// Bits per second of one stream of reads or writes, at least one.
    pub stream: u64,
    /// Time from the end of a read's transfer to its completion.
    pub read_latency: Duration,
    /// Time from the end of a write's transfer to its completion; also the time of a flush.
    pub write_latency: Duration,
    /// Maximum extra delay of a request. The seed determines each request's share.
    pub jitter: Duration,
}

impl DriveConfig {
    /// Eight striped SSDs of the Secure Data Reservoir (University of Tokyo, SC18): 180 Gb/s for reading, 95 for
    /// writing, and 11 for one stream from disk to disk. The latencies are ours, typical of a flash drive.
    pub const EIGHT_SSDS: DriveConfig = DriveConfig {
        read: 180_000_000_000,
        write: 95_000_000_000,
        stream: 11_000_000_000,
        read_latency: Duration::from_micros(90),
        write_latency: Duration::from_micros(25),
        jitter: Duration::from_micros(20),
    };

    /// Returns a configuration with each rate divided by `times`.
    #[must_use]
    pub fn slower(self, times: u64) -> DriveConfig {
        let of = |rate: u64| (rate / times.max(1)).max(1);
        DriveConfig { read: of(self.read), write: of(self.write), stream: of(self.stream), ..self }
    }
}

/// A drive. A clone refers to the same drive.
///
/// ```
/// use core::time::Duration;
/// use offload_base::{Instant, Seed};
/// use offload_testbed::drive::{Drive, DriveConfig};
///
/// let config = DriveConfig { jitter: Duration::ZERO, ..DriveConfig::EIGHT_SSDS };
/// let drive = Drive::new(config, Seed(1));
/// // A mebibyte in a stream of 11 Gb/s, and 90 us.
/// let done = drive.read(Instant::ZERO, 1, 0..1 << 20);
/// assert_eq!(done.as_micros(), 762 + 90);
/// // The stream's next one waits for it; another stream does not.
/// assert_eq!(drive.read(Instant::ZERO, 1, 1 << 20..2 << 20).as_micros(), 2 * 762 + 1 + 90);
/// assert_eq!(drive.read(Instant::ZERO, 2, 0..1 << 20).as_micros(), 762 + 90);
/// assert_eq!(drive.moved().read, 3 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Drive {
    config: DriveConfig,
    state: Arc<Mutex<DriveState>>,
}

/// Bytes moved by a drive.
///
/// See [`Drive`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveTraffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

#[derive(Debug)]
struct DriveState {
    /// Times at which all reads and all writes are done.
    free: [Instant; 2],
    lanes: Vec<DriveStream>,
    random: Rng,
    moved: DriveTraffic,
    /// Number of requests so far.
    requests: u64,
}

/// A stream of requests.
#[derive(Debug)]
struct DriveStream {
    way: DriveOperation,
    file: u64,
    /// Offset at which the stream's next request begins.
    next: u64,
    free: Instant,
    /// Number of the stream's last request.
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriveOperation {
    Read,
    Write,
}

impl Drive {
    /// Creates an idle drive.
    pub fn new(config: DriveConfig, seed: Seed) -> Drive {
        let random = seed.stream("drive");
        let state = DriveState {
            free: [Instant::ZERO; 2],
            lanes: Vec::new(),
            random,
            moved: DriveTraffic::default(),
            requests: 0,
        };
        Drive { config, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the configuration.
    pub fn config(&self) -> DriveConfig {
        self.config
    }

    /// Starts a read of `range` of file number `file`. Returns the completion time.
    pub fn read(&self, now: Instant, file: u64, range: Range<u64>) -> Instant {
        self.request(now, DriveOperation::Read, file, range)
    }

    /// Starts a write. Returns the time at which the data is on the medium.
    pub fn write(&self, now: Instant, file: u64, range: Range<u64>) -> Instant {
        self.request(now, DriveOperation::Write, file, range)
    }

    /// Returns the completion time of a flush that starts `now` and covers all earlier writes.
    pub fn flush(&self, now: Instant) -> Instant {
        let state = lock(&self.state);
        let writing = state.lanes.iter().filter(|lane| lane.way == DriveOperation::Write).map(|lane| lane.free);
        let last = writing.max().unwrap_or(Instant::ZERO).max(state.free[DriveOperation::Write as usize]);
        now.max(last) + self.config.write_latency
    }

    /// Returns the bytes moved so far.
    pub fn moved(&self) -> DriveTraffic {
        lock(&self.state).moved
    }

    fn request(&self, now: Instant, way: DriveOperation, file: u64, range: Range<u64>) -> Instant {
        let bytes = range.end.saturating_sub(range.start);
        let (rate, latency) = match way {
            DriveOperation::Read => (self.config.read, self.config.read_latency),
            DriveOperation::Write => (self.config.write, self.config.write_latency),
        };
        let mut state = lock(&self.state);
        // Two limits apply at once: the drive's rate over all requests and the rate of the request's own stream.
        let all = &mut state.free[way as usize];
        *all = now.max(*all) + time_of(bytes, rate);
        let shared = *all;
        let lane = state.lane(now, way, file, range.start);
        // An idle stream saves no credit: its next request starts now.
        lane.free = now.max(lane.free) + time_of(bytes, self.config.stream);
        lane.next = range.end;
        let own = lane.free;
        match way {
            DriveOperation::Read => state.moved.read += bytes,
            DriveOperation::Write => state.moved.written += bytes,
        }
        let most = u64::try_from(self.config.jitter.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
        shared.max(own) + latency + Duration::from_nanos(state.random.below(most))
    }
}

impl DriveState {
    /// Returns the stream that the request continues, or a new stream.
    fn lane(&mut self, now: Instant, way: DriveOperation, file: u64, from: u64) -> &mut DriveStream {
        self.requests += 1;
        let used = self.requests;
        let known = self.lanes.iter().position(|lane| (lane.way, lane.file, lane.next) == (way, file, from));
        let at = known.unwrap_or_else(|| {
            // Only idle streams may be evicted: a busy stream still limits the rate of its requests.
            let idle = self.lanes.iter().enumerate().filter(|(_, lane)| lane.free <= now);
            let oldest = idle.min_by_key(|(_, lane)| lane.used).map(|(at, _)| at);
            let new = DriveStream { way, file, next: from, free: Instant::ZERO, used };
            match oldest.filter(|_| self.lanes.len() >= MAX_LANES) {
                Some(at) => {
                    self.lanes[at] = new;
                    at
                }
                None => {
                    self.lanes.push(new);
                    self.lanes.len() - 1
                }
            }
        });
        let lane = &mut self.lanes[at];
        lane.used = used;
        lane
    }
}

/// Returns the transfer time of `bytes`, rounded up.
fn time_of(bytes: u64, bits_per_second: u64) -> Duration {
    let nanos = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(bits_per_second.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Number of streams above which idle streams are evicted.
const MAX_LANES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 512 << 10;

    fn quiet() -> DriveConfig {
        DriveConfig { jitter: Duration::ZERO, ..DriveConfig::EIGHT_SSDS }
    }

    /// Measures the rate, in bits per second, of `streams` streams with `depth` outstanding requests each, over a time
    /// so long that the start does not matter.
    fn rate(config: DriveConfig, way: DriveOperation, streams: u64, depth: usize) -> f64 {
        let drive = Drive::new(config, Seed(1));
        let mut waiting: std::collections::BTreeSet<(Instant, u64, u64)> =
            (0..streams).flat_map(|stream| (0..depth as u64).map(move |at| (Instant::ZERO, stream, at))).collect();
        let mut next = vec![0; streams as usize];
        let (end, mut bytes) = (Instant::from_nanos(1_000_000_000), 0);
        let mut number = depth as u64;
        while let Some((now, stream, _)) = waiting.pop_first().filter(|(now, ..)| *now < end) {
            let from = next[stream as usize];
            next[stream as usize] += PIECE;
            let done = drive.request(now, way, stream, from..from + PIECE);
            if done <= end {
                bytes += PIECE;
            }
            number += 1;
            waiting.insert((done, stream, number));
        }
        bytes as f64 * 8.0
    }

    fn about(measured: f64, law: f64) {
        assert!((0.99..1.01).contains(&(measured / law)), "{measured} where {law} is the law");
    }

    #[test]
    fn streams_share_the_drive_within_their_rate() {
        // With two outstanding requests, latency hides behind the transfer: the rate is streams x 11 Gb/s, up to the
        // drive's rate.
        for streams in [1, 2, 8] {
            about(rate(quiet(), DriveOperation::Read, streams, 2), streams as f64 * 11e9);
            about(rate(quiet(), DriveOperation::Write, streams, 2), streams as f64 * 11e9);
        }
        about(rate(quiet(), DriveOperation::Read, 16, 2), 176e9);
        about(rate(quiet(), DriveOperation::Read, 32, 2), 180e9);
        about(rate(quiet(), DriveOperation::Write, 9, 2), 95e9);
        about(rate(quiet(), DriveOperation::Write, 64, 2), 95e9);
    }

    #[test]
    fn one_request_at_a_time_pays_the_latency_each_time() {
        let piece = PIECE as f64 * 8.0;
        about(rate(quiet(), DriveOperation::Read, 1, 1), piece / (piece / 11e9 + 90e-6));
        about(rate(quiet(), DriveOperation::Write, 1, 1), piece / (piece / 11e9 + 25e-6));
        // The mean jitter is half of its maximum.
        about(rate(DriveConfig::EIGHT_SSDS, DriveOperation::Write, 1, 1), piece / (piece / 11e9 + 35e-6));
    }

    #[test]
    fn flush_waits_for_all_writes() {
        let drive = Drive::new(quiet(), Seed(1));
        let now = Instant::from_nanos(5);
        assert_eq!(drive.flush(now), now + Duration::from_micros(25));
        let mut last = now;
        for piece in 0..40 {
            last = last.max(drive.write(now, piece, 0..PIECE));
        }
        assert_eq!(drive.flush(now), last);
        assert_eq!(drive.read(now, 1, 0..0), now + Duration::from_micros(90));
        assert_eq!(drive.moved(), DriveTraffic { read: 0, written: 40 * PIECE });
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let times = |seed| {
            let drive = Drive::new(DriveConfig::EIGHT_SSDS, Seed(seed));
            (0..50).map(|at| drive.read(Instant::ZERO, at, 0..4096)).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }

    #[test]
    fn streams_that_wait_are_never_forgotten() {
        let drive = Drive::new(quiet(), Seed(1));
        // One stream with a long backlog, then more other streams than the table remembers.
        for at in 0..100 {
            drive.write(Instant::ZERO, 0, at * PIECE..(at + 1) * PIECE);
        }
        for file in 1..1000 {
            drive.write(Instant::ZERO, file, 0..1);
        }
        let done = drive.write(Instant::ZERO, 0, 100 * PIECE..101 * PIECE);
        about((done - Instant::ZERO).as_secs_f64(), 101.0 * PIECE as f64 * 8.0 / 11e9 + 25e-6);
        // Later all streams are idle, and only few new ones are added.
        let later = Instant::from_nanos(1 << 40);
        for file in 0..1000 {
            drive.read(later + Duration::from_millis(file), file, 0..1);
        }
        assert_eq!(lock(&drive.state).lanes.len(), 1000);
    }
}
