//! Receive-side scaling: the hash that spreads received packets over queues.
//!
//! Complete TCP and UDP packets are hashed by addresses and ports. Fragments, which may lack ports, and other IP
//! protocols (ICMP, ESP) are hashed by addresses only. Other frames have no hash. Source: Microsoft, "RSS hashing
//! types" and "Verifying the RSS hash calculation", with the vectors used in this module's tests.

use core::net::IpAddr;
use offload_api::FlowKey;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_formats::protocol::{TCP, UDP};
use offload_formats::{Headers, IpVersion};
use smallvec::SmallVec;

/// The Toeplitz hash: for each set bit of the input, the 32 bits of the key at the bit's position, all added without
/// carry.
///
/// ```
/// use nic_rings::rss::Toeplitz;
/// use offload_api::FlowKey;
///
/// // The first of Microsoft's vectors, from the view of the receiving host.
/// let flow = FlowKey::tcp("161.142.100.80:1766".parse().unwrap(), "66.9.149.187:2794".parse().unwrap());
/// assert_eq!(Toeplitz::new(&Toeplitz::MICROSOFT_KEY).hash_flow(&flow), 0x51cc_c178);
/// ```
#[derive(Debug)]
pub struct Toeplitz {
    /// Contribution of each value of each half byte of the input.
    sums: Box<[[u32; 16]; 2 * LONGEST_INPUT]>,
}

impl Toeplitz {
    /// Key of the published vectors, used by many drivers.
    pub const MICROSOFT_KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Creates the hash with `key`.
    pub fn new(key: &[u8; 40]) -> Toeplitz {
        let mut sums = Box::new([[0; 16]; 2 * LONGEST_INPUT]);
        // The hash is linear without carry, so the contribution of each half byte can be tabulated.
        for (place, of_place) in sums.iter_mut().enumerate() {
            for (value, sum) in of_place.iter_mut().enumerate() {
                let bits = (0..4).filter(|bit| value >> (3 - bit) & 1 == 1);
                *sum = bits.fold(0, |sum, bit| sum ^ window(key, 4 * place + bit));
            }
        }
        Toeplitz { sums }
    }

    /// Hashes the packets of `flow` that the local end receives.
    pub fn hash_flow(&self, flow: &FlowKey) -> u32 {
        let mut input = HashInput::new();
        // A received packet has the remote address as its source.
        for address in [flow.remote.ip(), flow.local.ip()] {
            match address {
                IpAddr::V4(address) => input.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => input.extend_from_slice(&address.octets()),
            }
        }
        input.extend_from_slice(&flow.remote.port().to_be_bytes());
        input.extend_from_slice(&flow.local.port().to_be_bytes());
        self.hash_input(&input)
    }

    /// Hashes a received frame with these headers. Returns `None` without IP.
    pub fn hash_frame(&self, frame: &[u8], headers: &Headers) -> Option<u32> {
        let (version, network) = headers.network()?;
        let (protocol, upper) = headers.upper()?;
        let addresses = match version {
            IpVersion::V4 => network + 12..network + 20,
            IpVersion::V6 => network + 8..network + 40,
        };
        let mut input = HashInput::from_slice(frame.get(addresses)?);
        // Only the first fragment has ports. Hashing addresses alone keeps all fragments on one queue.
        if !headers.is_fragment() && matches!(protocol, TCP | UDP) {
            input.extend_from_slice(frame.get(upper..upper + 4)?);
        }
        Some(self.hash_input(&input))
    }

    /// Hashes addresses and ports in the order of a packet: source, destination, source port, destination port.
    fn hash_input(&self, input: &[u8]) -> u32 {
        let halves = input.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.sums.iter().zip(halves).fold(0, |sum, (of_place, half)| sum ^ of_place[usize::from(half)])
    }
}

/// Returns the index of a hash in the indirection table.
pub fn entry_of(hash: u32) -> usize {
    hash as usize % INDIRECTION_ENTRIES
}

/// Returns the queue of a hash in the initial table, which uses the queues in turn.
pub fn first_queue(hash: u32, queues: u16) -> u16 {
    // The driver computes the same to know which flows reach its queue, so the initial table must not change.
    (entry_of(hash) % usize::from(queues)) as u16
}

/// Returns the 32 bits of the key at `bit`.
fn window(key: &[u8; 40], bit: usize) -> u32 {
    let first = bit / 8;
    // Eight bytes cover 32 bits at any bit offset. Behind the key's end only unused bits are read.
    let bytes: [u8; 8] = core::array::from_fn(|at| key.get(first + at).copied().unwrap_or(0));
    (u64::from_be_bytes(bytes) << (bit % 8) >> 32) as u32
}

type HashInput = SmallVec<[u8; LONGEST_INPUT]>;

/// Maximum size of the input in bytes: two IPv6 addresses and two ports.
const LONGEST_INPUT: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;
    use offload_formats::frame::ETHERNET_BYTES;

    /// Destination, source, and the hash without and with ports: Microsoft, "Verifying the RSS hash calculation".
    const VECTORS: [(&str, &str, u32, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
        ("[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x4b61_e985, 0x02d1_feef),
    ];

    /// A packet from `source` to `destination` in an Ethernet frame: TCP, or a fragment.
    fn frame(source: SocketAddr, destination: SocketAddr, fragment: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend_from_slice(&[
                    8,
                    0,
                    0x45,
                    0,
                    0,
                    40,
                    0,
                    1,
                    if fragment { 0x20 } else { 0x40 },
                    0,
                    64,
                    6,
                    0,
                    0,
                ]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (length, next) = if fragment { (28, 44) } else { (20, 6) };
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, length, next, 64]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
                if fragment {
                    frame.extend_from_slice(&[6, 0, 0, 1, 0, 0, 0, 7]);
                }
            }
            _ => unreachable!("both are of one kind"),
        }
        frame.extend_from_slice(&source.port().to_be_bytes());
        frame.extend_from_slice(&destination.port().to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame
    }

    fn of_frame(hash: &Toeplitz, frame: &[u8]) -> Option<u32> {
        hash.hash_frame(frame, &Headers::parse(frame))
    }

    #[test]
    fn hashes_match_the_published_vectors() {
        let hash = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
        for (destination, source, addresses, ports) in VECTORS {
            let (destination, source) = (destination.parse().unwrap(), source.parse().unwrap());
            let whole = frame(source, destination, false);
            assert_eq!(of_frame(&hash, &whole), Some(ports), "{source} to {destination}");
            assert_eq!(hash.hash_flow(&FlowKey::tcp(destination, source)), ports);
            assert_eq!(of_frame(&hash, &frame(source, destination, true)), Some(addresses), "a fragment has no ports");
            let mut other = whole;
            // Replaces the protocol number by that of ESP.
            other[if source.is_ipv4() { ETHERNET_BYTES + 9 } else { ETHERNET_BYTES + 6 }] = 50;
            assert_eq!(of_frame(&hash, &other), Some(addresses), "nor has ESP");
        }
        let mut arp = vec![0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(of_frame(&hash, &arp), None);
    }

    #[test]
    fn truncated_packet_has_no_hash() {
        let hash = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
        for (destination, source, ..) in VECTORS {
            let whole = frame(source.parse().unwrap(), destination.parse().unwrap(), false);
            for cut in 0..whole.len() {
                // A truncated packet would otherwise be steered by bytes that the sender did not write.
                assert_eq!(of_frame(&hash, &whole[..cut]), None, "{cut} bytes of it");
            }
            assert!(of_frame(&hash, &whole).is_some());
        }
    }
}
