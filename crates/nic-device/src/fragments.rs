//! What the first fragment of a packet shows is true of the others as well: the SPI that leads to a queue, the port that makes it a tunnel's.
//!
//! What it showed is remembered as long as its packet is among the latest. Nothing is known of those that come before their first, or much
//! later: they were overtaken on their way, or are of somebody who makes fragments at will.
//!
//! Invariant: no more packets than there is room for are remembered, each once.

use core::net::IpAddr;
use offload_formats::IpHeaders;
use offload_formats::frame::ip_packet;
use std::collections::VecDeque;

/// Packets of which the first fragment came, the latest at the end, with what it showed.
#[derive(Debug)]
pub(super) struct Fragments<T> {
    packets: VecDeque<(Name, T)>,
    most: usize,
}

/// What the fragments of a packet have in common (RFC 791 3.2, RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    identification: u32,
}

impl<T: Copy> Fragments<T> {
    /// With room for this many packets: as many as may be on their way in parts at a time.
    pub(super) fn with_room_for(most: usize) -> Fragments<T> {
        Fragments { packets: VecDeque::new(), most }
    }

    /// What is known of a frame, if it is a fragment: `of_first` finds that in the first fragment of a packet.
    pub(super) fn of_packet(&mut self, frame: &[u8], of_first: impl Fn(&[u8], &IpHeaders) -> Option<T>) -> Option<T> {
        let packet = ip_packet(frame)?;
        let headers = IpHeaders::walk(packet).ok()?;
        let fragment = headers.fragment?;
        let name = Name {
            source: headers.source(packet),
            destination: headers.destination(packet),
            protocol: headers.protocol,
            identification: fragment.identification,
        };
        let known = self.packets.iter().rposition(|(of, _)| *of == name);
        if fragment.offset > 0 {
            return known.map(|place| self.packets[place].1);
        }
        // Another packet has the name by now.
        known.map(|place| self.packets.remove(place));
        let shown = of_first(packet, &headers)?;
        if self.packets.len() == self.most {
            self.packets.pop_front();
        }
        self.packets.push_back((name, shown));
        Some(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PacketEngine;
    use crate::engine::esp::Esp;
    use core::net::Ipv4Addr;
    use offload_api::KeyBytes;
    use offload_formats::frame::{ESP as PROTOCOL_ESP, ETHERNET_BYTES, UDP as PROTOCOL_UDP};

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    /// A fragment of an ESP packet, eight bytes of it from `place` on; the first begins with the SPI.
    fn fragment(protocol: u8, identification: u16, place: u16, spi: u32) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 36]);
        frame.extend_from_slice(&identification.to_be_bytes());
        frame.extend_from_slice(&(0x2000 | (place / 8)).to_be_bytes());
        frame.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        if protocol == PROTOCOL_UDP {
            frame.extend_from_slice(&[0x11, 0x94, 0x11, 0x94, 1, 0, 0, 0]);
        }
        frame.extend_from_slice(&spi.to_be_bytes());
        frame.resize(ETHERNET_BYTES + 36, 0);
        frame
    }

    const MOST: usize = 64;

    fn asked(fragments: &mut Fragments<usize>, frame: &[u8]) -> Option<usize> {
        fragments.of_packet(frame, |packet, headers| {
            let key = Esp::key_of_first(packet, headers)?;
            [0x100, 0x200, 0x300].iter().position(|known| KeyBytes::of_addresses(*known, FROM, TO) == key)
        })
    }

    #[test]
    fn the_rest_of_a_packet_goes_where_its_first_fragment_went() {
        for protocol in [PROTOCOL_ESP, PROTOCOL_UDP] {
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
            // Another protocol has names of its own, and a name comes again.
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
            assert_eq!(asked(&mut fragments, &fragment(PROTOCOL_ESP, identification, 0, 0x200)), Some(1));
            assert!(fragments.packets.len() <= MOST);
        }
        let mut is_known = |number: &u16| asked(&mut fragments, &fragment(PROTOCOL_ESP, *number, 8, 0)).is_some();
        assert!((0..1000).filter(|number| is_known(number)).eq(1000 - MOST as u16..1000), "the latest");
    }
}
