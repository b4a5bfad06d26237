//! Congestion control: how many bytes may be in flight.
//!
//! - [`cubic`]: CUBIC, the default; [`new_reno`]: NewReno; [`slow_start`]: how both begin (HyStart++).
//!
//! Loss detection and recovery ([`recovery`](super::recovery)) tell a [`CongestionControl`] what happened; it
//! answers with a window and a threshold, in bytes. During fast recovery the sender paces itself by PRR towards
//! the threshold, and does not look at the window.
//!
//! Invariants: a window is never less than a segment, nor more than [`MAX_WINDOW`]; all arithmetic is in integers, so
//! that a run is the same on every machine.

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
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Where slow start ends.
    fn threshold(&self) -> u64;

    /// The segment size, when it is known or changes.
    fn set_mss(&mut self, mss: u64);

    /// Bytes were acknowledged outside of fast recovery.
    fn on_ack(&mut self, ack: &Acked);

    /// A loss was found, or a mark reported, once per window; `carried` bytes were unacknowledged when something new
    /// was sent last. They may be many more than the window: a recovery sends on while what was lost first is still
    /// missing. And fewer, if there was no more to send. The less of the two is what the network had to carry.
    fn on_congestion(&mut self, signal: Signal, carried: u64);

    /// The retransmission timer fired; `carried` as for congestion, unless this window was cut for a loss already.
    fn on_timeout(&mut self, carried: Option<u64>);

    /// The last loss or timeout was none: back to what was before.
    fn on_spurious(&mut self);

    /// Nothing is in flight, and something is to be sent; `long`: nothing was for more than the retransmission timeout.
    fn on_idle(&mut self, long: bool);

    /// Everything that was sent is acknowledged.
    fn on_quiet(&mut self);

    /// Takes over in the middle of a connection.
    fn adopt(&mut self, window: u64, threshold: u64);
}

/// How the network says that there is too much in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// It lost something.
    Loss,
    /// It marked something (RFC 3168).
    Mark,
}

/// An acknowledgment that moved forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) now: Instant,
    /// Bytes it acknowledged.
    pub(crate) bytes: u64,
    /// The first unacknowledged position after it.
    pub(crate) una: u64,
    /// The next position to be sent.
    pub(crate) next: u64,
    /// The round-trip time of the last sent of what it acknowledged, unless that was sent twice.
    pub(crate) rtt: Option<Duration>,
    pub(crate) smoothed_rtt: Option<Duration>,
    /// Whether the window was what limited the sender.
    pub(crate) limited: bool,
}

/// A controller for a new connection.
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

/// What `window` bytes in segments of `old` bytes are in as many segments of `new` bytes; no bound stays none.
fn rescaled(window: u64, old: u64, new: u64) -> u64 {
    if window == u64::MAX {
        return window;
    }
    u64::try_from(u128::from(window) * u128::from(new) / u128::from(old)).unwrap_or(MAX_WINDOW).min(MAX_WINDOW)
}

/// Far beyond any window a peer can offer.
const MAX_WINDOW: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// `bytes` bytes acknowledged `millis` after the beginning, over a path of 100 ms; the window was full.
    pub(super) fn acked(millis: u64, bytes: u64) -> Acked {
        let rtt = Some(Duration::from_millis(100));
        let now = Instant::ZERO + Duration::from_millis(millis);
        Acked { now, bytes, una: 0, next: 0, rtt, smoothed_rtt: rtt, limited: true }
    }
}
