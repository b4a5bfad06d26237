//! Tests of ECN (RFC 3168): negotiation, marking of packets, and the response to marks.

use crate::pair::{HostPair, PairConfig, TCP};
use crate::transfer::{exchange, pattern};
use crate::wire::WireConfig;
use core::time::Duration;
use offload_base::{Seed, Seq};
use offload_formats::IpHeaders;
use offload_host_stack::{Ecn, TcpConfig};
use smoltcp::wire::TcpPacket;
use std::sync::{Arc, Mutex};

/// The ECN-related fields of a frame.
#[derive(Clone, Copy, Debug)]
struct EcnFields {
    from: usize,
    syn: bool,
    ece: bool,
    cwr: bool,
    /// ECN field of the IP header.
    ecn: u8,
    seq: Seq,
    bytes: usize,
}

impl EcnFields {
    fn parse(from: usize, frame: &[u8]) -> EcnFields {
        let ip = IpHeaders::parse(&frame[14..]).unwrap();
        let tcp = TcpPacket::new_unchecked(&frame[TCP..]);
        EcnFields {
            from,
            syn: tcp.syn(),
            ece: tcp.ece(),
            cwr: tcp.cwr(),
            ecn: ip.ecn(&frame[14..]),
            seq: Seq(tcp.seq_number().0 as u32),
            bytes: ip.end - ip.upper - usize::from(tcp.header_len()),
        }
    }
}

type FrameLog = Arc<Mutex<Vec<EcnFields>>>;

/// Returns a pair with a log of all frames before they enter the wire. Frames selected by `loses` are lost.
fn logged_pair(setup: &PairConfig, mut loses: impl FnMut(&EcnFields) -> bool + 'static) -> (HostPair, FrameLog) {
    let mut pair = HostPair::new(setup);
    let log = FrameLog::default();
    let seen = log.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let frame = EcnFields::parse(from, frame);
        seen.lock().unwrap().push(frame);
        loses(&frame)
    }));
    (pair, log)
}

fn setup(ecn: [Ecn; 2], wire: WireConfig) -> PairConfig {
    PairConfig { wire, tcp: ecn.map(|ecn| TcpConfig { ecn, ..TcpConfig::default() }), ..PairConfig::default() }
}

const BOTH: [Ecn; 2] = [Ecn::Request, Ecn::Accept];

#[test]
fn ecn_requires_the_agreement_of_both_sides() {
    for client in [Ecn::Off, Ecn::Accept, Ecn::Request] {
        for server in [Ecn::Off, Ecn::Accept, Ecn::Request] {
            let (mut pair, log) = logged_pair(&setup([client, server], WireConfig::default()), |_| false);
            let ids = pair.open();
            let data = pattern(Seed(1), 50_000);
            exchange(&mut pair, ids, [&data, &data], [5000, 5000]);
            let log = log.lock().unwrap();
            let [syn, syn_ack] = [0, 1].map(|side| *log.iter().find(|seen| seen.syn && seen.from == side).unwrap());
            let asked = client == Ecn::Request;
            let agreed = asked && server != Ecn::Off;
            // RFC 3168 6.1.1. A SYN itself is never ECN-capable.
            assert_eq!((syn.ece, syn.cwr, syn.ecn), (asked, asked, 0), "{client:?}, {server:?}");
            assert_eq!((syn_ack.ece, syn_ack.cwr, syn_ack.ecn), (agreed, false, 0), "{client:?}, {server:?}");
            for seen in log.iter().filter(|seen| !seen.syn) {
                let capable = agreed && seen.bytes > 0;
                assert_eq!(seen.ecn, if capable { 0b10 } else { 0 }, "{client:?}, {server:?}: {seen:?}");
                assert!(!seen.ece && !seen.cwr);
            }
        }
    }
}

#[test]
fn repeated_syn_does_not_request_ecn() {
    let mut syns = 0;
    let loses = move |seen: &EcnFields| {
        syns += u32::from(seen.syn && seen.from == 0);
        seen.syn && syns == 1
    };
    let (mut pair, log) = logged_pair(&setup(BOTH, WireConfig::default()), loses);
    let ids = pair.open();
    let data = pattern(Seed(1), 50_000);
    exchange(&mut pair, ids, [&data, &data], [5000, 5000]);
    let log = log.lock().unwrap();
    let syns: Vec<_> = log.iter().filter(|seen| seen.syn && seen.from == 0).map(|seen| (seen.ece, seen.cwr)).collect();
    assert_eq!(syns, [(true, true), (false, false)]);
    assert!(log.iter().all(|seen| seen.ecn == 0));
}

