//! Refusals and their counters: SAs that a device does not take, invalid SAs, and packets without an SA.

use super::rig::{NOW, SecureEnd, address, datagram, frame, sa, tcp};
use super::{KINDS, MODES};
use ipsec::KeyingError;
use nic_sim::{EspEngineConfig, NicConfig};
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, Lifetime, Limits, NetDevice, NoRecords, OffloadKind, Policy,
    SaParams, SaRefusal, Selector, Template, TransmitResult, TxAsk, TxPacket, UdpEncapsulation,
};

const UDP: Option<UdpEncapsulation> = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });

/// Returns an end with an SA between host 1 and host 2, and the device's reason for refusing the SA.
fn end(config: NicConfig, params: &SaParams) -> (SecureEnd, Option<SaRefusal>) {
    let mut end = SecureEnd::with(if params.direction == Direction::Transmit { 1 } else { 2 }, config);
    let template = match params.mode {
        EspMode::Transport => Template::transport(params.reqid),
        EspMode::Tunnel => Template::tunnel(address(false, 1), address(false, 2), params.reqid),
    };
    let action = Action::Protect(template);
    end.keying()
        .add_policy(Policy { direction: params.direction, selector: Selector::ANY, priority: 0, action })
        .unwrap();
    let added = end.keying().add_sa(NOW, params.clone()).unwrap();
    assert_eq!(end.secure.offloaded(added.sa) == params.offload, added.refused.is_none());
    end.drain();
    (end, added.refused)
}

#[test]
fn software_takes_sas_that_the_device_refuses() {
    let (out, into) = (Direction::Transmit, Direction::Receive);
    let of = |direction, offload, mode| sa(direction, offload, mode, false);
    let packets = |packets| Limits { packets: Some(packets), ..Limits::default() };
    let bytes = |bytes| Limits { bytes: Some(bytes), ..Limits::default() };
    let none = NicConfig { engines: EspEngineConfig { sas: 0 }.into(), ..NicConfig::default() };
    let mut cases = Vec::new();
    for direction in [out, into] {
        for mode in MODES {
            for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
                let plain = of(direction, kind, mode);
                cases.push((none.clone(), plain.clone(), SaRefusal::NoDevice));
                if kind == OffloadKind::Crypto {
                    let params = SaParams { encapsulation: UDP, ..plain };
                    cases.push((NicConfig::default(), params, SaRefusal::Encapsulation));
                }
            }
            for (soft, hard) in [(packets(5), packets(5)), (packets(0), packets(5)), (bytes(2000), bytes(1999))] {
                let params = SaParams { lifetime: Lifetime { soft, hard }, ..of(direction, OffloadKind::Packet, mode) };
                cases.push((NicConfig::default(), params, SaRefusal::Lifetime));
            }
        }
    }
    for window in [33, 100, 4095] {
        let params = SaParams { replay_window: window, ..of(into, OffloadKind::Packet, EspMode::Transport) };
        cases.push((NicConfig::default(), params, SaRefusal::ReplayWindow(window)));
    }
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        let params = SaParams { source: [0, 0, 0, 0].into(), ..of(into, kind, EspMode::Transport) };
        cases.push((NicConfig::default(), params, SaRefusal::Wildcard));
    }
    for (config, params, why) in cases {
        let what = format!("{params:?}");
        let (mut this, refused) = end(config, &params);
        assert_eq!(refused, Some(why), "{what}");
        let source = address(false, 1);
        let other = if params.direction == out { into } else { out };
        // The other end has no device, so the wire format is the only thing they share.
        let (mut that, _) =
            end(none.clone(), &SaParams { direction: other, offload: OffloadKind::None, source, ..params.clone() });
        let (from, to) = if params.direction == out { (&mut this, &mut that) } else { (&mut that, &mut this) };
        let frames = from.send(tcp(false, b"hello", None));
        assert_eq!(to.receive(frames).len(), 1, "{what}");
        assert_eq!((from.counted("ipsec_sw_tx_pkts"), to.counted("ipsec_sw_rx_pkts")), (1, 1), "{what}");
    }
}

#[test]
fn full_device_refuses_further_sas() {
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        let params = sa(Direction::Receive, kind, EspMode::Transport, false);
        let (mut end, refused) =
            end(NicConfig { engines: EspEngineConfig { sas: 1 }.into(), ..NicConfig::default() }, &params);
        assert_eq!(refused, None);
        let second = end.keying().add_sa(NOW, SaParams { spi: 0x2001, ..params }).unwrap();
        assert_eq!(second.refused, Some(SaRefusal::NoSpace), "{kind:?}");
    }
}

