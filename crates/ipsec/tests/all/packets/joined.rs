//! LRO of packets that the device opened: the stack sees fewer packets and the same stream, and replay windows and
//! lifetimes count every packet.

use super::MODES;
use super::paths::fragments;
use super::rig::{NOW, SecureEnd, datagram, pair, payload, sa, tcp};
use bytes::Bytes;
use ipsec::SaUse;
use nic_sim::NicConfig;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_api::rx::Checksums;
use offload_api::{
    Action, Direction, EspMode, EspVerdict, FlowKey, NetDevice, OffloadKind, Policy, RxPacket, SaParams, Selector,
    TxPacket, UdpEncapsulation,
};
use proptest::prelude::*;

const OFFLOADED: [OffloadKind; 2] = [OffloadKind::Crypto, OffloadKind::Packet];
const MSS: u16 = 1000;

fn receive(end: &mut SecureEnd, frames: impl IntoIterator<Item = Frame>) -> Vec<RxPacket> {
    for frame in frames {
        end.device.receive_frame(NOW, frame);
    }
    end.device.process(NOW);
    core::iter::from_fn(|| end.secure.receive(NOW)).collect()
}

fn stream(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 7) >> 3) as u8).collect()
}

fn used(end: &mut SecureEnd) -> Vec<SaUse> {
    let ids: Vec<_> = end.secure.sad().ids().collect();
    ids.into_iter().filter_map(|id| end.keying().sa_use(id)).collect()
}

/// Returns ends with an SA from the first to the second.
fn ends(receiver: OffloadKind, mode: EspMode, ipv6: bool) -> [SecureEnd; 2] {
    let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
    ends[0].key(&[sa(Direction::Transmit, OffloadKind::None, mode, ipv6)]);
    ends[1].key(&[sa(Direction::Receive, receiver, mode, ipv6)]);
    ends
}

fn counter_of(receiver: OffloadKind) -> &'static str {
    if receiver == OffloadKind::Crypto { "ipsec_crypto_rx_pkts" } else { "ipsec_packet_rx_pkts" }
}

#[test]
fn packets_opened_by_the_device_are_joined() {
    for receiver in OFFLOADED {
        for (mode, ipv6) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            let [mut from, mut to] = ends(receiver, mode, ipv6);
            let [_, mut software] = ends(OffloadKind::None, mode, ipv6);
            let data = stream(20_300);
            let frames = from.send(tcp(ipv6, &data, Some(MSS)));
            let packets = receive(&mut to, frames.clone());
            // 21 packets make one: every packet continues the stream of the one before.
            let [packet] = &packets[..] else { panic!("{} packets, {receiver:?} {mode:?}", packets.len()) };
            assert_eq!(payload(&packet.frame), data);
            assert_eq!((packet.joined.map(u16::from), packet.meta.checksums), (Some(MSS), Checksums::Good));
            assert_eq!(packet.meta.esp(), EspVerdict::None, "packets of one stream do not differ by it");
            let length = u16::from_be_bytes([
                packet.frame[16 + 2 * usize::from(ipv6)],
                packet.frame[17 + 2 * usize::from(ipv6)],
            ]);
            assert_eq!(usize::from(length), packet.frame.len() - if ipv6 { 54 } else { 14 });
            assert_eq!(packet.frame[if ipv6 { 67 } else { 47 }], 0x18, "PSH of the last");
            assert_eq!(to.counted(counter_of(receiver)), 21);
            // Every number is used, and every byte is counted.
            assert_eq!(receive(&mut software, frames.clone()).len(), 21);
            assert_eq!(used(&mut to), used(&mut software), "{receiver:?} {mode:?}");
            assert!(receive(&mut to, frames).is_empty());
        }
    }
}

/// A router's congestion mark, or a different hop limit, changes the outer header of a single packet.
#[test]
fn changed_outer_headers_keep_packets_separate() {
    for (mode, ipv6) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        // The ECN bits and the hop limit; for IPv4 also the header checksum.
        for (at, bits) in if ipv6 { [(15, 0x10), (21, 1)] } else { [(15, 1), (22, 1)] } {
            let [mut from, mut to] = ends(OffloadKind::Crypto, mode, ipv6);
            let data = stream(10 * usize::from(MSS));
            let mut packet = tcp(ipv6, &data, Some(MSS));
            // ECT, so that the mark has a meaning.
            packet.header[15] |= if ipv6 { 0x20 } else { 2 };
            let mut frames = from.send(packet);
            let mut changed = frames[4].data.to_vec();
            changed[at] ^= bits;
            if !ipv6 {
                offload_formats::checksum::fill_ipv4_header(&mut changed[14..]);
            }
            assert_ne!(changed, frames[4].data, "{mode:?}, IPv6: {ipv6}");
            frames[4] = changed.into();
            let packets = receive(&mut to, frames);
            let bytes: Vec<_> = packets.iter().map(|packet| payload(&packet.frame).len()).collect();
            assert_eq!(bytes, [4000, 1000, 5000], "{mode:?}, IPv6: {ipv6}, byte {at}");
            assert!(packets.iter().flat_map(|packet| payload(&packet.frame).to_vec()).eq(data));
        }
    }
}

