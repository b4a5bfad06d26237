//! Several policies and SAs: host and NIC choose the same SA for a packet.

use super::KINDS;
use super::rig::{NOW, SecureEnd, address, datagram, sa, tcp};
use nic_sim::wire::Port;
use offload_api::ipsec::Packet;
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, NetDevice, OffloadKind, Policy, Prefix, SaParams, Selector, Template,
};
use proptest::prelude::*;
use std::collections::HashMap;

fn selector() -> impl Strategy<Value = Selector> {
    let prefix = |number| {
        let bits = prop::option::of(prop::sample::select(vec![8u8, 24, 32]));
        bits.prop_map(move |bits| bits.and_then(|bits| Prefix::new(address(false, number), bits)))
    };
    let protocol = prop::option::of(prop::sample::select(vec![6u8, 17]));
    let port = |port| prop::option::of(Just(port));
    (prefix(1), prefix(2), protocol, port(5000), port(80)).prop_map(
        |(source, destination, protocol, source_port, destination_port)| Selector {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        },
    )
}

proptest! {
    #[test]
    fn numbers_belong_to_the_policys_sa(
        policies in prop::collection::vec((selector(), 0u32..2, 1u32..4), 2..8),
        packets in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 0u8..6), 1..20),
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        let mut end = SecureEnd::new(1);
        for reqid in 1..4 {
            let params = sa(Direction::Transmit, kind, EspMode::Transport, false);
            let key = EspKey::new(EspSuite::Aes128Gcm, &[reqid as u8; 20]).unwrap();
            end.keying().add_sa(NOW, SaParams { spi: 0x1000 + reqid, reqid, key, ..params }).unwrap();
        }
        for (selector, priority, reqid) in &policies {
            let action = Action::Protect(Template::transport(*reqid));
            let policy = Policy { direction: Direction::Transmit, selector: *selector, priority: *priority, action };
            let _ = end.keying().add_policy(policy);
        }
        // The last resort, so that every packet matches a policy.
        let everything = Policy {
            direction: Direction::Transmit,
            selector: Selector::ANY,
            priority: 9,
            action: Action::Protect(Template::transport(3)),
        };
        end.keying().add_policy(everything).unwrap();
        end.drain();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for (is_tcp, which, happens) in packets {
            // Deleted policies and resets must not change which SA a packet uses.
            if happens == 0 {
                let (selector, priority, _) = *which.get(&policies);
                let _ = end.keying().delete_policy(Direction::Transmit, &selector, priority);
            }
            if happens == 1 {
                end.device.reset(NOW);
                end.device.process(NOW);
                let _ = end.secure.poll_event();
                end.events();
            }
            let packet = if is_tcp { tcp(false, b"x", None) } else { datagram(false, 80, b"x", 1500).remove(0) };
            let protocol = if is_tcp { 6 } else { 17 };
            let (source, destination) = (address(false, 1), address(false, 2));
            let selectors = Packet { source, destination, protocol, ports: Some((5000, 80)) };
            let Some(Action::Protect(meant)) = end.secure.spd(Direction::Transmit).action(&selectors) else {
                return Err(TestCaseError::fail("all are protected"));
            };
            let sent = end.send(packet);
            prop_assert_eq!(sent.len(), 1);
            let word = |at: usize| u32::from_be_bytes(sent[0].data[at..at + 4].try_into().unwrap());
            // The host may number packets before or after the reset; each SA's numbers have no gap.
            let next = numbers.entry(word(34)).or_default();
            *next += 1;
            prop_assert_eq!((word(34), word(38)), (0x1000 + meant.reqid, *next), "{:?}", kind);
        }
        prop_assert_eq!(end.counted("ipsec_tx_drop_no_state"), 0);
        prop_assert!(kind != OffloadKind::Packet || end.counted("XfrmOutStateInvalid") == 0);
    }
}

#[test]
fn packets_are_accepted_only_from_the_policys_tunnel() {
    for (kind, ipv6) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let tunnel = |direction, offload, source: u8, destination: u8| SaParams {
            source: address(ipv6, source),
            destination: address(ipv6, destination),
            spi: 0x1000 + u32::from(source) * 16 + u32::from(destination),
            ..sa(direction, offload, EspMode::Tunnel, ipv6)
        };
        // Two wrong tunnels: from another peer, and to another address of this host, both with the policy's reqid.
        for (source, destination, passes) in [(1, 2, true), (3, 2, false), (1, 4, false)] {
            let mut from = SecureEnd::new(source);
            from.key(&[tunnel(Direction::Transmit, OffloadKind::None, source, destination)]);
            let mut to = SecureEnd::new(2);
            let action = Action::Protect(Template::tunnel(address(ipv6, 1), address(ipv6, 2), 1));
            let policy = Policy { direction: Direction::Receive, selector: Selector::ANY, priority: 0, action };
            to.keying().add_policy(policy).unwrap();
            to.keying().add_sa(NOW, tunnel(Direction::Receive, kind, source, destination)).unwrap();
            to.drain();
            let came = to.receive(from.send(tcp(ipv6, b"from within", None))).len();
            assert_eq!(came, usize::from(passes), "from {source} to {destination}, {kind:?}, IPv6: {ipv6}");
            assert_eq!(to.counted("XfrmInTmplMismatch"), u64::from(!passes));
        }
    }
}

#[test]
fn unrequested_protection_passes_except_in_tunnels() {
    for (kind, mode) in KINDS.into_iter().flat_map(|kind| [(kind, EspMode::Transport), (kind, EspMode::Tunnel)]) {
        let mut from = SecureEnd::new(1);
        from.key(&[sa(Direction::Transmit, OffloadKind::None, mode, false)]);
        let mut to = SecureEnd::new(2);
        let policy =
            Policy { direction: Direction::Receive, selector: Selector::ANY, priority: 0, action: Action::Bypass };
        to.keying().add_policy(policy).unwrap();
        to.keying().add_sa(NOW, sa(Direction::Receive, kind, mode, false)).unwrap();
        to.drain();
        let came = to.receive(from.send(tcp(false, b"more than was asked for", None))).len();
        let passes = mode == EspMode::Transport;
        assert_eq!(came, usize::from(passes), "{kind:?}, {mode:?}");
        assert_eq!(to.counted("XfrmInTmplMismatch"), u64::from(!passes), "{kind:?}, {mode:?}");
    }
}
