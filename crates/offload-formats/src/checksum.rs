//! The Internet checksum (RFC 1071), over bytes in pieces, and the checksum fields of IPv4, TCP and UDP.

use crate::flow::Protocol;
use crate::frame::TransportHeader;
use crate::ip::IpVersion;
use core::net::IpAddr;

/// A checksum in progress, which can be continued at any byte.
///
/// ```
/// use offload_formats::InternetSum;
///
/// let mut sum = InternetSum::default();
/// sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4]);
/// sum.add(&[0xf5, 0xf6, 0xf7]); // RFC 1071 3
/// assert_eq!(sum.finish(), !0xddf2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct InternetSum {
    /// Ones' complement sum of the 16-bit words, not folded yet.
    sum: u64,
    /// Whether an odd number of bytes was added so far.
    odd: bool,
}

impl InternetSum {
    /// Sums the pseudo header of TCP, UDP or ICMPv6 (RFC 9293 3.1, RFC 8200 8.1). `bytes` is the length of header and
    /// payload.
    pub fn pseudo_header(protocol: u8, source: IpAddr, destination: IpAddr, bytes: usize) -> InternetSum {
        let mut sum = InternetSum::default();
        for address in [source, destination] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&[0, protocol]);
        // IPv6 has a length field of four bytes. The sum is the same as for a field of two.
        sum.add(&(bytes as u32).to_be_bytes());
        sum
    }

    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        // Summing in native byte order needs no swap per word. `finish` swaps the result once.
        let sum = native_sum(bytes);
        // RFC 1071 2 (B): at an odd position, the sum of the bytes counts with its two bytes swapped.
        self.sum += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Returns the value for the checksum field.
    pub fn finish(self) -> u16 {
        !u16::from_be(fold(self.sum))
    }

    /// Tests whether the bytes, which include the checksum field, are intact.
    pub fn is_right(self) -> bool {
        fold(self.sum) == u16::MAX
    }
}