/// Exact limits with all headers: after 20 bytes of IPv4 come 16 of ESP and 20 of TCP, and 20 at the end.
#[test]
fn joined_packet_is_limited_by_length_with_headers() {
    for (most, expected) in [(4076, [4000, 1000]), (4075, [3000, 2000])] {
        let mut from = SecureEnd::new(1);
        from.key(&[sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, false)]);
        let mut to = SecureEnd::with(2, NicConfig { lro_max_bytes: most, ..NicConfig::default() });
        to.key(&[sa(Direction::Receive, OffloadKind::Crypto, EspMode::Transport, false)]);
        let frames = from.send(tcp(false, &stream(5000), Some(MSS)));
        assert_eq!(frames[0].data.len(), 14 + 76 + 1000);
        let packets = receive(&mut to, frames);
        let bytes: Vec<_> = packets.iter().map(|packet| payload(&packet.frame).len()).collect();
        assert_eq!(bytes, expected, "{most} bytes at most");
    }
}

/// NICs may also join datagrams: lifetimes then count every header.
#[test]
fn datagrams_opened_by_the_device_are_joined() {
    for receiver in OFFLOADED {
        for (mode, ipv6) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            let config = NicConfig { lro_datagrams: true, ..NicConfig::default() };
            let mut from = SecureEnd::new(1);
            from.key(&[sa(Direction::Transmit, OffloadKind::None, mode, ipv6)]);
            let [mut to, mut software] = [receiver, OffloadKind::None].map(|offload| {
                let mut end = SecureEnd::with(2, config.clone());
                end.key(&[sa(Direction::Receive, offload, mode, ipv6)]);
                end
            });
            let frames: Vec<Frame> = (0..5u8)
                .flat_map(|number| datagram(ipv6, 53, &[number; 900], u16::MAX))
                .flat_map(|packet| from.send(packet))
                .collect();
            let packets = receive(&mut to, frames.clone());
            // Five equal datagrams make one.
            let [packet] = &packets[..] else { panic!("{} packets, {receiver:?} {mode:?}", packets.len()) };
            assert_eq!(packet.joined.map(u16::from), Some(900));
            let udp = &packet.frame[if ipv6 { 54 } else { 34 }..];
            assert!(udp[8..].chunks(900).zip(0u8..5).all(|(part, number)| part == [number; 900]));
            assert_eq!((udp.len(), to.counted(counter_of(receiver))), (8 + 5 * 900, 5));
            assert_eq!(receive(&mut software, frames).len(), 5);
            assert_eq!(used(&mut to), used(&mut software), "{receiver:?} {mode:?}");
        }
    }
}

/// To a NIC that joins datagrams, ESP in UDP looks like equal datagrams of one sender, but each is a packet of its own.
#[test]
fn esp_in_udp_for_software_is_not_joined() {
    for (mode, ipv6) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
        let params = |direction| SaParams { encapsulation, ..sa(direction, OffloadKind::None, mode, ipv6) };
        let (mut from, mut to) =
            (SecureEnd::new(1), SecureEnd::with(2, NicConfig { lro_datagrams: true, ..NicConfig::default() }));
        from.key(&[params(Direction::Transmit)]);
        to.key(&[params(Direction::Receive)]);
        let data = stream(20 * usize::from(MSS));
        let frames = from.send(tcp(ipv6, &data, Some(MSS)));
        let packets = receive(&mut to, frames);
        assert_eq!(packets.len(), 20, "{mode:?}, IPv6: {ipv6}");
        assert!(packets.iter().flat_map(|packet| payload(&packet.frame).to_vec()).eq(data), "{mode:?}, IPv6: {ipv6}");
    }
}

