//! The lifecycle of SAs: limits, device resets, and the events that report them.

use super::rig::{NOW, SecureEnd, sa, tcp};
use bytes::Bytes;
use ipsec::{KeyingError, SaEvent, SaId};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_api::fragmentation::fragment;
use offload_api::{
    Action, DeviceEvent, Direction, EspKey, EspMode, EspSuite, Lifetime, Limit, Limits, NetDevice, NoRecords,
    OffloadKind, Policy, SaParams, Selector, Template, TransmitResult, TxAsk, TxPacket, UdpEncapsulation,
};

const ALL: [OffloadKind; 3] = [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet];

fn transmitting(kind: OffloadKind) -> SaParams {
    sa(Direction::Transmit, kind, EspMode::Transport, false)
}

fn receiving(kind: OffloadKind) -> SaParams {
    sa(Direction::Receive, kind, EspMode::Transport, false)
}

fn packets(soft: Option<u64>, hard: u64) -> Lifetime {
    let limits = |packets| Limits { packets, ..Limits::default() };
    Lifetime { soft: limits(soft), hard: limits(Some(hard)) }
}

fn only_sa(end: &SecureEnd) -> SaId {
    end.secure.sad().ids().next().unwrap()
}

/// Runs the device and polls the layer until both are idle.
fn run(end: &mut SecureEnd) {
    for _ in 0..100 {
        end.secure.flush(NOW);
        end.device.process(NOW);
        assert!(end.device.poll_frame(NOW).is_none(), "nothing was to be sent");
        let _ = end.secure.poll_event();
    }
}

/// Adds SAs until the device's ring is full and one SA waits.
fn fill_ring(end: &mut SecureEnd) -> Vec<SaId> {
    let mut added: Vec<SaId> = Vec::new();
    while added.last().is_none_or(|last| end.secure.offloaded(*last) == OffloadKind::Packet) {
        assert!(added.len() < 10_000, "no ring is so long");
        let params = SaParams { spi: 0x10000 + added.len() as u32, ..receiving(OffloadKind::Packet) };
        let one = end.keying().add_sa(NOW, params).unwrap();
        assert_eq!(one.refused, None);
        added.push(one.sa);
    }
    added
}

#[test]
fn sa_added_after_a_reset_is_not_lost() {
    for (kind, counter) in
        [(OffloadKind::Crypto, "ipsec_crypto_rx_pkts"), (OffloadKind::Packet, "ipsec_packet_rx_pkts")]
    {
        let mut to = SecureEnd::new(2);
        to.key(&[receiving(kind)]);
        let old = only_sa(&to);
        to.device.reset(NOW);
        to.device.process(NOW);
        // The keying daemon gets the event before the stack polls.
        assert_eq!(to.events(), [SaEvent::OffloadLost { sa: old }]);
        let new = to.keying().add_sa(NOW, SaParams { spi: 0x2001, ..receiving(kind) }).unwrap();
        assert_eq!(to.secure.poll_event(), Some(DeviceEvent::Reset));
        to.drain();
        assert_eq!(to.events(), []);
        assert_eq!((to.secure.offloaded(old), to.secure.offloaded(new.sa)), (OffloadKind::None, kind));
        let mut from = SecureEnd::new(1);
        from.key(&[SaParams { spi: 0x2001, ..transmitting(OffloadKind::None) }]);
        let frames = from.send(tcp(false, b"hello", None));
        assert_eq!((to.receive(frames).len(), to.counted(counter)), (1, 1), "{kind:?}");
    }
}

#[test]
fn reset_keeps_sas_that_wait_for_the_device() {
    let mut end = SecureEnd::new(2);
    let added = fill_ring(&mut end);
    let (waiting, in_device) = added.split_last().unwrap();
    end.device.reset(NOW);
    run(&mut end);
    assert_eq!(end.secure.offloaded(*waiting), OffloadKind::Packet);
    // Every offloaded SA is reported, although there are more than the limit of acquires.
    let lost: Vec<SaEvent> = in_device.iter().map(|sa| SaEvent::OffloadLost { sa: *sa }).collect();
    assert_eq!(end.events(), lost, "each of them is told of, however many they are");
}

