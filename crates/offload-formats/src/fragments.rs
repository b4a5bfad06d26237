//! Memory for facts that only the first fragment of a packet shows, such as the SPI that selects a queue or the port of
//! a tunnel.
//!
//! A fact is remembered while its packet is among the most recent ones. A fragment that arrives before the first one,
//! or much later, is unknown: the network reordered the fragments, or an attacker made the fragment up.
//!
//! Invariant: at most the configured number of packets is remembered, each once.

use crate::frame::{HeaderKind, Headers};
use crate::ip::{IpHeaders, IpVersion};
use core::net::IpAddr;
use std::collections::VecDeque;

/// The facts shown by the first fragments of recent packets, the most recent last.
///
/// ```
/// use offload_formats::FragmentMemory;
///
/// let fragment = |place: u8, payload: u8| {
///     let ip = [0x45, 0, 0, 28, 0, 9, 0x20, place, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&[2; 12][..], &[8, 0], &ip, &[payload; 8]].concat()
/// };
/// let mut fragments = FragmentMemory::with_room_for(64);
/// let mut shown = |frame: &[u8]| fragments.look_up(frame, |packet, headers, _| Some(packet[headers.upper]));
/// assert_eq!(shown(&fragment(1, 7)), None, "the first fragment is missing");
/// assert_eq!(shown(&fragment(0, 5)), Some(5));
/// assert_eq!(shown(&fragment(1, 7)), Some(5));
/// ```
#[derive(Debug)]
pub struct FragmentMemory<T> {
    packets: VecDeque<(FragmentKey, T)>,
    most: usize,
}

/// The fields that all fragments of a packet share (RFC 791 3.2, RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentKey {
    /// VLAN IDs, because hosts of different networks may have the same addresses.
    vlans: [Option<u16>; 2],
    source: IpAddr,
    destination: IpAddr,
    /// IPv4 only. In IPv6 the first fragment's next header decides (RFC 8200 4.5).
    protocol: Option<u8>,
    identification: u32,
}

impl<T: Copy> FragmentMemory<T> {
    /// Creates a memory for `most` packets. Choose the number of fragmented packets that may be in flight at a time.
    pub fn with_room_for(most: usize) -> FragmentMemory<T> {
        FragmentMemory { packets: VecDeque::new(), most }
    }

    /// Returns the fact about the packet of `frame`, or `None` if `frame` is not a fragment. `of_first` extracts the
    /// fact from a first fragment; its last argument is the fact about an earlier packet with equal fields, if one is
    /// remembered.
    pub fn look_up(&mut self, frame: &[u8], of_first: impl Fn(&[u8], &IpHeaders, Option<T>) -> Option<T>) -> Option<T> {
        // Lengths are ignored, because the first fragment of a packet does not hold all of it.
        let outer = Headers::parse_unfinished(frame);
        let (version, network) = outer.network().filter(|_| outer.is_fragment())?;
        let packet = &frame[network..];
        let headers = IpHeaders::walk(packet).ok()?;
        let fragment = headers.fragment?;
        let tags =
            outer.stack().iter().filter(|header| header.kind == HeaderKind::Vlan).map(|header| usize::from(header.at));
        let mut vlans = [None; 2];
        vlans.iter_mut().zip(tags).for_each(|(vlan, at)| {
            *vlan = Some(u16::from_be_bytes([frame[at], frame[at + 1]]) & VLAN);
        });
        let name = FragmentKey {
            vlans,
            source: headers.source(packet),
            destination: headers.destination(packet),
            // RFC 791 counts identifications per protocol, RFC 8200 does not.
            protocol: (version == IpVersion::V4).then_some(headers.protocol),
            identification: fragment.identification,
        };
        let known = self.packets.iter().rposition(|(of, _)| *of == name);
        if fragment.offset > 0 {
            return known.map(|place| self.packets[place].1);
        }
        // A first fragment with a known identification belongs to a new packet: the sender's counter has wrapped.
        let before = known.and_then(|place| self.packets.remove(place)).map(|(_, shown)| shown);
        let shown = of_first(packet, &headers, before)?;
        // The oldest fact is forgotten first, because its fragments have most likely arrived.
        if self.packets.len() == self.most {
            self.packets.pop_front();
        }
        self.packets.push_back((name, shown));
        Some(shown)
    }
}

