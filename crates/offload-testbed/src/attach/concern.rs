//! Whom a frame concerns, where a Linux negotiates keys for an emulated host.
//!
//! IKE is UDP from or to port 500, and UDP of port 4500 whose payload begins with four zero bytes (RFC 3948 2.2).

use nic_sim::switch::NeighbourMessage;
use offload_formats::flow::Protocol;
use offload_formats::protocol::{ESP, UDP};
use offload_formats::{FragmentMemory, Headers, IpHeaders};

/// Whom a frame concerns.
///
/// ```
/// use offload_testbed::attach::Concern;
///
/// let ip = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let udp = [1, 0xf4, 1, 0xf4, 0, 12, 0, 0, 7, 7, 7, 7];
/// assert_eq!(Concern::of(&[&[2; 12][..], &[8, 0], &ip, &udp].concat()), Concern::Ike);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// The keying daemon.
    Ike,
    /// ARP, and what IPv6 has in its place.
    NeighbourMessage(NeighbourMessage),
    /// Part of a datagram that may be one of IKE, behind the first one, which shows the ports.
    Fragment,
    /// The NIC: ESP, in UDP or not.
    Esp,
    /// Nobody in particular.
    Other,
}

impl Concern {
    /// That of a frame.
    pub fn of(frame: &[u8]) -> Concern {
        let headers = Headers::parse(frame);
        if let Some(neighbours) = NeighbourMessage::classify(frame, &headers) {
            return Concern::NeighbourMessage(neighbours);
        }
        if let Some(udp) = headers.transport().filter(|transport| transport.protocol == Protocol::Udp) {
            return Concern::of_datagram(&frame[udp.header..udp.end]);
        }
        match headers.upper() {
            Some((UDP, _)) if headers.is_fragment() => {
                first_fragment(frame, &headers).map_or(Concern::Fragment, Concern::of_datagram)
            }
            Some((ESP, _)) => Concern::Esp,
            _ => Concern::Other,
        }
    }

    /// That of a datagram, or of the part of it with the ports.
    fn of_datagram(datagram: &[u8]) -> Concern {
        let port = |at: usize| datagram.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
        match [port(0), port(2)] {
            ports if ports.contains(&Some(IKE)) => Concern::Ike,
            ports if !ports.contains(&Some(IN_UDP)) => Concern::Other,
            _ if datagram.get(UDP_BYTES..).is_some_and(|payload| payload.starts_with(&[0; 4])) => Concern::Ike,
            _ => Concern::Esp,
        }
    }
}

/// What a packet's first fragment carries.
fn first_fragment<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    let packet = frame.get(headers.network()?.1..)?;
    let headers = IpHeaders::walk(packet).ok()?;
    headers.fragment.filter(|fragment| fragment.offset == 0).and_then(|_| packet.get(headers.upper..headers.end))
}

/// Whom frames of one sender concern. Of IKE in fragments, all are known: those behind the first one by its name.
///
/// ```
/// use offload_testbed::attach::{Concern, Concerns};
///
/// let part = |place: u8, ports: [u8; 2]| {
///     let ip = [0x45, 0, 0, 28, 0, 9, 0x20, place, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&[2; 12][..], &[8, 0], &ip, &ports, &ports, &[0, 40, 0, 0]].concat()
/// };
/// let mut concerns = Concerns::default();
/// assert_eq!(concerns.of(&part(1, [7, 7])), Concern::Fragment);
/// assert_eq!(concerns.of(&part(0, [1, 0xf4])), Concern::Ike);
/// assert_eq!(concerns.of(&part(1, [7, 7])), Concern::Ike);
/// ```
#[derive(Debug)]
pub struct Concerns {
    /// Messages of IKE of which the first fragment came.
    ike: FragmentMemory<()>,
}

impl Default for Concerns {
    fn default() -> Concerns {
        Concerns { ike: FragmentMemory::with_room_for(IN_FRAGMENTS) }
    }
}

impl Concerns {
    /// That of the next frame.
    pub fn of(&mut self, frame: &[u8]) -> Concern {
        let concern = Concern::of(frame);
        let is_of_ike = self.ike.look_up(frame, |_, _, _| (concern == Concern::Ike).then_some(()));
        if is_of_ike.is_some() { Concern::Ike } else { concern }
    }
}

/// Messages of IKE that come in fragments at a time.
const IN_FRAGMENTS: usize = 64;

const UDP_BYTES: usize = 8;
const IKE: u16 = 500;
const IN_UDP: u16 = 4500;
