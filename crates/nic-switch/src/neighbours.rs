//! Which frames find neighbours: ARP, and ICMPv6 of the types 133 to 137 (RFC 4861 4).
//!
//! Hosts that have one address, one of which does the other's talking, both need to know the neighbours.

use offload_formats::Headers;
use offload_formats::protocol::ICMPV6;

/// What a frame says about neighbours.
///
/// ```
/// use nic_switch::Neighbours;
/// use offload_formats::Headers;
///
/// let arp = [&[0xff; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[0; 38]].concat();
/// assert_eq!(Neighbours::of(&arp, &Headers::parse(&arp)), Some(Neighbours::Question));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// It asks for a neighbour or a router.
    Question,
    /// It answers, or tells unasked.
    Answer,
}

impl Neighbours {
    /// What a frame says; `None`: something else.
    pub fn of(frame: &[u8], headers: &Headers) -> Option<Neighbours> {
        if frame.get(12..14) == Some(&ARP) {
            // Whether somebody asks (1) or answers (2).
            return Some(if frame.get(20..22) == Some(&[0, 1]) { Neighbours::Question } else { Neighbours::Answer });
        }
        let (protocol, at) = headers.upper()?;
        if protocol != ICMPV6 || headers.is_fragment() {
            return None;
        }
        match frame.get(at)? {
            133 | 135 => Some(Neighbours::Question),
            134 | 136 | 137 => Some(Neighbours::Answer),
            _ => None,
        }
    }
}

const ARP: [u8; 2] = [8, 6];
