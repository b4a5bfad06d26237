//! Public view of a connection: its error, readiness and figures.

use super::connection::Connection;
use super::send_queue::FIRST_BYTE;
use super::state::TcpState;
use crate::config::TcpConfig;
use core::time::Duration;
use offload_api::SentBytes;
use std::io;

/// Error that ended a connection.
///
/// ```
/// use offload_host_stack::ConnectionError;
///
/// let error = std::io::Error::from(ConnectionError::TimedOut);
/// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer answered the SYN with a reset.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer is unreachable: a router reported an error, or address resolution failed.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The peer did not answer the retransmissions or probes.
    #[error("the peer does not answer")]
    TimedOut,
    /// This side aborted the connection.
    #[error("the connection was aborted")]
    Aborted,
    /// Data that needed encryption could not be encrypted, neither by a device nor in software.
    #[error("queued data could not be sealed, and must not leave unsealed")]
    Unsealable,
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> io::Error {
        let kind = match error {
            ConnectionError::Refused => io::ErrorKind::ConnectionRefused,
            ConnectionError::Unreachable => io::ErrorKind::HostUnreachable,
            ConnectionError::Reset => io::ErrorKind::ConnectionReset,
            ConnectionError::TimedOut => io::ErrorKind::TimedOut,
            ConnectionError::Aborted => io::ErrorKind::ConnectionAborted,
            ConnectionError::Unsealable => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Events on a connection since the last query.
///
/// ```
/// use offload_host_stack::Readiness;
///
/// assert!(!Readiness::default().any());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The connection was opened, or failed to open.
    pub opened: bool,
    /// Data, the end of the stream, or an error can be read.
    pub readable: bool,
    /// The send queue has room, or will never have room again.
    pub writable: bool,
    /// The awaited bytes are acknowledged, or will never be.
    pub acknowledged: bool,
    /// The device has an event for the flow.
    pub device_event: bool,
}

impl Readiness {
    /// Returns whether any event occurred.
    pub fn any(self) -> bool {
        self.opened || self.readable || self.writable || self.acknowledged || self.device_event
    }

    pub(super) const ALL: Readiness =
        Readiness { opened: true, readable: true, writable: true, acknowledged: true, device_event: false };
}

/// Figures of a connection, like Linux's `TCP_INFO`.
///
/// ```
/// use offload_host_stack::TcpStats;
///
/// fn slow(stats: &TcpStats) -> bool {
///     stats.retransmits > 100 || stats.smoothed_rtt > Some(core::time::Duration::from_millis(300))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpStats {
    /// Current state.
    pub state: TcpState,
    /// Smoothed round-trip time. `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Minimum round-trip time of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Current retransmission timeout, including backoff.
    pub retransmission_timeout: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Slow start threshold in bytes; `u64::MAX` before the first loss.
    pub slow_start_threshold: u64,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// Bytes accepted by the peer beyond its acknowledgment.
    pub peer_window: u64,
    /// Payload of a full segment, in bytes.
    pub segment_size: usize,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acknowledged: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes queued and not acknowledged.
    pub unacknowledged: u64,
}

impl Connection {
    pub(crate) fn sent_bytes(&self) -> SentBytes {
        self.tally.bytes()
    }

    pub(crate) fn stats(&self, config: &TcpConfig) -> TcpStats {
        TcpStats {
            state: self.state,
            smoothed_rtt: self.rtt.smoothed(),
            rtt_variance: self.rtt.variance(),
            min_rtt: self.rtt.min(),
            retransmission_timeout: self.timeout(config),
            congestion_window: self.congestion.window(),
            slow_start_threshold: self.congestion.threshold(),
            in_flight: self.flight.in_flight(),
            peer_window: self.peer.window,
            segment_size: self.mss,
            retransmits: self.tally.retransmits(),
            bytes_acknowledged: self.una.clamp(FIRST_BYTE, self.send.end()) - FIRST_BYTE,
            // The peer's SYN, and its FIN once received, occupy a position each but are no bytes.
            bytes_received: self
                .receive
                .next()
                .saturating_sub(1 + u64::from(self.peer_fin.is_some_and(|fin| self.receive.next() > fin))),
            unacknowledged: self.send.unacknowledged(),
        }
    }
}
