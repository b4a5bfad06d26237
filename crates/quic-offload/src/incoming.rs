//! Clients that wait for the application's decision.

use crate::core::{ClientDecision, EndpointCore};
use crate::endpoint::EndpointShared;
use core::fmt;
use core::net::SocketAddr;
use std::sync::Arc;

/// A client's connection attempt, before the handshake. Dropping it refuses the client.
///
/// With [`Config::decides`](crate::Config::decides), an endpoint leaves clients to the application. When an accepted
/// client's handshake is done, [`Endpoint::accept`](crate::Endpoint::accept) returns its connection.
///
/// ```
/// use quic_offload::{Endpoint, Incoming};
///
/// /// Accepts loopback clients, refuses multicast addresses, and validates the address of all others.
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
    shared: Arc<EndpointShared>,
    client: Option<noq_proto::Incoming>,
    remote: SocketAddr,
    is_validated: bool,
}

impl Incoming {
    pub(crate) fn new(shared: Arc<EndpointShared>, client: noq_proto::Incoming) -> Incoming {
        let (remote, is_validated) = (client.remote_address(), client.remote_address_validated());
        Incoming { shared, client: Some(client), remote, is_validated }
    }

    /// Returns the source address of the client's packet.
    pub fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Tests whether the client has proved that packets reach it at its address (RFC 9000 8.1).
    pub fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// Starts the handshake. If the endpoint has reached its limits, the client is refused instead.
    pub fn accept(mut self) {
        self.decide(EndpointCore::accept);
    }

    /// Refuses the client.
    pub fn refuse(mut self) {
        self.decide(EndpointCore::refuse);
    }

    /// Asks the client to prove its address and try again (Retry). If the client has done so already, it is accepted.
    pub fn retry(mut self) {
        self.decide(EndpointCore::retry);
    }

    fn decide(&mut self, decision: ClientDecision) {
        let Some(client) = self.client.take() else { return };
        let now = self.shared.now();
        self.shared.lock().decide(now, client, decision);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.decide(EndpointCore::refuse);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({})", self.remote)
    }
}