/// Fills in the checksum of the IPv4 header at the start of `packet`.
///
/// ```
/// use offload_formats::checksum;
///
/// let mut header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// checksum::fill_ipv4_header(&mut header);
/// assert_eq!(header[10..12], [0x66, 0xb6]);
/// ```
pub fn fill_ipv4_header(packet: &mut [u8]) {
    let header = usize::from(packet[0] & 0x0f) * 4;
    packet[10..12].fill(0);
    let mut sum = InternetSum::default();
    sum.add(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Tests whether the checksum of the IPv4 header at the start of `packet` is right.
///
/// ```
/// use offload_formats::checksum;
///
/// let mut header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 50, 0x66, 0xb6, 10, 0, 0, 1, 10, 0, 0, 2];
/// assert!(checksum::is_ipv4_header_right(&header));
/// header[1] = 3; // a congestion mark that no router made
/// assert!(!checksum::is_ipv4_header_right(&header));
/// ```
pub fn is_ipv4_header_right(packet: &[u8]) -> bool {
    let length = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(..length).is_some_and(|header| {
        let mut sum = InternetSum::default();
        sum.add(header);
        sum.is_right()
    })
}

impl TransportHeader {
    /// Fills in the transport's checksum in a whole frame, and the checksum of its IPv4 header.
    ///
    /// ```
    /// use offload_formats::Headers;
    ///
    /// let mut frame = vec![2; 12];
    /// frame.extend([0x08, 0x00, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// frame.extend([0, 9, 0, 9, 0, 9, 0, 0, 1]);
    /// let udp = Headers::parse(&frame).transport().unwrap();
    /// assert_eq!(udp.are_checksums_right(&frame), None, "the datagram has none");
    /// udp.fill_checksums(&mut frame);
    /// assert_eq!(udp.are_checksums_right(&frame), Some(true));
    /// ```
    pub fn fill_checksums(&self, frame: &mut [u8]) {
        if self.version == IpVersion::V4 {
            fill_ipv4_header(&mut frame[self.network..]);
        }
        let field = self.checksum();
        frame[field..field + 2].fill(0);
        let sum = match self.sum(frame).finish() {
            // RFC 768: a field of zero means that there is no checksum, so a sum of zero is sent as all ones.
            0 if self.protocol == Protocol::Udp => u16::MAX,
            sum => sum,
        };
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Tests whether the checksums of a whole frame are right. Returns `None` for a UDP datagram without a checksum
    /// (RFC 768).
    pub fn are_checksums_right(&self, frame: &[u8]) -> Option<bool> {
        let field = self.checksum();
        if self.protocol == Protocol::Udp && frame[field..field + 2] == [0, 0] {
            return None;
        }
        // IPv6 has no header checksum: the transport's pseudo header covers its addresses.
        let right_header = self.version == IpVersion::V6 || is_ipv4_header_right(&frame[self.network..]);
        Some(right_header && self.sum(frame).is_right())
    }

    /// Sums pseudo header, header and text (RFC 9293 3.1, RFC 768, RFC 8200 8.1).
    fn sum(&self, frame: &[u8]) -> InternetSum {
        let mut sum = self.pseudo_sum(frame);
        sum.add(&frame[self.header..self.end]);
        sum
    }
}

/// Returns the ones' complement sum of the bytes as 16-bit words in this machine's byte order. An odd last byte counts
/// as if a zero followed. The byte order does not matter until the end (RFC 1071 2 (B)).
///
/// ```
/// assert_eq!(offload_formats::native_sum(&[0x00, 0x01, 0xf2, 0x03]), u16::from_ne_bytes([0xf2, 0x04]));
/// ```
pub fn native_sum(bytes: &[u8]) -> u16 {
    // The carries end around, because 2^32 - 1 is a multiple of 2^16 - 1.
    fold(words(bytes))
}

/// Adds the bytes as 32-bit words.
fn words(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= BLOCK
        && let Some(sum) = wide::words(bytes)
    {
        return sum;
    }
    words_in_lanes(bytes)
}

/// Adds the bytes as 32-bit words in as many lanes as the compiler can turn into vectors. A lane overflows only after
/// 2^32 blocks.
#[inline(always)]
fn words_in_lanes(bytes: &[u8]) -> u64 {
    // Each lane is 64 bits wide for 32-bit words, so carries accumulate in the upper half and are folded once at the
    // end.
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut sums = [0u64; BLOCK / 4];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
            *sum += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (rest, end) = rest.as_chunks::<4>();
    // The tail is padded with zeros, which do not change the sum in either byte order.
    let mut last = [0; 4];
    last[..end.len()].copy_from_slice(end);
    let rest = rest.iter().chain([&last]).map(|word| u64::from(u32::from_ne_bytes(*word)));
    sums.into_iter().chain(rest).sum()
}

/// Sums with AVX2, if the processor has it.
///
/// # Safety of this module
///
/// A function compiled for AVX2 may only be called on a processor with AVX2. The only function here that other modules
/// can call checks that first. All else is safe code.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod wide {
    pub(super) fn words(bytes: &[u8]) -> Option<u64> {
        // SAFETY: the processor has AVX2, as was just detected.
        std::arch::is_x86_feature_detected!("avx2").then(|| unsafe { words_by_avx2(bytes) })
    }

    #[target_feature(enable = "avx2")]
    fn words_by_avx2(bytes: &[u8]) -> u64 {
        super::words_in_lanes(bytes)
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Bytes added in one step.
const BLOCK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checksum_matches_the_example_of_rfc_1071() {
        let mut sum = InternetSum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn all_summation_methods_agree(bytes in proptest::collection::vec(any::<u8>(), 0..3000), from in 0usize..70) {
            let bytes = &bytes[from.min(bytes.len())..];
            let one_by_one = bytes.chunks(4).map(|word| {
                let mut whole = [0; 4];
                whole[..word.len()].copy_from_slice(word);
                u64::from(u32::from_ne_bytes(whole))
            });
            let expected: u64 = one_by_one.sum();
            prop_assert_eq!(words(bytes), expected);
            prop_assert_eq!(words_in_lanes(bytes), expected);
        }

        #[test]
        fn checksum_is_independent_of_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in proptest::collection::vec(0usize..300, 0..5)) {
            let mut whole = InternetSum::default();
            whole.add(&bytes);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = InternetSum::default();
            let mut from = 0;
            for to in cuts.into_iter().chain([bytes.len()]) {
                pieces.add(&bytes[from..to]);
                from = to;
            }
            prop_assert_eq!(pieces.finish(), whole.finish());
        }
    }
}
