//! The stream tests with crypto or packet offload.

use super::rig::{StreamOutcome, StreamPair, lossy, only_esp};
use core::time::Duration;
use ipsec::SaEvent;
use nic_sim::wire::LinkConfig;
use offload_api::{EspMode, Lifetime, Limit, Limits, OffloadKind};

const KINDS: [OffloadKind; 2] = [OffloadKind::Crypto, OffloadKind::Packet];

fn arrived(outcome: &StreamOutcome, what: &str) {
    assert_eq!(outcome.received, outcome.sent, "{what}");
    assert!(!outcome.saw_plaintext(), "{what}");
}

#[test]
fn every_suite_and_mode_carries_a_stream() {
    for kind in KINDS {
        for suite in super::SUITES {
            for mode in [EspMode::Transport, EspMode::Tunnel] {
                let outcome =
                    StreamPair { suite, mode, offload: kind, esn: true, ..StreamPair::default() }.run(300_000);
                let what = format!("{kind:?} {suite:?} {mode:?}");
                assert_eq!(outcome.received, outcome.sent, "{what}");
                assert_eq!(outcome.saw_plaintext(), !suite.encrypts(), "GMAC hides nothing, {what}");
                assert!(only_esp(&outcome.seen, false), "{what}");
                assert_eq!(outcome.refused, None, "{what}");
                let counters = &outcome.counters;
                for software in ["ipsec_sw_tx_pkts", "ipsec_sw_rx_pkts", "ipsec_rx_fallback", "ipsec_tx_fallback"] {
                    assert_eq!(counters.value(software), 0, "{software}, {what}");
                }
                let of_kind = if kind == OffloadKind::Crypto { "crypto" } else { "packet" };
                let handed_over = counters.value(&format!("ipsec_{of_kind}_tx_pkts"));
                // The last segments may still be in the device when the run ends.
                let left = handed_over - counters.value("ipsec_tx_pkts");
                assert!(left < 8, "{left} not sent at the end: each segment counts, {what}");
                assert_eq!(counters.value(&format!("ipsec_{of_kind}_rx_pkts")), counters.value("ipsec_rx_pkts"));
                assert!(counters.value("tx_tso_packets") > 0, "{what}");
                assert_eq!(counters.value("TcpInCsumErrors"), 0, "{what}");
                let checked = counters.value("rx_csum_unnecessary");
                assert_eq!(checked, counters.value("ipsec_rx_pkts"), "checksums past ESP, {what}");
            }
        }
    }
}

#[test]
fn sas_in_host_memory_send_the_same_bytes() {
    for (offload, window) in KINDS.into_iter().flat_map(|kind| [(kind, 256), (kind, 4096)]) {
        let run = |cached: usize| {
            let link = lossy(0.01, 0.01, 0.01, 0.002);
            StreamPair { offload, esn: true, window, last_number: 0xffff_ff00, cached, link, ..StreamPair::default() }
                .run(500_000)
        };
        let [here, there] = [64, 1].map(run);
        arrived(&there, &format!("{offload:?}"));
        let frames =
            |outcome: &StreamOutcome| -> Vec<_> { outcome.seen.iter().map(|seen| seen.frame.data.clone()).collect() };
        assert!(frames(&here) == frames(&there), "{offload:?}");
        assert_eq!(here.counters.value("ctx_evicted"), 0, "{offload:?}");
        let (evicted, fetched) = (there.counters.value("ctx_evicted"), there.counters.value("ctx_fetched"));
        assert!(evicted > 20 && fetched > 20, "{evicted} and {fetched}, {offload:?}");
    }
}

#[test]
fn stream_survives_a_bad_wire() {
    for kind in KINDS {
        for (esn, window) in [(false, 32), (true, 64), (true, 256)] {
            let link = lossy(0.01, 0.01, 0.01, 0.002);
            let outcome = StreamPair { esn, window, offload: kind, link, ..StreamPair::default() }.run(2_000_000);
            let what = format!("{kind:?}, esn {esn}, window {window}");
            arrived(&outcome, &what);
            assert!(only_esp(&outcome.seen, false), "{what}");
            let replays = outcome.counters.value("XfrmInStateSeqError") + outcome.counters.value("ipsec_rx_drop_pkts");
            assert!(replays > 0, "duplicates were replays, {what}");
            assert!(outcome.counters.value("ipsec_rx_auth_fail") > 0, "{what}");
            let forged = outcome.counters.value("XfrmInStateProtoError");
            assert!(forged >= outcome.counters.value("ipsec_rx_auth_fail"), "the host looked as well, {what}");
        }
    }
}

#[test]
fn esp_in_udp_needs_packet_offload() {
    for (kind, mode) in
        KINDS.into_iter().flat_map(|kind| [EspMode::Transport, EspMode::Tunnel].map(|mode| (kind, mode)))
    {
        let what = format!("{kind:?} {mode:?}");
        let link = lossy(0.01, 0.01, 0.01, 0.002);
        let outcome = StreamPair { offload: kind, mode, udp: true, link, ..StreamPair::default() }.run(200_000);
        arrived(&outcome, &what);
        assert!(only_esp(&outcome.seen, true), "{what}");
        let in_device = kind == OffloadKind::Packet;
        assert_eq!(outcome.refused.is_none(), in_device, "{what}");
        let counted = ["ipsec_tx_pkts", "ipsec_rx_pkts"].map(|name| outcome.counters.value(name) > 0);
        assert_eq!(counted, [in_device; 2], "{what}");
    }
}

