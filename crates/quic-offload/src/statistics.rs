//! Statistics of connections and paths.

use crate::core::Conn;
use core::time::Duration;
use noq_proto::{PathId, PathStats};

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The smoothed round-trip time of the first path.
    pub rtt: Duration,
    /// Sum of the congestion windows of all paths, in bytes.
    pub window: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Bytes sent, in UDP payloads.
    pub bytes_sent: u64,
    /// Bytes received, in UDP payloads.
    pub bytes_received: u64,
    /// Key updates.
    pub key_updates: u64,
    /// Open paths.
    pub paths: usize,
}

/// Statistics of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatistics {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The congestion window, in bytes.
    pub window: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Bytes sent, in UDP payloads.
    pub bytes_sent: u64,
    /// The largest UDP payload that the path is known to carry.
    pub udp_payload: u16,
}

impl Conn {
    pub(crate) fn statistics(&mut self) -> Statistics {
        let stats = self.noq.stats();
        let mut total = Statistics {
            rtt: self.noq.rtt(PathId::ZERO).unwrap_or_default(),
            bytes_sent: stats.udp_tx.bytes,
            bytes_received: stats.udp_rx.bytes,
            key_updates: self.key_updates,
            paths: self.paths.len(),
            ..Statistics::default()
        };
        for path in self.noq.paths() {
            let Some(path) = self.noq.path_stats(path) else { continue };
            total.window += path.cwnd;
            total.sent += path.sent_packets;
            total.lost += path.lost_packets;
        }
        total
    }
}

impl From<PathStats> for PathStatistics {
    fn from(stats: PathStats) -> PathStatistics {
        PathStatistics {
            rtt: stats.rtt,
            window: stats.cwnd,
            sent: stats.sent_packets,
            lost: stats.lost_packets,
            bytes_sent: stats.udp_tx.bytes,
            udp_payload: stats.current_mtu,
        }
    }
}
