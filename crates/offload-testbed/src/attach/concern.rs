//! Classes of frames, for an emulated host with a Linux that negotiates its keys.
//!
//! A packet is IKE if its UDP source or destination port is 500, or if a port is 4500 and the payload begins with four
//! zero bytes (RFC 3948 2.2).

use nic_sim::switch::Neighbours;
use offload_formats::flow::Protocol;
use offload_formats::protocol::{ESP, UDP};
use offload_formats::{FragmentMemory, Headers, IpHeaders};

/// The class of a frame: decides whether the keying daemon, the emulated host or both receive the frame.
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
    /// IKE, for the keying daemon.
    Ike,
    /// ARP or IPv6 neighbour discovery.
    Neighbours(Neighbours),
    /// A later fragment of a UDP datagram. The datagram may be IKE; only its first fragment shows the ports.
    Fragment,
    /// ESP for the NIC, in UDP or bare.
    Esp,
    /// Any other frame.
    Other,
}

impl Concern {
    /// Classifies a frame by its own bytes alone.
    pub fn of(frame: &[u8]) -> Concern {
        let headers = Headers::parse(frame);
        if let Some(neighbours) = Neighbours::of(frame, &headers) {
            return Concern::Neighbours(neighbours);
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

    /// Classifies a UDP datagram, or a first fragment, which has the ports.
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

/// Returns the payload of a packet's first fragment, or `None` for later fragments.
fn first_fragment<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    let packet = frame.get(headers.network()?.1..)?;
    let headers = IpHeaders::walk(packet).ok()?;
    headers.fragment.filter(|fragment| fragment.offset == 0).and_then(|_| packet.get(headers.upper..headers.end))
}

/// A classifier that remembers fragments: later fragments of an IKE message are found by the packet's identification.
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
    /// Identifications of IKE messages with known first fragments.
    ike: FragmentMemory<()>,
}

impl Default for Concerns {
    fn default() -> Concerns {
        Concerns { ike: FragmentMemory::with_room_for(IN_FRAGMENTS) }
    }
}

impl Concerns {
    /// Classifies the sender's next frame.
    pub fn of(&mut self, frame: &[u8]) -> Concern {
        let concern = Concern::of(frame);
        // A fragment without ports is IKE if its first fragment was. The memory forgets an identification that another
        // packet reuses.
        let is_of_ike = self.ike.look_up(frame, |_, _, _| (concern == Concern::Ike).then_some(()));
        if is_of_ike.is_some() { Concern::Ike } else { concern }
    }
}

/// Fragmented IKE messages that are remembered at a time.
const IN_FRAGMENTS: usize = 64;

const UDP_BYTES: usize = 8;
const IKE: u16 = 500;
const IN_UDP: u16 = 4500;