/// Some NICs segment and join more than the IP length field can express. Bypassed packets pass in full.
#[test]
fn bypassed_packet_may_exceed_its_length_field() {
    for ipv6 in [false, true] {
        let [mut from, mut to] = [1, 2].map(large);
        for (end, direction) in [(&mut from, Direction::Transmit), (&mut to, Direction::Receive)] {
            let policy = Policy { direction, selector: Selector::ANY, priority: 0, action: Action::Bypass };
            end.keying().add_policy(policy).unwrap();
            end.drain();
        }
        let data = stream(200_000);
        let frames = from.send(tcp(ipv6, &data, Some(MSS)));
        assert!(frames.len() == 200 && frames.iter().all(|frame| frame.data.len() <= 1514));
        let packets = receive(&mut to, frames.clone());
        let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
        assert!(payload(&packet.frame) == data && packet.joined.map(u16::from) == Some(MSS));
        // A packet that arrived with length 0 has no known length: invalid in IPv4, empty in IPv6.
        let alone = changed(&frames[0], |frame| frame[if ipv6 { 18 } else { 16 }..][..2].fill(0));
        let seen = receive(&mut to, [alone]);
        assert_eq!((seen.len(), to.counted("XfrmInHdrError")), if ipv6 { (1, 0) } else { (0, 1) });
        assert!(seen.iter().all(|packet| packet.joined.is_none()));
    }
}

/// ESP counts protected bytes, so the headers of joined protected packets have their true length.
#[test]
fn protected_packet_has_its_true_length() {
    let flow = FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    for offload in [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet] {
        for mode in MODES {
            let [mut from, mut to] = [1, 2].map(large);
            assert_eq!(from.secure.path(&flow).tso_max_bytes, 256 << 10);
            from.key(&[sa(Direction::Transmit, offload, mode, false)]);
            to.key(&[sa(Direction::Receive, offload, mode, false)]);
            // ESP limits the segments to the 16-bit length, although the device could segment more.
            let most = from.secure.path(&flow).tso_max_bytes as usize;
            assert!((60_000..=64 << 10).contains(&most), "{offload:?}");
            let data = stream(120_000);
            let frames: Vec<Frame> = [0, 60_000]
                .into_iter()
                .flat_map(|at: usize| {
                    let mut packet = tcp(false, &data[at..at + 60_000], Some(MSS));
                    packet.ask.seq += at as u32;
                    let seq = packet.ask.seq.0.to_be_bytes();
                    packet.header[38..42].copy_from_slice(&seq);
                    // ACK only: PSH would end joining after the first packet.
                    packet.header[47] = 0x10;
                    from.send(packet)
                })
                .collect();
            let packets = receive(&mut to, frames);
            assert!(packets.iter().all(|packet| packet.frame.len() <= 14 + usize::from(u16::MAX)));
            assert_eq!(packets.iter().flat_map(|packet| payload(&packet.frame)).copied().collect::<Vec<u8>>(), data);
        }
    }
}

fn large(number: u8) -> SecureEnd {
    SecureEnd::with(number, NicConfig { tso_max_bytes: 256 << 10, lro_max_bytes: 256 << 10, ..NicConfig::default() })
}

#[test]
fn oversized_joined_packet_is_split() {
    for receiver in OFFLOADED {
        let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Tunnel);
        let mut frames = Vec::new();
        let data = stream(60_000);
        for turn in 0..2u32 {
            let mut packet = tcp(false, &data, Some(1400));
            packet.ask.seq += turn * 60_000;
            let seq = packet.ask.seq.0.to_be_bytes();
            packet.header[38..42].copy_from_slice(&seq);
            packet.header[47] = 0x10;
            frames.extend(from.send(packet));
        }
        let packets = receive(&mut to, frames);
        let bytes: Vec<u8> = packets.iter().flat_map(|packet| payload(&packet.frame)).copied().collect();
        assert_eq!(bytes, [&data[..], &data].concat());
        assert!(packets.len() <= 5, "{}", packets.len());
    }
}

