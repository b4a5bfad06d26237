//! Which queue fragments of packets go to that an engine is to open (ESP): the one with the context.
//!
//! Only the first fragment of a packet shows what leads there (an SPI). The others go where it went, as long as its packet is
//! among the latest of that kind. Those that come before their first, or much later, are hashed: they were overtaken on their
//! way, or are anybody's who knows an SPI and makes fragments, and a replay window is there for the one and none the
//! worse for the other.
//!
//! Invariant: no more than [`MOST_PACKETS`] are remembered, each once.

use core::net::IpAddr;
use offload_formats::IpHeaders;
use offload_formats::frame::ip_packet;
use std::collections::VecDeque;

/// Packets of which the first fragment came, the latest at the end, with the queues they go to.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    packets: VecDeque<(Name, usize)>,
}

/// What the fragments of a packet have in common (RFC 791 3.2, RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    identification: u32,
}

impl Fragments {
    /// The queue for a frame, if it is a fragment of a packet whose context a queue has; `queue_of` finds that by the first
    /// fragment.
    pub(super) fn queue_for(
        &mut self,
        frame: &[u8],
        queue_of: impl Fn(&[u8], &IpHeaders) -> Option<usize>,
    ) -> Option<usize> {
        let packet = ip_packet(frame)?;
        let headers = IpHeaders::walk(packet).ok()?;
        let fragment = headers.fragment?;
        let name = Name {
            source: headers.source(packet),
            destination: headers.destination(packet),
            protocol: headers.protocol,
            identification: fragment.identification,
        };
        let known = self.packets.iter().position(|(of, _)| *of == name);
        if fragment.offset > 0 {
            return known.map(|place| self.packets[place].1);
        }
        // Another packet has the name by now.
        known.map(|place| self.packets.remove(place));
        let queue = queue_of(packet, &headers)?;
        if self.packets.len() == MOST_PACKETS {
            self.packets.pop_front();
        }
        self.packets.push_back((name, queue));
        Some(queue)
    }
}

/// As many packets as may be on their way in parts at a time.
const MOST_PACKETS: usize = 64;

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

    fn asked(fragments: &mut Fragments, frame: &[u8]) -> Option<usize> {
        fragments.queue_for(frame, |packet, headers| {
            let key = Esp::key_of_first(packet, headers)?;
            [0x100, 0x200, 0x300].iter().position(|known| KeyBytes::of_addresses(*known, FROM, TO) == key)
        })
    }

    #[test]
    fn the_rest_of_a_packet_goes_where_its_first_fragment_went() {
        for protocol in [PROTOCOL_ESP, PROTOCOL_UDP] {
            let mut fragments = Fragments::default();
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
        let mut fragments = Fragments::default();
        for identification in 0..1000 {
            assert_eq!(asked(&mut fragments, &fragment(PROTOCOL_ESP, identification, 0, 0x200)), Some(1));
            assert!(fragments.packets.len() <= MOST_PACKETS);
        }
        let mut is_known = |number: &u16| asked(&mut fragments, &fragment(PROTOCOL_ESP, *number, 8, 0)).is_some();
        assert!((0..1000).filter(|number| is_known(number)).eq(1000 - MOST_PACKETS as u16..1000), "the latest");
    }
}
