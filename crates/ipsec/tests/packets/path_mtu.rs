//! Routers that say that a packet was too big.

use crate::KINDS;
use crate::rig::{End, NOW, pair, tcp};
use ip_packets::Sum;
use nic_sim::frame::Frame;
use offload_api::{EspMode, FlowKey, NetDevice, OffloadKind, Sent};

/// "Fragmentation needed" about `frame`, from a router in between.
fn too_big(frame: &[u8], mtu: u16) -> Frame {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(&frame[14..50]);
    let mut sum = Sum::default();
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let mut told = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
    told.extend_from_slice(&(20 + message.len() as u16).to_be_bytes());
    told.extend_from_slice(&[0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
    told.extend_from_slice(&message);
    told.into()
}

fn mtu(end: &End) -> u16 {
    end.secure.path(&FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap())).mtu
}

#[test]
fn a_smaller_path_reaches_the_stack() {
    for kind in KINDS {
        for mode in [EspMode::Transport, EspMode::Tunnel] {
            let [mut from, mut to] = pair(kind, OffloadKind::None, mode);
            let (before, frame) = (mtu(&from), from.send(tcp(false, &[1; 1300], None)).remove(0));
            assert!(from.receive([too_big(&frame.data, 1300)]).is_empty());
            assert_eq!(mtu(&from), before - 200, "{kind:?} {mode:?}");
            let most = mtu(&from) - 40;
            let fits = from.send(tcp(false, &vec![2; usize::from(most) * 2], Some(most)));
            assert!(fits.iter().all(|frame| (1297..=1300).contains(&(frame.len() - 14))), "{kind:?} {mode:?}");
            let sent = from.secure.transmit(NOW, tcp(false, &[3; 3000], Some(most + 1)), &offload_api::NoRecords);
            assert_ne!(sent, Sent::Posted, "cut for the path as it was: to be cut anew");
            assert_eq!(to.receive(fits).len(), 2);
            assert_eq!(from.counted("ipsec_rx_path_mtu"), 1);
        }
    }
}

#[test]
fn what_quotes_no_packet_of_ours_says_nothing() {
    let [mut from, _] = pair(OffloadKind::None, OffloadKind::None, EspMode::Transport);
    let (before, frame) = (mtu(&from), from.send(tcp(false, &[1; 1000], None)).remove(0));
    let changed = |at: usize| {
        let mut frame = frame.data.to_vec();
        frame[at] ^= 0x11;
        too_big(&frame, 1300)
    };
    // A byte of the SPI, of the number, of the destination; and a wrong checksum.
    let mut wrong = too_big(&frame.data, 1300).data.to_vec();
    wrong[36] ^= 1;
    from.receive([changed(35), changed(40), changed(33), wrong.into()]);
    assert_eq!(mtu(&from), before);
    from.receive([too_big(&frame.data, 100)]);
    assert_eq!(mtu(&from), before - (1500 - 552), "no smaller than any path is");
    from.receive([too_big(&frame.data, 1400)]);
    assert_eq!(mtu(&from), before - (1500 - 552), "nobody makes it larger");
}
