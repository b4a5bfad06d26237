//! Recognition of neighbour discovery: ARP, and ICMPv6 types 133 to 137 (RFC 4861 4).
//!
//! If two hosts share an address because one of them represents the other on the network, both need these frames.

use offload_formats::Headers;
use offload_formats::protocol::ICMPV6;

/// The kind of a neighbour discovery frame.
///
/// ```
/// use nic_switch::NeighbourMessage;
/// use offload_formats::Headers;
///
/// let arp = [&[0xff; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[0; 38]].concat();
/// assert_eq!(NeighbourMessage::classify(&arp, &Headers::parse(&arp)), Some(NeighbourMessage::Question));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// A request for a neighbour or router.
    Question,
    /// An answer, solicited or not.
    Answer,
}

impl NeighbourMessage {
    /// Classifies a frame; `None` if it is not neighbour discovery.
    pub fn classify(frame: &[u8], headers: &Headers) -> Option<NeighbourMessage> {
        if frame.get(12..14) == Some(&ARP) {
            // ARP operation: 1 is a request, 2 an answer.
            return Some(if frame.get(20..22) == Some(&[0, 1]) {
                NeighbourMessage::Question
            } else {
                NeighbourMessage::Answer
            });
        }
        // IPv6 uses ICMPv6 messages for the same purpose.
        let (protocol, at) = headers.upper()?;
        if protocol != ICMPV6 || headers.is_fragment() {
            return None;
        }
        match frame.get(at)? {
            133 | 135 => Some(NeighbourMessage::Question),
            134 | 136 | 137 => Some(NeighbourMessage::Answer),
            _ => None,
        }
    }
}

const ARP: [u8; 2] = [8, 6];
