//! Policies that name ports, and fragments, most of which have no ports (RFC 4301 7).

use super::rig::{NOW, SecureEnd, address, datagram, frame, sa};
use super::{KINDS, MODES};
use nic_sim::frame::Frame;
use offload_api::{
    Action, Direction, EspMode, NetDevice, NoRecords, OffloadKind, Policy, SaParams, Selector, Template,
    TransmitResult, TxPacket,
};
use offload_formats::IpVersion;
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};

fn to_port(port: u16) -> Selector {
    Selector { protocol: Some(17), destination_port: Some(port), ..Selector::ANY }
}

fn add_policy(end: &mut SecureEnd, direction: Direction, selector: Selector, action: Action) {
    end.keying().add_policy(Policy { direction, selector, priority: 0, action }).unwrap();
}

fn template(mode: EspMode, ipv6: bool) -> Template {
    match mode {
        EspMode::Transport => Template::transport(1),
        EspMode::Tunnel => Template::tunnel(address(ipv6, 1), address(ipv6, 2), 1),
    }
}

/// Returns host 1, which protects packets to port 53 by an SA and bypasses all others.
fn sender(kind: OffloadKind, mode: EspMode, ipv6: bool) -> SecureEnd {
    let mut end = SecureEnd::new(1);
    end.keying().add_sa(NOW, sa(Direction::Transmit, kind, mode, ipv6)).unwrap();
    add_policy(&mut end, Direction::Transmit, to_port(53), Action::Protect(template(mode, ipv6)));
    end.keying().set_default(Direction::Transmit, true);
    end.drain();
    end
}

fn send_all(end: &mut SecureEnd, packets: Vec<TxPacket>) -> Vec<Frame> {
    packets.into_iter().flat_map(|packet| end.send(packet)).collect()
}

/// Returns the payload of UDP frames, reassembled if necessary.
fn text(ipv6: bool, frames: &[impl AsRef<[u8]>]) -> Option<Vec<u8>> {
    let headers = if ipv6 { 62 } else { 42 };
    let mut fragments =
        Reassembler::new(ReassemblyLimits::for_version(if ipv6 { IpVersion::V6 } else { IpVersion::V4 }));
    if let [one] = frames {
        return Some(one.as_ref()[headers..].to_vec());
    }
    frames.iter().find_map(|frame| match fragments.insert(NOW, frame.as_ref(), 14) {
        FragmentOutcome::Whole(whole) => Some(whole[headers..].to_vec()),
        _ => None,
    })
}

fn ways() -> impl Iterator<Item = (OffloadKind, EspMode, bool)> {
    let ways = KINDS.into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode)));
    ways.flat_map(|(kind, mode)| [(kind, mode, false), (kind, mode, true)])
}

#[test]
fn fragments_follow_a_policy_that_names_ports() {
    let secret = [b'S'; 1300];
    for (kind, mode, ipv6) in ways() {
        let what = format!("{kind:?} {mode:?}, IPv6: {ipv6}");
        let mut from = sender(kind, mode, ipv6);
        let mut to = SecureEnd::new(2);
        to.key(&[sa(Direction::Receive, OffloadKind::None, mode, ipv6)]);
        let fragments = datagram(ipv6, 53, &secret, 900);
        assert_eq!(fragments.len(), 2);
        let wire = send_all(&mut from, fragments);
        let shows = |frame: &Frame| frame.data.windows(8).any(|window| window == b"SSSSSSSS");
        assert!(!wire.is_empty() && !wire.iter().any(shows), "{what}");
        assert_eq!(text(ipv6, &to.receive(wire)).as_deref(), Some(&secret[..]), "{what}");
        // The last fragment is sent first.
        let wire: Vec<Frame> = send_all(&mut from, datagram(ipv6, 53, &secret, 900).into_iter().rev().collect());
        assert!(!wire.iter().any(shows), "{what}");
        assert_eq!(text(ipv6, &to.receive(wire)).as_deref(), Some(&secret[..]), "{what}");
    }
}

#[test]
fn oversized_packet_is_fragmented_again() {
    let long: Vec<u8> = (0..4000).map(|at| at as u8).collect();
    for ipv6 in [false, true] {
        for (kind, mode) in KINDS.into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode))) {
            let what = format!("{kind:?} {mode:?}, IPv6: {ipv6}");
            let mut from = sender(kind, mode, ipv6);
            let mut to = SecureEnd::new(2);
            to.key(&[sa(Direction::Receive, OffloadKind::None, mode, ipv6)]);
            // In a tunnel, each fragment has its own ESP header.
            let in_its_place = kind != OffloadKind::None && mode == EspMode::Transport;
            // Between large packets, small ones use the device's numbers in packet offload.
            for payload in [&b"before"[..], &long, b"after", &long, b"end"] {
                let wire = send_all(&mut from, datagram(ipv6, 53, payload, 1500));
                assert_eq!(text(ipv6, &to.receive(wire)).as_deref(), Some(payload), "{what}");
            }
            assert_eq!(from.counted("ipsec_tx_fallback") > 0, in_its_place, "{what}");
            // This policy bypasses ESP.
            let wire = send_all(&mut from, datagram(ipv6, 80, &long, 1400));
            let frames: Vec<_> = wire.iter().map(|frame| frame.data.clone()).collect();
            assert_eq!(text(ipv6, &frames).as_deref(), Some(&long[..]), "{what}");
        }
    }
}

