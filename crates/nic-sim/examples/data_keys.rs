//! Measures the cost of data-encryption keys in an accelerator: process memory per key, and time and PCIe bytes per
//! block, with one key, a thousand, and a million. The device's cache holds 20,164 keys.
//!
//! `cargo run --release -p nic-sim --example data_keys`
//!
//! With three arguments (number of keys, keys in use, blocks), the example measures this case only. A profiler can then
//! count instructions, which do not depend on caches:
//!
//! ```text
//! cargo build --release -p nic-sim --example data_keys
//! valgrind --tool=callgrind --toggle-collect='*measured_round*' target/release/examples/data_keys 1000000 10000 20000
//! ```
//!
//! The total divided by the number of blocks is the cost of a block.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::{Bytes, BytesMut};
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig, LookasideUnit};
use nic_sim::{Delays, JobDriver};
use offload_api::{Handle, Job, JobQueue, JobStatus};
use offload_base::Instant;
use offload_jobs::{DATA_KEYS, WrappingKey};
use offload_transforms::{SecretBytes, Tweak};

fn main() {
    println!("      keys    in use  bytes a key   ns a block  context bytes a block");
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    if let [keys, in_use, blocks] = numbers[..] {
        return measure(keys, in_use.clamp(1, keys), blocks, 1);
    }
    for (keys, in_use) in [(1, 1), (1_000, 1_000), (1_000_000, 1), (1_000_000, 10_000), (1_000_000, 1_000_000)] {
        measure(keys, in_use, BLOCKS, 5);
    }
    println!("a block: 4 KiB encrypted with AES-256-XTS; the time includes submission, device and completion");
}

/// Opens `keys` keys and encrypts blocks with `in_use` of them in turn: one warm-up, then `rounds` rounds.
fn measure(keys: usize, in_use: usize, blocks: usize, rounds: usize) {
    let before = resident();
    let config = LookasideConfig {
        units: vec![LookasideUnit::NO_TIME],
        delays: Delays::NONE,
        depth: 64,
        ..LookasideConfig::default()
    };
    let (mut device, mut queues) = lookaside(config, |_| ());
    let queue = &mut queues[0];
    let tenant = WrappingKey { tenant: 1, key: SecretBytes::new(vec![9; 32]) };
    let engine = queue.contexts().engine(DATA_KEYS).expect("every accelerator has it").number;
    queue.contexts().change(engine, Box::new(tenant.clone())).expect("there is room");
    let mut sessions: Vec<Handle> = Vec::with_capacity(keys);
    for volume in 0..keys as u64 {
        let key = (0..64).map(|at| (volume.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 8 * 8)) as u8 ^ at as u8);
        let wrapped = tenant.wrap(volume, &SecretBytes::new(key.collect()), 4096, Tweak::Unit).expect("it is a key");
        sessions.push(wrapped.open(queue).map_err(|(refused, _)| refused).expect("there is room"));
        queue.flush(Instant::ZERO);
        device.process(Instant::ZERO);
        while queue.contexts().poll_news().is_some() {}
    }
    let bytes_a_key = resident().saturating_sub(before) as f64 / keys as f64;
    let mut target = BytesMut::with_capacity(4096);
    let sessions = &sessions[..in_use];
    encrypt_blocks(blocks, &mut device, queue, sessions, &mut target);
    let mut round = || measured_round(blocks, &mut device, queue, sessions, &mut target);
    let (nanos, fetched) = (0..rounds).map(|_| round()).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
    println!("{keys:>10} {in_use:>9} {bytes_a_key:>12.0} {nanos:>12.0} {fetched:>22.1}");
}

/// Returns the nanoseconds and the context bytes per block.
#[inline(never)]
fn measured_round(
    blocks: usize,
    device: &mut Lookaside,
    queue: &mut JobDriver,
    sessions: &[Handle],
    target: &mut BytesMut,
) -> (f64, f64) {
    let (start, fetched) = (std::time::Instant::now(), device.dma().context);
    encrypt_blocks(blocks, device, queue, sessions, target);
    let nanos = start.elapsed().as_nanos() as f64 / blocks as f64;
    (nanos, (device.dma().context - fetched) as f64 / blocks as f64)
}

/// Encrypts `blocks` blocks with the keys in turn.
fn encrypt_blocks(
    blocks: usize,
    device: &mut Lookaside,
    queue: &mut JobDriver,
    sessions: &[Handle],
    target: &mut BytesMut,
) {
    let source = Bytes::from(vec![5; 4096]);
    for number in 0..blocks {
        // A large step between keys, so that CPU caches do not help.
        let session = sessions[number.wrapping_mul(STEP) % sessions.len()];
        let mut job = Job::new(session, source.clone(), core::mem::take(target));
        job.iv = (number as u128).to_le_bytes();
        let taken = queue.submit(Instant::ZERO, job);
        assert!(taken.is_ok(), "there is room");
        queue.flush(Instant::ZERO);
        device.process(Instant::ZERO);
        let mut done = queue.complete(Instant::ZERO).expect("no time passes");
        assert_eq!(done.outcome.status, JobStatus::Done);
        done.target.clear();
        *target = done.target;
    }
}

/// Returns the resident memory of the process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// A prime, so that it has no factor in common with a round number of keys.
const STEP: usize = 100_003;
const BLOCKS: usize = 200_000;
