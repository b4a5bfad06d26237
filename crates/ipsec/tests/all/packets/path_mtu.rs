//! "Too big" messages from routers.

use super::rig::{NOW, SecureEnd, address, sa, tcp};
use super::{KINDS, MODES};
use core::time::Duration;
use nic_sim::frame::Frame;
use offload_api::{Direction, EspMode, FlowKey, NetDevice, OffloadKind, SaParams, TransmitResult};
use offload_formats::InternetSum;

/// Builds "fragmentation needed" or "packet too big" about `frame`, from a router on the path.
pub(crate) fn too_big(frame: &[u8], mtu: u16) -> Frame {
    let mut told = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];
    if frame[12] == 8 {
        let message = message([3, 4], mtu, &frame[14..50], InternetSum::default());
        told.extend_from_slice(&[8, 0, 0x45, 0]);
        told.extend_from_slice(&(20 + message.len() as u16).to_be_bytes());
        told.extend_from_slice(&[0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
        offload_formats::checksum::fill_ipv4_header(&mut told[14..]);
        told.extend_from_slice(&message);
    } else {
        let (router, to) = (address(true, 9), address(true, 1));
        let quoted = &frame[14..frame.len().min(14 + 1232)];
        let message = message([2, 0], mtu, quoted, InternetSum::pseudo_header(58, router, to, 8 + quoted.len()));
        told.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        told.extend_from_slice(&(message.len() as u16).to_be_bytes());
        told.extend_from_slice(&[58, 64]);
        for address in [router, to] {
            let core::net::IpAddr::V6(address) = address else { unreachable!("IPv6 was asked for") };
            told.extend_from_slice(&address.octets());
        }
        told.extend_from_slice(&message);
    }
    told.into()
}

fn message(kind: [u8; 2], mtu: u16, quoted: &[u8], mut sum: InternetSum) -> Vec<u8> {
    let mut message = [&kind[..], &[0; 4], &mtu.to_be_bytes(), quoted].concat();
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    message
}

fn mtu(end: &SecureEnd, ipv6: bool) -> u16 {
    let of = |number, port| (address(ipv6, number), port).into();
    end.secure.path(&FlowKey::tcp(of(1, 5000), of(2, 80))).mtu
}

/// Returns ends with an SA from the first to the second, with the first device's offload of this kind.
fn ends(sender: OffloadKind, mode: EspMode, ipv6: bool) -> [SecureEnd; 2] {
    let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
    ends[0].key(&[sa(Direction::Transmit, sender, mode, ipv6)]);
    ends[1].key(&[sa(Direction::Receive, OffloadKind::None, mode, ipv6)]);
    ends
}

#[test]
fn smaller_path_mtu_reaches_the_stack() {
    let ways = KINDS.into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode)));
    for ((kind, mode), ipv6) in ways.flat_map(|way| [(way, false), (way, true)]) {
        let what = format!("{kind:?} {mode:?}, IPv6: {ipv6}");
        let [mut from, mut to] = ends(kind, mode, ipv6);
        let (before, frame) = (mtu(&from, ipv6), from.send(tcp(ipv6, &[1; 1300], None)).remove(0));
        assert!(from.receive([too_big(&frame.data, 1300)]).is_empty());
        assert_eq!(mtu(&from, ipv6), before - 200, "{what}");
        let most = mtu(&from, ipv6) - if ipv6 { 60 } else { 40 };
        let fits = from.send(tcp(ipv6, &vec![2; usize::from(most) * 2], Some(most)));
        assert!(fits.iter().all(|frame| (1297..=1300).contains(&(frame.len() - 14))), "{what}");
        let sent = from.secure.transmit(NOW, tcp(ipv6, &[3; 3000], Some(most + 1)), &offload_api::NoRecords);
        assert_ne!(sent, TransmitResult::Posted, "cut for the path as it was: to be cut anew");
        assert_eq!(to.receive(fits).len(), 2, "{what}");
        assert_eq!(from.counted("ipsec_rx_path_mtu"), 1);
    }
}

