//! Whatever happens to SAs, policies and the device: packets to be protected leave as ESP or not at all, and never with
//! a used nonce.

use super::rig::{NOW, SecureEnd, datagram, sa, tcp};
use super::{KINDS, MODES};
use core::time::Duration;
use ipsec::{KeyingError, SaId};
use nic_sim::wire::Port;
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, Lifetime, Limits, NetDevice, NoRecords, OffloadKind, Policy,
    SaParams, Selector, Template,
};
use offload_esp::EspAt;
use offload_formats::frame::ip_packet;
use proptest::prelude::*;
use std::collections::HashSet;

#[derive(Clone, Debug)]
enum PolicyStep {
    /// A stream's length, and the payload per packet.
    Stream(usize, u16),
    /// A datagram's length, and the MTU of the fragments.
    Datagram(usize, u16),
    Add(OffloadKind, Option<u64>),
    Rekey(prop::sample::Index),
    Update(prop::sample::Index, u64),
    Delete(prop::sample::Index),
    /// A policy, with or without ports.
    AddPolicy(bool),
    DeletePolicy(bool),
    Reset,
    /// Whether the device is suspended.
    Stall(bool),
    Time(u64),
}

fn step() -> impl Strategy<Value = PolicyStep> {
    let kind = prop::sample::select(KINDS.to_vec());
    prop_oneof![
        4 => (0usize..4000, 100u16..1400).prop_map(|(bytes, mss)| PolicyStep::Stream(bytes, mss)),
        3 => (0usize..4000, prop::sample::select(vec![600u16, 1400, 1500])).prop_map(|(bytes, mtu)| PolicyStep::Datagram(bytes, mtu)),
        2 => (kind, prop::option::of(1u64..8)).prop_map(|(kind, hard)| PolicyStep::Add(kind, hard)),
        1 => any::<prop::sample::Index>().prop_map(PolicyStep::Rekey),
        1 => (any::<prop::sample::Index>(), 1u64..5).prop_map(|(which, hard)| PolicyStep::Update(which, hard)),
        2 => any::<prop::sample::Index>().prop_map(PolicyStep::Delete),
        1 => any::<bool>().prop_map(PolicyStep::AddPolicy),
        1 => any::<bool>().prop_map(PolicyStep::DeletePolicy),
        1 => Just(PolicyStep::Reset),
        1 => any::<bool>().prop_map(PolicyStep::Stall),
        1 => (0u64..100).prop_map(PolicyStep::Time),
    ]
}

fn hard(packets: u64) -> Lifetime {
    let limits = Limits { packets: Some(packets), time: Some(Duration::from_secs(50)), ..Limits::default() };
    Lifetime { hard: limits, ..Lifetime::default() }
}

/// Returns the key of an SPI.
fn key(spi: u32) -> EspKey {
    EspKey::new(EspSuite::Aes128Gcm, &[spi as u8; 20]).unwrap()
}

