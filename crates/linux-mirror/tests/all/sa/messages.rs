//! Tests of parsing the kernel's messages, and of the messages to the kernel, which another crate parses.

use super::kernel::{
    KernelPolicy, KernelSa, aead, bytes, done, error, policy_gone, policy_message, replay_esn, sa_gone, sa_message,
    template,
};
use core::time::Duration;
use linux_mirror::KernelError;
use linux_mirror::sa::{
    KernelSaId, KernelSaUse, MirroredPolicy, MirroredSa, SaChange, SaReport, SaWatcher, UnsupportedSa,
};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_xfrm::nlas::{EncapTmpl, Mark};
use netlink_packet_xfrm::{Address, Alg, ExpireMessage, NewAsyncEventMessage, UserExpire, XfrmAttrs, XfrmMessage};
use offload_api::{Action, Direction, EspMode, EspSuite, Selector, Template};
use std::net::IpAddr;

#[test]
fn sa_is_parsed_completely() {
    let mut sa = KernelSa::new(HERE, THERE, 0x1001, 9);
    sa.attributes = vec![
        aead("rfc4106(gcm(aes))", &[7; 36], 128),
        XfrmAttrs::EncapsulationTemplate(EncapTmpl {
            encap_type: 2,
            encap_sport: 4500,
            encap_dport: 4501,
            encap_oa: Address::default(),
        }),
        replay_esn((3 << 32) | 5, (1 << 32) | 6, 128),
        XfrmAttrs::ExtraFlags(1),
    ];
    let info = &mut sa.info;
    (info.reqid, info.mode, info.flags) = (0x1234_5678, 1, 1 | 2 | 4 | 32 | 128);
    info.lifetime_cfg.soft_byte_limit = 1 << 40;
    info.lifetime_cfg.hard_packet_limit = 1 << 33;
    info.lifetime_cfg.soft_add_expires_seconds = 3000;
    info.lifetime_cfg.hard_add_expires_seconds = 3600;
    (info.lifetime_cur.bytes, info.lifetime_cur.packets, info.lifetime_cur.add_time) = (77, 7, NOW - 600);
    let MirroredSa { params, direction, sent, received, used } = read_sa(&sa).unwrap();
    assert_eq!((params.source, params.destination, params.spi), (HERE, THERE, 0x1001));
    assert_eq!((params.mode, params.reqid, params.key.suite()), (EspMode::Tunnel, 0x1234_5678, EspSuite::Aes256Gcm));
    assert_eq!((params.key.key(), params.key.salt()), (&[7; 32][..], &[7; 4]));
    assert_eq!((params.esn, params.replay_window, params.ecn, params.dscp_out), (true, 128, false, true));
    assert_eq!((params.dscp, params.dont_fragment), (Some(0), offload_api::DontFragment::Clear));
    let ports = params.encapsulation.unwrap();
    assert_eq!((ports.source_port, ports.destination_port), (4500, 4501));
    assert_eq!((params.lifetime.soft.bytes, params.lifetime.hard.packets), (Some(1 << 40), Some(1 << 33)));
    assert_eq!((params.lifetime.soft.packets, params.lifetime.hard.bytes), (None, None));
    assert_eq!(params.lifetime.hard.time, Some(Duration::from_secs(3000)), "3600 s minus ten minutes");
    assert_eq!(params.lifetime.soft.time, None, "soft time limits stay with the kernel");
    assert_eq!((direction, sent, received), (None, (3 << 32) | 5, (1 << 32) | 6));
    assert_eq!(used, KernelSaUse { bytes: 77, packets: 7 });
}

#[test]
fn replay_windows_are_adjusted() {
    let window = |window| {
        let mut sa = KernelSa::new(HERE, THERE, 0x1001, 9);
        sa.info.replay_window = window;
        read_sa(&sa).unwrap().params.replay_window
    };
    assert_eq!([0, 1, 32, 200].map(window), [64, 32, 32, 200]);
}

#[test]
fn reported_direction_is_kept() {
    let direction = |value| {
        let nla = netlink_packet_core::DefaultNla::new(33, vec![value]);
        read_sa(&KernelSa::new(HERE, THERE, 0x1001, 9).with(XfrmAttrs::Other(nla))).unwrap().direction
    };
    assert_eq!([1, 2].map(direction), [Some(Direction::Receive), Some(Direction::Transmit)]);
}

