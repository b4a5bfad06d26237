//! ESP packets that arrive before their SA, because the peer uses a successor that this host's keying daemon has not
//! added yet.

use super::rig::{NOW, SecureEnd, pair, payload, sa, tcp};
use super::{KINDS, MODES};
use core::time::Duration;
use nic_sim::frame::Frame;
use offload_api::{Direction, EspKey, EspMode, EspSuite, NetDevice, OffloadKind, SaParams};
use offload_base::Instant;

fn successor(direction: Direction, offload: OffloadKind, mode: EspMode) -> SaParams {
    let key = EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap();
    SaParams { spi: 0x1002, key, ..sa(direction, offload, mode, false) }
}

/// Returns a sender, a receiver that lacks the successor SA, and packets sent by that SA.
fn before(offload: OffloadKind, mode: EspMode, packets: usize, bytes: usize) -> (SecureEnd, SecureEnd, Vec<Frame>) {
    let [mut from, to] = pair(OffloadKind::None, offload, mode);
    from.key(&[successor(Direction::Transmit, OffloadKind::None, mode)]);
    let frames = (0..packets).flat_map(|number| from.send(tcp(false, &vec![number as u8; bytes], None))).collect();
    (from, to, frames)
}

fn after(milliseconds: u64) -> Instant {
    NOW + Duration::from_millis(milliseconds)
}

/// Returns the payload byte that identifies each packet.
fn numbers(arrived: &[Vec<u8>]) -> Vec<u8> {
    arrived.iter().map(|frame| payload(frame)[0]).collect()
}

#[test]
fn packet_that_precedes_its_sa_is_opened_later() {
    for mode in MODES {
        for kind in KINDS {
            let (mut from, mut to, frames) = before(kind, mode, 3, 100);
            assert!(to.receive(frames.clone()).is_empty());
            assert_eq!((to.counted("ipsec_rx_held"), to.counted("XfrmInNoStates")), (3, 0));
            to.key(&[successor(Direction::Receive, kind, mode)]);
            assert_eq!(numbers(&to.receive([])), [0, 1, 2], "{mode:?}, {kind:?}");
            assert_eq!(to.counted("ipsec_rx_held_opened"), 3);
            // Kept packets are marked as received when opened, so copies are replays. Later packets are new.
            assert!(to.receive(frames).is_empty(), "{mode:?}, {kind:?}");
            let next = from.send(tcp(false, &[9; 100], None));
            assert_eq!(numbers(&to.receive(next)), [9], "{mode:?}, {kind:?}");
            assert_eq!(to.counted("XfrmInNoStates"), 0);
            to.secure.handle_timeout(after(10_000));
            assert_eq!(to.counted("XfrmInNoStates"), 0, "nothing waits any more");
        }
    }
}

#[test]
fn kept_packets_expire_soon() {
    let (_, mut to, frames) = before(OffloadKind::None, EspMode::Transport, 2, 100);
    to.receive(frames);
    let end = to.secure.next_event().expect("their time ends");
    assert_eq!(end, after(500));
    to.secure.handle_timeout(after(499));
    assert_eq!(to.counted("XfrmInNoStates"), 0);
    to.secure.handle_timeout(end);
    assert_eq!((to.counted("XfrmInNoStates"), to.secure.next_event()), (2, None));
    to.key(&[successor(Direction::Receive, OffloadKind::None, EspMode::Transport)]);
    assert!(to.receive([]).is_empty());
}

#[test]
fn kept_packets_are_bounded() {
    let (_, mut to, frames) = before(OffloadKind::None, EspMode::Transport, 1030, 100);
    frames.chunks(100).for_each(|some| drop(to.receive(some.to_vec())));
    assert_eq!((to.counted("ipsec_rx_held"), to.counted("XfrmInNoStates")), (1030, 6));
    to.key(&[successor(Direction::Receive, OffloadKind::None, EspMode::Transport)]);
    let arrived = numbers(&to.receive([]));
    assert_eq!((arrived.len(), arrived[0]), (1024, 6), "the oldest gave way");
    let (_, mut to, frames) = before(OffloadKind::None, EspMode::Transport, 1000, 1300);
    let longest = frames[0].data.len();
    frames.chunks(100).for_each(|some| drop(to.receive(some.to_vec())));
    let held = 1000 - to.counted("XfrmInNoStates") as usize;
    assert_eq!(held, (1 << 20) / longest, "1 MiB");
}

#[test]
fn only_packets_of_known_senders_wait_and_forgeries_fail() {
    let (_, mut to, frames) = before(OffloadKind::None, EspMode::Transport, 1, 100);
    let changed = |at: usize, to: u8| {
        let mut bytes = frames[0].data.to_vec();
        bytes[at] = to;
        bytes[24..26].fill(0);
        offload_formats::checksum::fill_ipv4_header(&mut bytes[14..]);
        Frame::from(bytes)
    };
    // A sender that has no other SA here is not waited for.
    to.receive([changed(29, 77)]);
    assert_eq!((to.counted("ipsec_rx_held"), to.counted("XfrmInNoStates")), (0, 1));
    // A forgery with the right SPI and addresses is kept too, and fails authentication when opened.
    to.receive([changed(60, 1), frames[0].clone(), frames[0].clone()]);
    to.key(&[successor(Direction::Receive, OffloadKind::None, EspMode::Transport)]);
    assert_eq!(to.receive([]).len(), 1);
    assert_eq!((to.counted("XfrmInStateProtoError"), to.counted("XfrmInStateSeqError")), (1, 1));
}