/// Successors are added before their predecessors are deleted. If the device is full then, the successors get in when
/// the predecessors leave.
#[test]
fn waiting_sa_is_offloaded_when_another_leaves() {
    for kind in [OffloadKind::Crypto, OffloadKind::Packet] {
        let params = sa(Direction::Transmit, kind, EspMode::Transport, false);
        let (mut end, refused) =
            end(NicConfig { engines: EspEngineConfig { sas: 1 }.into(), ..NicConfig::default() }, &params);
        assert_eq!(refused, None);
        let first = end.keying().find_sa(Direction::Transmit, params.spi, params.source, params.destination).unwrap();
        let add = |end: &mut SecureEnd, number: u8| {
            let key = EspKey::new(EspSuite::Aes128Gcm, &[number; 20]).unwrap();
            let params = SaParams { spi: 0x2000 + u32::from(number), key, ..params.clone() };
            let added = end.keying().add_sa(NOW, params).unwrap();
            assert_eq!(added.refused, Some(SaRefusal::NoSpace), "{kind:?}");
            added.sa
        };
        // A waiting SA that is deleted must lose its place in the line.
        let [gone, second, third] = [101, 102, 103].map(|number| add(&mut end, number));
        end.keying().delete_sa(gone).unwrap();
        for (leaves, gets, waits) in [(first, second, Some(third)), (second, third, None)] {
            assert_eq!(end.secure.offloaded(gets), OffloadKind::None);
            end.keying().delete_sa(leaves).unwrap();
            end.drain();
            assert_eq!(end.events(), []);
            assert_eq!(end.secure.offloaded(gets), kind);
            assert!(waits.is_none_or(|waits| end.secure.offloaded(waits) == OffloadKind::None));
        }
        end.drain();
        assert_eq!(end.send(tcp(false, b"by the device", None)).len(), 1);
        assert_eq!(end.counted("ipsec_sw_tx_pkts"), 0);
        assert_eq!((end.counted("ipsec_sa_offload_later"), end.counted("ipsec_sa_offload_retried")), (2, 3));
    }
}

#[test]
fn contradictory_sa_parameters_are_refused() {
    let mut end = SecureEnd::new(1);
    let key = |direction| EspKey::new(EspSuite::Aes128Gcm, &[7 + direction as u8; 20]).unwrap();
    let of = |direction| SaParams { key: key(direction), ..sa(direction, OffloadKind::None, EspMode::Tunnel, false) };
    let (out, into) = (of(Direction::Transmit), of(Direction::Receive));
    // A transmitting SA needs both addresses; a receiving one may have an unspecified source.
    let any = core::net::IpAddr::from([0, 0, 0, 0]);
    for params in [out.clone(), into.clone()] {
        let cases = [
            (SaParams { spi: 255, ..params.clone() }, KeyingError::Spi(255)),
            (SaParams { replay_window: 31, ..params.clone() }, KeyingError::ReplayWindow(31)),
            (SaParams { replay_window: 4097, ..params.clone() }, KeyingError::ReplayWindow(4097)),
            (SaParams { source: address(true, 1), ..params.clone() }, KeyingError::Addresses),
            (SaParams { destination: any, ..params.clone() }, KeyingError::Addresses),
            (SaParams { esn: false, last_number: 1 << 32, ..params }, KeyingError::Number(1 << 32)),
        ];
        for (params, error) in cases {
            assert_eq!(end.keying().add_sa(NOW, params.clone()), Err(error), "{params:?}");
        }
    }
    assert_eq!(end.keying().add_sa(NOW, SaParams { source: any, ..out.clone() }), Err(KeyingError::Addresses));
    for params in [out, into] {
        let widest = SaParams { spi: 256, replay_window: 4096, ..params };
        assert!(end.keying().add_sa(NOW, widest.clone()).is_ok());
        assert_eq!(end.keying().add_sa(NOW, widest), Err(KeyingError::Exists));
    }
}

