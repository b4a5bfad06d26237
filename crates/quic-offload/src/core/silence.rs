//! Detection of cut paths: a path that is silent while other paths work.
//!
//! The state machine probes a silent path as long as the connection is open, and does not retransmit the packets in
//! flight there on another path. So this module abandons a path if packets were sent on it and no sign of life came for
//! a while, provided that another path works. When the state machine discards the path, three probe timeouts after the
//! peer agreed, it retransmits the packets.
//!
//! Invariant: the only path is never silent, and neither is a path without sent packets.

use crate::crypto::number_of;
use core::time::Duration;
use noq_proto::{PathId, PathStats};
use offload_base::Instant;

/// The observations of a connection's paths.
#[derive(Debug, Default)]
pub(super) struct SilenceDetector {
    of: Vec<PathProbe>,
    /// Time of the next check.
    next: Option<Instant>,
}

#[derive(Debug)]
struct PathProbe {
    path: PathId,
    signs: PathSigns,
    sent: u64,
    /// Time since which an answer is due.
    since: Option<Instant>,
}

/// Values that change if a packet of the path arrives, or is acknowledged, possibly on another path.
type PathSigns = (u64, Duration, u64, u64);

impl SilenceDetector {
    /// Returns the time of the next check.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.next
    }

    /// Checks the `open` paths if it is time. Returns the silent ones.
    pub(super) fn look(
        &mut self,
        now: Instant,
        noq: &mut noq_proto::Connection,
        open: &[u32],
        ack_delay: Duration,
    ) -> Vec<PathId> {
        if open.len() < 2 {
            self.next = None;
            return Vec::new();
        }
        // Packets sent in the meantime are checked at this time at the latest.
        let next = *self.next.get_or_insert(now + LOOKS_EVERY);
        if now < next {
            return Vec::new();
        }
        let known = noq.paths().into_iter().filter(|path| open.contains(&number_of(*path)));
        let stats: Vec<_> = known.filter_map(|path| Some((path, noq.path_stats(path)?))).collect();
        // Paths that no longer exist are forgotten.
        self.of.retain(|watch| stats.iter().any(|(path, _)| *path == watch.path));
        let (mut silent, mut next) = (Vec::new(), None);
        for (path, stats) in &stats {
            let Some(since) = self.note(*path, stats, now).since else { continue };
            let due = since + patience(stats.rtt, ack_delay);
            if due <= now {
                silent.push(*path);
            } else {
                next = offload_base::time::earliest(next, Some(due));
            }
        }
        self.next = next.map(|next| next.min(now + LOOKS_EVERY));
        // If all paths are silent, no path is better than another, so all are kept.
        if silent.len() < stats.len() { silent } else { Vec::new() }
    }

    fn note(&mut self, path: PathId, stats: &PathStats, now: Instant) -> &PathProbe {
        let signs = (stats.udp_rx.datagrams, stats.rtt, stats.cwnd, stats.lost_packets);
        let at = self.of.iter().position(|watch| watch.path == path).unwrap_or_else(|| {
            self.of.push(PathProbe { path, signs, sent: stats.sent_bytes, since: None });
            self.of.len() - 1
        });
        let watch = &mut self.of[at];
        // Any sign of life restarts the observation.
        if watch.signs != signs {
            (watch.signs, watch.sent, watch.since) = (signs, stats.sent_bytes, None);
        } else if watch.sent != stats.sent_bytes {
            watch.since.get_or_insert(now);
        }
        watch
    }
}

/// Returns the maximum delay of an answer. The packet and the probe after one timeout may be lost (RFC 9002 6.2.1); the
/// probe two timeouts later is answered.
fn patience(rtt: Duration, ack_delay: Duration) -> Duration {
    3 * probe_timeout(rtt, ack_delay) + rtt + ack_delay + GRANULARITY
}

/// Returns the probe timeout (RFC 9002 6.2.1), assuming a variation of an eighth of the round-trip time.
pub(crate) fn probe_timeout(rtt: Duration, ack_delay: Duration) -> Duration {
    rtt + (rtt / 2).max(GRANULARITY) + ack_delay
}

const LOOKS_EVERY: Duration = Duration::from_millis(1);
/// Timer granularity (RFC 9002 6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);
/// Default of `max_ack_delay` (RFC 9000 18.2). The state machine does not expose a peer's own value.
pub(crate) const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
