//! The two receive paths of an SA: whole packets through the device, fragments through software.

use super::rig::{NOW, SecureEnd, pair, payload, sa, tcp};
use bytes::Bytes;
use core::time::Duration;
use ipsec::KeyingError;
use nic_sim::frame::Frame;
use offload_api::fragmentation::fragment;
use offload_api::{
    Direction, EspMode, NetDevice, NoRecords, OffloadKind, SaParams, TransmitResult, TxAsk, TxPacket, UdpEncapsulation,
};

/// Fragments a frame as a router with a smaller MTU does.
pub(crate) fn fragments(frame: &Frame) -> Vec<Frame> {
    let header = frame.data[..34].into();
    let fragments = [frame.data.slice(34..)].into_iter().collect();
    let packet = TxPacket { header, fragments, ask: TxAsk::default() };
    let cut = fragment(packet, 14, 700, 1).expect("it may be fragmented");
    assert!(cut.len() > 1);
    cut.into_iter()
        .map(|piece| Frame::new(Bytes::from([&piece.header[..], &piece.fragments.concat()].concat())))
        .collect()
}

fn sent(from: &mut SecureEnd, data: &[u8]) -> Frame {
    let mut frames = from.send(tcp(false, data, None));
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

#[test]
fn fragments_go_to_software_and_are_counted() {
    for receiver in [OffloadKind::Crypto, OffloadKind::Packet] {
        for mode in [EspMode::Transport, EspMode::Tunnel] {
            let [mut from, mut to] = pair(OffloadKind::None, receiver, mode);
            let frame = sent(&mut from, &[5; 1200]);
            let pieces = fragments(&frame);
            let count = pieces.len() as u64;
            let arrived = to.receive(pieces);
            assert_eq!(arrived.len(), 1);
            assert_eq!(payload(&arrived[0]), [5; 1200]);
            assert_eq!(to.counted("ipsec_rx_fragments"), count);
            assert_eq!((to.counted("ipsec_rx_fallback"), to.counted("ipsec_sw_rx_pkts")), (1, 1));
        }
    }
}

#[test]
fn packet_received_by_both_paths_is_delivered_once() {
    for receiver in [OffloadKind::Crypto, OffloadKind::Packet] {
        for fragments_first in [true, false] {
            let [mut from, mut to] = pair(OffloadKind::None, receiver, EspMode::Tunnel);
            let frame = sent(&mut from, &[6; 1200]);
            let (whole, pieces) = (vec![frame.clone()], fragments(&frame));
            let (first, second) = if fragments_first { (pieces, whole) } else { (whole, pieces) };
            assert_eq!(to.receive(first).len(), 1);
            assert_eq!(to.receive(second).len(), 0, "{receiver:?}");
            assert_eq!(to.counted("XfrmInStateSeqError"), 1, "{receiver:?}, fragments first: {fragments_first}");
        }
    }
}

/// The known weakness: while fragments wait for each other, whole packets overtake them through the device and move the replay
/// window past the fragments.
#[test]
fn fragments_overtaken_beyond_the_window_are_lost() {
    for overtaken_by in [60, 70] {
        let [mut from, mut to] = pair(OffloadKind::None, OffloadKind::Packet, EspMode::Tunnel);
        let frame = sent(&mut from, &[7; 1200]);
        let mut pieces = fragments(&frame);
        let last = pieces.pop();
        assert_eq!(to.receive(pieces).len(), 0, "not all there");
        for _ in 0..overtaken_by {
            let frame = sent(&mut from, &[8; 100]);
            assert_eq!(to.receive([frame]).len(), 1);
        }
        let late = to.receive(last).len();
        assert_eq!(late, usize::from(overtaken_by < 64), "a window of 64");
        // RFC 4303 A2.2: a number far behind the window is taken for one after the next 32-bit crossing, and fails
        // authentication.
        assert_eq!(to.counted("XfrmInStateProtoError"), 1 - late as u64);
    }
}

#[test]
fn device_drops_are_counted_by_reason() {
    for kind in super::KINDS {
        let [mut from, mut to] = pair(OffloadKind::None, kind, EspMode::Tunnel);
        let frames = from.send(tcp(false, b"hello", None));
        assert_eq!(to.receive([frames.clone(), frames].concat()).len(), 1);
        assert_eq!(to.counted("XfrmInStateSeqError"), 1, "{kind:?}");
        // RFC 4303 2.6: dummy packets are discarded silently.
        let mut dummy = tcp(false, b"nothing", None);
        dummy.header[23] = 59;
        let [mut from, mut to] = pair(kind, kind, EspMode::Transport);
        assert!(to.receive(from.send(dummy)).is_empty());
        assert_eq!(to.counted("ipsec_rx_dummy"), 1, "{kind:?}");
    }
}

/// RFC 6980: fragmented neighbour discovery is an attempt to evade filters.
#[test]
fn fragmented_neighbour_discovery_is_dropped() {
    let mut to = SecureEnd::new(2);
    to.key(&[]);
    let mut solicitation = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 44, 255];
    for number in [9, 2] {
        let core::net::IpAddr::V6(address) = super::rig::address(true, number) else {
            unreachable!("IPv6 was asked for")
        };
        solicitation.extend_from_slice(&address.octets());
    }
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &solicitation[38..54]].concat();
    let mut whole = solicitation.clone();
    (whole[19], whole[20]) = (24, 58);
    whole.extend_from_slice(&message);
    // Unfragmented neighbour discovery passes.
    assert_eq!(to.receive([whole.into()]).len(), 1);
    // An atomic fragment (RFC 6946), and two fragments.
    let fragment = |offset: u16, more: bool, text: &[u8]| -> Frame {
        let mut frame = solicitation.clone();
        frame[19] = 8 + text.len() as u8;
        frame.extend_from_slice(&[58, 0]);
        frame.extend_from_slice(&(offset | u16::from(more)).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 1 + more as u8]);
        frame.extend_from_slice(text);
        frame.into()
    };
    assert!(to.receive([fragment(0, false, &message)]).is_empty());
    let mut last = fragment(16, false, &message[16..]).data.to_vec();
    last[61] = 2;
    assert!(to.receive([fragment(0, true, &message[..16]), last.into()]).is_empty());
    assert_eq!(to.counted("ipsec_rx_nd_fragments"), 2);
}

