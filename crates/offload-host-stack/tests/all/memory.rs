//! Tests of the memory limits over all connections, and of peers that keep memory in use.

use crate::pair::{ADDRESS, HostPair, PORT, PairConfig};
use crate::transfer::pattern;
use bytes::BytesMut;
use core::num::NonZeroU16;
use core::time::Duration;
use offload_api::rx::Checksums;
use offload_api::{RxMeta, RxPacket};
use offload_base::Seed;
use offload_host_stack::{ConnectionError, FlowId, SocketOpenError, TcpConfig, TcpMemory, TcpState};
use std::sync::{Arc, Mutex};

const SECOND: Duration = Duration::from_secs(1);
const MEMORY: TcpMemory = TcpMemory { pressure: 1 << 20, most: 2 << 20 };
/// Enough connections to exceed the limit at 64 KiB each.
const CONNECTIONS: usize = 64;
/// Guaranteed memory of a connection, plus one segment.
const EACH: usize = 4096 + 4096;

/// Returns a pair with many connections and a memory limit on side 1.
fn crowded_pair() -> (HostPair, [Vec<FlowId>; 2]) {
    let bounded = TcpConfig { memory: Some(MEMORY), ..TcpConfig::default() };
    let mut pair = HostPair::new(&PairConfig { tcp: [TcpConfig::default(), bounded], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, CONNECTIONS).unwrap();
    let mut ids = [Vec::new(), Vec::new()];
    for _ in 0..CONNECTIONS {
        let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_for(SECOND / 100);
        ids[0].push(client);
        ids[1].push(pair.stacks[1].accept(PORT).unwrap());
    }
    (pair, ids)
}

/// Queues as much of `data` as there is room for. `sent` bytes are queued already.
fn write(pair: &mut HostPair, side: usize, id: FlowId, data: &[u8], sent: &mut usize) {
    // The memory level may change the room after each write.
    while pair.stacks[side].room(id) > 0 && *sent < data.len() {
        let bytes = pair.stacks[side].room(id).min(data.len() - *sent);
        pair.stacks[side].send_copy(id, &data[*sent..*sent + bytes]);
        *sent += bytes;
    }
    pair.stacks[side].push(id);
}

#[test]
fn stalled_readers_stay_within_the_memory_limit() {
    let (mut pair, ids) = crowded_pair();
    let data = pattern(Seed(1), 600_000);
    let mut sent = [0; CONNECTIONS];
    for _ in 0..50 {
        for (id, sent) in ids[1].iter().zip(&mut sent) {
            write(&mut pair, 1, *id, &data, sent);
        }
        pair.run_for(SECOND / 100);
        let taken = pair.stacks[1].tcp_memory();
        assert!(taken <= MEMORY.most + CONNECTIONS * EACH, "{taken} bytes");
    }
    assert!(pair.stacks[1].tcp_memory() > MEMORY.most && pair.stacks[1].counters().memory_pressures == 1);
    // No new connection is accepted or opened.
    let late = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(SECOND / 2);
    assert_eq!(pair.stacks[0].state(late), TcpState::SynSent);
    let from_here = pair.stacks[1].connect(pair.now, None, (ADDRESS[0], 80).into());
    assert_eq!(from_here, Err(SocketOpenError::NoMemory));
    assert_eq!((pair.stacks[1].counters().memory_refusals, pair.stacks[1].counters().listen_drops), (2, 1));
    // When the readers continue, all data arrive, and the memory is free again.
    let mut got = vec![Vec::new(); CONNECTIONS];
    pair.run_until(|pair| {
        for number in 0..CONNECTIONS {
            pair.read(0, ids[0][number], &mut got[number]);
            write(pair, 1, ids[1][number], &data, &mut sent[number]);
        }
        got.iter().all(|got| got.len() == data.len()) && pair.stacks[0].state(late) == TcpState::Established
    });
    assert!(got.iter().all(|got| *got == data));
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[1].tcp_memory(), 0);
}

