//! What the first fragment of a packet shows is true of the others as well: the SPI that leads to a queue, the port that makes it a tunnel's.
//!
//! What it showed is remembered as long as its packet is among the latest. Nothing is known of those that come before their first, or much
//! later: they were overtaken on their way, or are of somebody who makes fragments at will.
//!
//! Invariant: no more packets than there is room for are remembered, each once.

use crate::frame::{Headers, Kind};
use crate::ip::{IpHeaders, Version};
use core::net::IpAddr;
use std::collections::VecDeque;

/// Packets of which the first fragment came, the latest at the end, with what it showed.
///
/// ```
/// use offload_formats::Fragments;
///
/// let fragment = |place: u8, payload: u8| {
///     let ip = [0x45, 0, 0, 28, 0, 9, 0x20, place, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&[2; 12][..], &[8, 0], &ip, &[payload; 8]].concat()
/// };
/// let mut fragments = Fragments::with_room_for(64);
/// let mut shown = |frame: &[u8]| fragments.of_packet(frame, |packet, headers, _| Some(packet[headers.upper]));
/// assert_eq!(shown(&fragment(1, 7)), None, "nobody knows yet");
/// assert_eq!(shown(&fragment(0, 5)), Some(5));
/// assert_eq!(shown(&fragment(1, 7)), Some(5));
/// ```
#[derive(Debug)]
pub struct Fragments<T> {
    packets: VecDeque<(Name, T)>,
    most: usize,
}

/// What the fragments of a packet have in common (RFC 791 3.2, RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    /// Of which networks its tags are: their hosts may have the same addresses.
    vlans: [Option<u16>; 2],
    source: IpAddr,
    destination: IpAddr,
    /// IPv6 does without: what the first fragment says is so (RFC 8200 4.5).
    protocol: Option<u8>,
    identification: u32,
}

impl<T: Copy> Fragments<T> {
    /// With room for this many packets: as many as may be on their way in parts at a time.
    pub fn with_room_for(most: usize) -> Fragments<T> {
        Fragments { packets: VecDeque::new(), most }
    }

    /// What is known of a frame, if it is a fragment: `of_first` finds that in the first fragment of a packet, and is told what is known of one
    /// that had the same name.
    pub fn of_packet(
        &mut self,
        frame: &[u8],
        of_first: impl Fn(&[u8], &IpHeaders, Option<T>) -> Option<T>,
    ) -> Option<T> {
        let outer = Headers::parse_unfinished(frame);
        let (version, network) = outer.network().filter(|_| outer.is_fragment())?;
        let packet = &frame[network..];
        let headers = IpHeaders::walk(packet).ok()?;
        let fragment = headers.fragment?;
        let tags = outer.stack().iter().filter(|header| header.kind == Kind::Vlan).map(|header| usize::from(header.at));
        let mut vlans = [None; 2];
        vlans.iter_mut().zip(tags).for_each(|(vlan, at)| {
            *vlan = Some(u16::from_be_bytes([frame[at], frame[at + 1]]) & VLAN);
        });
        let name = Name {
            vlans,
            source: headers.source(packet),
            destination: headers.destination(packet),
            protocol: (version == Version::Four).then_some(headers.protocol),
            identification: fragment.identification,
        };
        let known = self.packets.iter().rposition(|(of, _)| *of == name);
        if fragment.offset > 0 {
            return known.map(|place| self.packets[place].1);
        }
        // Another packet has the name by now.
        let before = known.and_then(|place| self.packets.remove(place)).map(|(_, shown)| shown);
        let shown = of_first(packet, &headers, before)?;
        if self.packets.len() == self.most {
            self.packets.pop_front();
        }
        self.packets.push_back((name, shown));
        Some(shown)
    }
}

/// The VLAN in a tag's control information.
const VLAN: u16 = 0x0fff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ETHERNET_BYTES;
    use crate::protocol::{ESP, UDP};

    /// A fragment of an ESP packet, eight bytes of it from `place` on; the first begins with the SPI.
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

    const MOST: usize = 64;

    fn asked(fragments: &mut Fragments<usize>, frame: &[u8]) -> Option<usize> {
        fragments.of_packet(frame, |packet, headers, _| {
            let at = headers.upper + if headers.protocol == UDP { 8 } else { 0 };
            let spi = u32::from_be_bytes(*packet.get(at..)?.first_chunk()?);
            [0x100, 0x200, 0x300].iter().position(|known| *known == spi)
        })
    }

    #[test]
    fn the_rest_of_a_packet_goes_where_its_first_fragment_went() {
        for protocol in [ESP, UDP] {
            let mut fragments = Fragments::with_room_for(MOST);
            // What shows as an SPI further on is none.
            let rest = |identification| fragment(protocol, identification, 8, 0x300);
            assert_eq!(asked(&mut fragments, &rest(1)), None, "nobody knows yet");
            assert_eq!(asked(&mut fragments, &fragment(protocol, 1, 0, 0x200)), Some(1));
            assert_eq!(asked(&mut fragments, &fragment(protocol, 2, 0, 0x100)), Some(0));
            assert_eq!(asked(&mut fragments, &fragment(protocol, 3, 0, 0x400)), None, "nobody has that SA");
            for (identification, queue) in [(2, Some(0)), (1, Some(1)), (3, None), (1, Some(1))] {
                assert_eq!(asked(&mut fragments, &rest(identification)), queue);
            }
            // Another protocol has names of its own, and so has another VLAN; and a name comes again.
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
    fn no_more_are_remembered_than_there_is_room_for() {
        let mut fragments = Fragments::with_room_for(MOST);
        for identification in 0..1000 {
            assert_eq!(asked(&mut fragments, &fragment(ESP, identification, 0, 0x200)), Some(1));
            assert!(fragments.packets.len() <= MOST);
        }
        let mut is_known = |number: &u16| asked(&mut fragments, &fragment(ESP, *number, 8, 0)).is_some();
        assert!((0..1000).filter(|number| is_known(number)).eq(1000 - MOST as u16..1000), "the latest");
    }
}
