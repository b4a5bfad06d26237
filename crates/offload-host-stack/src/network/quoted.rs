//! Parsing of the packets that ICMP errors quote.

use super::NetworkLayer;
use offload_api::{FlowKey, Protocol};
use offload_base::Seq;
use offload_formats::IpHeaders;

/// A report of an undelivered packet of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UndeliveredPacket {
    /// The packet's flow.
    pub(crate) flow: FlowKey,
    /// Sequence number of a TCP segment.
    pub(crate) seq: Seq,
    /// Length of the whole packet in bytes.
    pub(crate) length: u16,
    /// Cause of the error.
    pub(crate) why: IcmpErrorCause,
}

/// Cause of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpErrorCause {
    /// The port is closed, or the protocol unsupported.
    Refused,
    /// The host is unreachable.
    Unreachable,
    /// The packet exceeded an MTU on the path. `mtu` is the reported MTU, 0 if unknown.
    TooLarge { mtu: u16 },
}

impl NetworkLayer {
    /// Parses the quoted packet, which begins with its IP header. Returns `None` if it is not a TCP or UDP packet of
    /// this host.
    pub(super) fn parse_quoted(&self, quoted: &[u8], why: IcmpErrorCause) -> Option<UndeliveredPacket> {
        // A quotation is truncated, so the packet length is not checked against it.
        let headers = IpHeaders::walk(quoted).ok()?;
        // Only the first fragment contains the ports.
        if headers.fragment.is_some_and(|fragment| fragment.offset > 0) {
            return None;
        }
        let (source, destination) = (headers.source(quoted), headers.destination(quoted));
        let protocol = match headers.protocol {
            super::TCP => Protocol::Tcp,
            super::UDP => Protocol::Udp,
            _ => return None,
        };
        // An error about a packet of another host is forged or misrouted.
        if !self.addresses.is_own(source) {
            return None;
        }
        // RFC 792: at least eight bytes after the IP header. RFC 4443 guarantees more.
        let start = quoted.get(headers.upper..headers.upper + 8)?;
        let port = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
        Some(UndeliveredPacket {
            flow: FlowKey { protocol, local: (source, port(0)).into(), remote: (destination, port(2)).into() },
            seq: Seq(u32::from_be_bytes([start[4], start[5], start[6], start[7]])),
            length: u16::try_from(headers.end).unwrap_or(u16::MAX),
            why,
        })
    }
}
