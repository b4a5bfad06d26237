//! TCP over ESP between two hosts, over good and bad wires: the streams arrive intact, and the wire carries only ESP.

mod offload;
mod queues;
mod rig;
mod router;

use core::time::Duration;
use ipsec::SaEvent;
use nic_sim::wire::LinkConfig;
use offload_api::{DontFragment, EspMode, EspSuite, Lifetime, Limit, Limits, OffloadKind, SaParams};
use rig::{StreamPair, lossy, only_esp};

const SUITES: [EspSuite; 5] =
    [EspSuite::Aes128Gcm, EspSuite::Aes256Gcm, EspSuite::ChaCha20Poly1305, EspSuite::Aes128Gmac, EspSuite::Aes256Gmac];

#[test]
fn every_suite_and_mode_carries_a_stream() {
    for suite in SUITES {
        for mode in [EspMode::Transport, EspMode::Tunnel] {
            let pair = StreamPair { suite, mode, ..StreamPair::default() };
            let outcome = pair.run(300_000);
            assert_eq!(outcome.received, outcome.sent, "{suite:?} {mode:?}");
            assert!(only_esp(&outcome.seen, false), "{suite:?} {mode:?}");
            if suite.encrypts() {
                assert!(!outcome.saw_plaintext(), "{suite:?} {mode:?}");
            } else {
                assert!(outcome.saw_plaintext(), "the check would find it: GMAC hides nothing");
            }
            assert_eq!(outcome.counters.value("XfrmInStateProtoError"), 0);
        }
    }
}

#[test]
fn stream_survives_a_bad_wire() {
    for (esn, udp, window) in [(false, false, 32), (true, false, 64), (true, true, 1024), (false, true, 4096)] {
        let pair = StreamPair { esn, udp, window, link: lossy(0.01, 0.01, 0.01, 0.002), ..StreamPair::default() };
        let outcome = pair.run(2_000_000);
        assert_eq!(outcome.received, outcome.sent, "esn {esn}, udp {udp}, window {window}");
        assert!(only_esp(&outcome.seen, udp) && !outcome.saw_plaintext());
        assert!(outcome.counters.value("XfrmInStateSeqError") > 0, "duplicates were replays");
        assert!(outcome.counters.value("XfrmInStateProtoError") > 0, "corrupted packets were forgeries");
    }
}

#[test]
fn numbers_cross_the_edge_of_32_bits() {
    let pair =
        StreamPair { esn: true, last_number: 0xffff_ff80, link: lossy(0.02, 0.02, 0.01, 0.0), ..StreamPair::default() };
    let outcome = pair.run(1_000_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.used.iter().any(|used| used.number > 1 << 32));
}

#[test]
fn exhausted_short_numbers_stop_the_stream() {
    let pair = StreamPair { last_number: u64::from(u32::MAX) - 100, rekey_on_events: true, ..StreamPair::default() };
    let outcome = pair.run(1_000_000);
    assert_eq!(outcome.received, outcome.sent, "a successor took over");
    assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::SequenceExhausted { .. })));
    assert!(outcome.counters.value("XfrmOutStateSeqError") > 0);
    assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext());
}

#[test]
fn rekeying_under_load_loses_nothing() {
    let soft = Limits { packets: Some(100), ..Limits::default() };
    let lifetime = Lifetime { soft, ..Lifetime::default() };
    let pair = StreamPair { lifetime, rekey_on_events: true, ..StreamPair::default() };
    let outcome = pair.run(3_000_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.rekeys >= 10, "{} rekeys", outcome.rekeys);
    assert_eq!(outcome.counters.value("TcpRetransSegs"), 0, "not a packet was lost");
    for name in ["XfrmInNoStates", "XfrmOutNoStates", "XfrmOutStateExpired", "XfrmInStateExpired"] {
        assert_eq!(outcome.counters.value(name), 0, "{name}");
    }
    assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext());
}

#[test]
fn expired_sa_stops_packets_until_its_successor() {
    let hard = Limits { bytes: Some(200_000), ..Limits::default() };
    let lifetime = Lifetime { hard, ..Lifetime::default() };
    let pair = StreamPair { lifetime, rekey_on_events: true, ..StreamPair::default() };
    let outcome = pair.run(1_000_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::HardLimit { limit: Limit::Bytes, .. })));
    assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext());
}

#[test]
fn lifetime_ends_on_time() {
    // A full device queue takes 40 ms on this line, and its packets must still arrive under the old SA.
    let limits = |millis| Limits { time: Some(Duration::from_millis(millis)), ..Limits::default() };
    let lifetime = Lifetime { soft: limits(50), hard: limits(150) };
    let link = LinkConfig { rate: Some(100_000_000), ..LinkConfig::default() };
    let pair = StreamPair { lifetime, link, rekey_on_events: true, ..StreamPair::default() };
    let outcome = pair.run(3_000_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::SoftLimit { limit: Limit::Time, .. })));
    assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::HardLimit { limit: Limit::Time, .. })));
    assert_eq!(outcome.counters.value("TcpRetransSegs"), 0, "successors came in time");
    assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext());
}

