//! The Internet checksum (RFC 1071), for IPv4 headers, TCP and UDP.

use crate::engine::layout::{IP, Layout, PROTOCOL_TCP, PROTOCOL_UDP};
use offload_formats::{Version, native_sum};
use offload_api::Protocol;
use offload_api::rx::Checksums;

/// A one's complement sum over bytes, in the order they come; ranges of odd length only at the end.
///
/// It adds native words: the order of their bytes does not matter until the end (RFC 1071 2 (B)).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0 += u64::from(native_sum(bytes));
    }

    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::from_be(sum as u16)
    }
}

/// Fills in the checksums of a whole frame: the transport's, and IPv4's.
pub(crate) fn fill(frame: &mut [u8], layout: &Layout) {
    if layout.version == Version::Four {
        frame[IP + 10..IP + 12].fill(0);
        let ip = !header_sum(frame, layout);
        frame[IP + 10..IP + 12].copy_from_slice(&ip.to_be_bytes());
    }
    let field = layout.checksum();
    frame[field..field + 2].fill(0);
    let transport = match !transport_sum(frame, layout) {
        // RFC 768: zero says that there is none, so a sum of zero is sent as its other form.
        0 if layout.protocol == Protocol::Udp => u16::MAX,
        sum => sum,
    };
    frame[field..field + 2].copy_from_slice(&transport.to_be_bytes());
}

/// What there is to say about the checksums of a whole frame. A datagram without one is for software to judge.
pub(crate) fn check(frame: &[u8], layout: &Layout) -> Checksums {
    let field = layout.checksum();
    if layout.protocol == Protocol::Udp && frame[field..field + 2] == [0, 0] {
        return Checksums::Unchecked;
    }
    let right_header = layout.version == Version::Six || header_sum(frame, layout) == 0xffff;
    if right_header && transport_sum(frame, layout) == 0xffff { Checksums::Good } else { Checksums::Bad }
}

/// Only of IPv4, whose header ends where the transport's starts.
fn header_sum(frame: &[u8], layout: &Layout) -> u16 {
    let mut sum = Sum::default();
    sum.add(&frame[IP..layout.transport]);
    sum.finish()
}

/// RFC 9293 3.1, RFC 768, RFC 8200 8.1: pseudo header, header and text.
fn transport_sum(frame: &[u8], layout: &Layout) -> u16 {
    let protocol = match layout.protocol {
        Protocol::Udp => PROTOCOL_UDP,
        _ => PROTOCOL_TCP,
    };
    let mut sum = Sum::default();
    sum.add(layout.addresses(frame));
    sum.add(&[0, protocol]);
    sum.add(&((layout.end - layout.transport) as u32).to_be_bytes());
    sum.add(&frame[layout.transport..layout.end]);
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