/// RFC 4301 4.1: lookup by SPI and both addresses, then by SPI and destination, then by SPI.
#[test]
fn the_most_specific_sa_opens() {
    let any = core::net::IpAddr::from([0, 0, 0, 0]);
    let key = |byte| EspKey::new(EspSuite::Aes128Gcm, &[byte; 20]).unwrap();
    let into = sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false);
    let general = SaParams { source: any, destination: any, key: key(1), ..into.clone() };
    let ours = SaParams { source: any, key: key(2), ..into.clone() };
    let special = SaParams { key: key(3), ..into };
    // The result does not depend on the order of addition.
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let sas = [&general, &ours, &special];
        let mut to = SecureEnd::new(2);
        to.key(&order.map(|which: usize| sas[which].clone()));
        let mut senders = [1, 2, 3].map(|byte| {
            let mut from = SecureEnd::new(1);
            from.key(&[SaParams {
                key: key(byte),
                ..sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, false)
            }]);
            from
        });
        for most_specific in [2, 1, 0] {
            for (number, from) in senders.iter_mut().enumerate() {
                let opened = to.receive(from.send(tcp(false, b"hello", None))).len();
                assert_eq!(opened, usize::from(number == most_specific), "{order:?}, {number} of {most_specific}");
            }
            let found = to.secure.sad().find_received(0x1001, address(false, 1), address(false, 2));
            to.keying().delete_sa(found.unwrap()).unwrap();
        }
        // After the genuine packet, its number is a replay.
        assert_eq!((to.counted("XfrmInStateProtoError"), to.counted("XfrmInStateSeqError")), (3, 3));
        assert!(to.receive(senders[0].send(tcp(false, b"hello", None))).is_empty());
        assert_eq!(to.counted("XfrmInNoStates"), 1);
    }
}

#[test]
fn drops_are_counted_by_reason() {
    for kind in KINDS {
        // In UDP or not, and the other end expects the reverse.
        for udp in [None, UDP] {
            let params = |direction, encapsulation, offload| SaParams {
                encapsulation,
                ..sa(direction, offload, EspMode::Transport, false)
            };
            let (mut from, _) = end(NicConfig::default(), &params(Direction::Transmit, udp, OffloadKind::None));
            let other = if udp.is_none() { UDP } else { None };
            let (mut to, _) = end(NicConfig::default(), &params(Direction::Receive, other, kind));
            assert!(to.receive(from.send(tcp(false, b"hello", None))).is_empty());
            assert_eq!(to.counted("XfrmInStateMismatch"), 1, "{kind:?} {udp:?}");
        }
    }
    let mut to = SecureEnd::new(2);
    assert!(to.receive([frame(&datagram(false, 53, &[1; 100], 1500)[0])]).is_empty());
    assert_eq!(to.counted("XfrmInNoPols"), 1, "RFC 4301 5.2: nobody let it in");
    let pieces = datagram(false, 53, &[1; 2000], 1200);
    assert!(to.receive([frame(&pieces[0])]).is_empty());
    // The fragment is counted when its reassembly time is over.
    let given_up = to.secure.next_event().expect("a time after which nobody waits for the rest");
    to.secure.handle_timeout(given_up);
    assert_eq!((to.counted("ipsec_rx_reasm_fails"), to.secure.next_event()), (1, None));
    let nothing = TxPacket {
        header: [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0].into_iter().collect(),
        fragments: Default::default(),
        ask: TxAsk::default(),
    };
    assert!(matches!(to.secure.transmit(NOW, nothing, &NoRecords), TransmitResult::Dropped(_)));
    assert_eq!(to.counted("XfrmOutError"), 1);
}

#[test]
fn sa_events_are_counted() {
    for kind in KINDS {
        let limits = |packets| Limits { packets: Some(packets), ..Limits::default() };
        let lifetime = Lifetime { soft: limits(1), hard: limits(2) };
        let params = sa(Direction::Transmit, kind, EspMode::Transport, false);
        let (mut from, _) = end(NicConfig::default(), &SaParams { lifetime, ..params.clone() });
        (0..2).for_each(|_| assert_eq!(from.send(tcp(false, b"x", None)).len(), 1));
        assert!(matches!(from.secure.transmit(NOW, tcp(false, b"x", None), &NoRecords), TransmitResult::Dropped(_)));
        let counted = ["ipsec_sa_soft_limits", "ipsec_sa_hard_limits"].map(|name| from.counted(name));
        assert_eq!(counted, [1, 1], "{kind:?}");
        let last_number = u64::from(u32::MAX) - 1;
        let (mut from, _) = end(NicConfig::default(), &SaParams { esn: false, last_number, ..params });
        assert_eq!(from.send(tcp(false, b"x", None)).len(), 1);
        assert!(matches!(from.secure.transmit(NOW, tcp(false, b"x", None), &NoRecords), TransmitResult::Dropped(_)));
        let counted = ["ipsec_sa_exhausted", "XfrmOutStateSeqError"].map(|name| from.counted(name));
        assert_eq!(counted, [1, 1], "{kind:?}");
    }
}
