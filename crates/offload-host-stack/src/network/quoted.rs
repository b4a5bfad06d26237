//! What an ICMP error quotes: the beginning of a packet that this host has sent.

use super::Network;
use offload_api::{FlowKey, Protocol};
use offload_base::Seq;
use offload_formats::IpHeaders;

/// A report that a packet of this host did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    /// Its flow.
    pub(crate) flow: FlowKey,
    /// A TCP segment's sequence number.
    pub(crate) seq: Seq,
    /// Bytes of the whole packet.
    pub(crate) length: u16,
    pub(crate) why: Why,
}

/// Why it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nobody there listens, or speaks the protocol.
    Refused,
    /// There is no way to the host.
    Unreachable,
    /// A router would have to fragment it; what it could forward, 0 if it did not say.
    TooLarge { mtu: u16 },
}

impl Network {
    /// The packet that is quoted from its IP header on; `None` if it is not TCP or UDP from this host.
    pub(super) fn undelivered(&self, quoted: &[u8], why: Why) -> Option<Undelivered> {
        // A quotation is cut short: its headers are not held against its length.
        let headers = IpHeaders::walk(quoted).ok()?;
        if headers.fragment.is_some_and(|fragment| fragment.offset > 0) {
            return None;
        }
        let (source, destination) = (headers.source(quoted), headers.destination(quoted));
        let protocol = match headers.protocol {
            super::TCP => Protocol::Tcp,
            super::UDP => Protocol::Udp,
            _ => return None,
        };
        if !self.addresses.are(source) {
            return None;
        }
        // RFC 792: at least eight bytes of what came behind the header. RFC 4443 promises more.
        let start = quoted.get(headers.upper..headers.upper + 8)?;
        let port = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
        Some(Undelivered {
            flow: FlowKey { protocol, local: (source, port(0)).into(), remote: (destination, port(2)).into() },
            seq: Seq(u32::from_be_bytes([start[4], start[5], start[6], start[7]])),
            length: u16::try_from(headers.end).unwrap_or(u16::MAX),
            why,
        })
    }
}
