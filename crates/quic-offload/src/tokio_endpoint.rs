//! Endpoints over the kernel's UDP, run by tokio.

use crate::config::{Config, ServerTls};
use crate::endpoint::Endpoint;
use core::net::SocketAddr;
use offload_api::{TokioDatagrams, TokioTimers};
use std::io;
use std::sync::Arc;

/// Creates endpoints over the kernel's UDP. A tokio task runs each endpoint. The task ends and frees the port when the
/// last handle of the endpoint is dropped and its connections are drained. (Feature `tokio`, on Linux.)
///
/// ```
/// use quic_offload::{Config, TokioDatagrams, TokioEndpoint};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let any = "127.0.0.1:0".parse().unwrap();
/// let client = TokioEndpoint::client(any)?;
/// // With other socket buffers, and another configuration:
/// let socket = TokioDatagrams::bind(any)?;
/// socket.set_buffers(8 << 20, 1 << 20)?;
/// let careful = TokioEndpoint::over(socket, Config::default().with(|config| config.max_connections = 10), None)?;
/// assert_ne!(client.local_addr(), careful.local_addr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum TokioEndpoint {}

impl TokioEndpoint {
    /// Binds a UDP socket and creates an endpoint that connects. With `0.0.0.0:0` or `[::]:0` the kernel chooses
    /// address and port; `[::]:0` reaches IPv4 as well.
    ///
    /// # Errors
    /// If the address cannot be bound.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn client(address: SocketAddr) -> io::Result<Endpoint> {
        TokioEndpoint::over(TokioDatagrams::bind(address)?, Config::default(), None)
    }

    /// Binds a UDP socket and creates an endpoint that accepts and connects.
    ///
    /// # Errors
    /// If the address cannot be bound.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn server(address: SocketAddr, tls: ServerTls) -> io::Result<Endpoint> {
        TokioEndpoint::over(TokioDatagrams::bind(address)?, Config::default(), Some(tls))
    }

    /// Creates an endpoint on a socket. With `server`, the endpoint accepts connections.
    ///
    /// # Errors
    /// If the system has no randomness.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn over(socket: TokioDatagrams, config: Config, server: Option<ServerTls>) -> io::Result<Endpoint> {
        let (endpoint, driver) = Endpoint::new(socket, Arc::new(TokioTimers::current()), config, server)?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::error!(%error, "the UDP socket failed, and its connections ended");
            }
        });
        Ok(endpoint)
    }
}
