//! Congestion control: the limit of bytes in flight.
//!
//! - [`cubic`]: CUBIC, the default; [`new_reno`]: NewReno; [`slow_start`]: slow start of both (HyStart++).
//!
//! Loss detection and recovery ([`recovery`](super::recovery)) report events to a [`CongestionControl`], which provides
//! a window and a threshold in bytes. During fast recovery the sender ignores the window, and PRR paces it towards the
//! threshold.
//!
//! Invariants: a window is at least one segment and at most [`MAX_WINDOW`]. All arithmetic is in integers, so that a
//! run is the same on every machine.

mod cubic;
mod new_reno;
mod slow_start;

pub(super) use cubic::Cubic;
pub(super) use new_reno::NewReno;

use crate::config::CongestionAlgorithm;
use core::fmt::Debug;
use core::time::Duration;
use offload_base::Instant;

pub(crate) trait CongestionControl: Debug + Send {
    /// Returns the maximum number of bytes in flight.
    fn window(&self) -> u64;

    /// Returns the slow start threshold.
    fn threshold(&self) -> u64;

    /// Sets the segment size.
    fn set_mss(&mut self, mss: u64);

    /// Processes an acknowledgment outside of fast recovery.
    fn on_ack(&mut self, ack: &AckedBytes);

    /// Responds to a loss or a mark, once per window. `carried` bytes were unacknowledged when new data were last sent.
    /// They may exceed the window, because a recovery sends new data while its first loss is still missing; or fall
    /// below it, if no more data were queued. The smaller of both is the load of the network.
    fn on_congestion(&mut self, signal: CongestionSignal, carried: u64);

    /// Responds to a retransmission timeout. `carried` is `None` if the window was already reduced for a loss of these
    /// data.
    fn on_timeout(&mut self, carried: Option<u64>);

    /// Undoes the last loss or timeout, because it was spurious.
    fn on_spurious(&mut self);

    /// Processes the start of a transmission with nothing in flight. `long` means that the connection was idle for more
    /// than a retransmission timeout.
    fn on_idle(&mut self, long: bool);

    /// Processes the acknowledgment of all sent data.
    fn on_quiet(&mut self);

    /// Takes over the window and the threshold of another controller.
    fn adopt(&mut self, window: u64, threshold: u64);
}

/// Sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CongestionSignal {
    /// Lost data.
    Loss,
    /// A congestion mark (RFC 3168).
    Mark,
}

/// An acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedBytes {
    pub(crate) now: Instant,
    /// Number of acknowledged bytes.
    pub(crate) bytes: u64,
    /// First unacknowledged position after the acknowledgment.
    pub(crate) una: u64,
    /// Next position to be sent.
    pub(crate) next: u64,
    /// Round-trip time of the latest acknowledged data. `None` if they were retransmitted.
    pub(crate) rtt: Option<Duration>,
    pub(crate) smoothed_rtt: Option<Duration>,
    /// Whether the window limited the sender.
    pub(crate) limited: bool,
}

/// Returns a controller for a new connection.
pub(crate) fn controller(
    algorithm: CongestionAlgorithm,
    mss: u64,
    initial_segments: u32,
) -> Box<dyn CongestionControl> {
    match algorithm {
        CongestionAlgorithm::Cubic => Box::new(Cubic::new(mss, initial_segments)),
        CongestionAlgorithm::NewReno => Box::new(NewReno::new(mss, initial_segments)),
    }
}

/// Converts `window` from segments of `old` bytes to as many segments of `new` bytes. An unlimited window stays
/// unlimited.
fn rescaled(window: u64, old: u64, new: u64) -> u64 {
    // The initial threshold means no limit, which no conversion may change.
    if window == u64::MAX {
        return window;
    }
    u64::try_from(u128::from(window) * u128::from(new) / u128::from(old)).unwrap_or(MAX_WINDOW).min(MAX_WINDOW)
}

/// Maximum window, far beyond any that a peer can offer.
const MAX_WINDOW: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an acknowledgment of `bytes` bytes at `millis`, on a path of 100 ms, with a full window.
    pub(super) fn acked(millis: u64, bytes: u64) -> AckedBytes {
        let rtt = Some(Duration::from_millis(100));
        let now = Instant::ZERO + Duration::from_millis(millis);
        AckedBytes { now, bytes, una: 0, next: 0, rtt, smoothed_rtt: rtt, limited: true }
    }
}