#[test]
fn late_offload_accepts_late_packets_and_no_replays() {
    let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
    from.key(&[transmitting(OffloadKind::None)]);
    // With a full ring, the SA stays in software at first.
    fill_ring(&mut to);
    let action = Action::Protect(Template::transport(1));
    to.keying()
        .add_policy(Policy { direction: Direction::Receive, selector: Selector::ANY, priority: 0, action })
        .unwrap();
    let late = to.keying().add_sa(NOW, receiving(OffloadKind::Packet)).unwrap().sa;
    let frames: Vec<Frame> = (0..20).flat_map(|_| from.send(tcp(false, b"x", None))).collect();
    assert_eq!(to.receive(frames[10..].to_vec()).len(), 10, "in software");
    assert_eq!(to.secure.offloaded(late), OffloadKind::None);
    run(&mut to);
    assert_eq!(to.secure.offloaded(late), OffloadKind::Packet);
    assert_eq!(to.receive(frames[..10].to_vec()).len(), 10, "these were never there");
    assert_eq!(to.counted("ipsec_packet_rx_pkts"), 10);
    assert_eq!(to.receive(frames).len(), 0, "and these all were");
}

#[test]
fn packets_past_the_device_count_against_a_lifetime() {
    // One packet out of `one_of` comes in fragments.
    for one_of in [1, 2, 3, 100] {
        let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
        from.key(&[SaParams { mode: EspMode::Tunnel, ..transmitting(OffloadKind::None) }]);
        let lifetime = packets(Some(3), 6);
        to.key(&[SaParams { mode: EspMode::Tunnel, lifetime, ..receiving(OffloadKind::Packet) }]);
        let mut delivered = 0;
        for number in 0..20 {
            let mut frames = from.send(tcp(false, &[5; 1200], None));
            if number % one_of == 0 {
                frames = in_fragments(&frames[0]);
            }
            delivered += to.receive(frames).len();
            // Limits take effect when the device's event has reached the layer.
            to.drain();
        }
        let sa = only_sa(&to);
        let limit = Limit::Packets;
        assert_eq!(
            to.events(),
            [SaEvent::SoftLimit { sa, limit }, SaEvent::HardLimit { sa, limit }],
            "one of {one_of}"
        );
        assert_eq!(delivered, 6, "one of {one_of}");
    }
}

#[test]
fn lifetime_continues_when_the_device_is_lost() {
    for direction in [Direction::Transmit, Direction::Receive] {
        let (mut ends, counting) =
            ([SecureEnd::new(1), SecureEnd::new(2)], usize::from(direction == Direction::Receive));
        let lifetime = packets(Some(3), 6);
        let whole = |own: SaParams| {
            if own.direction == direction { SaParams { lifetime, offload: OffloadKind::Packet, ..own } } else { own }
        };
        ends[0].key(&[whole(transmitting(OffloadKind::None))]);
        ends[1].key(&[whole(receiving(OffloadKind::None))]);
        let (mut delivered, mut told) = (0, Vec::new());
        for number in 0..10 {
            // After the soft limit and before the hard one.
            if number == 4 {
                ends[counting].device.reset(NOW);
                run(&mut ends[counting]);
            }
            let _ = ends[0].secure.transmit(NOW, tcp(false, b"x", None), &NoRecords);
            let frames = ends[0].frames();
            delivered += ends[1].receive(frames).len();
            told.extend(ends[counting].events().into_iter().filter(|event| !matches!(event, SaEvent::Acquire { .. })));
        }
        let (sa, limit) = (only_sa(&ends[counting]), Limit::Packets);
        let expected =
            [SaEvent::SoftLimit { sa, limit }, SaEvent::OffloadLost { sa }, SaEvent::HardLimit { sa, limit }];
        assert_eq!((&told[..], delivered), (&expected[..], 6), "{direction:?}");
    }
}

#[test]
fn burst_beyond_the_lifetime_ends_the_sa_with_an_event() {
    for kind in ALL {
        let mut end = SecureEnd::new(1);
        end.key(&[SaParams { lifetime: packets(None, 10), ..transmitting(kind) }]);
        let burst = || tcp(false, &[1; 12_000], Some(1000));
        assert_ne!(end.secure.transmit(NOW, burst(), &NoRecords), TransmitResult::Posted);
        let sa = only_sa(&end);
        assert_eq!(end.events(), [SaEvent::HardLimit { sa, limit: Limit::Packets }], "{kind:?}");
        let key = EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap();
        end.keying().add_sa(NOW, SaParams { spi: 0x2001, key, ..transmitting(kind) }).unwrap();
        end.drain();
        assert_eq!(end.send(burst()).len(), 12, "a successor takes over, {kind:?}");
        assert_eq!(end.counted("XfrmOutStateExpired"), 1);
    }
}

