//! CPU cost of plain TCP for both hosts together, at an MTU of 1500.
//!
//! - `bulk`: one stream, compared with smoltcp without checksums. The cost of the emulated devices (TSO, LRO,
//!   checksums, copies to and from frames) is reported separately, because real devices do this work in hardware.
//! - `messages`: messages of 64 KiB to 1 to 10,000 connections in turn, with one mebibyte in flight in total.
//! - `messages_large_nic`: the same with NICs that cut and join up to 256 KiB and delay received segments by 32 us to
//!   join them. Each message then costs one packet and one acknowledgment.
//!
//! `cargo test -p offload-host-stack --test all messages` counts the packets, acknowledgments and turns of the message
//! benches.
//!
//! Times are CPU times of the thread, so that other programs hardly affect them. Compare only figures of one run.
//!
//! `cargo bench -p offload-host-stack --bench tcp`

#[expect(dead_code, reason = "only a test reads the counts")]
mod ours;
mod smol;

use core::time::Duration;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::NicConfig;
use offload_base::cost::{CpuMeter, CpuReport, Domain};
use ours::StackPair;
use smol::SmoltcpPair;

fn bulk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bulk");
    configure(&mut group, BULK_BYTES);
    // Hosts are created on first use, so that a run of one bench does not pay for the other benches.
    let mut ours = None;
    group.bench_function("hosts", |bencher| {
        let ours = ours.get_or_insert_with(|| warm(1, &NicConfig::default()));
        bencher.iter_custom(|times| hosts(&metered(times, || ours.messages(BULK_BYTES / ours::MESSAGE_BYTES))));
    });
    group.bench_function("devices", |bencher| {
        let ours = ours.get_or_insert_with(|| warm(1, &NicConfig::default()));
        bencher.iter_custom(|times| devices(&metered(times, || ours.messages(BULK_BYTES / ours::MESSAGE_BYTES))));
    });
    let mut smol = None;
    group.bench_function("smoltcp", |bencher| {
        let smol = smol.get_or_insert_with(|| {
            let mut smol = SmoltcpPair::new();
            smol.transfer(BULK_BYTES);
            smol
        });
        bencher.iter_custom(|times| hosts(&metered(times, || smol.transfer(BULK_BYTES))));
    });
    group.finish();
}

fn messages(criterion: &mut Criterion) {
    measure_messages(criterion, "messages", &NicConfig::default());
    measure_messages(criterion, "messages_large_nic", &ours::large_nic());
}

fn measure_messages(criterion: &mut Criterion, name: &str, config: &NicConfig) {
    let mut group = criterion.benchmark_group(name);
    configure(&mut group, BULK_BYTES);
    for connections in [1, 10, 100, 1000, 10_000] {
        let mut ours = None;
        group.bench_function(BenchmarkId::from_parameter(connections), |bencher| {
            let ours = ours.get_or_insert_with(|| warm(connections, config));
            bencher.iter_custom(|times| hosts(&metered(times, || ours.messages(BULK_BYTES / ours::MESSAGE_BYTES))));
        });
    }
    group.finish();
}

/// Returns hosts with `connections` connections in a steady state. Each window holds a message, and no connection is
/// new: peers acknowledge new ones packet by packet.
fn warm(connections: usize, config: &NicConfig) -> StackPair {
    let mut ours = StackPair::new(connections, config);
    ours.messages(ours::WARM_EACH * connections as u64 + WARM_MESSAGES);
    ours
}

fn configure(group: &mut BenchmarkGroup<'_, WallTime>, bytes: u64) {
    group.throughput(Throughput::Bytes(bytes)).sample_size(10).measurement_time(Duration::from_secs(2));
}

/// Runs `what` `times` times and returns the cost.
fn metered(times: u64, mut what: impl FnMut()) -> CpuReport {
    let meter = CpuMeter::new();
    let attached = meter.attach();
    (0..times).for_each(|_| what());
    drop(attached);
    meter.take()
}

fn hosts(report: &CpuReport) -> Duration {
    report.total(Domain::Host(0)) + report.total(Domain::Host(1))
}

fn devices(report: &CpuReport) -> Duration {
    report.total(Domain::Device(0)) + report.total(Domain::Device(1))
}

const BULK_BYTES: u64 = 64 << 20;
const WARM_MESSAGES: u64 = 1000;

criterion_group!(benches, bulk, messages);
criterion_main!(benches);
