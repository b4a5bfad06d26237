//! Clients that wait for the application's decision.

use crate::core::{Core, Decision};
use crate::endpoint::Shared;
use core::fmt;
use core::net::SocketAddr;
use std::sync::Arc;

/// A client that asks for a connection, before its handshake. Dropped, it is refused.
///
/// [`Config::decides`](crate::Config::decides) makes an endpoint leave clients to the application. An accepted client's connection comes out
/// of [`Endpoint::accept`](crate::Endpoint::accept) when its handshake is done.
///
/// ```
/// use quic_offload::{Endpoint, Incoming};
///
/// /// Accepts clients of this network, and asks others to prove their address.
/// async fn decide(endpoint: Endpoint) {
///     while let Some(incoming) = endpoint.incoming().await {
///         let incoming: Incoming = incoming;
///         match incoming.remote_addr().ip() {
///             ip if ip.is_loopback() => incoming.accept(),
///             ip if ip.is_multicast() => incoming.refuse(),
///             _ => incoming.retry(),
///         }
///     }
/// }
/// ```
pub struct Incoming {
    shared: Arc<Shared>,
    client: Option<noq_proto::Incoming>,
    remote: SocketAddr,
    is_validated: bool,
}

impl Incoming {
    pub(crate) fn new(shared: Arc<Shared>, client: noq_proto::Incoming) -> Incoming {
        let (remote, is_validated) = (client.remote_address(), client.remote_address_validated());
        Incoming { shared, client: Some(client), remote, is_validated }
    }

    /// Returns the address that the client's packet came from.
    pub fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Tests whether the client has proved that it receives packets at its address (RFC 9000 8.1).
    pub fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// Begins the handshake. If the endpoint has no room by its limits, the client is refused instead.
    pub fn accept(mut self) {
        self.decide(Core::accept);
    }

    /// Tells the client that it is refused.
    pub fn refuse(mut self) {
        self.decide(Core::refuse);
    }

    /// Asks the client to prove its address and to come back (Retry). Accepts a client that comes back from that.
    pub fn retry(mut self) {
        self.decide(Core::retry);
    }

    fn decide(&mut self, decision: Decision) {
        let Some(client) = self.client.take() else { return };
        let now = self.shared.now();
        self.shared.lock().decide(now, client, decision);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.decide(Core::refuse);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({})", self.remote)
    }
}
