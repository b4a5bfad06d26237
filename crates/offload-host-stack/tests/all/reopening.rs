//! Tests of flows that are reopened while their last connection is in TIME-WAIT.

use crate::packets::answers;
use crate::pair::{ADDRESS, HostPair, MAC, PORT, PairConfig, SIX, TCP, config};
use crate::transfer::pattern;
use core::time::Duration;
use offload_base::{Instant, RandomSource, Seed, Seq};
use offload_host_stack::{Config, FlowId, Ipv6Config, Stack, TcpConfig, TcpState};
use smoltcp::wire::{TcpOption, TcpPacket};
use std::sync::{Arc, Mutex};

const MS: Duration = Duration::from_millis(1);
/// Client port of side 0.
const CLIENT_PORT: u16 = 7000;

fn dial(pair: &mut HostPair) -> [FlowId; 2] {
    let client = pair.stacks[0].connect(pair.now, Some(CLIENT_PORT), (ADDRESS[1], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Established);
    pair.run_for(MS);
    [client, pair.stacks[1].accept(PORT).unwrap()]
}

/// Sends three megabytes from side `from`, far more than the sequence number clock advances meanwhile, and closes that
/// side first. Returns the sequence number after the last used one.
fn use_up(pair: &mut HostPair, ids: [FlowId; 2], from: usize) -> Seq {
    let to = 1 - from;
    let data = pattern(Seed(1), 3_000_000);
    // The connection must use more sequence numbers than the clock advances, or the test would prove nothing.
    let (mut sent, mut got) = (0, Vec::new());
    pair.run_until(|pair| {
        while sent < data.len() && pair.stacks[from].room(ids[from]) > 0 {
            let bytes = 50_000.min(data.len() - sent);
            pair.stacks[from].send_copy(ids[from], &data[sent..sent + bytes]);
            sent += bytes;
        }
        pair.stacks[from].push(ids[from]);
        pair.read(to, ids[to], &mut got);
        got.len() == data.len()
    });
    let end = pair.stacks[from].first_seq(ids[from]) + data.len() as u32;
    for side in [from, to] {
        pair.stacks[side].detach(pair.now, ids[side]);
        pair.run_for(5 * MS);
    }
    assert_eq!(
        [from, to].map(|side| pair.stacks[side].connections()),
        [1, 0],
        "the side that closed first is in TIME-WAIT"
    );
    end
}

fn pair_with(timestamps: bool, backlog: usize) -> HostPair {
    let tcp = TcpConfig { timestamps, ..TcpConfig::default() };
    let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, backlog).unwrap();
    pair
}

/// Records the frames from `side` that `wanted` selects.
fn keep_frames(pair: &mut HostPair, side: usize, wanted: fn(&[u8]) -> bool) -> Arc<Mutex<Vec<Vec<u8>>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        if from == side && wanted(frame) {
            keep.lock().unwrap().push(frame.to_vec());
        }
        false
    }));
    kept
}

fn is_syn(frame: &[u8]) -> bool {
    TcpPacket::new_unchecked(&frame[TCP..]).syn()
}

/// RFC 1122 4.2.2.13 (a), RFC 6191.
#[test]
fn flow_reopened_by_the_peer_starts_beyond_old_numbers() {
    for timestamps in [true, false] {
        let mut pair = pair_with(timestamps, 3);
        let ids = dial(&mut pair);
        let end = use_up(&mut pair, ids, 1);
        let ids = dial(&mut pair);
        let first = pair.stacks[1].first_seq(ids[1]);
        assert!(first.after(end), "new {first:?}, the old one used numbers up to {end:?}");
    }
}

#[test]
fn flow_reopened_locally_starts_beyond_old_numbers() {
    let mut pair = pair_with(true, 3);
    let ids = dial(&mut pair);
    let end = use_up(&mut pair, ids, 0);
    pair.run_for(1000 * MS);
    let ids = dial(&mut pair);
    let first = pair.stacks[0].first_seq(ids[0]);
    assert!(first.after(end), "new {first:?}, the old one used numbers up to {end:?}");
}

#[test]
fn late_segment_is_no_data_of_a_reopened_flow() {
    let mut pair = pair_with(false, 3);
    let ids = dial(&mut pair);
    let late = keep_frames(&mut pair, 1, |frame| frame.len() > 1000);
    use_up(&mut pair, ids, 1);
    let ids = dial(&mut pair);
    for frame in late.lock().unwrap().iter() {
        pair.nics[0].port().deliver(frame);
    }
    pair.run_for(MS);
    let mut got = Vec::new();
    pair.read(0, ids[0], &mut got);
    assert!(got.is_empty(), "{} bytes that side 1 never sent on this connection", got.len());
}

