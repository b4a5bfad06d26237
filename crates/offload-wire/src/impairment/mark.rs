//! Congestion reported by an ECN router (RFC 3168 5): ECN-capable packets are marked, others are dropped.

use super::{Crossing, Impairment, Share};
use bytes::{Bytes, BytesMut};
use offload_base::Rng;
use offload_base::counters::Counters;
use offload_formats::frame::ETHERNET_BYTES as IP;
use offload_formats::{InternetSum, IpVersion};

offload_base::counters! {
    /// Counters of marking.
    pub struct MarkCounters {
        /// Packets marked.
        pub marked: "wire_ce_marked",
        /// Packets dropped because they must not be marked.
        pub dropped: "wire_not_ect_dropped",
    }
}

/// An impairment that marks a share of the packets with "congestion experienced", and drops the packets of that share
/// that are not ECN-capable.
///
/// ```
/// use offload_wire::impairment::{Crossing, Impairment, EcnMarking, Share};
/// use offload_base::{Instant, Seed};
///
/// let mut mark = EcnMarking::new(Share::ALWAYS, Seed(1).stream("mark"));
/// let plain = Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO };
/// mark.pass(plain, &mut |_| unreachable!("it is no IP packet that may be marked"));
/// ```
#[derive(Debug)]
pub struct EcnMarking {
    share: Share,
    rng: Rng,
    counters: MarkCounters,
}

impl EcnMarking {
    /// Marks or drops `share` of the packets.
    pub fn new(share: Share, rng: Rng) -> EcnMarking {
        EcnMarking { share, rng, counters: MarkCounters::default() }
    }
}

impl Impairment for EcnMarking {
    fn pass(&mut self, mut crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if !self.rng.chance(self.share.as_f64()) {
            return onward(crossing);
        }
        match marked(&crossing.frame.data) {
            Some(data) => {
                crossing.frame = data.into();
                self.counters.marked += 1;
                onward(crossing);
            }
            None => self.counters.dropped += 1,
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Returns a marked copy of the frame, because the sender may keep its bytes. Returns `None` if the packet must not be
/// marked.
fn marked(frame: &Bytes) -> Option<BytesMut> {
    let kind = frame.get(12..14)?;
    let mut data = match kind {
        IPV4 if frame.len() >= IP + IpVersion::V4.header_bytes() && frame[IP + 1] & CE != 0 => {
            BytesMut::from(&frame[..])
        }
        IPV6 if frame.len() >= IP + IpVersion::V6.header_bytes() && frame[IP + 1] & CE << 4 != 0 => {
            BytesMut::from(&frame[..])
        }
        _ => return None,
    };
    if kind == IPV6 {
        data[IP + 1] |= CE << 4;
        return Some(data);
    }
    // RFC 1624: HC' = ~(~HC + ~m + m'). An incremental update keeps a wrong checksum wrong.
    let word = [data[IP], data[IP + 1]];
    data[IP + 1] |= CE;
    let mut sum = InternetSum::default();
    sum.add(&[!data[IP + 10], !data[IP + 11], !word[0], !word[1], data[IP], data[IP + 1]]);
    let check = sum.finish();
    data[IP + 10..IP + 12].copy_from_slice(&check.to_be_bytes());
    Some(data)
}

const IPV4: &[u8] = &[0x08, 0x00];
const IPV6: &[u8] = &[0x86, 0xdd];
/// Both ECN bits. An ECN-capable packet has at least one of them (RFC 3168 5).
const CE: u8 = 0b11;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use offload_base::{Instant, Seed};
    use smoltcp::wire::{IpProtocol, Ipv4Address, Ipv4Packet, Ipv6Packet};

    fn pass(frame: Vec<u8>) -> (Option<Frame>, MarkCounters) {
        let mut mark = EcnMarking::new(Share::ALWAYS, Seed(1).stream("mark"));
        let mut arrived = None;
        let crossing = Crossing { frame: frame.into(), arrives: Instant::ZERO };
        mark.pass(crossing, &mut |crossing| arrived = Some(crossing.frame));
        (arrived, mark.counters)
    }

    fn ipv4(ecn: u8, ident: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(IPV4);
        let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len(46);
        ip.set_dscp(5);
        ip.set_ecn(ecn);
        ip.set_ident(ident);
        ip.set_next_header(IpProtocol::Tcp);
        ip.set_src_addr(Ipv4Address::new(10, 0, 0, 1));
        ip.set_dst_addr(Ipv4Address::new(10, 0, 0, 2));
        ip.fill_checksum();
        frame
    }

    #[test]
    fn marked_packet_has_a_valid_checksum() {
        // All values of one header word, so that the incremental update meets every carry.
        for ident in 0..=u16::MAX {
            let (arrived, counters) = pass(ipv4(0b10, ident));
            let frame = arrived.expect("it passes");
            let ip = Ipv4Packet::new_checked(&frame.data[14..]).expect("a packet");
            assert_eq!((ip.ecn(), ip.dscp(), ip.verify_checksum()), (0b11, 5, true), "ident {ident}");
            assert_eq!((counters.marked, counters.dropped), (1, 0));
        }
    }

    #[test]
    fn packets_without_ecn_are_dropped() {
        let (arrived, counters) = pass(ipv4(0, 7));
        assert_eq!((arrived, counters.dropped), (None, 1));
        assert!(pass(vec![0; 13]).0.is_none() && pass(ipv4(0b10, 0)[..33].to_vec()).0.is_none());
    }

    #[test]
    fn ipv6_is_marked_in_its_traffic_class() {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(IPV6);
        let mut ip = Ipv6Packet::new_unchecked(&mut frame[14..]);
        ip.set_version(6);
        ip.set_traffic_class(0b0001_0101);
        ip.set_flow_label(0xabcde);
        let frame = pass(frame).0.expect("it passes");
        let ip = Ipv6Packet::new_unchecked(&frame.data[14..]);
        assert_eq!((ip.version(), ip.traffic_class(), ip.flow_label()), (6, 0b0001_0111, 0xabcde));
    }
}
