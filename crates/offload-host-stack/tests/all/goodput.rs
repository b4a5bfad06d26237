//! Goodput over wires with loss and reordering, in virtual time. The table changes only if the stack does.

use crate::pair::{HostPair, PairConfig};
use crate::wire::WireConfig;
use bytes::Bytes;
use core::time::Duration;
use offload_api::TxTag;
use offload_base::{Instant, Seed};
use std::fmt::Write;

/// Result of one run.
struct GoodputRun {
    mbit: f64,
    retransmitted: u64,
    timeouts: u64,
    undos: u64,
}

/// Sends `bytes` bytes from side 0 to side 1, and closes.
fn run(setup: &PairConfig, bytes: u64) -> GoodputRun {
    let (mut pair, ids) = HostPair::connected(setup);
    let start: Instant = pair.now;
    let block = Bytes::from(crate::transfer::pattern(setup.seed, 64 << 10));
    let mut queued = 0;
    let mut received = 0;
    let mut wrong = 0;
    pair.run_until(|pair| {
        // Large runs do not fit in memory, so data are produced and checked while they flow.
        while queued < bytes && pair.stacks[0].room(ids[0]) > 0 {
            let piece = block.slice(..block.len().min((bytes - queued) as usize));
            queued += piece.len() as u64;
            pair.stacks[0].send(ids[0], piece, TxTag::PLAIN);
            if queued == bytes {
                pair.stacks[0].finish(ids[0]);
            }
        }
        while let Some(segment) = pair.stacks[1].take(ids[1]) {
            let mut data = &segment.data[..];
            while !data.is_empty() {
                let at = (received % block.len() as u64) as usize;
                let length = data.len().min(block.len() - at);
                wrong += u64::from(data[..length] != block[at..at + length]);
                received += length as u64;
                data = &data[length..];
            }
            pair.stacks[1].consume(ids[1], segment.data.len());
        }
        pair.stacks[1].at_end(ids[1])
    });
    assert_eq!((received, wrong), (bytes, 0), "seed {:?}", setup.seed);
    let elapsed = pair.now - start;
    let counters = pair.stacks[0].counters();
    GoodputRun {
        mbit: bytes as f64 * 8e-6 / elapsed.as_secs_f64(),
        retransmitted: counters.retransmitted_segments,
        timeouts: counters.timeouts,
        undos: counters.dsack_undos + counters.full_undos,
    }
}

fn wires() -> Vec<(&'static str, WireConfig)> {
    let wire = WireConfig { rate: 10_000_000_000, ..WireConfig::default() };
    vec![
        ("clean", wire),
        ("loss 0.1 %", WireConfig { loss: 0.001, ..wire }),
        ("loss 1 %", WireConfig { loss: 0.01, ..wire }),
        ("loss 5 %", WireConfig { loss: 0.05, ..wire }),
        ("reorder 5 %", WireConfig { reorder: 0.05, ..wire }),
        ("reorder 5 %, by 1 ms", WireConfig { reorder: 0.05, held: Duration::from_millis(1), ..wire }),
        ("duplicate 5 %", WireConfig { duplicate: 0.05, ..wire }),
        ("loss 1 %, reorder 5 %", WireConfig { loss: 0.01, reorder: 0.05, ..wire }),
    ]
}

fn table(bytes: u64, setups: &[(&str, PairConfig)]) -> String {
    let mut table = String::from("wire                      device     Mb/s  retransmitted  timeouts  undos\n");
    for (name, wire) in wires() {
        for (device, setup) in setups {
            let run = run(&PairConfig { wire, ..setup.clone() }, bytes);
            let GoodputRun { mbit, retransmitted, timeouts, undos } = run;
            writeln!(table, "{name:<24}  {device:<6}  {mbit:>7.0}  {retransmitted:>13}  {timeouts:>8}  {undos:>5}")
                .unwrap();
        }
    }
    table
}

#[test]
fn goodput_by_loss_and_reordering() {
    let setups = [("TSO", PairConfig::default()), ("plain", PairConfig { tso: 0, ..PairConfig::default() })];
    insta::assert_snapshot!(table(16 << 20, &setups));
}

/// `HOST_STACK_GIB=1 cargo test --release -p offload-host-stack -- gibibytes --nocapture`
#[test]
fn gibibytes_on_request() {
    let Some(gib) = std::env::var("HOST_STACK_GIB").ok().and_then(|gib| gib.parse::<u64>().ok()) else {
        return;
    };
    let setup = PairConfig { seed: Seed(7), ..PairConfig::default() };
    println!("{gib} GiB\n{}", table(gib << 30, &[("TSO", setup)]));
}
