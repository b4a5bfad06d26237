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
        let sum = native_sum(bytes);
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

/// The ones' complement sum of the bytes as 16-bit words in this machine's order; an odd one at the end counts as if a
/// zero followed. The order of bytes does not matter until the end (RFC 1071 2 (B)).
///
/// ```
/// assert_eq!(ip_packets::native_sum(&[0x00, 0x01, 0xf2, 0x03]), u16::from_ne_bytes([0xf2, 0x04]));
/// ```
pub fn native_sum(bytes: &[u8]) -> u16 {
    let sum = words(bytes);
    // Ends around: 2^64 - 1 is a multiple of 2^16 - 1.
    let sum = u128::from(sum as u64) + (sum >> 64);
    fold((sum & 0xffff_ffff) as u64 + (sum >> 32) as u64)
}

/// Adds up the bytes as 64-bit words. Four sums with their carries keep scalar units busy; as sums of 64 bits, which
/// would want vectors, compilers shuffle more than they add.
fn words(bytes: &[u8]) -> u128 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sums = [0u128; 4];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum += u128::from(u64::from_ne_bytes(*word));
        }
    }
    let (rest, end) = rest.as_chunks::<8>();
    let mut last = [0; 8];
    last[..end.len()].copy_from_slice(end);
    let rest = rest.iter().chain([&last]).map(|word| u128::from(u64::from_ne_bytes(*word)));
    sums.into_iter().chain(rest).sum()
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
