//! Packet tests: the bytes that each kind of offload sends, and the handling of each received packet.

mod answers;
mod bad_wire;
mod datagrams;
mod events;
mod fragments;
mod held;
mod hostile;
mod joined;
mod keys;
mod lifecycle;
mod never_plain;
mod passed;
mod path_mtu;
mod paths;
mod policies;
mod queues;
mod refused;
mod rig;
mod scale;

use ipsec::SaEvent;
use nic_sim::wire::Port;
use offload_api::{
    ContextRefusal, Direction, EspKey, EspMode, EspSuite, FlowKey, NetDevice, OffloadKind, SaParams, TlsKey, TlsSuite,
    TlsVersion, TypedContexts, UdpEncapsulation,
};
use offload_base::Seq;
use proptest::prelude::*;
use rig::{NOW, SecureEnd, pair, payload, sa, tcp};

const KINDS: [OffloadKind; 3] = [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet];
const MODES: [EspMode; 2] = [EspMode::Transport, EspMode::Tunnel];

proptest! {
    /// The explicit IV is the 64-bit sequence number, so the wire does not show which component encrypted.
    #[test]
    fn all_offloads_put_the_same_bytes_on_the_wire(
        // 1358 is the largest segment that fits IPv6 in a tunnel in UDP over IPv6.
        payloads in prop::collection::vec((0usize..6000, 200u16..=1358), 1..5),
        mode in prop::sample::select(MODES.to_vec()),
        ipv6: bool,
        first in prop::sample::select(vec![0u64, 0xffff_fffd]),
        suite in prop::sample::select(vec![
            EspSuite::Aes128Gcm, EspSuite::Aes256Gcm, EspSuite::ChaCha20Poly1305, EspSuite::Aes128Gmac, EspSuite::Aes256Gmac,
        ]),
        udp: bool,
    ) {
        let mut wires = Vec::new();
        let encapsulation = udp.then_some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
        for kind in KINDS {
            let mut end = SecureEnd::new(1);
            let kind = taken(kind, encapsulation);
            let key = EspKey::new(suite, &vec![7; suite.key_len() + 4]).unwrap();
            let params = sa(Direction::Transmit, kind, mode, ipv6);
            end.key(&[SaParams { last_number: first, key, encapsulation, ..params }]);
            let mut wire = Vec::new();
            for (bytes, mss) in &payloads {
                let data: Vec<u8> = (0..*bytes).map(|at| at as u8).collect();
                wire.extend(end.send(tcp(ipv6, &data, Some(*mss))).into_iter().map(|frame| frame.data));
            }
            prop_assert_eq!(end.counted("ipsec_tx_fallback"), 0);
            prop_assert_eq!(end.counted("ipsec_sw_tx_pkts") > 0, kind == OffloadKind::None);
            wires.push(wire);
        }
        prop_assert!(wires[0] == wires[1], "crypto offload");
        prop_assert!(wires[0] == wires[2], "packet offload");
    }
}

/// Returns the kind of offload that a device accepts: ESP in UDP only with packet offload.
fn taken(kind: OffloadKind, encapsulation: Option<UdpEncapsulation>) -> OffloadKind {
    if encapsulation.is_some() && kind == OffloadKind::Crypto { OffloadKind::None } else { kind }
}