#[test]
fn unread_data_stay_within_the_memory_limit() {
    let (mut pair, ids) = crowded_pair();
    let data = pattern(Seed(2), 200_000);
    let mut sent = [0; CONNECTIONS];
    for _ in 0..50 {
        for (id, sent) in ids[0].iter().zip(&mut sent) {
            write(&mut pair, 0, *id, &data, sent);
        }
        pair.run_for(SECOND / 100);
        let taken = pair.stacks[1].tcp_memory();
        assert!(taken <= MEMORY.most + CONNECTIONS * EACH, "{taken} bytes");
    }
    assert!(pair.stacks[1].tcp_memory() > MEMORY.pressure);
    assert!(pair.stacks[1].counters().memory_pressures > 0);
    let mut got = vec![Vec::new(); CONNECTIONS];
    pair.run_until(|pair| {
        for number in 0..CONNECTIONS {
            pair.read(1, ids[1][number], &mut got[number]);
            write(pair, 0, ids[0][number], &data, &mut sent[number]);
        }
        got.iter().all(|got| got.len() == data.len())
    });
    assert!(got.iter().all(|got| *got == data));
    assert_eq!(pair.stacks[1].tcp_memory(), 0);
}

#[test]
fn memory_pressure_limits_the_window() {
    for pressure in [1 << 20, 20_000] {
        let memory = TcpMemory { pressure, most: 2 << 20 };
        let tcp = [TcpConfig::default(), TcpConfig { memory: Some(memory), ..TcpConfig::default() }];
        let (mut pair, first) = HostPair::connected(&PairConfig { tcp, ..PairConfig::default() });
        pair.stacks[0].send_copy(first[0], &[1; 30_000]);
        pair.run_for(SECOND);
        let second = pair.open();
        pair.stacks[0].send_copy(second[0], &[1; 1000]);
        pair.run_for(SECOND);
        let window = pair.stacks[0].stats(second[0]).peer_window;
        assert_eq!((window > 60_000, window > 33_000), (pressure == 1 << 20, pressure == 1 << 20), "{window} bytes");
        assert!(window > 10_000, "{window} bytes");
    }
}

/// The out-of-order data exceed the memory of all connections.
#[test]
fn out_of_order_data_stay_within_the_memory_limit() {
    let (mut pair, ids) = crowded_pair();
    // Each connection loses its first data segment, once.
    let mut lost = std::collections::BTreeSet::new();
    pair.wire.filter =
        Some(Box::new(move |from, frame| from == 0 && frame.len() > 1000 && lost.insert(frame[34..36].to_vec())));
    let data = pattern(Seed(3), 300_000);
    let mut sent = [0; CONNECTIONS];
    let mut got = vec![Vec::new(); CONNECTIONS];
    pair.run_until(|pair| {
        for number in 0..CONNECTIONS {
            pair.read(1, ids[1][number], &mut got[number]);
            write(pair, 0, ids[0][number], &data, &mut sent[number]);
        }
        let taken = pair.stacks[1].tcp_memory();
        assert!(taken <= MEMORY.most + CONNECTIONS * EACH, "{taken} bytes");
        got.iter().all(|got| got.len() == data.len())
    });
    assert!(got.iter().all(|got| *got == data));
}

/// A device may join as many segments as the window allows, but under memory exhaustion a connection may have only one.
#[test]
fn joined_segments_are_truncated_when_memory_is_full() {
    let bounded = TcpConfig { memory: Some(TcpMemory { pressure: 1000, most: 1000 }), ..TcpConfig::default() };
    let (mut pair, first) =
        HostPair::connected(&PairConfig { tcp: [TcpConfig::default(), bounded], ..PairConfig::default() });
    let second = pair.open();
    pair.stacks[0].send_copy(first[0], &[1; 2000]);
    pair.run_for(SECOND);
    let before = pair.stacks[1].tcp_memory();
    assert!(before > 1000);
    // Only the first segment of the second connection, with more data appended than were sent.
    let sent = Arc::new(Mutex::new(None));
    let seen = sent.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        if from == 0 && frame.len() > 1000 {
            seen.lock().unwrap().get_or_insert(frame.to_vec());
        }
        true
    }));
    let data = pattern(Seed(4), 40_000);
    pair.stacks[0].send_copy(second[0], &data[..1000]);
    pair.run_now();
    let frame = sent.lock().unwrap().take().unwrap();
    let mut frame = BytesMut::from(&frame[..frame.len() - 1000]);
    frame.extend_from_slice(&data);
    let (at, before_ip) = if crate::OVER_SIX { (18, 54) } else { (16, 14) };
    let length = (frame.len() - before_ip) as u16;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
    let joined = RxPacket { joined: NonZeroU16::new(1448), ..RxPacket::new(frame, meta) };
    pair.nics[1].port().received.push_back(joined);
    pair.run_now();
    let taken = pair.stacks[1].tcp_memory() - before;
    assert!((1000..=EACH).contains(&taken), "{taken} bytes");
    let mut got = Vec::new();
    pair.read(1, second[1], &mut got);
    assert!(got.len() > 1000 && data.starts_with(&got));
    // The rest is sent again.
    pair.wire.filter = None;
    pair.stacks[0].send_copy(second[0], &data[1000..]);
    pair.run_until(|pair| {
        pair.read(1, second[1], &mut got);
        got.len() == data.len()
    });
    assert!(got == data);
}

