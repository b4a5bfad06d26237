//! Where the headers of a packet are.
//!
//! Invariant: the offsets of a `Layout` lie in the packet it was read from, and the lengths its headers claim
//! fit into that packet.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use offload_api::FlowKey;
use offload_base::Seq;

/// Offsets into an Ethernet frame that carries TCP over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Where the TCP header starts.
    pub(crate) tcp: usize,
    /// Where the TCP payload starts.
    pub(crate) payload: usize,
    /// Where the TCP payload ends: a short frame is padded behind it.
    pub(crate) end: usize,
}

/// Where the IPv4 header starts.
pub(crate) const IP: usize = 14;

impl Layout {
    /// Reads a frame that is all there. `None`: it is not whole, unfragmented TCP over IPv4.
    pub(crate) fn of_frame(frame: &[u8]) -> Option<Layout> {
        let layout = Layout::of_headers(frame)?;
        let end = IP + usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
        (layout.payload <= end && end <= frame.len()).then_some(Layout { end, ..layout })
    }

    /// Reads headers alone, whose IP length says nothing yet. `end` is where they end.
    pub(crate) fn of_headers(headers: &[u8]) -> Option<Layout> {
        let ip = headers.get(IP..)?;
        let version_and_length = *ip.first()?;
        let ip_version_4 = headers[12..14] == [0x08, 0x00] && version_and_length >> 4 == 4;
        let ip_header_bytes = usize::from(version_and_length & 0x0f) * 4;
        // RFC 791: more fragments, or an offset: the rest of the packet is elsewhere.
        let fragmented = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0;
        if !ip_version_4 || ip_header_bytes < 20 || fragmented || *ip.get(9)? != PROTOCOL_TCP {
            return None;
        }
        let tcp = IP + ip_header_bytes;
        let tcp_header_bytes = usize::from(*headers.get(tcp + 12)? >> 4) * 4;
        let payload = tcp + tcp_header_bytes;
        (tcp_header_bytes >= 20 && payload <= headers.len()).then_some(Layout { tcp, payload, end: payload })
    }

    /// The flow, seen by the host that receives the frame.
    pub(crate) fn flow_of_receiver(&self, frame: &[u8]) -> FlowKey {
        let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let source = SocketAddrV4::new(address(IP + 12), port(self.tcp));
        let destination = SocketAddrV4::new(address(IP + 16), port(self.tcp + 2));
        FlowKey::tcp(SocketAddr::V4(destination), SocketAddr::V4(source))
    }

    /// Sequence number of the first payload byte.
    pub(crate) fn seq(&self, frame: &[u8]) -> Seq {
        let at = self.tcp + 4;
        Seq(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
    }
}

const PROTOCOL_TCP: u8 = 6;
