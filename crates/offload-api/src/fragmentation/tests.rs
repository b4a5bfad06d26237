//! Fragmentation and reassembly, with fragments reordered, duplicated and changed.

use super::*;
use crate::datagram::EcnCodepoint;
use crate::tx::TxAsk;
use bytes::BytesMut;
use core::time::Duration;
use offload_base::{Instant, Seed};
use offload_formats::ip::HeaderProblem;
use offload_formats::reassembly::{ExpiredPacket, FragmentError, FragmentOutcome, Reassembler, ReassemblyLimits};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6Address};

const CONGESTION: u8 = EcnCodepoint::CongestionExperienced.bits();
const LINK: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0xee, 0xee];

/// A packet after a link header, in smoltcp's framing.
fn packet(six: bool, protocol: IpProtocol, extension: &[u8], data: &[u8]) -> Vec<u8> {
    let [source, destination] = match six {
        true => [1, 2].map(|last| IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, last))),
        false => [1, 2].map(|last| IpAddress::v4(10, 0, 0, last)),
    };
    let ip = IpRepr::new(source, destination, protocol, extension.len() + data.len(), 64);
    let mut packet = LINK.to_vec();
    packet.resize(LINK.len() + ip.header_len(), 0);
    ip.emit(&mut packet[LINK.len()..], &ChecksumCapabilities::default());
    if !six {
        let mut header = Ipv4Packet::new_unchecked(&mut packet[LINK.len()..]);
        header.set_dont_frag(false);
        header.fill_checksum();
    }
    packet.extend_from_slice(extension);
    packet.extend_from_slice(data);
    packet
}

fn cut(packet: &[u8], header_bytes: usize, mtu: u16, identification: u32) -> Vec<Vec<u8>> {
    let (header, payload) = packet.split_at(LINK.len() + header_bytes);
    let half = payload.len() / 2;
    let packet = TxPacket {
        header: header.into(),
        fragments: [&payload[..half], &payload[half..]].into_iter().map(Bytes::copy_from_slice).collect(),
        ..TxPacket::default()
    };
    let bytes =
        |packet: TxPacket| packet.fragments.iter().fold(packet.header.to_vec(), |all, part| [&all, &part[..]].concat());
    fragment(packet, LINK.len(), mtu, identification).unwrap().into_iter().map(bytes).collect()
}

fn data(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Seed(seed).stream("data").fill(&mut data);
    data
}

fn shuffled(seed: u64, count: usize) -> Vec<usize> {
    let mut rng = Seed(seed).stream("order");
    let mut order: Vec<usize> = (0..count).collect();
    (1..count).for_each(|last| order.swap(last, rng.below(last as u64 + 1) as usize));
    order
}