/// The VLAN ID in a tag's control information.
const VLAN: u16 = 0x0fff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ETHERNET_BYTES;
    use crate::protocol::{ESP, UDP};

    /// A fragment of an ESP packet with eight bytes at `place`. The first one begins with the SPI.
    fn fragment(protocol: u8, identification: u16, place: u16, spi: u32) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 36]);
        frame.extend_from_slice(&identification.to_be_bytes());
        frame.extend_from_slice(&(0x2000 | (place / 8)).to_be_bytes());
        frame.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        if protocol == UDP {
            frame.extend_from_slice(&[0x11, 0x94, 0x11, 0x94, 1, 0, 0, 0]);
        }
        frame.extend_from_slice(&spi.to_be_bytes());
        frame.resize(ETHERNET_BYTES + 36, 0);
        frame
    }

    const MAX_PACKETS: usize = 64;

    fn asked(fragments: &mut FragmentMemory<usize>, frame: &[u8]) -> Option<usize> {
        fragments.look_up(frame, |packet, headers, _| {
            let at = headers.upper + if headers.protocol == UDP { 8 } else { 0 };
            let spi = u32::from_be_bytes(*packet.get(at..)?.first_chunk()?);
            [0x100, 0x200, 0x300].iter().position(|known| *known == spi)
        })
    }

    #[test]
    fn later_fragments_follow_the_first_fragment() {
        for protocol in [ESP, UDP] {
            let mut fragments = FragmentMemory::with_room_for(MAX_PACKETS);
            // Bytes of a later fragment that look like an SPI are payload.
            let rest = |identification| fragment(protocol, identification, 8, 0x300);
            assert_eq!(asked(&mut fragments, &rest(1)), None, "nobody knows yet");
            assert_eq!(asked(&mut fragments, &fragment(protocol, 1, 0, 0x200)), Some(1));
            assert_eq!(asked(&mut fragments, &fragment(protocol, 2, 0, 0x100)), Some(0));
            assert_eq!(asked(&mut fragments, &fragment(protocol, 3, 0, 0x400)), None, "nobody has that SA");
            for (identification, queue) in [(2, Some(0)), (1, Some(1)), (3, None), (1, Some(1))] {
                assert_eq!(asked(&mut fragments, &rest(identification)), queue);
            }
            // Identifications are counted per protocol and per VLAN, and are reused.
            let tagged = [&rest(1)[..12], &[0x81, 0, 0, 7], &rest(1)[12..]].concat();
            assert_eq!(asked(&mut fragments, &tagged), None);
            assert_eq!(asked(&mut fragments, &fragment(6, 1, 8, 0)), None);
            assert_eq!(asked(&mut fragments, &fragment(protocol, 1, 0, 0x300)), Some(2));
            assert_eq!(asked(&mut fragments, &rest(1)), Some(2));
            assert_eq!(asked(&mut fragments, &fragment(protocol, 1, 0, 0x400)), None);
            assert_eq!(asked(&mut fragments, &rest(1)), None);
        }
    }

    #[test]
    fn memory_keeps_only_the_latest_packets() {
        let mut fragments = FragmentMemory::with_room_for(MAX_PACKETS);
        for identification in 0..1000 {
            assert_eq!(asked(&mut fragments, &fragment(ESP, identification, 0, 0x200)), Some(1));
            assert!(fragments.packets.len() <= MAX_PACKETS);
        }
        let mut is_known = |number: &u16| asked(&mut fragments, &fragment(ESP, *number, 8, 0)).is_some();
        assert!((0..1000).filter(|number| is_known(number)).eq(1000 - MAX_PACKETS as u16..1000), "the latest");
    }
}
