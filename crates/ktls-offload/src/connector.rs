//! Client and server handshake configurations that applications keep and clone.

use crate::handshake::{HandshakeError, accept, connect};
use crate::stream::KtlsStream;
use offload_api::SegmentStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;

/// A client configuration for any number of connections.
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
    /// Performs a client handshake with the server called `name`; see [`connect`].
    ///
    /// # Errors
    /// The errors of [`connect`].
    pub async fn connect<S: SegmentStream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> Result<KtlsStream<S>, HandshakeError> {
        connect(stream, self.config.clone(), name).await
    }
}

/// A server configuration for any number of connections. Use [`StartHandshake`](crate::StartHandshake) to choose a
/// configuration by the ClientHello.
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
    /// Performs a server handshake; see [`accept`].
    ///
    /// # Errors
    /// The errors of [`accept`].
    pub async fn accept<S: SegmentStream>(&self, stream: S) -> Result<KtlsStream<S>, HandshakeError> {
        accept(stream, self.config.clone()).await
    }
}