/// Returns all frames that leave.
fn frames(end: &mut SecureEnd) -> Vec<nic_sim::frame::Frame> {
    let mut frames = Vec::new();
    for _ in 0..20 {
        end.secure.flush(NOW);
        end.device.process(NOW);
        frames.extend(core::iter::from_fn(|| end.device.poll_frame(NOW)));
        let _ = end.secure.poll_event();
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_packet_leaves_in_clear(
        steps in prop::collection::vec(step(), 1..60),
        mode in prop::sample::select(MODES.to_vec()),
        ipv6: bool,
        first in prop::sample::select(vec![0u64, 0xffff_fff0]),
    ) {
        let mut end = SecureEnd::new(1);
        let template = match mode {
            EspMode::Transport => Template::transport(1),
            EspMode::Tunnel => Template::tunnel(super::rig::address(ipv6, 1), super::rig::address(ipv6, 2), 1),
        };
        let policy = |ported: bool| Policy {
            direction: Direction::Transmit,
            selector: if ported { Selector { protocol: Some(17), destination_port: Some(53), ..Selector::ANY } } else { Selector::ANY },
            priority: 0,
            action: Action::Protect(template),
        };
        let (mut spi, mut sas, mut stalled, mut sent, mut seconds) = (0x1001, Vec::<SaId>::new(), false, 0, 0);
        let mut nonces = HashSet::new();
        for step in steps {
            let of = |which: prop::sample::Index, sas: &[SaId]| (!sas.is_empty()).then(|| *which.get(sas));
            match step {
                PolicyStep::Stream(bytes, mss) => {
                    let _ = end.secure.transmit(NOW, tcp(ipv6, &vec![b'S'; bytes], Some(mss)), &NoRecords);
                }
                PolicyStep::Datagram(bytes, mtu) => {
                    for piece in datagram(ipv6, 53, &vec![b'S'; bytes], mtu) {
                        let _ = end.secure.transmit(NOW, piece, &NoRecords);
                    }
                }
                PolicyStep::Add(kind, limit) => {
                    spi += 1;
                    let lifetime = limit.map(hard).unwrap_or_default();
                    // SAs without extended numbers start near their last number, so that some run out.
                    let params = SaParams { spi, key: key(spi), lifetime, last_number: first, esn: first == 0, ..sa(Direction::Transmit, kind, mode, ipv6) };
                    sas.push(end.keying().add_sa(NOW, params).unwrap().sa);
                }
                PolicyStep::Rekey(which) => {
                    if let Some(old) = of(which, &sas) {
                        spi += 1;
                        let used = end.secure.sad().find(sas[0]).unwrap().params.key.clone();
                        prop_assert_eq!(end.keying().rekey_sa(NOW, old, spi, used), Err(KeyingError::KeyReused));
                        sas.push(end.keying().rekey_sa(NOW, old, spi, key(spi)).unwrap().sa);
                    }
                }
                PolicyStep::Update(which, limit) => {
                    if let Some(which) = of(which, &sas) {
                        let _ = end.keying().update_sa(NOW, which, hard(limit));
                    }
                }
                PolicyStep::Delete(which) => {
                    if let Some(gone) = of(which, &sas) {
                        sas.retain(|sa| *sa != gone);
                        end.keying().delete_sa(gone).unwrap();
                    }
                }
                PolicyStep::AddPolicy(ported) => {
                    let _ = end.keying().add_policy(policy(ported));
                }
                PolicyStep::DeletePolicy(ported) => {
                    let selector = policy(ported).selector;
                    let _ = end.keying().delete_policy(Direction::Transmit, &selector, 0);
                }
                PolicyStep::Reset => end.device.reset(NOW),
                PolicyStep::Stall(now) => stalled = now,
                PolicyStep::Time(more) => {
                    seconds += more;
                    end.secure.handle_timeout(NOW + Duration::from_secs(seconds));
                }
            }
            if stalled {
                continue;
            }
            for frame in frames(&mut end) {
                let view = ip_packet(&frame.data).and_then(offload_formats::IpView::parse).expect("an IP packet");
                let is_esp = EspAt::find(&frame.data).is_some() || (view.fragment && view.protocol == offload_formats::protocol::ESP);
                prop_assert!(is_esp && !frame.data.windows(6).any(|window| window == b"SSSSSS"));
                // Each SPI has its own key, and the IV is the number.
                if let Some(at) = EspAt::find(&frame.data) {
                    let iv: [u8; 8] = frame.data[at.esp + 8..at.esp + 16].try_into().unwrap();
                    prop_assert!(nonces.insert((at.spi, iv)), "the nonce {:?} was used before", (at.spi, iv));
                }
                sent += 1;
            }
        }
        let counted = end.counted("ipsec_tx_pkts") + end.counted("ipsec_sw_tx_pkts");
        prop_assert!(stalled || counted > 0 || sent == 0);
    }
}