/// The device joins opened packets, so one joined packet may exceed the rest of the lifetime.
#[test]
fn joined_packet_beyond_the_lifetime_ends_the_sa() {
    for kind in [OffloadKind::None, OffloadKind::Crypto] {
        let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
        from.key(&[transmitting(OffloadKind::None)]);
        to.key(&[SaParams { lifetime: packets(None, 5), ..receiving(kind) }]);
        let sa = only_sa(&to);
        for frame in from.send(tcp(false, &[1; 12_000], Some(1000))) {
            to.device.receive_frame(NOW, frame);
        }
        to.device.process(NOW);
        let delivered = core::iter::from_fn(|| to.secure.receive(NOW)).count();
        assert_eq!(delivered, if kind == OffloadKind::None { 5 } else { 0 });
        assert_eq!(to.events(), [SaEvent::HardLimit { sa, limit: Limit::Packets }], "{kind:?}");
    }
}

#[test]
fn acquire_events_leave_room_for_limit_events() {
    let mut end = SecureEnd::new(1);
    end.key(&[SaParams { lifetime: packets(Some(1), 2), ..transmitting(OffloadKind::None) }]);
    let mut wanted = |host: u16| {
        let mut packet = tcp(false, b"x", None);
        packet.header[32..34].copy_from_slice(&host.to_be_bytes());
        assert_ne!(end.secure.transmit(NOW, packet, &NoRecords), TransmitResult::Posted);
    };
    (0..5).for_each(|_| wanted(1000));
    // More destinations than the event queue holds acquires.
    (1000..3000).for_each(&mut wanted);
    end.send(tcp(false, b"x", None));
    end.send(tcp(false, b"x", None));
    let events = end.events();
    let (acquires, limits): (Vec<SaEvent>, Vec<SaEvent>) =
        events.into_iter().partition(|event| matches!(event, SaEvent::Acquire { .. }));
    assert!(acquires.len() > 10, "different hosts");
    let first = |event: &SaEvent| matches!(event, SaEvent::Acquire { packet, .. } if packet.destination.to_string() == "10.0.3.232");
    assert_eq!(acquires.iter().filter(|event| first(event)).count(), 1, "an SA is asked for once");
    assert_eq!(end.counted("ipsec_sa_acquires"), 2005, "counted all the same");
    let (sa, limit) = (only_sa(&end), Limit::Packets);
    assert_eq!(limits, [SaEvent::SoftLimit { sa, limit }, SaEvent::HardLimit { sa, limit }]);
}

#[test]
fn only_a_living_sa_accepts_a_new_lifetime() {
    for kind in ALL {
        let mut end = SecureEnd::new(1);
        end.key(&[SaParams { lifetime: packets(None, 5), ..transmitting(kind) }]);
        let sa = only_sa(&end);
        let sent = |end: &mut SecureEnd| end.send(tcp(false, b"x", None)).len();
        assert_eq!((0..3).map(|_| sent(&mut end)).sum::<usize>(), 3);
        end.keying().update_sa(NOW, sa, packets(Some(2), 4)).unwrap();
        end.drain();
        assert_eq!((0..4).map(|_| sent(&mut end)).sum::<usize>(), 4, "counted from the update on, {kind:?}");
        let limit = Limit::Packets;
        assert_eq!(end.events(), [SaEvent::SoftLimit { sa, limit }, SaEvent::HardLimit { sa, limit }]);
        assert_eq!(end.keying().update_sa(NOW, sa, Lifetime::default()), Err(KeyingError::UsedUp));
        assert_ne!(end.secure.transmit(NOW, tcp(false, b"x", None), &NoRecords), TransmitResult::Posted);
        assert!(end.frames().is_empty());
        end.keying().delete_sa(sa).unwrap();
        assert_eq!(end.keying().update_sa(NOW, sa, Lifetime::default()), Err(KeyingError::NotFound));
    }
}