#[test]
fn numbers_cross_the_edge_of_32_bits() {
    for kind in KINDS {
        let link = lossy(0.02, 0.02, 0.01, 0.0);
        let pair = StreamPair { esn: true, last_number: 0xffff_ff80, offload: kind, link, ..StreamPair::default() };
        let outcome = pair.run(1_000_000);
        arrived(&outcome, "ESN");
        let crossed = |event: &SaEvent| matches!(event, SaEvent::Crossed { number, .. } if *number >= 1 << 32);
        let told = outcome.events.iter().filter(|event| crossed(event)).count();
        assert_eq!(told, if kind == OffloadKind::Packet { 4 } else { 0 }, "both ends, both ways: {:?}", outcome.events);
    }
}

#[test]
fn exhausted_short_numbers_stop_the_stream() {
    for kind in KINDS {
        let last_number = u64::from(u32::MAX) - 100;
        let pair = StreamPair { last_number, rekey_on_events: true, offload: kind, ..StreamPair::default() };
        let outcome = pair.run(1_000_000);
        arrived(&outcome, "a successor took over");
        assert!(outcome.events.iter().any(|event| matches!(event, SaEvent::SequenceExhausted { .. })));
        assert!(only_esp(&outcome.seen, false));
    }
}

#[test]
fn rekeying_under_load_loses_nothing() {
    for kind in KINDS {
        let soft = Limits { packets: Some(100), ..Limits::default() };
        let lifetime = Lifetime { soft, ..Lifetime::default() };
        let outcome =
            StreamPair { lifetime, rekey_on_events: true, offload: kind, ..StreamPair::default() }.run(4_000_000);
        arrived(&outcome, "rekeyed");
        assert!(outcome.rekeys >= 10, "{} rekeys", outcome.rekeys);
        assert_eq!(outcome.counters.value("TcpRetransSegs"), 0, "not a packet was lost, {kind:?}");
        for name in
            ["XfrmInNoStates", "XfrmOutNoStates", "XfrmOutStateExpired", "XfrmInStateExpired", "ipsec_tx_drop_pkts"]
        {
            assert_eq!(outcome.counters.value(name), 0, "{name}, {kind:?}");
        }
        assert!(only_esp(&outcome.seen, false));
    }
}

#[test]
fn expired_sa_stops_packets_until_its_successor() {
    for kind in KINDS {
        let hard = Limits { bytes: Some(200_000), ..Limits::default() };
        let lifetime = Lifetime { hard, ..Lifetime::default() };
        let outcome =
            StreamPair { lifetime, rekey_on_events: true, offload: kind, ..StreamPair::default() }.run(1_000_000);
        arrived(&outcome, "revived");
        let dead = |event: &SaEvent| matches!(event, SaEvent::HardLimit { limit: Limit::Bytes, .. });
        assert!(outcome.events.iter().any(dead), "{kind:?}");
        assert!(only_esp(&outcome.seen, false));
    }
}

#[test]
fn lifetime_ends_on_time() {
    let limits = |millis| Limits { time: Some(Duration::from_millis(millis)), ..Limits::default() };
    let lifetime = Lifetime { soft: limits(50), hard: limits(150) };
    for kind in KINDS {
        let link = LinkConfig { rate: Some(100_000_000), ..LinkConfig::default() };
        let outcome =
            StreamPair { lifetime, link, rekey_on_events: true, offload: kind, ..StreamPair::default() }.run(3_000_000);
        arrived(&outcome, "in time");
        assert_eq!(outcome.counters.value("TcpRetransSegs"), 0, "successors came in time, {kind:?}");
    }
}

#[test]
fn esp_packets_fit_the_wire() {
    for kind in KINDS {
        for mtu in [1280, 1500, 9000] {
            for mode in [EspMode::Transport, EspMode::Tunnel] {
                let outcome = StreamPair { mode, mtu, offload: kind, ..StreamPair::default() }.run(200_000);
                arrived(&outcome, "fits");
                let longest = outcome.seen.iter().map(|seen| seen.frame.len() - 14).max().unwrap();
                assert!(longest <= usize::from(mtu) && longest + 4 > usize::from(mtu), "{longest} of {mtu}, {mode:?}");
                assert_eq!(outcome.counters.value("ipsec_tx_drop_trailer"), 0);
            }
        }
    }
}

#[test]
fn sas_beyond_the_device_are_processed_in_software() {
    let outcome = StreamPair { offload: OffloadKind::Packet, sas: 1, ..StreamPair::default() }.run(100_000);
    arrived(&outcome, "half of it in software");
    assert!(outcome.counters.value("ipsec_sw_tx_pkts") > 0 && outcome.counters.value("ipsec_packet_rx_pkts") > 0);
}