/// Returns the result of inserting all `fragments`, which must be complete after the last.
fn last_of(reassembler: &mut Reassembler, fragments: &[Vec<u8>]) -> BytesMut {
    let taken: Vec<FragmentOutcome> =
        fragments.iter().map(|fragment| reassembler.insert(at(0), fragment, LINK.len())).collect();
    match taken.into_iter().next_back() {
        Some(FragmentOutcome::Whole(whole)) => whole,
        taken => panic!("{taken:?}"),
    }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

proptest! {
    #[test]
    fn fragments_in_any_order_rebuild_the_packet(
        six: bool, extended: bool, bytes in 2000usize..20_000, mtu in 100u16..2000, seed: u64, again: bool,
    ) {
        let extension: &[u8] = if six && extended { &[17, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
        // The extension header lies after the fragment header, in the fragmentable part.
        let protocol = if extension.is_empty() { IpProtocol::Udp } else { IpProtocol::Ipv6Opts };
        let whole = packet(six, protocol, extension, &data(seed, bytes));
        let fixed = if six { 40 } else { 20 } + extension.len();
        // The transport header is in `header`, as a stack builds it.
        let fragments = cut(&whole, fixed + 8, mtu, seed as u32);
        prop_assert!(fragments.iter().all(|fragment| fragment.len() - LINK.len() <= usize::from(mtu)));
        let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
        let mut order = shuffled(seed, fragments.len());
        if again {
            // One fragment is not repeated, so that the packet completes only once.
            order.extend(order.clone().into_iter().take(fragments.len() - 1));
            order.sort_by_key(|index| (index * 7) % 5);
        }
        let (mut made, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        for index in order {
            if made.len() == 1 {
                break; // a late one begins another packet
            }
            let known = !seen.insert(index);
            match reassembler.insert(at(0), &fragments[index], LINK.len()) {
                FragmentOutcome::Whole(packet) => made.push(packet),
                taken => prop_assert_eq!(taken, if known { FragmentOutcome::Duplicate } else { FragmentOutcome::Kept }),
            }
        }
        prop_assert_eq!(made.len(), 1);
        let mut whole = whole;
        if !six {
            let mut header = Ipv4Packet::new_unchecked(&mut whole[LINK.len()..]);
            // The reassembled packet has the identification of its fragments.
            header.set_ident(seed as u16);
            header.fill_checksum();
        }
        prop_assert!(made[0] == whole, "{} bytes of {}", made[0].len(), whole.len());
        prop_assert_eq!((reassembler.bytes(), reassembler.packets(), reassembler.next_event()), (0, 0, None));
    }

    /// A reassembled packet consists only of bytes that were sent for it, each at its own offset.
    #[test]
    fn any_fragments_are_taken_within_bounds(
        pieces in prop::collection::vec((0u16..40, 1usize..200, any::<bool>(), any::<bool>(), 0u8..4), 0..60),
    ) {
        let limits = ReassemblyLimits { bytes: 10_000, packets: 3, timeout: Duration::from_secs(30) };
        let mut reassembler = Reassembler::new(limits);
        let content = data(1, 2000);
        for (number, (place, bytes, more, six, which)) in pieces.into_iter().enumerate() {
            let start = usize::from(place) * 8;
            let mut frame = if six {
                let start = (place * 8) | u16::from(more);
                // `which` selects one of four identifications, so that packets mix.
                let extension = [17, 0, (start >> 8) as u8, start as u8, 0, 0, 0, which];
                packet(true, IpProtocol::Ipv6Frag, &extension, &content[usize::from(place) * 8..][..bytes])
            } else {
                packet(false, IpProtocol::Udp, &[], &content[start..][..bytes])
            };
            if !six {
                frame[LINK.len() + 5] = which;
                frame[LINK.len() + 6..LINK.len() + 8].copy_from_slice(&(place | u16::from(more) << 13).to_be_bytes());
            }
            if let FragmentOutcome::Whole(whole) = reassembler.insert(at(number as u64), &frame, LINK.len()) {
                let headers = IpHeaders::parse(&whole[LINK.len()..]).unwrap();
                let body = &whole[LINK.len() + headers.upper..];
                // Every fragment has the content's own bytes at its offset, so a correct packet is a prefix.
                prop_assert!(headers.fragment.is_none() && content.starts_with(body));
            }
            while reassembler.expire(at(number as u64)).is_some() {}
            prop_assert!(reassembler.bytes() <= limits.bytes && reassembler.packets() <= limits.packets);
            prop_assert_eq!(reassembler.packets() == 0, reassembler.bytes() == 0);
        }
        while reassembler.expire(at(1000)).is_some() {}
        prop_assert_eq!((reassembler.bytes(), reassembler.packets(), reassembler.next_event()), (0, 0, None));
    }
}

/// Returns 16-byte fragments of one packet, and a fragment that starts eight bytes into the second.
fn overlapping(six: bool) -> (Vec<Vec<u8>>, Vec<u8>) {
    let whole = packet(six, IpProtocol::Udp, &[], &data(7, 64));
    let header = if six { 40 } else { 20 };
    let fragments = cut(&whole, header, header as u16 + 16 + if six { 8 } else { 0 }, 5);
    let mut between = fragments[1].clone();
    let place = LINK.len() + if six { 42 } else { 6 };
    let moved = u16::from_be_bytes([between[place], between[place + 1]]) + if six { 8 } else { 1 };
    between[place..place + 2].copy_from_slice(&moved.to_be_bytes());
    (fragments, between)
}

#[test]
fn overlapping_fragments_spoil_their_packet_for_its_lifetime() {
    for six in [false, true] {
        let (fragments, between) = overlapping(six);
        let mut reassembler =
            Reassembler::new(ReassemblyLimits::for_version(if six { IpVersion::V6 } else { IpVersion::V4 }));
        assert_eq!(reassembler.insert(at(0), &fragments[1], LINK.len()), FragmentOutcome::Kept);
        assert_eq!(reassembler.insert(at(1), &between, LINK.len()), FragmentOutcome::Refused(FragmentError::Overlap));
        for fragment in &fragments {
            assert_eq!(
                reassembler.insert(at(2), fragment, LINK.len()),
                FragmentOutcome::Refused(FragmentError::Overlap)
            );
        }
        assert_eq!(reassembler.expire(at(100)), None, "no ICMP message is due");
        assert_eq!((reassembler.bytes(), reassembler.packets()), (0, 0));
        let taken: Vec<FragmentOutcome> =
            fragments.iter().map(|fragment| reassembler.insert(at(101), fragment, LINK.len())).collect();
        assert!(matches!(taken[..], [.., FragmentOutcome::Whole(_)]));
    }
}

#[test]
fn the_same_place_with_other_bytes_or_another_end_is_an_overlap() {
    for six in [false, true] {
        let (fragments, _) = overlapping(six);
        let mut other = fragments[1].clone();
        *other.last_mut().unwrap() ^= 1;
        let mut shorter = fragments[1].clone();
        // The cleared flag makes the fragment the last one, which moves the end of the packet.
        let flags = LINK.len() + if six { 43 } else { 6 };
        shorter[flags] &= if six { 0xfe } else { 0xdf }; // the last one, it says
        for contested in [other, shorter] {
            let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
            assert_eq!(reassembler.insert(at(0), &fragments[1], LINK.len()), FragmentOutcome::Kept);
            assert_eq!(reassembler.insert(at(0), &fragments[1], LINK.len()), FragmentOutcome::Duplicate);
            assert_eq!(
                reassembler.insert(at(0), &contested, LINK.len()),
                FragmentOutcome::Refused(FragmentError::Overlap)
            );
        }
    }
}

#[test]
fn an_expired_packet_is_dropped_and_its_first_fragment_reported() {
    let (fragments, _) = overlapping(true);
    let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V6));
    assert_eq!(reassembler.insert(at(5), &fragments[2], LINK.len()), FragmentOutcome::Kept);
    assert_eq!(reassembler.insert(at(50), &fragments[0], LINK.len()), FragmentOutcome::Kept);
    assert_eq!(reassembler.next_event(), Some(at(65)), "counted from the first fragment");
    assert_eq!(reassembler.expire(at(64)), None);
    let first = Some(Bytes::from(fragments[0].clone()));
    assert_eq!(reassembler.expire(at(65)), Some(ExpiredPacket { first, among: 0 }));
    assert_eq!(reassembler.insert(at(70), &fragments[2], LINK.len()), FragmentOutcome::Kept);
    assert_eq!(reassembler.expire(at(130)), Some(ExpiredPacket { first: None, among: 0 }));
}

#[test]
fn the_packet_next_to_expire_makes_space() {
    let limits = ReassemblyLimits { packets: 2, ..ReassemblyLimits::for_version(IpVersion::V4) };
    let mut reassembler = Reassembler::new(limits);
    let whole = packet(false, IpProtocol::Udp, &[], &data(1, 3000));
    // Three packets compete for two places, and the oldest must go.
    let packets: Vec<_> = (0..3).map(|identification| cut(&whole, 20, 1500, identification)).collect();
    for (second, fragments) in packets.iter().enumerate() {
        assert_eq!(reassembler.insert(at(second as u64), &fragments[0], LINK.len()), FragmentOutcome::Kept);
    }
    assert_eq!((reassembler.take_evicted(), reassembler.packets()), (1, 2));
    assert_eq!(reassembler.insert(at(3), &packets[1][1], LINK.len()), FragmentOutcome::Kept);
    assert!(matches!(reassembler.insert(at(3), &packets[1][2], LINK.len()), FragmentOutcome::Whole(_)));
}

#[test]
fn a_mark_of_congestion_on_one_is_one_on_the_whole() {
    for six in [false, true] {
        let (mut fragments, _) = overlapping(six);
        let version = if six { IpVersion::V6 } else { IpVersion::V4 };
        // RFC 3168 5.3: one congestion mark marks the whole packet.
        for (fragment, ecn) in fragments.iter_mut().zip([1, 2, CONGESTION].into_iter().cycle()) {
            version.set_ecn(&mut fragment[LINK.len()..], ecn);
        }
        let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
        let whole = last_of(&mut reassembler, &fragments);
        assert_eq!(IpHeaders::parse(&whole[LINK.len()..]).unwrap().ecn(&whole[LINK.len()..]), CONGESTION);
    }
}

#[test]
fn mixed_ecn_marks_that_rfc_3168_forbids_build_no_packet() {
    for (six, marked) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let (mut fragments, _) = overlapping(six);
        let version = if six { IpVersion::V6 } else { IpVersion::V4 };
        // RFC 3168 5.3: a mark cannot be combined with a fragment that is not ECN-capable.
        version.set_ecn(&mut fragments[marked][LINK.len()..], CONGESTION);
        let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
        let refused = FragmentOutcome::Refused(FragmentError::Marks);
        for (number, fragment) in fragments.iter().enumerate() {
            let taken = reassembler.insert(at(0), fragment, LINK.len());
            assert_eq!(
                taken,
                if number >= marked.max(1) {
                    FragmentOutcome::Refused(FragmentError::Marks)
                } else {
                    FragmentOutcome::Kept
                }
            );
        }
        assert_eq!(
            reassembler.insert(at(1), &fragments[0], LINK.len()),
            refused,
            "the packet stays spoilt until its timeout"
        );
        assert_eq!((reassembler.expire(at(100)), reassembler.bytes()), (None, 0));
    }
}

#[test]
fn impossible_fragments_are_rejected() {
    let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V6));
    let mut refused = |next: u8, place: u16, data: &[u8]| {
        // The pointer of the ICMP message names the wrong field.
        let header = [next, 0, (place >> 8) as u8, place as u8, 0, 0, 0, 1];
        let frame = packet(true, IpProtocol::Ipv6Frag, &header, data);
        match reassembler.insert(at(0), &frame, LINK.len()) {
            FragmentOutcome::Refused(FragmentError::Impossible(HeaderProblem { code, pointer, .. })) => (code, pointer),
            taken => panic!("{taken:?}"),
        }
    };
    assert_eq!(refused(17, 1, &[0; 12]), (0, 4), "RFC 8200 4.5: not a multiple of eight");
    assert_eq!(refused(17, 8, &[]), (0, 4));
    assert_eq!(refused(17, 0xfff8, &[0; 12]), (0, 42), "RFC 8200 4.5: too long as a whole");
    assert_eq!(refused(6, 1, &[0; 16]), (3, 0), "RFC 8200 4.5: the first fragment lacks headers");
    assert_eq!(refused(60, 1, &[6, 0, 1, 4, 0, 0, 0, 0]), (3, 0));
}