#[test]
fn rekeying_with_used_nonces_is_refused() {
    let key = |suite, byte| EspKey::new(suite, &[byte; 20]).unwrap();
    // GCM and GMAC with one key use the same nonces, in either order.
    for suites in [[EspSuite::Aes128Gcm, EspSuite::Aes128Gmac], [EspSuite::Aes128Gmac, EspSuite::Aes128Gcm]] {
        for direction in [Direction::Transmit, Direction::Receive] {
            let mut end = SecureEnd::new(1);
            end.key(&[SaParams {
                key: key(suites[0], 7),
                ..sa(direction, OffloadKind::None, EspMode::Transport, false)
            }]);
            let a = only_sa(&end);
            let mut rekey =
                |old, spi, suite, byte| end.keying().rekey_sa(NOW, old, spi, key(suite, byte)).map(|added| added.sa);
            let reused = Err(KeyingError::KeyReused);
            assert_eq!(rekey(a, 0x2001, suites[0], 7), reused);
            assert_eq!(rekey(a, 0x2001, suites[1], 7), reused, "the other suite has the same nonces");
            let b = rekey(a, 0x2001, suites[0], 8).unwrap();
            assert_eq!(rekey(a, 0x2001, suites[0], 8), Err(KeyingError::Exists), "said again");
            // A receiver does not choose nonces.
            let sends = direction == Direction::Transmit;
            assert_eq!(rekey(a, 0x2002, suites[1], 8) == reused, sends, "two successors");
            assert_eq!(rekey(b, 0x2003, suites[0], 7) == reused, sends, "and back");
            end.keying().delete_sa(a).unwrap();
            let back = end.keying().rekey_sa(NOW, b, 0x2004, key(suites[0], 7));
            assert_eq!(back == Err(KeyingError::KeyReused), sends, "back to what is deleted");
        }
    }
}

#[test]
fn deleted_policy_has_no_effect() {
    for kind in ALL {
        let mut end = SecureEnd::new(1);
        end.key(&[transmitting(kind)]);
        assert_eq!(end.send(tcp(false, b"x", None)).len(), 1);
        let mut delete = |priority| end.keying().delete_policy(Direction::Transmit, &Selector::ANY, priority);
        assert_eq!((delete(1), delete(0), delete(0)), (Err(KeyingError::NotFound), Ok(()), Err(KeyingError::NotFound)));
        assert_ne!(end.secure.transmit(NOW, tcp(false, b"x", None), &NoRecords), TransmitResult::Posted);
        assert!(end.frames().is_empty());
        assert_eq!(end.counted("XfrmOutPolBlock"), 1);
        let action = Action::Protect(Template::transport(1));
        let again = Policy { direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action };
        end.keying().add_policy(again).unwrap();
        assert_eq!(end.send(tcp(false, b"x", None)).len(), 1, "{kind:?}");
    }
}

#[test]
fn esp_in_udp_with_invalid_ports_is_refused() {
    let mut end = SecureEnd::new(2);
    let mut add = |params: SaParams, source_port, destination_port| {
        let encapsulation = Some(UdpEncapsulation { source_port, destination_port });
        end.keying().add_sa(NOW, SaParams { encapsulation, ..params }).map(drop)
    };
    let key = EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap();
    let (into, out) = (SaParams { key, ..receiving(OffloadKind::None) }, transmitting(OffloadKind::None));
    assert_eq!(add(into.clone(), 4500, 4501), Err(KeyingError::EncapsulationPort(4501)));
    assert_eq!(add(into, 31_000, 4500), Ok(()), "a translator chose the source");
    assert_eq!(add(out.clone(), 4500, 0), Err(KeyingError::EncapsulationPort(0)));
    assert_eq!(add(out, 4500, 31_000), Ok(()), "and here, where it is to go");
}

/// Returns a frame as fragments for a path of 700 bytes.
fn in_fragments(frame: &Frame) -> Vec<Frame> {
    let header = frame.data[..34].into();
    let fragments = [frame.data.slice(34..)].into_iter().collect();
    let pieces = fragment(TxPacket { header, fragments, ask: TxAsk::default() }, 14, 700, 1).unwrap();
    let whole = |piece: &TxPacket| Bytes::from([&piece.header[..], &piece.fragments.concat()].concat());
    pieces.iter().map(|piece| Frame::new(whole(piece))).collect()
}
