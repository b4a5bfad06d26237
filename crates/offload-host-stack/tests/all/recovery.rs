//! Tests of loss recovery: its effect on the window, for each kind of loss detection.

use crate::pair::{FULL, HostPair, PairConfig, TCP};
use crate::transfer::pattern;
use crate::wire::WireConfig;
use core::time::Duration;
use offload_base::{Seed, Seq};
use offload_host_stack::{CongestionAlgorithm, TcpConfig};
use smoltcp::wire::TcpPacket;
use std::sync::{Arc, Mutex};

/// The wire's view of the flight in which a segment is lost.
#[derive(Clone, Copy, Debug, Default)]
struct WireFlight {
    segments: u32,
    /// First unacknowledged position, as known to the sender.
    una: u32,
    /// Position after the last sent byte.
    end: u32,
    lost: Option<u32>,
    /// Whether a separate acknowledgment covers the segments before the loss.
    apart: bool,
    /// Whether the sender has learned of the loss.
    told: bool,
}

impl WireFlight {
    /// Records a frame and returns whether to drop it. The peer joins received segments, so one acknowledgment, or two
    /// at once, acknowledges all data before the loss and reports all data after it.
    fn see(&mut self, from: usize, frame: &[u8]) -> bool {
        let tcp = TcpPacket::new_unchecked(&frame[TCP..]);
        let (seq, ack) = (tcp.seq_number().0 as u32, tcp.ack_number().0 as u32);
        let payload = tcp.payload().len() as u32;
        if from == 0 && payload > 0 && self.lost.is_none() {
            self.end = seq.wrapping_add(payload);
            self.segments += 1;
            // Late in the flight.
            if self.segments == 100 {
                self.lost = Some(seq);
                return true;
            }
        } else if from == 0 && payload > 0 && !self.told {
            self.end = if Seq(seq + payload).after(Seq(self.end)) { seq + payload } else { self.end };
        } else if from == 1 && !self.told {
            let Some(lost) = self.lost else {
                self.una = ack;
                return false;
            };
            let right = tcp.selective_ack_ranges().unwrap()[0].map(|range| range.1);
            self.told = ack == lost && right == Some(self.end);
            let apart = self.apart && ack == lost && right.is_none();
            return !(self.told || apart);
        }
        false
    }
}

#[test]
fn loss_reduces_the_whole_window_of_a_joining_peer() {
    for (congestion, share) in [(CongestionAlgorithm::Cubic, 0.7), (CongestionAlgorithm::NewReno, 0.5)] {
        for apart in [false, true] {
            let (flight, threshold) = run(congestion, WireFlight { apart, ..WireFlight::default() }, 1_000_000);
            let whole = flight.end.wrapping_sub(flight.una);
            let expected = share * f64::from(whole);
            assert!((threshold as f64 - expected).abs() < 0.02 * expected, "{congestion:?}: {threshold}, {flight:?}");
        }
    }
}

/// Returns the wire's view, and the slow start threshold at the start of the recovery.
fn run(congestion: CongestionAlgorithm, flight: WireFlight, bytes: usize) -> (WireFlight, u64) {
    let wire = WireConfig { delay: Duration::from_millis(5), ..WireConfig::default() };
    let tcp = TcpConfig { congestion, ..TcpConfig::default() };
    let (mut pair, ids) =
        HostPair::connected(&PairConfig { wire, tcp: [tcp.clone(), tcp], tso: 0, ..PairConfig::default() });
    let seen = Arc::new(Mutex::new(flight));
    let flight = seen.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| flight.lock().unwrap().see(from, frame)));
    pair.stacks[0].send_copy(ids[0], &pattern(Seed(1), bytes));
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut Vec::new());
        let counters = pair.stacks[0].counters();
        counters.sack_recoveries + counters.loss_probe_recoveries > 0
    });
    let flight = *seen.lock().unwrap();
    assert!(flight.told, "{flight:?}");
    (flight, pair.stacks[0].stats(ids[0]).slow_start_threshold)
}