#[test]
fn unsupported_sa_is_refused_with_its_reason() {
    let sa = || KernelSa::new(HERE, THERE, 0x1001, 9);
    let changed = |change: fn(&mut KernelSa)| {
        let mut sa = sa();
        change(&mut sa);
        read_sa(&sa).unwrap_err()
    };
    let attribute = |kind, value: &[u8]| {
        let nla = netlink_packet_core::DefaultNla::new(kind, value.to_vec());
        read_sa(&sa().with(XfrmAttrs::Other(nla))).unwrap_err()
    };
    assert_eq!(changed(|sa| sa.info.id.proto = 51), UnsupportedSa::Protocol(51));
    assert_eq!(changed(|sa| sa.info.mode = 4), UnsupportedSa::Mode(4));
    assert_eq!(changed(|sa| sa.info.flags = 8 | 128), UnsupportedSa::Flags(8));
    let algorithm = |name: &str| UnsupportedSa::Algorithm(name.into());
    for (name, key, icv) in [
        ("rfc4106(gcm(aes))", 20, 96),
        ("rfc4106(gcm(aes))", 28, 128),
        ("rfc4309(ccm(aes))", 19, 128),
        ("rfc7539esp(chacha20,poly1305)", 35, 128),
    ] {
        let mut sa = sa();
        sa.attributes = vec![aead(name, &vec![7; key], icv)];
        assert_eq!(read_sa(&sa).unwrap_err(), algorithm(name), "{key} bytes, {icv} bits");
    }
    // An algorithm outside AEAD has another attribute.
    let mut cbc = [0; 64];
    cbc[..8].copy_from_slice(b"cbc(aes)");
    let mut other = sa();
    other.attributes = vec![XfrmAttrs::EncryptionAlg(Alg { alg_name: cbc, alg_key_len: 128, alg_key: vec![7; 16] })];
    assert_eq!(read_sa(&other).unwrap_err(), algorithm("cbc(aes)"));
    assert_eq!(read_sa(&sa().with(XfrmAttrs::Mark(Mark { value: 1, mask: 1 }))).unwrap_err(), UnsupportedSa::Mark);
    assert_eq!(read_sa(&sa().with(XfrmAttrs::IfId(3))).unwrap_err(), UnsupportedSa::Mark);
    assert_eq!(read_sa(&sa().with(XfrmAttrs::TfcPadding(100))).unwrap_err(), UnsupportedSa::Attribute(22));
    assert_eq!(read_sa(&sa().with(XfrmAttrs::ExtraFlags(2))).unwrap_err(), UnsupportedSa::Flags(2));
    assert_eq!(attribute(99, &[0; 4]), UnsupportedSa::Attribute(99));
    assert_eq!(changed(|sa| (sa.info.reqid, sa.info.selector.dport_mask) = (0, u16::MAX)), UnsupportedSa::SaSelector);
    let mut with_reqid = sa();
    with_reqid.info.selector.dport_mask = u16::MAX;
    read_sa(&with_reqid).expect("a policy with its reqid has the same selector");
    let mut tcp = sa();
    tcp.attributes.push(XfrmAttrs::EncapsulationTemplate(EncapTmpl { encap_type: 7, ..EncapTmpl::default() }));
    assert_eq!(read_sa(&tcp).unwrap_err(), UnsupportedSa::Encapsulation(7));
}

#[test]
fn reserved_spi_is_no_sa() {
    let mut sa = KernelSa::new(HERE, THERE, 0x1001, 9);
    sa.attributes.clear();
    assert!(changes(&bytes(XfrmMessage::AddSa(sa_message(&sa)), 0, 0)).is_empty());
}

#[test]
fn sa_is_removed_by_notice_expiry_or_flush() {
    let sa = KernelSa::new(HERE, THERE, 0x1001, 9);
    let name = KernelSaId { source: HERE, destination: THERE, spi: 0x1001 };
    let gone = |datagram: &[u8]| matches!(&changes(datagram)[..], [SaChange::SaGone(gone)] if *gone == name);
    assert!(gone(&bytes(sa_gone(&sa), 0, 0)));
    let mut of_ah = KernelSa::new(HERE, THERE, 0x1001, 9);
    of_ah.info.id.proto = 51;
    assert!(changes(&bytes(sa_gone(&of_ah), 0, 0)).is_empty(), "another protocol may have the same SPI");
    let expired = |hard| {
        let expire = UserExpire { state: sa.info, hard };
        bytes(XfrmMessage::Expire(ExpireMessage { expire }), 0, 0)
    };
    assert!(gone(&expired(1)) && changes(&expired(0)).is_empty());
    let flush = |protocol| {
        let message = netlink_packet_xfrm::state::FlushMessage { protocol };
        changes(&bytes(XfrmMessage::FlushSa(message), 0, 0))
    };
    assert!(matches!(flush(255)[..], [SaChange::AllSasGone]) && matches!(flush(50)[..], [SaChange::AllSasGone]));
    assert!(flush(51).is_empty(), "a flush of AH keeps ESP SAs");
}

