//! Connections to servers: a program chooses how they are made.

use core::pin::Pin;
use quic_offload::Connection;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to a server, TLS included.
///
/// See [`Dial`] for an example.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// Connects to servers.
///
/// ```
/// use offload_reservoir::dial::{Dial, Dialed, Wire};
/// use std::io;
///
/// /// Reaches nobody.
/// struct Cut;
///
/// impl Dial for Cut {
///     fn dial<'a>(&'a self, _host: &'a str, _port: u16) -> Dialed<'a> {
///         Box::pin(async { Err::<Box<dyn Wire>, _>(io::ErrorKind::NetworkUnreachable.into()) })
///     }
/// }
/// ```
pub trait Dial: Send + Sync {
    /// A new connection to `host`.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> Dialed<'a>;

    /// Whether it connects to `host` by QUIC, and requests go by HTTP/3.
    fn speaks_quic(&self, host: &str, port: u16) -> bool {
        let _to_nobody = (host, port);
        false
    }

    /// A new connection of QUIC to `host`, if it [speaks QUIC](Self::speaks_quic).
    fn quic<'a>(&'a self, host: &'a str, port: u16) -> QuicDialed<'a> {
        let _to_nobody = (host, port);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    /// Whether it would try.
    fn may_reach(&self, host: &str, port: u16) -> bool {
        let _any = (host, port);
        true
    }
}

/// A connection of QUIC that is being made.
pub type QuicDialed<'a> = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + 'a>>;

/// A connection that is being made.
pub type Dialed<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send + 'a>>;