#[test]
fn late_syn_does_not_end_time_wait() {
    for timestamps in [true, false] {
        let mut pair = pair_with(timestamps, 3);
        let syns = keep_frames(&mut pair, 0, is_syn);
        let ids = dial(&mut pair);
        use_up(&mut pair, ids, 1);
        let syn = syns.lock().unwrap()[0].clone();
        let answers = answers(&mut pair, &syn);
        assert!(!answers.iter().any(|frame| is_syn(frame)), "an old SYN must not open a connection");
        assert_eq!(pair.stacks[1].connections(), 1, "the old connection must stay in TIME-WAIT");
    }
}

/// A SYN that cannot be accepted must not make this host forget the old connection's sequence numbers.
#[test]
fn dropped_syn_does_not_end_time_wait() {
    let mut pair = pair_with(true, 1);
    let ids = dial(&mut pair);
    let end = use_up(&mut pair, ids, 1);
    // Nobody accepts this connection, so there is no room for another.
    let other = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(MS);
    assert_eq!(pair.stacks[0].state(other), TcpState::Established);
    let again = pair.stacks[0].connect(pair.now, Some(CLIENT_PORT), (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(5 * MS);
    assert_eq!((pair.stacks[0].state(again), pair.stacks[1].counters().listen_drops), (TcpState::SynSent, 1));
    pair.stacks[1].accept(PORT).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(again) == TcpState::Established);
    pair.run_for(MS);
    let server = pair.stacks[1].accept(PORT).unwrap();
    assert!(pair.stacks[1].first_seq(server).after(end));
}

/// A cookie is derived from the flow, so it cannot respect a lower bound of sequence numbers.
#[test]
fn reopened_flow_gets_no_cookie_in_a_syn_flood() {
    let mut pair = pair_with(true, 1);
    let ids = dial(&mut pair);
    let end = use_up(&mut pair, ids, 1);
    pair.wire.filter = Some(Box::new(|from, _| from == 1));
    for _ in 0..500 {
        let id = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_for(MS);
        pair.stacks[0].detach(pair.now, id);
    }
    pair.wire.filter = None;
    assert!(pair.stacks[1].counters().cookies_sent > 0);
    let ids = dial(&mut pair);
    assert_eq!(pair.stacks[1].counters().cookies_received, 0);
    assert!(pair.stacks[1].first_seq(ids[1]).after(end));
}

/// Returns the initial sequence number and timestamp of a new stack's first SYN from a fixed port.
fn first_syn(random: impl Into<RandomSource>, now: Instant) -> (Seq, u32) {
    let mut config = Config::new(crate::pair::FOUR[0].into(), MAC[0], random)
        .with_ipv6(Ipv6Config::new(SIX[0]))
        .with_neighbour(ADDRESS[1], MAC[1]);
    config.tcp = TcpConfig::default();
    let mut stack = Stack::new(config);
    let mut nic = crate::nic::MaskingNic::new(1500, 0, true);
    let id = stack.connect(now, Some(CLIENT_PORT), (ADDRESS[1], PORT).into()).unwrap();
    while stack.poll(now, &mut nic) {}
    let frame = nic.port().drain().pop_front().expect("a SYN");
    let mut options = TcpPacket::new_unchecked(&frame[TCP..]).options().to_vec();
    let stamp = loop {
        let (rest, option) = TcpOption::parse(&options).unwrap();
        if let TcpOption::TimeStamp { tsval, .. } = option {
            break tsval;
        }
        options = rest.to_vec();
    };
    (stack.first_seq(id), stamp)
}

/// RFC 6528 3: a clock with ticks of four microseconds, plus a hash of the flow.
#[test]
fn sequence_numbers_of_a_flow_follow_the_clock() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let [(early, _), (late, _)] = [1, 11].map(|seconds| first_syn(Seed(3), at(seconds)));
    assert_eq!(late - early, 10 * 250_000);
}

#[test]
fn unseeded_runs_use_different_numbers() {
    let system = || first_syn(RandomSource::from_system().unwrap(), Instant::ZERO);
    let seeded = || first_syn(Seed(1), Instant::ZERO);
    assert_eq!(seeded(), seeded());
    let (one, other) = (system(), system());
    assert!(one.0 != other.0 && one.1 != other.1, "{one:?}, {other:?}");
    let ports = [RandomSource::from_system().unwrap(), RandomSource::from_system().unwrap()].map(|random| {
        let mut config = config(0, Seed(1), TcpConfig::default());
        config.random = random;
        let mut stack = Stack::new(config);
        let ids = [(); 4].map(|()| stack.connect(Instant::ZERO, None, (ADDRESS[1], PORT).into()).unwrap());
        ids.map(|id| stack.flow(id).local.port())
    });
    assert_ne!(ports[0], ports[1]);
}