#[test]
fn lost_tail_reduces_the_window_once() {
    let (mut pair, ids) = HostPair::connected(&PairConfig { tso: 0, ..PairConfig::default() });
    let data = pattern(Seed(2), 100 * FULL);
    let last = pair.stacks[0].first_seq(ids[0]) + 99 * FULL as u32;
    lose_once(&mut pair, last);
    pair.stacks[0].send_copy(ids[0], &data);
    let mut read = Vec::new();
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut read);
        read.len() == data.len()
    });
    pair.run_for(Duration::from_millis(50));
    // RFC 8985 7.4.2: a duplicate report may still be on its way.
    let window = pair.stacks[0].stats(ids[0]).congestion_window;
    assert_eq!(pair.stacks[0].counters().loss_probe_recoveries, 0);
    assert_eq!(pair.stacks[0].stats(ids[0]).slow_start_threshold, u64::MAX);
    pair.stacks[0].send_copy(ids[0], b"more");
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.stacks[0].counters().loss_probe_recoveries, 1);
    let threshold = pair.stacks[0].stats(ids[0]).slow_start_threshold;
    assert!(window >= 20 * FULL as u64 && threshold * 4 > window, "{threshold} of {window}");
}

#[test]
fn data_after_a_repairing_probe_get_their_own_probe() {
    let (mut pair, ids) = HostPair::connected(&PairConfig { tso: 0, ..PairConfig::default() });
    let first = pair.stacks[0].first_seq(ids[0]);
    for number in 0..3 {
        lose_once(&mut pair, first + number * FULL as u32);
        pair.stacks[0].send_copy(ids[0], &[0; FULL]);
        pair.run_for(Duration::from_secs(1));
    }
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.loss_probes, counters.timeouts), (3, 0));
    assert_eq!(counters.loss_probe_recoveries, 2, "the third probe has no result yet");
}

#[test]
fn needless_probe_changes_no_window() {
    const DELAY: Duration = Duration::from_millis(10);
    for fin in [false, true] {
        let wire = WireConfig { delay: DELAY, ..WireConfig::default() };
        let (mut pair, ids) = HostPair::connected(&PairConfig { wire, tso: 0, ..PairConfig::default() });
        // Two segments arrive, but the peer's acknowledgments are lost.
        pair.wire.filter = Some(Box::new(|from, _| from == 1));
        pair.stacks[0].send_copy(ids[0], &[0; 2 * FULL]);
        if fin {
            pair.stacks[0].finish(ids[0]);
        }
        pair.run_until(|pair| pair.stacks[0].counters().loss_probes == 1);
        pair.wire.filter = None;
        pair.run_for(4 * DELAY);
        let counters = pair.stacks[0].counters();
        assert_eq!((counters.dsacks_received, counters.loss_probe_recoveries, counters.timeouts), (1, 0, 0));
        if fin {
            continue;
        }
        // The first of five more segments is lost. Three later ones suffice to detect this without a delay.
        let lost = pair.stacks[0].first_seq(ids[0]) + 2 * FULL as u32;
        lose_once(&mut pair, lost);
        pair.stacks[0].send_copy(ids[0], &[0; 5 * FULL]);
        pair.run_for(2 * DELAY);
        let counters = pair.stacks[0].counters();
        assert_eq!((counters.sack_recoveries, counters.loss_probe_recoveries), (1, 0));
    }
}

#[test]
fn recovery_is_undone_after_a_batch_of_acks() {
    const DELAY: Duration = Duration::from_millis(5);
    let wire = WireConfig { delay: DELAY, ..WireConfig::default() };
    // With timestamps, the first acknowledgment would reveal the spurious recovery.
    let tcp = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let (mut pair, ids) =
        HostPair::connected(&PairConfig { wire, tcp: [tcp.clone(), tcp], tso: 0, ..PairConfig::default() });
    let late = pair.stacks[0].first_seq(ids[0]) + 50 * (FULL + 12) as u32;
    let held = Arc::new(Mutex::new(Vec::new()));
    let hold = held.clone();
    // One segment is late both times. After its retransmission, acknowledgments are lost for a while.
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[TCP..]);
        let mut held = hold.lock().unwrap();
        if from == 0 && tcp.seq_number().0 as u32 == late.0 {
            held.push(frame.to_vec());
            return true;
        }
        from == 1 && held.len() == 2
    }));
    let data = pattern(Seed(3), 4_000_000);
    pair.stacks[0].send_copy(ids[0], &data);
    pair.run_until(|_| held.lock().unwrap().len() == 2);
    pair.run_for(2 * DELAY);
    pair.wire.filter = None;
    assert_ne!(pair.stacks[0].stats(ids[0]).slow_start_threshold, u64::MAX);
    let frames = std::mem::take(&mut *held.lock().unwrap());
    pair.nics[1].port().deliver(&frames[0]);
    let acknowledged = pair.stacks[0].stats(ids[0]).bytes_acknowledged;
    pair.run_for(DELAY + DELAY / 2);
    let stats = pair.stacks[0].stats(ids[0]);
    assert!(
        stats.bytes_acknowledged > acknowledged && stats.unacknowledged > 0,
        "all sent data must be acknowledged, with more queued"
    );
    // Now the acknowledgment shows that nothing was lost.
    pair.nics[1].port().deliver(&frames[1]);
    pair.run_for(DELAY);
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.sack_recoveries, counters.timeouts, counters.dsack_undos), (1, 0, 1));
    assert_eq!(pair.stacks[0].stats(ids[0]).slow_start_threshold, u64::MAX);
}

