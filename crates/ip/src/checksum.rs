//! The Internet checksum over a packet in pieces (RFC 1071), for where no device computes it.

use core::net::IpAddr;

/// A sum that goes on at any byte.
///
/// ```
/// use ip_packets::Sum;
///
/// let mut sum = Sum::default();
/// sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4]);
/// sum.add(&[0xf5, 0xf6, 0xf7]); // RFC 1071 3
/// assert_eq!(sum.finish(), !0xddf2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Ones' complement sum of the bytes' 16-bit words, not folded yet.
    sum: u64,
    odd: bool,
}

impl Sum {
    /// The sum over the pseudo header of TCP, UDP or ICMPv6 (RFC 9293 3.1, RFC 8200 8.1), for `bytes` bytes of header
    /// and payload.
    pub fn pseudo_header(protocol: u8, source: IpAddr, destination: IpAddr, bytes: usize) -> Sum {
        let mut sum = Sum::default();
        for address in [source, destination] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&[0, protocol]);
        // IPv6 has four bytes for the length; as a sum that is the same.
        sum.add(&(bytes as u32).to_be_bytes());
        sum
    }

    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = fold(words(bytes));
        // RFC 1071 2 (B): at an odd position the same bytes count swapped.
        self.sum += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// The value for the checksum field.
    pub fn finish(self) -> u16 {
        !u16::from_be(fold(self.sum))
    }

    /// Whether the bytes, checksum field included, are as they were sent.
    pub fn is_right(self) -> bool {
        fold(self.sum) == u16::MAX
    }
}

/// Adds up the bytes as native words; the order of their bytes does not matter until the end (RFC 1071 2 (B)).
fn words(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = chunks.iter().map(|chunk| u64::from(u32::from_ne_bytes(*chunk))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(last));
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in proptest::collection::vec(0usize..300, 0..5)) {
            let mut whole = Sum::default();
            whole.add(&bytes);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Sum::default();
            let mut from = 0;
            for to in cuts.into_iter().chain([bytes.len()]) {
                pieces.add(&bytes[from..to]);
                from = to;
            }
            prop_assert_eq!(pieces.finish(), whole.finish());
        }
    }
}