/// A change of one frame splits the joined packet there and has no other effect.
#[test]
fn any_difference_keeps_packets_separate() {
    type FrameEdit = fn(&mut Vec<Frame>, usize);
    let flip: FrameEdit = |frames, at| frames[at] = changed(&frames[at], |frame| frame[60] ^= 1);
    let lose: FrameEdit = |frames, at| drop(frames.remove(at));
    let double: FrameEdit = |frames, at| frames.insert(at, frames[at].clone());
    let swap: FrameEdit = |frames, at| frames.swap(at, at + 1);
    // An unprotected packet that pretends to be part of the stream.
    let insert: FrameEdit = |frames, at| frames.insert(at, plain(at));
    let hops: FrameEdit = |frames, at| {
        frames[at] = changed(&frames[at], |frame| {
            frame[22] -= 1;
            offload_formats::checksum::fill_ipv4_header(&mut frame[14..]);
        });
    };
    // Per change: the packets lost, and the number of joined packets that result.
    for (what, change, lost, apart) in [
        ("flipped", flip, 1, 2),
        ("lost", lose, 1, 2),
        ("doubled", double, 0, 2),
        ("swapped", swap, 0, 4),
        ("inserted", insert, 0, 2),
        ("further away", hops, 0, 3),
    ] {
        for receiver in OFFLOADED {
            let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Transport);
            let data = stream(10_000);
            let mut frames = from.send(tcp(false, &data, Some(MSS)));
            change(&mut frames, 4);
            let packets = receive(&mut to, frames);
            let bytes: usize = packets.iter().map(|packet| payload(&packet.frame).len()).sum();
            assert_eq!(bytes, data.len() - lost * usize::from(MSS), "{what}, {receiver:?}");
            // With packet offload, the device drops duplicates itself.
            let apart = if what == "doubled" && receiver == OffloadKind::Packet { 1 } else { apart };
            assert_eq!(packets.len(), apart, "{what}, {receiver:?}");
        }
    }
}

/// With packet offload, a tunnel's outer headers are removed before joining. With crypto offload they are still
/// present.
#[test]
fn outer_headers_separate_packets_with_crypto_offload() {
    for (receiver, packets) in [(OffloadKind::Crypto, 3), (OffloadKind::Packet, 1)] {
        let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Tunnel);
        let mut frames = from.send(tcp(false, &stream(10_000), Some(MSS)));
        frames[4] = changed(&frames[4], |frame| {
            frame[22] -= 1;
            offload_formats::checksum::fill_ipv4_header(&mut frame[14..]);
        });
        assert_eq!(receive(&mut to, frames).len(), packets, "{receiver:?}");
    }
}

#[test]
fn packets_of_two_sas_are_not_joined() {
    for receiver in OFFLOADED {
        for mode in MODES {
            let [mut from, mut to] = pair(OffloadKind::None, receiver, mode);
            let data = stream(10_000);
            let mut frames = from.send(tcp(false, &data, Some(MSS)));
            // The predecessor sends the first half, the successor the rest.
            frames.truncate(5);
            // The same stream continues under a successor whose numbers happen to continue too.
            let successor = |direction, offload| {
                let params = sa(direction, offload, mode, false);
                SaParams { spi: 0x1002, last_number: 5, ..params }
            };
            let mut heir = SecureEnd::new(1);
            heir.key(&[successor(Direction::Transmit, OffloadKind::None)]);
            to.key(&[successor(Direction::Receive, receiver)]);
            frames.extend(heir.send(part(&data, 5)));
            let packets = receive(&mut to, frames);
            assert_eq!(packets.len(), 2, "{receiver:?} {mode:?}");
            let bytes: Vec<u8> = packets.iter().flat_map(|packet| payload(&packet.frame)).copied().collect();
            assert_eq!(bytes, data);
        }
    }
}

/// A number that the host already opened from fragments may also be part of a joined packet.
#[test]
fn joined_packet_is_delivered_once_across_both_paths() {
    for receiver in OFFLOADED {
        let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Tunnel);
        let frames = from.send(tcp(false, &stream(5000), Some(MSS)));
        assert_eq!(receive(&mut to, fragments(&frames[2])).len(), 1);
        assert!(receive(&mut to, frames).is_empty(), "which of them is the one is not to be told");
        // All five joined packets are dropped, because the replay among them cannot be separated.
        assert_eq!(to.counted("XfrmInStateSeqError"), 5);
        assert_eq!(used(&mut to)[0].packets, 1);
    }
}

/// A packet that waits for joining is not overtaken within its SA: otherwise the host's window of 32 would move past
/// it.
#[test]
fn numbers_stay_in_order() {
    for receiver in OFFLOADED {
        for in_fragments in [false, true] {
            let [mut from, mut to] = [SecureEnd::new(1), SecureEnd::new(2)];
            let sa = |direction, kind| SaParams { replay_window: 32, ..sa(direction, kind, EspMode::Tunnel, false) };
            from.key(&[sa(Direction::Transmit, OffloadKind::None)]);
            to.key(&[sa(Direction::Receive, receiver)]);
            let mut stream_of_one = tcp(false, &stream(40_000), Some(MSS));
            // ACK only, so that the device still waits for more segments when the other flow's packet arrives.
            stream_of_one.header[47] = 0x10;
            let mut frames = from.send(stream_of_one);
            let mut of_another_flow = tcp(false, &stream(900), None);
            of_another_flow.header[35] ^= 1;
            let other = from.send(of_another_flow).remove(0);
            frames.extend(if in_fragments { fragments(&other) } else { vec![other] });
            let bytes: usize = receive(&mut to, frames).iter().map(|packet| payload(&packet.frame).len()).sum();
            assert_eq!(bytes, 40_900, "{receiver:?}, in fragments: {in_fragments}");
        }
    }
}

