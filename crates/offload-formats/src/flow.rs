//! Identifiers of flows.

use core::net::SocketAddr;

/// The transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP, IP protocol number 6.
    Tcp,
    /// UDP, IP protocol number 17.
    Udp,
}

/// A 5-tuple, seen from the end that holds the key: `local` is that end.
///
/// ```
/// use offload_formats::{FlowKey, Protocol};
///
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:50000".parse().unwrap());
/// assert_eq!(flow.protocol, Protocol::Tcp);
/// assert_eq!(flow.reversed().reversed(), flow);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub remote: SocketAddr,
}

impl FlowKey {
    /// Creates the key of the TCP flow between `local` and `remote`.
    pub const fn tcp(local: SocketAddr, remote: SocketAddr) -> FlowKey {
        FlowKey { protocol: Protocol::Tcp, local, remote }
    }

    /// Returns the key of the same flow, seen from the other end.
    pub const fn reversed(self) -> FlowKey {
        FlowKey { protocol: self.protocol, local: self.remote, remote: self.local }
    }
}