#[test]
fn policy_is_parsed_completely() {
    let mut policy = KernelPolicy::new(9, 1, HERE, THERE, 77);
    (policy.info.selector.proto, policy.info.selector.prefixlen_d) = (17, 24);
    (policy.info.selector.dport, policy.info.selector.dport_mask) = (4789, u16::MAX);
    let MirroredPolicy { index, direction, selector, priority, action } = read_policy(&policy).unwrap();
    assert_eq!((index, direction, priority), (9, Direction::Transmit, 77));
    assert_eq!((selector.protocol, selector.source_port, selector.destination_port), (Some(17), None, Some(4789)));
    assert_eq!(selector.source.unwrap().address(), HERE);
    assert_eq!(selector.destination.unwrap().to_owned().bits(), 24);
    assert_eq!(action, Ok(Action::Protect(Template::transport(1))));

    policy.templates = vec![template(1, 5)];
    assert_eq!(read_policy(&policy).unwrap().action, Err(UnsupportedSa::TunnelEnds));
    policy.templates[0].saddr = Address::from_ip(&HERE);
    policy.templates[0].id.daddr = Address::from_ip(&THERE);
    assert_eq!(read_policy(&policy).unwrap().action, Ok(Action::Protect(Template::tunnel(HERE, THERE, 5))));
    // strongSwan's policies also name the SPI of the newest SA.
    policy.templates[0].id.spi = 0x1001;
    let action = read_policy(&policy).unwrap().action;
    assert_eq!(
        action,
        Ok(Action::Protect(Template::tunnel(HERE, THERE, 5))),
        "the template's SPI is ignored in favour of the reqid"
    );
    policy.templates.clear();
    assert_eq!(read_policy(&policy).unwrap().action, Ok(Action::Bypass));
    policy.info.action = 1;
    assert_eq!(read_policy(&policy).unwrap().action, Ok(Action::Discard));
    policy.info.direction = 2;
    assert!(read_policy(&policy).is_none(), "a forward policy is ignored");
    policy.info.direction = 4;
    assert!(read_policy(&policy).is_none(), "a socket's policy is ignored");
}

#[test]
fn unsupported_policy_drops_all_its_packets() {
    let mut policy = KernelPolicy::new(9, 0, HERE, THERE, 77);
    (policy.info.selector.dport, policy.info.selector.dport_mask) = (0x1000, 0xf000);
    let read = read_policy(&policy).unwrap();
    assert_eq!((read.action.clone(), read.selector.destination_port), (Err(UnsupportedSa::Selector), None));
    assert_eq!(read.policy().action, Action::Discard);
    for spoil in [
        |policy: &mut KernelPolicy| policy.templates.push(template(0, 2)),
        |policy: &mut KernelPolicy| policy.templates[0].optional = 1,
        |policy: &mut KernelPolicy| (policy.templates[0].id.spi, policy.templates[0].reqid) = (7, 0),
        |policy: &mut KernelPolicy| policy.templates[0].id.proto = 51,
    ] {
        let mut policy = KernelPolicy::new(9, 0, HERE, THERE, 77);
        spoil(&mut policy);
        assert_eq!(read_policy(&policy).unwrap().action, Err(UnsupportedSa::Templates), "{policy:?}");
    }
    let mut on_an_interface = KernelPolicy::new(9, 0, HERE, THERE, 77);
    on_an_interface.info.selector.ifindex = 2;
    assert_eq!(read_policy(&on_an_interface).unwrap().action, Err(UnsupportedSa::Selector));
}