#[test]
fn every_receiver_opens_packets_of_every_sender() {
    let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
    let gmac = EspKey::new(EspSuite::Aes128Gmac, &[7; 20]).unwrap();
    let gcm = sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, false).key;
    let ways = MODES.into_iter().flat_map(|mode| [(mode, None), (mode, encapsulation)]);
    let ways = ways.flat_map(|(mode, udp)| [(mode, udp, gcm.clone()), (mode, udp, gmac.clone())]);
    for (mode, encapsulation, key) in ways {
        for (sender, receiver) in KINDS.into_iter().flat_map(|sender| KINDS.map(|receiver| (sender, receiver))) {
            let what = format!("{sender:?} to {receiver:?}, {mode:?}, {encapsulation:?}, {:?}", key.suite());
            let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
            let [sender, receiver] = [sender, receiver].map(|kind| taken(kind, encapsulation));
            for (end, direction, kind) in [(0, Direction::Transmit, sender), (1, Direction::Receive, receiver)] {
                ends[end].key(&[SaParams { encapsulation, key: key.clone(), ..sa(direction, kind, mode, false) }]);
            }
            // Long enough for several segments.
            let data: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
            let sent = ends[0].send(tcp(false, &data, Some(1300)));
            let arrived = ends[1].receive(sent);
            let bytes: Vec<u8> = arrived.iter().flat_map(|frame| payload(frame)).copied().collect();
            assert!(bytes == data, "{what}");
            for (end, way, kind) in [(0, "tx", sender), (1, "rx", receiver)] {
                let by_host = ends[end].counted(&format!("ipsec_sw_{way}_pkts"));
                assert_eq!(by_host > 0, kind == OffloadKind::None, "{what}");
            }
        }
    }
}

/// For late, duplicated and lost packets, the device's wide window decides as the host's window does.
#[test]
fn wide_window_of_the_device_equals_the_hosts() {
    let mut order = offload_base::Seed(5).stream("late packets");
    for window in [32, 256, 512, 4096] {
        let params =
            |direction, kind| SaParams { replay_window: window, ..sa(direction, kind, EspMode::Transport, false) };
        let mut from = SecureEnd::new(1);
        from.key(&[params(Direction::Transmit, OffloadKind::None)]);
        let frames: Vec<_> = (0..6000).flat_map(|_| from.send(tcp(false, b"one of many", None))).collect();
        let takes = |kind, shown: &[usize]| {
            let mut to = SecureEnd::new(2);
            to.key(&[params(Direction::Receive, kind)]);
            let arrived = shown.iter().map(|at| to.receive([frames[*at].clone()]).len()).collect::<Vec<_>>();
            assert_eq!(to.counted("ipsec_sw_rx_pkts") > 0, kind == OffloadKind::None);
            arrived
        };
        let mut shown = Vec::new();
        for step in 0..1500usize {
            let back = (order.next_u64() % (2 * u64::from(window))) as usize;
            shown.push((4 * step).saturating_sub(back));
        }
        // The two windows see the same packets, so their decisions are equal.
        assert_eq!(takes(OffloadKind::Packet, &shown), takes(OffloadKind::None, &shown), "{window}");
    }
}

#[test]
fn packet_refused_by_the_device_uses_no_number() {
    let [mut from, mut to] = pair(OffloadKind::Crypto, OffloadKind::None, EspMode::Transport);
    let mut frames = from.send(tcp(false, b"first", None));
    // No device paces ESP packets, so this request is refused.
    let mut refused = tcp(false, b"second", None);
    refused.ask.rate = core::num::NonZeroU64::new(1_000_000);
    frames.extend(from.send(refused));
    frames.extend(from.send(tcp(false, b"third", None)));
    assert_eq!(from.counted("ipsec_tx_fallback"), 1);
    assert_eq!(from.counted("tx_ipsec_refused") + from.counted("tx_drop_unsupported"), 1);
    let numbers: Vec<u8> = frames.iter().map(|frame| frame.data[41]).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(to.receive(frames).len(), 3);
}

#[test]
fn reset_repeats_no_number() {
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        let [mut from, mut to] = pair(kind, OffloadKind::None, EspMode::Tunnel);
        let mut frames = from.send(tcp(false, &[1; 4000], Some(1300)));
        from.device.reset(NOW);
        from.device.process(NOW);
        assert_eq!(from.secure.poll_event(), Some(offload_api::DeviceEvent::Reset));
        assert!(matches!(from.events()[..], [SaEvent::OffloadLost { .. }]));
        frames.extend(from.send(tcp(false, &[2; 4000], Some(1300))));
        // The host continues after the highest number that the device can have used.
        let numbers: Vec<u8> = frames.iter().map(|frame| frame.data[41]).collect();
        assert_eq!(numbers, (1..=numbers.len() as u8).collect::<Vec<_>>(), "{kind:?}");
        assert_eq!(to.receive(frames).len(), 8);
        assert!(from.counted("ipsec_sw_tx_pkts") > 0);
    }
}

