//! Connections to servers, established by a program-defined connector.

use core::pin::Pin;
use quic_offload::Connection;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to a server, TLS included.
///
/// See [`Dial`] for an example.
pub trait DialStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> DialStream for S {}

/// A connector to servers.
///
/// ```
/// use offload_reservoir::dial::{Dial, DialFuture, DialStream};
/// use std::io;
///
/// /// Reaches no server.
/// struct Cut;
///
/// impl Dial for Cut {
///     fn dial<'a>(&'a self, _host: &'a str, _port: u16) -> DialFuture<'a> {
///         Box::pin(async { Err::<Box<dyn DialStream>, _>(io::ErrorKind::NetworkUnreachable.into()) })
///     }
/// }
/// ```
pub trait Dial: Send + Sync {
    /// Opens a connection to `host`.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> DialFuture<'a>;

    /// Returns whether requests to `host` go by HTTP/3, over QUIC.
    fn speaks_quic(&self, host: &str, port: u16) -> bool {
        let _ = (host, port);
        false
    }

    /// Opens a QUIC connection to `host`, if it [speaks QUIC](Self::speaks_quic).
    fn quic<'a>(&'a self, host: &'a str, port: u16) -> QuicDialFuture<'a> {
        let _ = (host, port);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    /// Returns whether the connector is allowed to connect to `host`.
    fn may_reach(&self, host: &str, port: u16) -> bool {
        let _ = (host, port);
        true
    }
}

/// A pending QUIC connection.
pub type QuicDialFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + 'a>>;

/// A pending connection.
pub type DialFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn DialStream>>> + Send + 'a>>;