/// RFC 3948 4: a keep-alive leaves only after an idle interval, to the peer of the last packet.
#[test]
fn idle_sa_in_udp_sends_keep_alives() {
    for (kind, ipv6) in
        [OffloadKind::None, OffloadKind::Packet].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let mut from = SecureEnd::new(1);
        let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 31_000 });
        let keep_alive = Some(Duration::from_secs(20));
        let params = sa(Direction::Transmit, kind, EspMode::Transport, ipv6);
        from.key(&[SaParams { encapsulation, keep_alive, ..params.clone() }]);
        let at = |seconds| NOW + Duration::from_secs(seconds);
        let timeout = |end: &mut SecureEnd, seconds| {
            end.secure.handle_timeout(at(seconds));
            end.frames()
        };
        assert_eq!(from.secure.next_event(), None, "it has not spoken to anybody");
        let spoken = from.send(tcp(ipv6, b"hello", None)).remove(0);
        assert_eq!(from.secure.next_event(), Some(at(20)));
        assert!(timeout(&mut from, 19).is_empty());
        let [first] = &timeout(&mut from, 20)[..] else { panic!("one keep-alive") };
        let ip = if ipv6 { 40 } else { 20 };
        assert_eq!(first.data[..12], spoken.data[..12], "on the same way");
        assert_eq!(first.data[14 + ip..18 + ip], [0x11, 0x94, 31_000u16.to_be_bytes()[0], 31_000u16.to_be_bytes()[1]]);
        assert_eq!(first.data[14 + ip + 8..], [0xff]);
        assert_eq!(from.secure.next_event(), Some(at(40)));
        // Any packet restarts the interval.
        assert_eq!(from.secure.transmit(at(30), tcp(ipv6, b"more", None), &NoRecords), TransmitResult::Posted);
        assert_eq!(from.frames().len(), 1);
        assert!(timeout(&mut from, 40).is_empty());
        assert_eq!(from.secure.next_event(), Some(at(50)));
        assert_eq!(timeout(&mut from, 50).len(), 1);
        assert_eq!(from.counted("ipsec_tx_keepalive"), 2, "{kind:?}");
        let sa = from.secure.sad().ids().next().unwrap();
        from.keying().delete_sa(sa).unwrap();
        assert_eq!(from.secure.next_event(), None);
        // An interval of zero would send keep-alives without pause.
        let never = SaParams { keep_alive: Some(Duration::ZERO), encapsulation, ..params };
        assert_eq!(from.keying().add_sa(NOW, never), Err(KeyingError::KeepAlive));
    }
}

#[test]
fn keep_alives_are_bounded_if_the_device_stalls() {
    let mut from = SecureEnd::new(1);
    let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
    let keep_alive = Some(Duration::from_secs(1));
    from.key(&[SaParams {
        encapsulation,
        keep_alive,
        ..sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, false)
    }]);
    assert_eq!(from.send(tcp(false, b"hello", None)).len(), 1);
    // The device is never processed, so its ring fills up.
    let seconds = 10_000;
    (1..=seconds).for_each(|seconds| from.secure.handle_timeout(NOW + Duration::from_secs(seconds)));
    let left = from.frames().len() as u64;
    assert!((1..seconds).contains(&left), "{left} is what the ring holds");
    assert_eq!(from.counted("ipsec_tx_keepalive"), left);
}

#[test]
fn received_keep_alive_is_consumed() {
    let [_, mut to] = pair(OffloadKind::None, OffloadKind::Packet, EspMode::Transport);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend_from_slice(&[0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0x66, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend_from_slice(&[0x11, 0x94, 0x11, 0x94, 0, 9, 0, 0, 0xff]);
    assert!(to.receive([Frame::new(frame.into())]).is_empty());
    assert_eq!(to.counted("ipsec_rx_keepalive"), 1);
}