/// In place of ports, a selector for ICMP has a type and a code, and one for GRE a key. Packets here do not show these
/// fields.
#[test]
fn policy_by_icmp_type_or_gre_key_never_widens_a_bypass() {
    let of = |protocol: u8, source: bool, templates: bool, block: bool| {
        let mut policy = KernelPolicy::new(9, 0, HERE, THERE, 77);
        let selector = &mut policy.info.selector;
        selector.proto = protocol;
        match source {
            true => (selector.sport, selector.sport_mask) = (128, u16::MAX),
            false => (selector.dport, selector.dport_mask) = (3, u16::MAX),
        }
        if !templates {
            policy.templates.clear();
        }
        policy.info.action = block.into();
        read_policy(&policy).unwrap()
    };
    for protocol in [1, 47, 58, 135] {
        for source in [true, false] {
            // The policy is left to other policies.
            let passes = of(protocol, source, false, false);
            assert_eq!(passes.action, Ok(Action::Bypass), "{protocol}");
            assert!(passes.selector.source_port.is_some() || passes.selector.destination_port.is_some());
            for does_not in [of(protocol, source, true, false), of(protocol, source, false, true)] {
                assert_eq!(does_not.action, Err(UnsupportedSa::Selector), "{protocol}");
                let Selector { source_port, destination_port, protocol: named, .. } = does_not.selector;
                assert_eq!((source_port, destination_port, named), (None, None, Some(protocol)));
                assert_eq!(does_not.policy().action, Action::Discard);
            }
        }
    }
    assert_eq!(of(17, true, true, false).action, Ok(Action::Protect(Template::transport(1))));
    // Without a type, the policy covers the whole protocol.
    let mut policy = KernelPolicy::new(9, 0, HERE, THERE, 77);
    policy.info.selector.proto = 58;
    assert_eq!(read_policy(&policy).unwrap().action, Ok(Action::Protect(Template::transport(1))));
}

#[test]
fn policy_is_removed_by_index() {
    let policy = KernelPolicy::new(9, 0, HERE, THERE, 77);
    assert!(matches!(changes(&bytes(policy_gone(&policy), 0, 0))[..], [SaChange::PolicyGone(9)]));
}

#[test]
fn snapshot_takes_three_queries() {
    let mut watcher = SaWatcher::new();
    let mut heard = Vec::new();
    let number = |request: &[u8]| u32::from_ne_bytes(request[8..12].try_into().unwrap());
    let ask = |watcher: &mut SaWatcher| watcher.poll_request().map(|request| (number(&request), request)).unwrap();
    let mut answer = |watcher: &mut SaWatcher, datagram: &[u8]| {
        watcher.handle_datagram(NOW, datagram, |change| heard.push(format!("{change:?}"))).unwrap();
    };
    let (sas, _) = ask(&mut watcher);
    // A notice may come in between. An answer with another sequence number is ignored.
    answer(&mut watcher, &done(sas + 1));
    let sa = KernelSa::new(HERE, THERE, 0x1001, 9);
    answer(&mut watcher, &[bytes(XfrmMessage::AddSa(sa_message(&sa)), sas, 2), done(sas)].concat());
    let (policies, _) = ask(&mut watcher);
    let policy = XfrmMessage::AddPolicy(policy_message(&KernelPolicy::new(9, 0, HERE, THERE, 77)));
    answer(&mut watcher, &bytes(policy, policies, 2));
    answer(&mut watcher, &done(policies));
    let (defaults, _) = ask(&mut watcher);
    answer(&mut watcher, &error(defaults, 22));
    assert!(watcher.poll_request().is_none());
    let names: Vec<&str> = heard.iter().map(|said| said.split(['(', ' ']).next().unwrap()).collect();
    assert_eq!(names, ["SnapshotBegins", "Sa", "Policy", "Defaults", "SnapshotEnds"]);
}

#[test]
fn other_errors_do_not_mean_an_old_kernel() {
    let mut watcher = SaWatcher::new();
    let mut heard = Vec::new();
    for _ in 0..2 {
        let request = watcher.poll_request().unwrap();
        let number = u32::from_ne_bytes(request[8..12].try_into().unwrap());
        watcher.handle_datagram(NOW, &done(number), |_| ()).unwrap();
    }
    let request = watcher.poll_request().unwrap();
    let number = u32::from_ne_bytes(request[8..12].try_into().unwrap());
    assert!(watcher.handle_datagram(NOW, &error(number, 12), |change| heard.push(change)).is_err());
    assert!(heard.is_empty(), "{heard:?}");
}

#[test]
fn refused_dump_is_an_error() {
    let mut watcher = SaWatcher::new();
    let request = watcher.poll_request().unwrap();
    let sequence = u32::from_ne_bytes(request[8..12].try_into().unwrap());
    let refused = watcher.handle_datagram(NOW, &error(sequence, 1), |_| {});
    assert_eq!(refused, Err(KernelError::Sas { errno: 1 }));
}

