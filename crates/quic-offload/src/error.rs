//! Errors, and which end caused them.

use bytes::Bytes;
use noq_proto::{ConnectionError, TransportErrorCode};
use std::io;

/// The reason why a connection ended or failed to open.
///
/// ```
/// use quic_offload::Closed;
///
/// assert_eq!(std::io::Error::from(Closed::TimedOut).kind(), std::io::ErrorKind::TimedOut);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Closed {
    /// This end closed the connection.
    #[error("this end closed the connection")]
    Here,
    /// The peer's application closed the connection, or the peer's QUIC closed it without an error (code 0).
    #[error("the peer closed the connection with code {code}")]
    ByPeer {
        /// The application's code.
        code: u64,
        /// The application's reason.
        reason: Bytes,
    },
    /// The peer's QUIC detected an error.
    #[error("the peer's QUIC ended the connection: {0}")]
    PeerFound(String),
    /// The peer violated the protocol, or this end used up a key and could not update it.
    #[error("the connection ended: {0}")]
    Protocol(String),
    /// The peer has lost the connection's state (stateless reset).
    #[error("the peer does not know the connection any more")]
    Reset,
    /// No packet arrived during the idle timeout.
    #[error("nothing came from the peer for too long")]
    TimedOut,
    /// The peer supports none of this end's versions.
    #[error("the peer speaks no version of QUIC that this end does")]
    Version,
    /// This end's state machine panicked while processing received data. Other connections are not affected.
    #[error("this end's QUIC failed: connect again, and report what the program printed")]
    Failed,
    /// The peer abandoned the last path, and this end could not open another.
    #[error("both ends gave up paths until none was left")]
    NoPath,
    /// The endpoint or its driver was dropped.
    #[error("the endpoint is closed")]
    Endpoint,
    /// The endpoint's socket failed.
    #[error("the UDP socket failed: {0}")]
    Socket(String),
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Closed {
        match error {
            ConnectionError::LocallyClosed => Closed::Here,
            ConnectionError::ApplicationClosed(close) => {
                Closed::ByPeer { code: close.error_code.into_inner(), reason: close.reason }
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::NO_VIABLE_PATH => {
                Closed::NoPath
            }
            // RFC 9000 20.1: NO_ERROR closes the connection without an error.
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::NO_ERROR => {
                Closed::ByPeer { code: 0, reason: close.reason }
            }
            ConnectionError::ConnectionClosed(close) => Closed::PeerFound(close.to_string()),
            ConnectionError::TransportError(error) if error.code == TransportErrorCode::NO_VIABLE_PATH => {
                Closed::NoPath
            }
            ConnectionError::TransportError(error) => Closed::Protocol(error.to_string()),
            ConnectionError::Reset => Closed::Reset,
            ConnectionError::TimedOut => Closed::TimedOut,
            ConnectionError::VersionMismatch => Closed::Version,
            ConnectionError::CidsExhausted => Closed::Protocol("connection IDs are used up".into()),
        }
    }
}

impl From<Closed> for io::Error {
    fn from(closed: Closed) -> io::Error {
        let kind = match &closed {
            Closed::TimedOut => io::ErrorKind::TimedOut,
            Closed::Reset => io::ErrorKind::ConnectionReset,
            Closed::Here | Closed::Endpoint | Closed::Socket(_) => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, closed)
    }
}

/// The reason why a stream ended early.
///
/// ```
/// use quic_offload::{Closed, StreamError};
///
/// /// Tests whether a request is worth repeating on another connection.
/// fn is_passing(error: &StreamError) -> bool {
///     matches!(error, StreamError::Closed(Closed::TimedOut | Closed::Reset))
/// }
/// assert!(is_passing(&Closed::TimedOut.into()) && !is_passing(&StreamError::Reset(7)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The connection ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The peer will not send the rest.
    #[error("the peer reset the stream with code {0}")]
    Reset(u64),
    /// The peer will not read the rest.
    #[error("the peer stopped the stream with code {0}")]
    Stopped(u64),
    /// The rest of the stream is longer than the caller's limit.
    #[error("the stream has more than {0} bytes")]
    TooLong(usize),
    /// The stream was finished, reset or stopped by this end before.
    #[error("the stream has ended here")]
    Ended,
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> io::Error {
        let kind = match &error {
            StreamError::Closed(closed) => return closed.clone().into(),
            StreamError::Reset(_) => io::ErrorKind::ConnectionReset,
            StreamError::Stopped(_) => io::ErrorKind::BrokenPipe,
            StreamError::TooLong(_) => io::ErrorKind::FileTooLarge,
            StreamError::Ended => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

/// The reason why a connection attempt failed immediately.
///
/// ```
/// use quic_offload::ConnectError;
///
/// let error = ConnectError::TooMany(2);
/// assert_eq!(error.to_string(), "there are 2 connections: raise max_connections, or close one");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Endpoint,
    /// The maximum number of connections is open.
    #[error("there are {0} connections: raise max_connections, or close one")]
    TooMany(usize),
    /// The address or the name is invalid, or no connection IDs are left.
    #[error("{0}")]
    Refused(String),
}

/// The reason why a datagram was not sent.
///
/// ```
/// use quic_offload::{Connection, DatagramError};
///
/// /// Sends a datagram, or a stream if the data is too long.
/// async fn send(connection: &Connection, data: bytes::Bytes) -> Result<(), Box<dyn std::error::Error>> {
///     match connection.send_datagram(data.clone()).await {
///         Err(DatagramError::TooLong | DatagramError::Unsupported) => {
///             let mut stream = connection.open_uni().await?;
///             stream.send(data).await?;
///             Ok(stream.finish()?)
///         }
///         sent => Ok(sent?),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The connection ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The peer accepts no datagrams.
    #[error("the peer takes no datagrams")]
    Unsupported,
    /// The datagram exceeds the packet size or the peer's limit.
    #[error("the datagram is too long for this path")]
    TooLong,
    /// The send buffer for datagrams is full.
    #[error("too many datagrams wait to be sent")]
    Full,
}

/// The reason why a path was not opened or closed.
///
/// ```
/// use quic_offload::{Closed, Connection, PathError};
///
/// /// Opens a second path if the peer supports multipath.
/// async fn second(connection: &Connection, to: core::net::SocketAddr) -> Result<Option<u32>, Closed> {
///     match connection.open_path(to, None).await {
///         Ok(path) => Ok(Some(path)),
///         Err(PathError::Closed(closed)) => Err(closed),
///         Err(_) => Ok(None),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The connection ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The state machine refused the request.
    #[error("{0}")]
    Refused(String),
    /// No packet arrived from the new path, or the peer provided no connection IDs for it.
    #[error("nothing came back from the new path")]
    NoAnswer,
}
