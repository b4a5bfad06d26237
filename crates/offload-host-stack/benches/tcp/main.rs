//! What plain TCP costs the hosts, both ends together, at an MTU of 1500.
//!
//! - `bulk`: one stream, beside smoltcp's with its checksums off; what the emulated devices cost (TSO, LRO, checksums,
//!   copies to and from frames) beside it, for a real one does that itself;
//! - `messages`: 64 KiB at a time, to 1 to 10,000 connections in turn, a mebibyte under way whatever their number;
//! - `messages_large_nic`: the same with NICs that cut and join up to 256 KiB, and have segments wait for others for 32 us:
//!   there a message is a packet and an acknowledgment.
//!
//! `cargo test -p offload-host-stack --test all messages` counts what the latter take: packets, acknowledgments, turns.
//!
//! Times are CPU time of the thread, so that other programs hardly matter. Compare figures of one run only.
//!
//! `cargo bench -p offload-host-stack --bench tcp`

#[expect(dead_code, reason = "a test counts as well")]
mod ours;
mod smol;

use core::time::Duration;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::NicConfig;
use offload_base::cost::{CpuMeter, CpuReport, Domain};
use ours::Ours;
use smol::Smol;

fn bulk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bulk");
    settle(&mut group, BULK_BYTES);
    // Made when they are asked for: who runs one bench only, or profiles it, pays for no other.
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
            let mut smol = Smol::new();
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
    settle(&mut group, BULK_BYTES);
    for connections in [1, 10, 100, 1000, 10_000] {
        let mut ours = None;
        group.bench_function(BenchmarkId::from_parameter(connections), |bencher| {
            let ours = ours.get_or_insert_with(|| warm(connections, config));
            bencher.iter_custom(|times| hosts(&metered(times, || ours.messages(BULK_BYTES / ours::MESSAGE_BYTES))));
        });
    }
    group.finish();
}

/// Hosts with so many connections, every window of which holds a message, and none of which is new to its peer: those are
/// acknowledged packet by packet.
fn warm(connections: usize, config: &NicConfig) -> Ours {
    let mut ours = Ours::new(connections, config);
    ours.messages(ours::WARM_EACH * connections as u64 + WARM_MESSAGES);
    ours
}

fn settle(group: &mut BenchmarkGroup<'_, WallTime>, bytes: u64) {
    group.throughput(Throughput::Bytes(bytes)).sample_size(10).measurement_time(Duration::from_secs(2));
}

/// What it cost to do something `times` times.
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