#[test]
fn policy_may_permit_a_single_port() {
    for ipv6 in [false, true] {
        let mut end = SecureEnd::new(1);
        add_policy(&mut end, Direction::Transmit, to_port(53), Action::Bypass);
        assert_eq!(send_all(&mut end, datagram(ipv6, 53, &[1; 2000], 1400)).len(), 2);
        let fragments = datagram(ipv6, 80, &[1; 2000], 1400);
        let last = fragments.into_iter().map(|packet| end.secure.transmit(NOW, packet, &NoRecords)).last();
        assert!(matches!(last, Some(TransmitResult::Dropped(_))), "{last:?}");
        assert!(end.frames().is_empty());
        assert_eq!(end.counted("XfrmOutPolBlock"), 1);
    }
}

#[test]
fn tunnel_fragments_cannot_bypass_a_policy_for_the_packet() {
    for (kind, mode, ipv6) in ways().filter(|(_, mode, _)| *mode == EspMode::Tunnel) {
        let what = format!("{kind:?} {mode:?}, IPv6: {ipv6}");
        let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
        from.key(&[sa(Direction::Transmit, OffloadKind::None, mode, ipv6)]);
        to.key(&[sa(Direction::Receive, kind, mode, ipv6)]);
        add_policy(&mut to, Direction::Receive, to_port(53), Action::Discard);
        let wire = send_all(&mut from, datagram(ipv6, 53, &[b'S'; 1300], 900));
        assert_eq!(wire.len(), 2, "{what}");
        assert!(to.receive(wire).is_empty(), "{what}");
        assert_eq!(to.counted("XfrmInPolBlock"), 1, "{what}");
        let wire = send_all(&mut from, datagram(ipv6, 80, &[b'S'; 1300], 900));
        assert_eq!(text(ipv6, &to.receive(wire)).as_deref(), Some(&[b'S'; 1300][..]), "{what}");
    }
}

#[test]
fn received_fragments_do_not_complete_sent_packets() {
    for ipv6 in [false, true] {
        // The SA database does not show that the address belongs to this host.
        let mut end = SecureEnd::new(1);
        add_policy(&mut end, Direction::Transmit, to_port(53), Action::Bypass);
        let mut fragments = datagram(ipv6, 53, &[b'S'; 1300], 900);
        let mut evil = fragments.pop().unwrap();
        evil.header = [&[2, 0, 0, 0, 0, 1][..], &evil.header[6..]].concat()[..].into();
        assert!(end.receive([frame(&evil)]).is_empty());
        let sent = end.secure.transmit(NOW, fragments.remove(0), &NoRecords);
        assert_eq!((sent, end.frames().len()), (TransmitResult::Posted, 0), "it waits for a fragment of its own");
    }
}

#[test]
fn fragments_of_two_tunnels_are_not_joined() {
    for (kind, ipv6) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let honest = |direction, kind| sa(direction, kind, EspMode::Tunnel, ipv6);
        let evil = |direction, kind| SaParams { spi: 0x6666, source: address(ipv6, 3), ..honest(direction, kind) };
        let (mut from, mut other, mut to) = (SecureEnd::new(1), SecureEnd::new(3), SecureEnd::new(2));
        from.key(&[honest(Direction::Transmit, OffloadKind::None)]);
        other.key(&[evil(Direction::Transmit, OffloadKind::None)]);
        to.key(&[honest(Direction::Receive, kind)]);
        to.keying().add_sa(NOW, evil(Direction::Receive, kind)).unwrap();
        to.drain();
        add_policy(&mut to, Direction::Receive, to_port(53), Action::Discard);
        let [first, last] = &datagram(ipv6, 80, &[b'S'; 1300], 900)[..] else { panic!("two fragments") };
        assert!(to.receive(other.send(last.clone())).is_empty());
        assert!(to.receive(from.send(first.clone())).is_empty(), "{kind:?}, IPv6: {ipv6}");
        assert_eq!(to.receive(from.send(last.clone())).len(), 1, "{kind:?}, IPv6: {ipv6}");
    }
}