/// An acknowledgment of a retransmission proves nothing about the original, whichever retransmission it was.
#[test]
fn acked_retransmission_is_no_proof_of_a_spurious_timeout() {
    let (mut pair, ids) = HostPair::connected(&PairConfig { tso: 0, ..PairConfig::default() });
    let held = Arc::new(Mutex::new(Vec::new()));
    let hold = held.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let is_data = from == 0 && !TcpPacket::new_unchecked(&frame[TCP..]).payload().is_empty();
        if is_data {
            hold.lock().unwrap().push(frame.to_vec());
        }
        is_data
    }));
    pair.stacks[0].send_copy(ids[0], &[1; 100]);
    pair.run_until(|pair| pair.stacks[0].counters().timeouts == 3);
    pair.wire.filter = None;
    let frames = std::mem::take(&mut *held.lock().unwrap());
    // The segment, a probe, and one retransmission per timeout.
    let [_, _, of_first, _, _] = &frames[..] else { panic!("{} frames", frames.len()) };
    pair.nics[1].port().deliver(of_first);
    pair.run_until(|pair| pair.stacks[0].stats(ids[0]).unacknowledged == 0);
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.full_undos, counters.dsack_undos), (0, 0));
}

#[test]
fn paced_stream_asks_for_window_per_round_trip() {
    const DELAY: Duration = Duration::from_millis(10);
    let wire = WireConfig { delay: DELAY, ..WireConfig::default() };
    let tcp = TcpConfig { congestion: CongestionAlgorithm::NewReno, ..TcpConfig::default() };
    let (mut pair, ids) =
        HostPair::connected(&PairConfig { wire, tcp: [tcp.clone(), tcp], tso: 0, ..PairConfig::default() });
    pair.nics[0].port().caps.pacing = true;
    let rate = |pair: &HostPair, percent: u128| {
        let stats = pair.stacks[0].stats(ids[0]);
        let round_trip = stats.smoothed_rtt.unwrap().as_nanos();
        (u128::from(stats.congestion_window) * percent * 10_000_000 / round_trip) as u64
    };
    let asked = |pair: &HostPair| pair.nics[0].port().rates.drain(..).collect::<Vec<_>>();
    pair.stacks[0].send_copy(ids[0], &[1; FULL]);
    pair.run_for(4 * DELAY);
    assert_eq!(asked(&pair), [], "an unpaced stream asks for no rate");
    pair.stacks[0].set_paced(ids[0], true);
    // All four segments are lost, in slow start.
    pair.wire.filter = Some(Box::new(|from, _| from == 0));
    pair.stacks[0].send_copy(ids[0], &[1; 4 * FULL]);
    while pair.run_now() {}
    assert_eq!(asked(&pair), [rate(&pair, 200); 4]);
    pair.run_until(|pair| pair.stacks[0].counters().timeouts == 1);
    let _ = asked(&pair);
    // The window is one segment, and the threshold two: slow start ends after one doubling.
    let stats = pair.stacks[0].stats(ids[0]);
    assert_eq!((stats.congestion_window, stats.slow_start_threshold), (FULL as u64, 2 * FULL as u64));
    pair.run_until(|pair| !pair.nics[0].port().rates.is_empty());
    assert_eq!(asked(&pair), [rate(&pair, 120)]);
}

/// Drops the next segment from side 0 that begins at `seq`.
fn lose_once(pair: &mut HostPair, seq: Seq) {
    let mut lost = false;
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[TCP..]);
        let hit = from == 0 && !lost && tcp.seq_number().0 as u32 == seq.0 && !tcp.payload().is_empty();
        lost |= hit;
        hit
    }));
}
