//! Hostile packets: a forged packet is never delivered, and never keeps the genuine packet out.

use super::rig::{SecureEnd, address, pair, payload, sa, tcp};
use super::{KINDS, MODES};
use bytes::BytesMut;
use nic_sim::frame::Frame;
use offload_api::{Direction, EspMode, OffloadKind, SaParams, UdpEncapsulation};
use offload_formats::InternetSum;
use proptest::prelude::*;

/// A change of a frame on the wire.
#[derive(Clone, Debug)]
enum FrameDamage {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Append(Vec<u8>),
    Replace(prop::sample::Index, Vec<u8>),
}

fn change() -> impl Strategy<Value = FrameDamage> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        (any::<prop::sample::Index>(), 0u8..8).prop_map(|(at, bit)| FrameDamage::Flip(at, bit)),
        any::<prop::sample::Index>().prop_map(FrameDamage::Cut),
        bytes().prop_map(FrameDamage::Append),
        (any::<prop::sample::Index>(), bytes()).prop_map(|(at, bytes)| FrameDamage::Replace(at, bytes)),
    ]
}

impl FrameDamage {
    fn make(&self, frame: &mut Vec<u8>) {
        match self {
            FrameDamage::Flip(at, bit) => {
                let at = at.index(frame.len());
                frame[at] ^= 1 << bit;
            }
            FrameDamage::Cut(at) => frame.truncate(at.index(frame.len()) + 1),
            FrameDamage::Append(bytes) => frame.extend_from_slice(bytes),
            FrameDamage::Replace(at, bytes) => {
                let at = at.index(frame.len());
                for (old, new) in frame[at..].iter_mut().zip(bytes) {
                    *old = *new;
                }
            }
        }
    }
}

#[test]
fn damaged_header_is_not_repaired() {
    for (kind, mode) in KINDS.into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode))) {
        let [mut from, mut to] = pair(OffloadKind::None, kind, mode);
        let true_one = from.send(tcp(false, b"hello", None)).remove(0);
        // Changes of the ECN bits, the time to live and the identification.
        for (at, bits) in [(15, 3), (22, 0x20), (19, 1)] {
            let mut damaged = true_one.data.to_vec();
            damaged[at] ^= bits;
            assert!(to.receive([Frame::from(damaged)]).is_empty(), "{kind:?} {mode:?}, byte {at}");
        }
        assert_eq!(to.counted("ipsec_rx_csum_err"), 3, "{kind:?} {mode:?}");
        assert_eq!(to.receive([true_one]).len(), 1, "{kind:?} {mode:?}: its number is new still");
    }
}

#[test]
fn received_packet_with_an_own_source_is_dropped() {
    for kind in KINDS {
        let [mut from, mut to] = pair(kind, OffloadKind::None, EspMode::Transport);
        from.keying().set_default(offload_api::Direction::Receive, true);
        let mut ours = from.send(tcp(false, b"hello", None)).remove(0).data.to_vec();
        ours[5] = 1;
        assert!(from.receive([Frame::from(ours.clone())]).is_empty());
        assert_eq!(from.counted("ipsec_rx_own_source"), 1, "{kind:?}");
        ours[5] = 2;
        assert_eq!(to.receive([Frame::from(ours)]).len(), 1, "where it is the peer's");
    }
}