/// Returns a pair in which side 1 has a small buffer and reads nothing, while side 0 has more to send.
fn stalled_pair(tcp: TcpConfig) -> (HostPair, [FlowId; 2]) {
    let small = TcpConfig { receive_buffer: 20_000, ..TcpConfig::default() };
    let (mut pair, ids) = HostPair::connected(&PairConfig { tcp: [tcp, small], ..PairConfig::default() });
    pair.stacks[0].send_copy(ids[0], &[0; 100_000]);
    pair.stacks[0].push(ids[0]);
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[0].stats(ids[0]).peer_window, 0);
    (pair, ids)
}

#[test]
fn zero_window_timeout_ends_the_connection() {
    let tcp = TcpConfig { zero_window_timeout: Some(SECOND * 300), ..TcpConfig::default() };
    let (mut pair, ids) = stalled_pair(tcp);
    pair.run_for(SECOND * 290);
    // The window opens for a moment, and the time starts again.
    pair.read(1, ids[1], &mut Vec::new());
    pair.run_for(SECOND * 290);
    assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
    pair.run_for(SECOND * 12);
    assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::TimedOut));
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::Reset), "the peer must get a reset");
    assert_eq!(pair.stacks[0].counters().aborts_on_timeout, 1);
    assert_eq!(pair.stacks[0].tcp_memory(), 0);
}

#[test]
fn full_memory_limits_a_closed_window_to_30_seconds() {
    for most in [50_000, 200_000] {
        let memory = TcpMemory { pressure: 40_000, most };
        let (mut pair, ids) = stalled_pair(TcpConfig { memory: Some(memory), ..TcpConfig::default() });
        pair.run_for(SECOND * 25);
        assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
        pair.run_for(SECOND * 60);
        let ended = pair.stacks[0].state(ids[0]) == TcpState::Closed;
        assert_eq!((ended, pair.stacks[0].counters().aborts_on_memory), (most == 50_000, u64::from(ended)));
    }
}

#[test]
fn full_memory_resets_dropped_connections() {
    let memory = TcpMemory { pressure: 40_000, most: 50_000 };
    let (mut pair, ids) = stalled_pair(TcpConfig { memory: Some(memory), ..TcpConfig::default() });
    pair.stacks[0].detach(pair.now, ids[0]);
    pair.run_for(SECOND * 10);
    assert_eq!((pair.stacks[0].connections(), pair.stacks[0].counters().aborts_on_memory), (0, 1));
}

/// Before the handshake, a peer has offered no window that it could close.
#[test]
fn slow_handshake_is_no_closed_window() {
    let tcp = TcpConfig { zero_window_timeout: Some(SECOND * 2), ..TcpConfig::default() };
    let mut pair = HostPair::new(&PairConfig { tcp: [tcp, TcpConfig::default()], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, 1).unwrap();
    pair.wire.filter = Some(Box::new(|_, _| true));
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(SECOND * 20);
    assert_eq!(pair.stacks[0].state(client), TcpState::SynSent);
    pair.wire.filter = None;
    pair.run_for(SECOND * 20);
    assert_eq!(pair.stacks[0].state(client), TcpState::Established);
    assert_eq!(pair.stacks[0].counters().aborts_on_timeout, 0);
}
