//! Measures the host's CPU time for submission and completion of a job, in bursts of 1, 8 and 32 jobs, by the length of
//! the source. The device's own work in between is not counted.
//!
//! `cargo run --release -p nic-sim --example job_cost`

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::{Bytes, BytesMut};
use core::time::Duration;
use nic_sim::Delays;
use nic_sim::lookaside;
use nic_sim::lookaside::{LookasideConfig, LookasideUnit};
use offload_api::{Job, JobQueue};
use offload_base::Instant;
use offload_jobs::OpenTransform;
use offload_transforms::Transform;

fn main() {
    println!("ns of the host a job\n\n| bytes | one at a time | 8 | 32 |\n|---|---|---|---|");
    for size in [64, 4096, 16_384] {
        let costs = [1, 8, 32].map(|burst| cost(burst, size));
        println!("| {size} | {:.0} | {:.0} | {:.0} |", costs[0], costs[1], costs[2]);
    }
}

/// Returns the minimum of several rounds, because other load on the machine only adds time.
fn cost(burst: usize, size: usize) -> f64 {
    let config = LookasideConfig {
        units: vec![LookasideUnit::NO_TIME],
        delays: Delays::NONE,
        depth: 64,
        ..LookasideConfig::default()
    };
    let (mut device, mut queues) = lookaside(config, |_| ());
    let queue = &mut queues[0];
    let copy = queue.open(Transform::Copy).map_err(|(refused, _)| refused).expect("there is room");
    let source = Bytes::from(vec![7; size]);
    let mut targets: Vec<BytesMut> = (0..burst).map(|_| BytesMut::with_capacity(size)).collect();
    let (mut jobs, mut dones) = (Vec::with_capacity(burst), Vec::with_capacity(burst));
    let now = Instant::ZERO;
    let mut round = || {
        let mut host = Duration::ZERO;
        let bursts = JOBS / burst;
        for _ in 0..bursts {
            // Preparing buffers is the program's work and not the queue's.
            jobs.extend(targets.drain(..).map(|target| Job::new(copy, source.clone(), target)));
            let start = std::time::Instant::now();
            for job in jobs.drain(..) {
                let taken = queue.submit(now, job);
                debug_assert!(taken.is_ok(), "there is room");
            }
            queue.flush(now);
            // The clock stops while the device works, so that only the host's share is measured.
            host += start.elapsed();
            device.process(now);
            let start = std::time::Instant::now();
            while let Some(done) = queue.complete(now) {
                dones.push(done);
            }
            host += start.elapsed();
            targets.extend(dones.drain(..).map(|done| {
                let mut target = done.target;
                target.clear();
                target
            }));
        }
        assert_eq!(targets.len(), burst, "all came back");
        host.as_nanos() as f64 / (bursts * burst) as f64
    };
    // Each burst reads the clock four times, in two intervals; the overhead of these calls is subtracted.
    let clock = 2.0 * clock() / burst as f64;
    let rounds = (0..ROUNDS).map(|_| round());
    rounds.fold(f64::MAX, f64::min) - clock
}

/// Returns the minimum time of a clock reading, measured by the clock itself.
fn clock() -> f64 {
    let batch = |_| (0..LOOKS).map(|_| std::time::Instant::now().elapsed()).sum::<Duration>();
    let least = (0..10).map(batch).min().unwrap_or_default();
    least.as_nanos() as f64 / f64::from(LOOKS)
}

const LOOKS: u32 = 1000;
const JOBS: usize = 32_000;
const ROUNDS: usize = 9;
