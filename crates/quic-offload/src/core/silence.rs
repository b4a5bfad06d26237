//! Paths that fell silent while others are heard from: a wire that was cut.
//!
//! The state machine goes on probing a path of which nothing comes back, and what is under way there, it does not send again
//! elsewhere, for as long as the connection is open. So a path that was sent something and gave no sign of life for a while is
//! given up here, if there is another one; the state machine sends its packets again when it discards the path, three probe
//! timeouts after the peer agreed.
//!
//! Invariant: the only path, or one that was sent nothing, is not silent.

use crate::crypto::number_of;
use core::time::Duration;
use noq_proto::{PathId, PathStats};
use offload_base::Instant;

/// What a path was seen to do.
#[derive(Debug, Default)]
pub(super) struct Watches {
    of: Vec<Watch>,
    /// When they are looked at next; before that, it is too soon.
    next: Option<Instant>,
}

#[derive(Debug)]
struct Watch {
    path: PathId,
    signs: Signs,
    sent: u64,
    /// From when on an answer is due.
    since: Option<Instant>,
}

/// What changes when something of a path arrives, or is acknowledged: perhaps on another path.
type Signs = (u64, Duration, u64, u64);

impl Watches {
    /// When to look next, if there is anything to look for.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.next
    }

    /// Looks at the paths that are `open`, if it is time for that; says which of them fell silent.
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
        // Later work is looked at, at the latest, then.
        let next = *self.next.get_or_insert(now + LOOKS_EVERY);
        if now < next {
            return Vec::new();
        }
        let known = noq.paths().into_iter().filter(|path| open.contains(&number_of(*path)));
        let stats: Vec<_> = known.filter_map(|path| Some((path, noq.path_stats(path)?))).collect();
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
        // All at once: nobody says which one is to stay.
        if silent.len() < stats.len() { silent } else { Vec::new() }
    }

    fn note(&mut self, path: PathId, stats: &PathStats, now: Instant) -> &Watch {
        let signs = (stats.udp_rx.datagrams, stats.rtt, stats.cwnd, stats.lost_packets);
        let at = self.of.iter().position(|watch| watch.path == path).unwrap_or_else(|| {
            self.of.push(Watch { path, signs, sent: stats.sent_bytes, since: None });
            self.of.len() - 1
        });
        let watch = &mut self.of[at];
        if watch.signs != signs {
            (watch.signs, watch.sent, watch.since) = (signs, stats.sent_bytes, None);
        } else if watch.sent != stats.sent_bytes {
            watch.since.get_or_insert(now);
        }
        watch
    }
}

/// How long an answer may take: the packet may be lost alone, and what probes for it a probe timeout later (RFC 9002 6.2.1); what
/// probes two more later is answered.
fn patience(rtt: Duration, ack_delay: Duration) -> Duration {
    3 * probe_timeout(rtt, ack_delay) + rtt + ack_delay + GRANULARITY
}

/// RFC 9002 6.2.1, as if the round-trip time varied by an eighth of itself.
pub(crate) fn probe_timeout(rtt: Duration, ack_delay: Duration) -> Duration {
    rtt + (rtt / 2).max(GRANULARITY) + ack_delay
}

const LOOKS_EVERY: Duration = Duration::from_millis(1);
/// RFC 9002 6.1.2.
const GRANULARITY: Duration = Duration::from_millis(1);
/// RFC 9000 18.2, unless a peer says otherwise, which the state machine does not tell.
pub(crate) const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