proptest! {
    /// The wire loses, duplicates, swaps and corrupts frames of two alternating SAs. After splitting, the stack's
    /// packets and the counters equal the results without a device.
    #[test]
    fn joining_delivers_the_same_stream(
        receiver in prop::sample::select(OFFLOADED.to_vec()),
        mode in prop::sample::select(MODES.to_vec()),
        ipv6: bool,
        packets in prop::collection::vec((1usize..5000, any::<bool>(), any::<bool>()), 1..12),
        changes in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..8),
    ) {
        let sas = |direction, offload| {
            let first = sa(direction, offload, mode, ipv6);
            [SaParams { spi: 0x1002, ..first.clone() }, first]
        };
        let mut senders = sas(Direction::Transmit, OffloadKind::None).map(|sa| {
            let mut end = SecureEnd::new(1);
            end.key(&[sa]);
            end
        });
        let mut frames = Vec::new();
        let mut seq = 7u32;
        for (bytes, second, push) in packets {
            let mut packet = tcp(ipv6, &stream(bytes), Some(MSS));
            let tcp_at = if ipv6 { 54 } else { 34 };
            packet.header[tcp_at + 4..tcp_at + 8].copy_from_slice(&seq.to_be_bytes());
            packet.header[tcp_at + 13] = if push { 0x18 } else { 0x10 };
            packet.ask.seq = offload_base::Seq(seq);
            frames.extend(senders[usize::from(second)].send(packet));
            seq += bytes as u32;
        }
        for (kind, at) in changes {
            let (at, last) = (at.index(frames.len()), frames.len() - 1);
            match kind {
                0 if frames.len() > 1 => drop(frames.remove(at)),
                1 => frames.insert(at, frames[at].clone()),
                2 => frames.swap(at, (at + 1).min(last)),
                _ => {
                    let end = frames[at].data.len() - 1;
                    frames[at] = changed(&frames[at], |frame| frame[end] ^= 0x10);
                }
            }
        }
        // The same frames reach a receiver with offload and one without.
        let outcomes = [receiver, OffloadKind::None].map(|kind| {
            let mut to = SecureEnd::new(2);
            to.key(&sas(Direction::Receive, kind));
            let packets = receive(&mut to, frames.clone());
            let segments: Vec<_> = packets.iter().flat_map(|packet| cut(packet, ipv6)).collect();
            (segments, used(&mut to))
        });
        prop_assert!(outcomes[0].0 == outcomes[1].0, "other segments");
        prop_assert_eq!(&outcomes[0].1, &outcomes[1].1);
    }
}

/// Splits a joined packet into sequence number, flags and payload of each segment.
fn cut(packet: &RxPacket, ipv6: bool) -> Vec<(u32, u8, Vec<u8>)> {
    let tcp = if ipv6 { 54 } else { 34 };
    let seq = u32::from_be_bytes(packet.frame[tcp + 4..tcp + 8].try_into().unwrap());
    let (flags, data) = (packet.frame[tcp + 13], payload(&packet.frame));
    let size = packet.joined.map_or(data.len(), |bytes| usize::from(bytes.get()));
    let last = data.len().div_ceil(size) - 1;
    let flags = move |at| if at == last { flags } else { flags & !8 };
    data.chunks(size).enumerate().map(|(at, chunk)| (seq + (at * size) as u32, flags(at), chunk.into())).collect()
}

fn changed(frame: &Frame, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut bytes = frame.data.to_vec();
    change(&mut bytes);
    Frame::new(Bytes::from(bytes))
}

/// Returns the packet with the part of `data` after its first `segments` segments.
fn part(data: &[u8], segments: u16) -> TxPacket {
    let before = usize::from(segments * MSS);
    let mut packet = tcp(false, &data[before..], Some(MSS));
    let seq = 7 + before as u32;
    packet.ask.seq = offload_base::Seq(seq);
    packet.header[38..42].copy_from_slice(&seq.to_be_bytes());
    packet
}

/// Returns segment `at` of the stream as an attacker without the key would forge it.
fn plain(at: usize) -> Frame {
    let mut end = SecureEnd::new(1);
    end.keying().set_default(Direction::Transmit, true);
    end.send(part(&stream(10_000)[..(at + 1) * usize::from(MSS)], at as u16)).remove(0)
}
