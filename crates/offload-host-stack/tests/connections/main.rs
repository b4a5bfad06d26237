//! Ten thousand connections between two stacks, in virtual time. A test program of its own, because it measures the
//! memory of the process.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests report skips and measurements")]

#[path = "../all/nic.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod nic;
#[path = "../all/pair.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod pair;
#[path = "../all/wire.rs"]
mod wire;

use core::time::Duration;
use offload_base::Seed;
use offload_host_stack::{FlowId, Stack, TcpConfig};
use pair::{ADDRESS, HostPair, PORT, PairConfig};
use std::collections::BTreeMap;

const OVER_SIX: bool = false;
const CONNECTIONS: usize = 10_000;
/// Between one and two segments.
const BYTES: usize = 2_000;

/// Progress of the two applications.
#[derive(Default)]
struct ConnectionProgress {
    accepted: Vec<FlowId>,
    /// Received bytes, by side and connection.
    received: [BTreeMap<FlowId, Vec<u8>>; 2],
    /// Number of connections with all bytes received, per side.
    complete: [usize; 2],
    ended: [usize; 2],
}

impl ConnectionProgress {
    /// Handles the ready connections. Connections without news are not touched.
    fn look(&mut self, stacks: &mut [Stack; 2]) {
        while stacks[1].next_acceptable().is_some() {
            while let Some(id) = stacks[1].accept(PORT) {
                self.accepted.push(id);
            }
        }
        for (side, stack) in stacks.iter_mut().enumerate() {
            while let Some((id, _)) = stack.next_ready() {
                assert_eq!(stack.error(id), None);
                let bytes = self.received[side].entry(id).or_default();
                let before = bytes.len();
                while let Some(segment) = stack.take(id) {
                    bytes.extend_from_slice(&segment.data);
                    stack.consume(id, segment.data.len());
                }
                self.complete[side] += usize::from(before < BYTES && bytes.len() == BYTES);
                if stack.at_end(id) && stack.state(id) != offload_host_stack::TcpState::Established {
                    self.ended[side] += 1;
                }
            }
        }
    }
}

/// Opens all connections, moves bytes in both directions, and closes them. Returns the process's resident memory while
/// all connections are open and idle.
fn round(pair: &mut HostPair, number: u64) -> usize {
    let mut seen = ConnectionProgress::default();
    let clients: Vec<FlowId> =
        (0..CONNECTIONS).map(|_| pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap()).collect();
    pair.run_until(|pair| {
        seen.look(&mut pair.stacks);
        seen.accepted.len() == CONNECTIONS
    });
    pair.run_for(Duration::from_secs(1));
    // The memory is measured before data flow, so that it shows idle connections.
    let weight = resident_bytes();
    let data: Vec<Vec<u8>> = (0..2)
        .map(|side| {
            let mut data = vec![0; BYTES];
            Seed(number).stream(&format!("side {side}")).fill(&mut data);
            data
        })
        .collect();
    clients.iter().for_each(|id| pair.stacks[0].send_copy(*id, &data[0]));
    seen.accepted.iter().for_each(|id| pair.stacks[1].send_copy(*id, &data[1]));
    pair.run_until(|pair| {
        seen.look(&mut pair.stacks);
        seen.complete == [CONNECTIONS; 2]
    });
    for (side, received) in seen.received.iter().enumerate() {
        assert!(received.values().all(|bytes| *bytes == data[1 - side]), "round {number}, side {side}");
    }
    for (side, ids) in [&clients, &seen.accepted].into_iter().enumerate() {
        ids.iter().for_each(|id| pair.stacks[side].detach(pair.now, *id));
    }
    // TIME-WAIT must be over before the stacks can be empty.
    pair.run_for(Duration::from_secs(61));
    assert_eq!(pair.stacks.each_ref().map(Stack::connections), [0, 0]);
    for stack in &pair.stacks {
        let counters = stack.counters();
        assert_eq!((counters.retransmitted_segments, counters.timeouts, counters.listen_drops), (0, 0, 0));
        assert_eq!(stack.next_event(), None, "no timer must be left");
    }
    weight
}

/// Returns the resident memory of the process in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux must provide /proc/self/statm");
    let pages: usize =
        status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm must have a second field");
    pages * 4096
}

#[test]
fn ten_thousand_connections_leave_no_memory_behind() {
    let tcp = TcpConfig::default();
    let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, CONNECTIONS).unwrap();
    let empty = resident_bytes();
    let open = round(&mut pair, 0);
    let each = (open - empty) / (2 * CONNECTIONS);
    println!("{each} bytes a connection that is open and idle, frames on the way to that included");
    // The allocator reaches its steady size within a few rounds.
    (1..3).for_each(|number| {
        round(&mut pair, number);
    });
    // The system may reclaim pages and return them at any time. A leak shows in every round, so the smallest growth counts.
    let growth = (3..6).map(|number| {
        let before = resident_bytes();
        round(&mut pair, number);
        resident_bytes().saturating_sub(before) / (2 * CONNECTIONS)
    });
    let grown = growth.min().unwrap();
    println!("{grown} bytes kept of each connection that is closed");
    assert!(each < 3072, "{each} bytes a connection");
    assert!(grown < 16, "{grown} bytes stay of each connection");
}
