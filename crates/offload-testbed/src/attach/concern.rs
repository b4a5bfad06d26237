//! Classes of frames, for an emulated host with a Linux that negotiates its keys.
//!
//! A packet is IKE if its UDP source or destination port is 500, or if a port is 4500 and the payload begins with four
//! zero bytes (RFC 3948 2.2).

use nic_sim::switch::NeighbourMessage;
use offload_formats::flow::Protocol;
use offload_formats::protocol::{ESP, UDP};
use offload_formats::{FragmentMemory, Headers, IpHeaders};

/// The class of a frame: decides whether the keying daemon, the emulated host or both receive the frame.
///
/// ```
/// use offload_testbed::attach::FrameClass;
///
/// let ip = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let udp = [1, 0xf4, 1, 0xf4, 0, 12, 0, 0, 7, 7, 7, 7];
/// assert_eq!(FrameClass::classify(&[&[2; 12][..], &[8, 0], &ip, &udp].concat()), FrameClass::Ike);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameClass {
    /// IKE, for the keying daemon.
    Ike,
    /// ARP or IPv6 neighbour discovery.
    NeighbourMessage(NeighbourMessage),
    /// A later fragment of a UDP datagram. The datagram may be IKE; only its first fragment shows the ports.
    Fragment,
    /// ESP for the NIC, in UDP or bare.
    Esp,
    /// Any other frame.
    Other,
}

impl FrameClass {
    /// Classifies a frame by its own bytes alone.
    pub fn classify(frame: &[u8]) -> FrameClass {
        let headers = Headers::parse(frame);
        if let Some(neighbours) = NeighbourMessage::classify(frame, &headers) {
            return FrameClass::NeighbourMessage(neighbours);
        }
        if let Some(udp) = headers.transport().filter(|transport| transport.protocol == Protocol::Udp) {
            return FrameClass::of_datagram(&frame[udp.header..udp.end]);
        }
        // No transport header was found: the packet is a later fragment, ESP or another protocol.
        match headers.upper() {
            Some((UDP, _)) if headers.is_fragment() => {
                first_fragment(frame, &headers).map_or(FrameClass::Fragment, FrameClass::of_datagram)
            }
            Some((ESP, _)) => FrameClass::Esp,
            _ => FrameClass::Other,
        }
    }

    /// Classifies a UDP datagram, or a first fragment, which has the ports.
    fn of_datagram(datagram: &[u8]) -> FrameClass {
        let port = |at: usize| datagram.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
        match [port(0), port(2)] {
            ports if ports.contains(&Some(IKE)) => FrameClass::Ike,
            ports if !ports.contains(&Some(IN_UDP)) => FrameClass::Other,
            // RFC 3948 2.2: four zero bytes stand where ESP has its SPI, and no SPI is zero.
            _ if datagram.get(UDP_BYTES..).is_some_and(|payload| payload.starts_with(&[0; 4])) => FrameClass::Ike,
            _ => FrameClass::Esp,
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
/// use offload_testbed::attach::{FrameClass, FrameClassifier};
///
/// let part = |place: u8, ports: [u8; 2]| {
///     let ip = [0x45, 0, 0, 28, 0, 9, 0x20, place, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&[2; 12][..], &[8, 0], &ip, &ports, &ports, &[0, 40, 0, 0]].concat()
/// };
/// let mut concerns = FrameClassifier::default();
/// assert_eq!(concerns.classify(&part(1, [7, 7])), FrameClass::Fragment);
/// assert_eq!(concerns.classify(&part(0, [1, 0xf4])), FrameClass::Ike);
/// assert_eq!(concerns.classify(&part(1, [7, 7])), FrameClass::Ike);
/// ```
#[derive(Debug)]
pub struct FrameClassifier {
    /// Identifications of IKE messages with known first fragments.
    ike: FragmentMemory<()>,
}

impl Default for FrameClassifier {
    fn default() -> FrameClassifier {
        FrameClassifier { ike: FragmentMemory::with_room_for(IN_FRAGMENTS) }
    }
}

impl FrameClassifier {
    /// Classifies the sender's next frame.
    pub fn classify(&mut self, frame: &[u8]) -> FrameClass {
        let concern = FrameClass::classify(frame);
        // A fragment without ports is IKE if its first fragment was. The memory forgets an identification that another
        // packet reuses.
        let is_of_ike = self.ike.look_up(frame, |_, _, _| (concern == FrameClass::Ike).then_some(()));
        if is_of_ike.is_some() { FrameClass::Ike } else { concern }
    }
}

/// Fragmented IKE messages that are remembered at a time.
const IN_FRAGMENTS: usize = 64;

const UDP_BYTES: usize = 8;
const IKE: u16 = 500;
const IN_UDP: u16 = 4500;
