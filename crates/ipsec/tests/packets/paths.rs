//! Two paths for packets of one SA: whole ones through the device, fragments through software.

use crate::rig::{End, pair, payload, tcp};
use bytes::Bytes;
use nic_sim::frame::Frame;
use offload_api::{EspMode, OffloadKind, TxAsk, TxPacket};

/// A frame as a router on its way with a smaller MTU passes it on.
pub(crate) fn fragments(frame: &Frame) -> Vec<Frame> {
    let header = frame.data[..34].into();
    let fragments = [frame.data.slice(34..)].into_iter().collect();
    let packet = TxPacket { header, fragments, ask: TxAsk::default() };
    let cut = ip_packets::fragment(packet, 14, 700, 1).expect("it may be fragmented");
    assert!(cut.len() > 1);
    cut.into_iter()
        .map(|piece| Frame::new(Bytes::from([&piece.header[..], &piece.fragments.concat()].concat())))
        .collect()
}

fn sent(from: &mut End, data: &[u8]) -> Frame {
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
fn a_packet_that_comes_by_both_paths_is_delivered_once() {
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

/// The hazard: fragments wait for each other while whole packets overtake them through the device, and move the window
/// past them.
#[test]
fn fragments_that_are_overtaken_by_more_than_the_window_are_lost() {
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
        // RFC 4303 A2.2: a number so far back is taken for one from beyond the next crossing, and does not open then.
        assert_eq!(to.counted("XfrmInStateProtoError"), 1 - late as u64);
    }
}

#[test]
fn a_keep_alive_goes_no_further() {
    let [_, mut to] = pair(OffloadKind::None, OffloadKind::Packet, EspMode::Transport);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend_from_slice(&[0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0x66, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend_from_slice(&[0x11, 0x94, 0x11, 0x94, 0, 9, 0, 0, 0xff]);
    assert!(to.receive([Frame::new(frame.into())]).is_empty());
    assert_eq!(to.counted("ipsec_rx_keepalive"), 1);
}
