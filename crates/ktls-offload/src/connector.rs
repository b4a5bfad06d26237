//! Handshakes as values that applications keep and clone: a configuration for many connections.

use crate::handshake::{HandshakeError, accept, connect};
use crate::stream::KtlsStream;
use offload_api::SegmentStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;

/// A client's configuration for any number of connections.
///
/// ```
/// use ktls_offload::api::TokioSegments;
/// use ktls_offload::{HandshakeError, KtlsStream, TlsConnector};
/// use tokio::net::TcpStream;
///
/// async fn open(
///     connector: &TlsConnector,
///     socket: TcpStream,
/// ) -> Result<KtlsStream<TokioSegments<TcpStream>>, HandshakeError> {
///     let name = "server.example".try_into().expect("a DNS name");
///     connector.connect(name, TokioSegments::new(socket)).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
}

impl From<Arc<ClientConfig>> for TlsConnector {
    fn from(config: Arc<ClientConfig>) -> TlsConnector {
        TlsConnector { config }
    }
}

impl TlsConnector {
    /// Shakes hands as a client with the server of this `name`; see [`connect`].
    ///
    /// # Errors
    /// As [`connect`].
    pub async fn connect<S: SegmentStream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> Result<KtlsStream<S>, HandshakeError> {
        connect(stream, self.config.clone(), name).await
    }
}

/// A server's configuration for any number of connections. [`StartHandshake`](crate::StartHandshake) chooses one by the
/// ClientHello instead.
///
/// ```
/// use ktls_offload::TlsAcceptor;
/// use ktls_offload::api::TokioSegments;
/// use tokio::io::AsyncWriteExt;
/// use tokio::net::TcpListener;
///
/// async fn serve(listener: TcpListener, acceptor: TlsAcceptor) -> std::io::Result<()> {
///     loop {
///         let (socket, _) = listener.accept().await?;
///         let acceptor = acceptor.clone();
///         tokio::spawn(async move {
///             let mut stream = acceptor.accept(TokioSegments::new(socket)).await?;
///             stream.write_all(b"hello").await?;
///             stream.close().await
///         });
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
}

impl From<Arc<ServerConfig>> for TlsAcceptor {
    fn from(config: Arc<ServerConfig>) -> TlsAcceptor {
        TlsAcceptor { config }
    }
}

impl TlsAcceptor {
    /// Shakes hands as a server; see [`accept`].
    ///
    /// # Errors
    /// As [`accept`].
    pub async fn accept<S: SegmentStream>(&self, stream: S) -> Result<KtlsStream<S>, HandshakeError> {
        accept(stream, self.config.clone()).await
    }
}