#[test]
fn an_atomic_fragment_is_a_packet_by_itself() {
    let (fragments, _) = overlapping(true);
    let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V6));
    assert_eq!(reassembler.insert(at(0), &fragments[0], LINK.len()), FragmentOutcome::Kept);
    let mut frame = packet(true, IpProtocol::Ipv6Frag, &[17, 0, 0, 0, 0, 0, 0, 5], &[9; 30]);
    frame.extend_from_slice(&[0; 6]); // padding
    let whole = packet(true, IpProtocol::Udp, &[], &[9; 30]);
    assert_eq!(reassembler.insert(at(0), &frame, LINK.len()), FragmentOutcome::Whole(BytesMut::from(&whole[..])));
    assert_eq!(reassembler.packets(), 1, "RFC 6946: independent of other fragments with this identification");
}

#[test]
fn unfragmentable_packets_are_not_fragmented() {
    let try_cut = |frame: &[u8], mtu, ask| {
        let packet = TxPacket { header: frame.into(), ask, ..TxPacket::default() };
        fragment(packet, LINK.len(), mtu, 1).map(|fragments| fragments.len())
    };
    let plain = TxAsk::default();
    let mut four = packet(false, IpProtocol::Udp, &[], &[0; 100]);
    assert_eq!(try_cut(&four, 60, plain), Ok(3));
    assert_eq!(try_cut(&four, 27, plain), Err(FragmentationError::Path(27)));
    // An offload applies to a whole packet, so the device could not do it on a fragment.
    let offloaded = TxAsk { checksum: true, ..plain };
    assert_eq!(try_cut(&four, 60, offloaded), Err(FragmentationError::Offload));
    four[LINK.len() + 6] = 0x40;
    assert_eq!(try_cut(&four, 60, plain), Err(FragmentationError::Forbidden));
    let six = packet(true, IpProtocol::Ipv6Frag, &[17, 0, 0, 1, 0, 0, 0, 5], &[0; 80]);
    assert_eq!(try_cut(&six, 80, plain), Err(FragmentationError::Forbidden));
    let mut long = packet(false, IpProtocol::Udp, &[], &[]);
    // The fragments' offsets would exceed the length field.
    long.resize(long.len() + 65_530, 0);
    assert_eq!(try_cut(&long, 1500, plain), Err(FragmentationError::TooLong));
}

#[test]
fn an_ipv4_fragment_is_cut_further_and_still_fits() {
    let whole = packet(false, IpProtocol::Udp, &[], &data(3, 3000));
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for fragment in cut(&whole, 20, 1500, 9) {
        pieces.extend(cut(&fragment, 20, 500, 1234));
    }
    let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
    let made = last_of(&mut reassembler, &pieces);
    assert_eq!(made[LINK.len() + 20..], whole[LINK.len() + 20..]);
}