#[test]
fn device_counts_lifetimes() {
    use offload_api::{Lifetime, Limit, Limits};
    let limits = |packets| Limits { packets: Some(packets), ..Limits::default() };
    let lifetime = Lifetime { soft: limits(3), hard: limits(6) };
    for direction in [Direction::Transmit, Direction::Receive] {
        let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
        let whole = |own| if own == direction { OffloadKind::Packet } else { OffloadKind::None };
        let params = |own| {
            let params = sa(own, whole(own), EspMode::Transport, false);
            if own == direction { SaParams { lifetime, ..params } } else { params }
        };
        ends[0].key(&[params(Direction::Transmit)]);
        ends[1].key(&[params(Direction::Receive)]);
        // Only this end has a lifetime, and its device counts.
        let counting = usize::from(direction == Direction::Receive);
        let (mut arrived, mut told) = (0, Vec::new());
        for _ in 0..10 {
            let _ = ends[0].secure.transmit(NOW, tcp(false, b"x", None), &offload_api::NoRecords);
            let frames = ends[0].frames();
            arrived += ends[1].receive(frames).len();
            ends[counting].drain();
            told.extend(ends[counting].events());
        }
        assert_eq!(arrived, 6, "{direction:?}");
        assert!(
            matches!(
                told[..2],
                [SaEvent::SoftLimit { limit: Limit::Packets, .. }, SaEvent::HardLimit { limit: Limit::Packets, .. }]
            ),
            "{told:?}"
        );
    }
}

#[test]
fn tls_of_a_protected_flow_stays_in_software() {
    let [mut from, _] = pair(OffloadKind::Packet, OffloadKind::Packet, EspMode::Transport);
    let flow = FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[1; 16], [2; 12]).unwrap();
    let mut tls = from.secure.tls().expect("for flows that pass as they are");
    assert_eq!(tls.add(&flow, Direction::Transmit, Seq(7), 0, &key), Err(ContextRefusal::Path));
}

#[test]
fn bypassed_tls_context_can_be_removed() {
    let mut end = SecureEnd::new(1);
    end.keying().set_default(Direction::Receive, true);
    end.keying().set_default(Direction::Transmit, true);
    let flow = FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[1; 16], [2; 12]).unwrap();
    let handle = end.secure.tls().unwrap().add(&flow, Direction::Receive, Seq(7), 0, &key).unwrap();
    // The device removes a context only after the driver has processed its events.
    let contexts = |end: &mut SecureEnd| {
        for _ in 0..4 {
            end.device.process(NOW);
            assert!(end.device.poll_frame(NOW).is_none());
            while end.secure.poll_event().is_some() {}
        }
        end.device.contexts()
    };
    assert_eq!(contexts(&mut end), 1);
    end.secure.tls().unwrap().remove(handle);
    assert_eq!(contexts(&mut end), 0);
}

#[test]
fn traffic_stops_when_its_sa_is_deleted() {
    for kind in KINDS {
        let mut from = SecureEnd::new(1);
        from.key(&[sa(Direction::Transmit, kind, EspMode::Transport, false)]);
        assert_eq!(from.send(tcp(false, b"protected", None)).len(), 1);
        let id = from.secure.sad().ids().next().unwrap();
        from.keying().delete_sa(id).unwrap();
        let sent = from.secure.transmit(NOW, tcp(false, b"never", None), &offload_api::NoRecords);
        assert_ne!(sent, offload_api::TransmitResult::Posted, "{kind:?}");
        assert!(from.frames().is_empty(), "{kind:?}");
        assert_eq!(from.counted("XfrmOutNoStates"), 1);
    }
}
