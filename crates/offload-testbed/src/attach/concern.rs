//! Whom a frame concerns, where a Linux negotiates keys for an emulated host.
//!
//! IKE is UDP from or to port 500, and UDP of port 4500 whose payload begins with four zero bytes (RFC 3948 2.2).

use nic_sim::switch::Neighbours;
use offload_formats::Headers;
use offload_formats::flow::Protocol;

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
    Neighbours(Neighbours),
    /// Part of a datagram that may be one of IKE.
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
        if let Some(neighbours) = Neighbours::of(frame, &headers) {
            return Concern::Neighbours(neighbours);
        }
        if let Some(udp) = headers.transport().filter(|transport| transport.protocol == Protocol::Udp) {
            let port = |at: usize| {
                frame.get(udp.header + at..).and_then(|bytes| bytes.first_chunk()).map(|port| u16::from_be_bytes(*port))
            };
            let (source, destination, payload) = (port(0), port(2), &frame[udp.payload..udp.end]);
            return match [source, destination] {
                ports if ports.contains(&Some(IKE)) => Concern::Ike,
                ports if !ports.contains(&Some(IN_UDP)) => Concern::Other,
                _ if payload.starts_with(&[0; 4]) => Concern::Ike,
                _ => Concern::Esp,
            };
        }
        match headers.upper() {
            Some((UDP, _)) if headers.is_fragment() => Concern::Fragment,
            Some((ESP, _)) => Concern::Esp,
            _ => Concern::Other,
        }
    }
}

const UDP: u8 = 17;
const ESP: u8 = 50;
const IKE: u16 = 500;
const IN_UDP: u16 = 4500;
