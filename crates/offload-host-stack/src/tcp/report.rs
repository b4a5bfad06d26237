//! What a connection tells of itself: why it ended, what has become possible, figures.

use super::connection::Connection;
use super::send_queue::FIRST_BYTE;
use super::state::State;
use crate::config::TcpConfig;
use core::time::Duration;
use offload_api::SentBytes;
use std::io;

/// Why a connection ended before its time.
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
    /// There is no way to the peer: a router says so, or nobody on the Ethernet has its address.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The peer did not answer, however often it was asked.
    #[error("the peer does not answer")]
    TimedOut,
    /// This side aborted the connection.
    #[error("the connection was aborted")]
    Aborted,
    /// Bytes that needed encryption could not get it, neither by a device nor by software.
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

/// What has become possible on a connection since it was last asked.
///
/// ```
/// use offload_host_stack::Readiness;
///
/// assert!(!Readiness::default().any());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// It is open, or failed to open.
    pub opened: bool,
    /// There is something to read, the end of the stream, or an error.
    pub readable: bool,
    /// The send queue wants bytes again, or will never more.
    pub writable: bool,
    /// The bytes that were waited for are acknowledged, or never will be.
    pub acknowledged: bool,
    /// The device has something to say about the flow.
    pub device_event: bool,
}

impl Readiness {
    /// Whether anything has.
    pub fn any(self) -> bool {
        self.opened || self.readable || self.writable || self.acknowledged || self.device_event
    }

    pub(super) const ALL: Readiness =
        Readiness { opened: true, readable: true, writable: true, acknowledged: true, device_event: false };
}

/// Figures of a connection, as Linux's `TCP_INFO` has them.
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
    /// Its state.
    pub state: State,
    /// Smoothed round-trip time, after the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// Its mean deviation.
    pub rtt_variance: Duration,
    /// The least of the last minutes.
    pub min_rtt: Option<Duration>,
    /// The present retransmission timeout, back-off included.
    pub retransmission_timeout: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Slow start threshold in bytes; `u64::MAX` before the first loss.
    pub slow_start_threshold: u64,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// Bytes the peer takes beyond what it has acknowledged.
    pub peer_window: u64,
    /// Payload bytes of a full segment.
    pub segment_size: usize,
    /// Segments sent again.
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
            bytes_received: self
                .receive
                .next()
                .saturating_sub(1 + u64::from(self.peer_fin.is_some_and(|fin| self.receive.next() > fin))),
            unacknowledged: self.send.unacknowledged(),
        }
    }
}
