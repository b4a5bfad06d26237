//! The Internet checksum (RFC 1071), for IPv4 headers and TCP.

use crate::engine::layout::{IP, Layout};

/// A one's complement sum over bytes, in the order they come; ranges of odd length only at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // Four 32-bit words a turn into 64-bit sums: carries fold at the end, and the loop vectorises.
        let mut blocks = bytes.chunks_exact(16);
        let mut sums = [0u64; 4];
        for block in &mut blocks {
            for (sum, word) in sums.iter_mut().zip(block.chunks_exact(4)) {
                *sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
        let mut total = sums.iter().sum::<u64>();
        let mut pairs = blocks.remainder().chunks_exact(2);
        for pair in &mut pairs {
            total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        if let [last] = pairs.remainder() {
            total += u64::from(*last) << 8;
        }
        self.0 += Sum::fold_to_32(total);
    }

    fn fold_to_32(sum: u64) -> u64 {
        (sum >> 32) + (sum & 0xffff_ffff)
    }

    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }
}

/// Fills in the IPv4 header checksum and the TCP checksum of a whole frame.
pub(crate) fn fill(frame: &mut [u8], layout: &Layout) {
    frame[IP + 10..IP + 12].fill(0);
    let ip = !header_sum(frame, layout);
    frame[IP + 10..IP + 12].copy_from_slice(&ip.to_be_bytes());
    let field = layout.tcp + 16;
    frame[field..field + 2].fill(0);
    let tcp = !tcp_sum(frame, layout);
    frame[field..field + 2].copy_from_slice(&tcp.to_be_bytes());
}

/// Whether both checksums of a whole frame are right.
pub(crate) fn is_right(frame: &[u8], layout: &Layout) -> bool {
    header_sum(frame, layout) == 0xffff && tcp_sum(frame, layout) == 0xffff
}

fn header_sum(frame: &[u8], layout: &Layout) -> u16 {
    let mut sum = Sum::default();
    sum.add(&frame[IP..layout.tcp]);
    sum.finish()
}

/// RFC 9293 3.1: pseudo header, header and text.
fn tcp_sum(frame: &[u8], layout: &Layout) -> u16 {
    let mut sum = Sum::default();
    sum.add(&frame[IP + 12..IP + 20]);
    sum.0 += u64::from(frame[IP + 9]) + (layout.end - layout.tcp) as u64;
    sum.add(&frame[layout.tcp..layout.end]);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_as_smoltcp_does(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut sum = Sum::default();
            sum.add(&bytes);
            // Zero and all ones are the same number in one's complement.
            let theirs = smoltcp::wire::checksum::data(&bytes);
            let is_zero = |sum: u16| sum == 0 || sum == 0xffff;
            prop_assert!(sum.finish() == theirs || (is_zero(sum.finish()) && is_zero(theirs)));
        }
    }
}