#[test]
fn reported_path_mtu_expires_after_ten_minutes() {
    for (kind, ipv6) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let [mut from, _] = ends(kind, EspMode::Tunnel, ipv6);
        let (before, frame) = (mtu(&from, ipv6), from.send(tcp(ipv6, &[1; 1000], None)).remove(0));
        assert_eq!(from.secure.next_event(), None);
        from.receive([too_big(&frame.data, 1300)]);
        let epoch = |end: &SecureEnd| {
            end.secure.path(&FlowKey::tcp((address(ipv6, 1), 5000).into(), (address(ipv6, 2), 80).into())).epoch
        };
        let (small, then) = (mtu(&from, ipv6), epoch(&from));
        assert_eq!(from.secure.next_event(), Some(NOW + Duration::from_secs(600)));
        from.secure.handle_timeout(NOW + Duration::from_secs(599));
        assert_eq!((mtu(&from, ipv6), epoch(&from)), (small, then));
        from.secure.handle_timeout(NOW + Duration::from_secs(600));
        assert!((mtu(&from, ipv6), from.secure.next_event()) == (before, None) && epoch(&from) != then, "{kind:?}");
        from.receive([too_big(&frame.data, 1300)]);
        assert_eq!(mtu(&from, ipv6), small, "it says so again");
    }
}

#[test]
fn report_about_a_foreign_packet_is_ignored() {
    // Offsets of SPI, number and destination in the quoted packet, and of the checksum of the message.
    for (ipv6, [spi, number, destination, checksum], least) in
        [(false, [35, 40, 33, 36], 552), (true, [55, 60, 53, 56], 1280)]
    {
        let [mut from, _] = ends(OffloadKind::None, EspMode::Transport, ipv6);
        let (before, frame) = (mtu(&from, ipv6), from.send(tcp(ipv6, &[1; 1000], None)).remove(0));
        let changed = |at: usize| {
            let mut frame = frame.data.to_vec();
            frame[at] ^= 0x11;
            too_big(&frame, 1300)
        };
        let mut wrong = too_big(&frame.data, 1300).data.to_vec();
        wrong[checksum] ^= 1;
        from.receive([changed(spi), changed(number), changed(destination), wrong.into()]);
        assert_eq!(mtu(&from, ipv6), before);
        from.receive([too_big(&frame.data, 100)]);
        assert_eq!(mtu(&from, ipv6), before - (1500 - least), "no smaller than any path is");
        from.receive([too_big(&frame.data, 1400)]);
        assert_eq!(mtu(&from, ipv6), before - (1500 - least), "nobody makes it larger");
    }
}

#[test]
fn report_about_an_old_packet_is_ignored() {
    const LATELY: u32 = 1 << 16;
    for ipv6 in [false, true] {
        let mut from = SecureEnd::new(1);
        let before = 10 * u64::from(LATELY);
        let params = sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, ipv6);
        from.key(&[SaParams { last_number: before, ..params }]);
        let (whole, frame) = (mtu(&from, ipv6), from.send(tcp(ipv6, &[1; 1000], None)).remove(0));
        let number = before as u32 + 1;
        let about = |number: u32| {
            let (mut quoted, at) = (frame.data.to_vec(), if ipv6 { 58 } else { 38 });
            quoted[at..at + 4].copy_from_slice(&number.to_be_bytes());
            too_big(&quoted, 1300)
        };
        from.receive([about(1), about(number - 2 * LATELY), about(number - LATELY), about(number + 1)]);
        assert_eq!(mtu(&from, ipv6), whole, "long ago, or never, IPv6: {ipv6}");
        from.receive([about(number - LATELY + 1)]);
        assert_eq!(mtu(&from, ipv6), whole - 200, "lately, IPv6: {ipv6}");
    }
}