#[test]
fn marks_reduce_the_window_without_loss() {
    for tso in [0, 65_536] {
        let wire = WireConfig { mark: 0.01, delay: Duration::from_millis(1), ..WireConfig::default() };
        let (mut pair, log) = logged_pair(&PairConfig { tso, ..setup(BOTH, wire) }, |_| false);
        let ids = pair.open();
        let data = pattern(Seed(1), 4_000_000);
        exchange(&mut pair, ids, [&data, &[]], [50_000, 1]);
        let [sender, receiver] = pair.stacks.each_ref().map(|stack| *stack.counters());
        assert_eq!((sender.retransmitted_segments, sender.timeouts), (0, 0));
        assert!(pair.wire.marked > 10, "{} marks", pair.wire.marked);
        assert_eq!(receiver.in_marked, pair.wire.marked);
        assert!(sender.window_cuts_for_marks > 5 && sender.window_cuts_for_marks <= pair.wire.marked);
        // One segment per reduction carries CWR: the first of its packet.
        let log = log.lock().unwrap();
        let told = log.iter().filter(|seen| seen.cwr && !seen.syn).count() as u64;
        assert!(told.abs_diff(sender.window_cuts_for_marks) <= 1, "{told} of {}", sender.window_cuts_for_marks);
        // The echo ends when CWR arrives.
        let echoes = log.iter().filter(|seen| seen.from == 1 && !seen.syn && seen.ece).count();
        let acks = log.iter().filter(|seen| seen.from == 1).count();
        assert!(echoes as u64 >= sender.window_cuts_for_marks && echoes * 2 < acks, "{echoes} of {acks}");
    }
}

#[test]
fn window_is_reduced_once_per_round_trip() {
    let delay = Duration::from_millis(5);
    let wire = WireConfig { mark: 1.0, delay, ..WireConfig::default() };
    let (mut pair, log) = logged_pair(&setup(BOTH, wire), |_| false);
    let ids = pair.open();
    let began = pair.now;
    let data = pattern(Seed(1), 1_000_000);
    let ended = exchange(&mut pair, ids, [&data, &[]], [50_000, 1]);
    // Every packet is marked, so each round trip reports a mark.
    let rounds = ((ended - began).as_nanos() / (2 * delay).as_nanos()) as u64;
    let cuts = pair.stacks[0].counters().window_cuts_for_marks;
    assert!(cuts >= rounds / 3 && cuts <= rounds + 1, "{cuts} cuts in {rounds} round trips");
    let log = log.lock().unwrap();
    assert!(log.iter().filter(|seen| seen.from == 1 && !seen.syn && seen.ecn == 0).all(|seen| seen.bytes == 0));
    assert_eq!(pair.stacks[0].counters().retransmitted_segments, 0);
}

#[test]
fn retransmissions_are_not_ecn_capable() {
    let wire = WireConfig { loss: 0.03, mark: 0.01, delay: Duration::from_millis(1), ..WireConfig::default() };
    let (mut pair, log) = logged_pair(&setup(BOTH, wire), |_| false);
    let ids = pair.open();
    let data = pattern(Seed(1), 1_000_000);
    exchange(&mut pair, ids, [&data, &[]], [50_000, 1]);
    let log = log.lock().unwrap();
    let mut next = pair.stacks[0].first_seq(ids[0]);
    let (mut fresh, mut again) = (0, 0);
    for seen in log.iter().filter(|seen| seen.from == 0 && seen.bytes > 0) {
        if seen.seq.before(next) {
            again += 1;
            assert!(seen.ecn == 0 && !seen.cwr, "{seen:?}");
        } else {
            fresh += 1;
            assert_eq!(seen.ecn, 0b10, "{seen:?}");
            next = seen.seq + seen.bytes as u32;
        }
    }
    assert!(fresh > 600 && again > 10, "{fresh} new, {again} again");
}