#[test]
fn failed_dump_completes_no_snapshot() {
    let mut watcher = SaWatcher::new();
    let request = watcher.poll_request().unwrap();
    let sequence = u32::from_ne_bytes(request[8..12].try_into().unwrap());
    let mut failed = done(sequence);
    failed[16..20].copy_from_slice(&(-12i32).to_ne_bytes());
    let mut heard = Vec::new();
    let refused = watcher.handle_datagram(NOW, &failed, |change| heard.push(change));
    assert_eq!(refused, Err(KernelError::Sas { errno: 12 }));
    assert!(!heard.iter().any(|change| matches!(change, SaChange::SnapshotEnds)), "{heard:?}");
}

#[test]
fn interrupted_dump_is_repeated() {
    let mut watcher = SaWatcher::new();
    let ask = |watcher: &mut SaWatcher| u32::from_ne_bytes(watcher.poll_request().unwrap()[8..12].try_into().unwrap());
    let sas = ask(&mut watcher);
    let mut interrupted = done(sas);
    interrupted[6] |= 0x10;
    watcher.handle_datagram(NOW, &interrupted, |_| {}).unwrap();
    let policies = ask(&mut watcher);
    watcher.handle_datagram(NOW, &done(policies), |_| {}).unwrap();
    let defaults = ask(&mut watcher);
    watcher.handle_datagram(NOW, &error(defaults, 22), |_| {}).unwrap();
    assert!(watcher.poll_request().is_some(), "a new dump must be requested");
}

#[test]
fn messages_to_the_kernel_parse_with_another_crate() {
    let mut watcher = SaWatcher::new();
    let _ = watcher.poll_request();
    let sa = KernelSa::new(HERE, THERE, 0x1001, 9);
    watcher.handle_datagram(NOW, &bytes(XfrmMessage::AddSa(sa_message(&sa)), 0, 0), |_| {}).unwrap();
    let name = KernelSaId { source: HERE, destination: THERE, spi: 0x1001 };
    watcher.handle_report(NOW, SaReport::Used(name, KernelSaUse { bytes: 1400, packets: 2 }));
    watcher.handle_report(NOW, SaReport::Expired(name, true));
    watcher.handle_report(NOW, SaReport::Used(KernelSaId { spi: 0x1002, ..name }, KernelSaUse::default()));
    let mut told = core::iter::from_fn(|| watcher.poll_request()).map(|bytes| {
        match NetlinkMessage::<XfrmMessage>::deserialize(&bytes).unwrap().payload {
            NetlinkPayload::InnerMessage(message) => message,
            other => panic!("{other:?}"),
        }
    });
    let Some(XfrmMessage::NewAsyncEvent(NewAsyncEventMessage { id, nlas })) = told.next() else { panic!("an event") };
    assert_eq!((id.sa_id.daddr, id.sa_id.spi, id.sa_id.proto), (sa.info.id.daddr, 0x1001, 50));
    let [XfrmAttrs::LifetimeBytes(lifetime)] = &nlas[..] else { panic!("{nlas:?}") };
    assert_eq!((lifetime.bytes, lifetime.packets, lifetime.add_time, lifetime.use_time), (1400, 2, 1000, NOW));
    let Some(XfrmMessage::Expire(ExpireMessage { expire })) = told.next() else { panic!("an expiry") };
    assert_eq!((expire.state.id, expire.state.family, expire.hard), (sa.info.id, 2, 1));
    assert!(told.next().is_none(), "no message about an unknown SA");
}

/// Returns the changes that one datagram causes in a new watcher.
fn changes(datagram: &[u8]) -> Vec<SaChange> {
    let mut heard = Vec::new();
    let mut watcher = SaWatcher::new();
    let _ = watcher.poll_request();
    watcher.handle_datagram(NOW, datagram, |change| heard.push(change)).unwrap();
    assert_eq!(watcher.malformed(), 0);
    heard
}

fn read_sa(sa: &KernelSa) -> Result<MirroredSa, UnsupportedSa> {
    match changes(&bytes(XfrmMessage::AddSa(sa_message(sa)), 0, 0)).pop() {
        Some(SaChange::Sa(sa)) => Ok(*sa),
        Some(SaChange::SaUnsupported(_, why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

fn read_policy(policy: &KernelPolicy) -> Option<MirroredPolicy> {
    changes(&bytes(XfrmMessage::UpdatePolicy(policy_message(policy)), 0, 0)).pop().map(|change| match change {
        SaChange::Policy(policy) => policy,
        other => panic!("{other:?}"),
    })
}

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const NOW: u64 = 1_800_000_000;