#[test]
fn packets_wait_for_their_sa() {
    let pair = StreamPair { keys_after: Some(Duration::from_millis(1500)), ..StreamPair::default() };
    let outcome = pair.run(100_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::Acquire { .. })));
    assert!(outcome.counters.value("XfrmOutNoStates") > 0);
    assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext());
}

#[test]
fn esp_packets_fit_the_wire() {
    // The path MTU leaves room for ESP, so no packet is dropped or fragmented for its size.
    for mtu in [1280, 1500, 9000] {
        for mode in [EspMode::Transport, EspMode::Tunnel] {
            let pair = StreamPair { mode, mtu, udp: true, ..StreamPair::default() };
            let outcome = pair.run(200_000);
            assert_eq!(outcome.received, outcome.sent);
            let longest = outcome.seen.iter().map(|seen| seen.frame.len() - 14).max().unwrap();
            assert!(longest <= usize::from(mtu) && longest + 4 > usize::from(mtu), "{longest} of {mtu}, {mode:?}");
            assert_eq!(outcome.counters.value("XfrmOutStateModeError"), 0);
        }
    }
}

#[test]
fn tunnel_settings_reach_the_wire() {
    let pair = StreamPair {
        mode: EspMode::Tunnel,
        dont_fragment: DontFragment::Clear,
        dscp: Some(46),
        ..StreamPair::default()
    };
    let outcome = pair.run(50_000);
    assert_eq!(outcome.received, outcome.sent);
    for seen in outcome.seen.iter().filter(|seen| seen.frame.data[12..14] == [8, 0]) {
        assert_eq!((seen.frame.data[15] >> 2, seen.frame.data[20] & 0x40), (46, 0));
    }
}

#[test]
fn unsupported_sas_are_processed_in_software() {
    let pair = StreamPair { offload: OffloadKind::Packet, sas: 0, ..StreamPair::default() };
    let outcome = pair.run(100_000);
    assert_eq!(outcome.received, outcome.sent);
    assert!(outcome.refused.is_some());
    assert!(outcome.counters.value("ipsec_sw_tx_pkts") > 0 && !outcome.saw_plaintext());
}

#[test]
fn sa_parameters_never_print_the_key() {
    let params: SaParams = StreamPair::default().sa(offload_api::Direction::Receive, 0, 0);
    assert!(!format!("{params:?}").contains("[7, 7"), "a key is never printed");
}

/// Mode, IPv6 inside, and IPv6 outside. In transport mode both are equal.
const FAMILIES: [(EspMode, bool, bool); 6] = [
    (EspMode::Transport, false, false),
    (EspMode::Transport, true, true),
    (EspMode::Tunnel, false, false),
    (EspMode::Tunnel, false, true),
    (EspMode::Tunnel, true, false),
    (EspMode::Tunnel, true, true),
];
const KINDS: [OffloadKind; 3] = [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet];

#[test]
fn tunnels_carry_either_ip_version_in_either() {
    for (mode, ipv6, outer_ipv6) in FAMILIES {
        for offload in KINDS {
            let what = format!("{mode:?}, {offload:?}, IPv6: {ipv6} in {outer_ipv6}");
            let link = lossy(0.01, 0.01, 0.01, 0.002);
            let outcome =
                StreamPair { mode, ipv6, outer_ipv6, offload, link, esn: true, ..StreamPair::default() }.run(500_000);
            assert_eq!(outcome.received, outcome.sent, "{what}");
            assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext(), "{what}");
            let six = |data: &[u8]| data[12..14] == [0x86, 0xdd];
            assert!(outcome.seen.iter().all(|seen| six(&seen.frame.data) == outer_ipv6), "{what}");
            assert_eq!(outcome.refused, None, "{what}");
            assert_eq!(outcome.counters.value("ipsec_rx_pkts") > 0, offload != OffloadKind::None, "{what}");
        }
    }
}

/// A router's "too big" message about an ESP packet reaches TCP, which then sends smaller segments. No packet needs
/// fragmentation.
#[test]
fn a_narrow_path_is_found() {
    for (mode, ipv6, outer_ipv6) in FAMILIES {
        for offload in KINDS {
            let what = format!("{mode:?}, {offload:?}, IPv6: {ipv6} in {outer_ipv6}");
            // The minimum MTU of IPv6 is 1280, so the tunnel's inner packets need that much.
            let mtu = if ipv6 && mode == EspMode::Tunnel { 1380 } else { 1300 };
            let router = Some(mtu);
            let outcome =
                StreamPair { mode, ipv6, outer_ipv6, offload, router, esn: true, ..StreamPair::default() }.run(500_000);
            assert_eq!(outcome.received, outcome.sent, "{what}");
            assert!(only_esp(&outcome.seen, false) && !outcome.saw_plaintext(), "{what}");
            let (largest, refused) = outcome.routed;
            assert!(largest <= usize::from(mtu) && largest + 4 > usize::from(mtu), "{largest}, {what}");
            assert!((1..=10).contains(&refused), "{refused} were too big, more than the first window, {what}");
            assert_eq!(outcome.counters.value("TcpExtTCPTimeouts"), 0, "{what}");
            assert_eq!(outcome.counters.value("ipsec_rx_path_mtu"), 1, "{what}");
        }
    }
}