proptest! {
    #[test]
    fn no_forgery_is_delivered(
        changes in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..12),
        receiver in prop::sample::select(KINDS.to_vec()),
        data in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Tunnel);
        let true_one = from.send(tcp(false, &data, None)).remove(0);
        let mut delivered = 0;
        for changes in changes {
            let mut frame = true_one.data.to_vec();
            changes.iter().for_each(|change| change.make(&mut frame));
            for arrived in to.receive([Frame::from(frame.clone())]) {
                // ARP is not protected. A frame changed into ARP carries no IP data.
                if arrived[12..14] == ARP {
                    prop_assert_eq!(&arrived[..], &frame[..]);
                    continue;
                }
                // ESP does not protect the outer header and the padding of the frame.
                prop_assert_eq!(payload(&arrived), &data[..]);
                delivered += 1;
            }
        }
        delivered += to.receive([true_one]).len();
        prop_assert_eq!(delivered, 1);
    }

    #[test]
    fn garbage_is_dropped(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), 0u8..6), 1..20),
        receiver in prop::sample::select(KINDS.to_vec()),
    ) {
        let [_, mut to] = pair(OffloadKind::None, receiver, EspMode::Transport);
        for (mut bytes, kind) in frames {
            let protocol = [50u8, 17, 50, 17, 44, 6][usize::from(kind)];
            let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            if kind % 2 == 0 {
                frame.extend_from_slice(&[8, 0, 0x45, 0]);
                frame.extend_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
                frame.extend_from_slice(&[0, 1, if kind == 4 { 0x20 } else { 0 }, 0, 64, if kind == 4 { 50 } else { protocol }]);
                frame.extend_from_slice(&[0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
                offload_formats::checksum::fill_ipv4_header(&mut frame[14..]);
                // Often a valid SPI.
                if bytes.len() > 4 && bytes[0] > 100 {
                    bytes[..4].copy_from_slice(&0x1001u32.to_be_bytes());
                }
            } else {
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
                frame.extend_from_slice(&[protocol, 64]);
                frame.extend_from_slice(&[0xfd; 32]);
            }
            frame.extend_from_slice(&bytes);
            prop_assert!(to.receive([Frame::from(frame)]).is_empty());
        }
    }
}

/// Returns a neighbour advertisement from host 1 to host 2, without ESP.
fn advertisement() -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    let own = tcp(true, b"", None).header[22..38].to_vec();
    message.extend_from_slice(&own);
    message.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 1]);
    let mut sum = InternetSum::pseudo_header(58, address(true, 1), address(true, 2), message.len());
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let mut frame = tcp(true, b"", None).header[..54].to_vec();
    frame[18..22].copy_from_slice(&[0, message.len() as u8, 58, 255]);
    frame.extend_from_slice(&message);
    frame
}

#[test]
fn tunnelled_neighbour_discovery_is_dropped() {
    for kind in KINDS {
        for mode in MODES {
            let mut to = SecureEnd::new(2);
            to.key(&[sa(Direction::Receive, kind, mode, true)]);
            let sender = sa(Direction::Transmit, OffloadKind::None, mode, true);
            let mut wrapped = BytesMut::new();
            let plain = advertisement();
            let outer = offload_esp::OuterHeaders::for_packet(&sender, &plain[14..]).unwrap();
            outer.wrap(&offload_esp::EspCipher::new(&sender), &plain, 1, &mut wrapped);
            let came = to.receive([Frame::new(wrapped.freeze())]).len();
            // In transport mode, the hop limit is the one from the wire, which proves that the sender is a neighbour.
            let believed = usize::from(mode == EspMode::Transport);
            assert_eq!((came, to.counted("ipsec_rx_nd_tunnel")), (believed, 1 - believed as u64), "{kind:?}, {mode:?}");
            assert_eq!(to.receive([Frame::new(plain.into())]).len(), 1, "from the wire it comes as ever");
        }
    }
}

#[test]
fn esp_in_udp_ends_with_its_datagram() {
    let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
    for ((kind, mode), ipv6) in
        KINDS.into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode))).flat_map(|way| [(way, false), (way, true)])
    {
        let what = format!("{kind:?}, {mode:?}, IPv6: {ipv6}");
        let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
        let params = |direction, kind| SaParams { encapsulation, ..sa(direction, kind, mode, ipv6) };
        from.key(&[params(Direction::Transmit, OffloadKind::None)]);
        to.key(&[params(Direction::Receive, super::taken(kind, encapsulation))]);
        let (udp, mut sent) = (if ipv6 { 54 } else { 34 }, Vec::new());
        for _ in 0..4 {
            sent.push(from.send(tcp(ipv6, b"to the end", None)).remove(0).data.to_vec());
        }
        // Bytes of the packet after the datagram do not belong to ESP. A UDP length beyond the packet, or below the UDP
        // header, is invalid.
        let told = |frame: &[u8]| u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]);
        let mut longer = sent[0].clone();
        longer.extend_from_slice(&[0xee; 8]);
        let at = if ipv6 { 18 } else { 16 };
        let total = u16::from_be_bytes([longer[at], longer[at + 1]]) + 8;
        longer[at..at + 2].copy_from_slice(&total.to_be_bytes());
        if !ipv6 {
            offload_formats::checksum::fill_ipv4_header(&mut longer[14..]);
        }
        assert_eq!(to.receive([longer.into()]).len(), 1, "{what}");
        for (which, length) in [(1, told(&sent[1]) + 1), (2, told(&sent[2]) - 1), (3, 7)] {
            let mut wrong = sent[which].clone();
            wrong[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
            assert!(to.receive([wrong.into()]).is_empty(), "{length} bytes, {what}");
            assert_eq!(to.receive([sent[which].clone().into()]).len(), 1, "the true one comes, {what}");
        }
    }
}

const ARP: [u8; 2] = [8, 6];
