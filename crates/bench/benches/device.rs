//! The device and its driver together, without stack, wire or clock.
//!
//! - `segmentation`: 1 MiB into packets of 1448 bytes, cut by the device (TSO) or handed over one by one, with
//!   checksums by the device or none; beside a copy of the same bytes, which is the minimum for any device;
//! - `checksum`: received packets, verified or not;
//! - `steering`: a packet of one of 1024 flows among 1 to 1,000,000 flows that are steered to contexts; the time should
//!   be constant;
//! - `tls-transmit`, `tls-receive`: records of 2 to 16 KiB in packets of MTU 1500 and 9000, whole device, beside ring's
//!   one-shot on a record of 16 KiB without packets;
//! - `context-cache`: flows in turn, with contexts that all fit the NIC's memory, or not at all: the cost of fetching;
//! - `resync`: a packet retransmitted from the beginning, middle and end of a record of 16 KiB, beside one in order;
//!   and a received stream with a gap over a record's header, beside one without.
//!
//! Only figures of one run are comparable.

use core::hint::black_box;
use core::time::Duration;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::frame::Frame;
use nic_sim::{NicConfig, TlsEngineConfig};
use offload_api::{DeviceEvent, NetDevice, TypedContexts};
use offload_bench::workbench::{RECORD_OVERHEAD, Stream, Workbench, flow};
use std::time::Instant;

fn segmentation(criterion: &mut Criterion) {
    let mut group = group(criterion, "segmentation");
    let stream = Stream::plain(BULK);
    group.throughput(Throughput::Bytes(BULK as u64));
    let alone = NicConfig { tso_max_bytes: 0, ..NicConfig::default() };
    let unchecked = NicConfig { tso_max_bytes: 0, checksum_offload: false, ..NicConfig::default() };
    for (name, config) in [("device", NicConfig::default()), ("one-by-one", alone), ("unchecked", unchecked)] {
        let mut bench = Workbench::new(roomy(config));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                bench.send(&stream, 0..stream.len(), 1448, None);
                bench.process_all()
            });
        });
    }
    let (from, mut to) = (vec![0x5a; BULK], vec![0; BULK]);
    group.bench_function("copy", |bencher| bencher.iter(|| black_box(&mut to).copy_from_slice(black_box(&from))));
}

fn checksum(criterion: &mut Criterion) {
    let mut group = group(criterion, "checksum");
    // The frames are made once, outside the measured time.
    let frames = frames_of(&Stream::plain(BULK), 1448, false);
    group.throughput(Throughput::Bytes(BULK as u64));
    for (name, checksum_offload) in [("checked", true), ("unchecked", false)] {
        let mut bench = Workbench::new(roomy(NicConfig { checksum_offload, ..NicConfig::default() }));
        group.bench_function(name, |bencher| bencher.iter(|| arrive(&mut bench, &frames)));
    }
}

fn steering(criterion: &mut Criterion) {
    let mut group = group(criterion, "steering");
    group.throughput(Throughput::Elements(1024));
    let stream = Stream::plain(64);
    for rules in [1u32, 1_000, 100_000, 1_000_000] {
        let config = NicConfig {
            engines: TlsEngineConfig { contexts: rules, ..TlsEngineConfig::default() }.into(),
            context_cache_bytes: rules as usize * 512,
            ..NicConfig::default()
        };
        let mut bench = Workbench::new(roomy(config));
        // A second workbench makes the frames, so that the measured one only receives.
        let mut sender = Workbench::new(NicConfig::default());
        for number in 0..rules {
            bench.receive_context(flow(number).reversed(), 0);
        }
        // The same number of flows for each size of the table, spread over the whole table.
        let frames: Vec<Frame> = (0..1024u32)
            .flat_map(|number| {
                let flow = flow((u64::from(number) * u64::from(rules) / 1024) as u32);
                sender.send(&stream.on(flow), 0..64, 1448, None);
                sender.frames()
            })
            .collect();
        group
            .bench_function(BenchmarkId::from_parameter(rules), |bencher| bencher.iter(|| arrive(&mut bench, &frames)));
    }
}

fn tls_transmit(criterion: &mut Criterion) {
    let mut group = group(criterion, "tls-transmit");
    one_shot(&mut group, true);
    for (mtu, content) in TLS_SHAPES {
        let (stream, mss) = (Stream::records(BULK / content, content), mtu - 52);
        let mut bench = Workbench::new(roomy(NicConfig { mtu, ..NicConfig::default() }));
        group.throughput(Throughput::Bytes(BULK as u64));
        group.bench_function(BenchmarkId::new(format!("device-{mtu}"), content), |bencher| {
            anew(
                bencher,
                &mut bench,
                |bench| bench.transmit_context(flow(0), 0),
                |bench, context| {
                    bench.send(&stream, 0..stream.len(), mss, Some(context));
                    bench.process_all();
                },
            );
        });
    }
}

fn tls_receive(criterion: &mut Criterion) {
    let mut group = group(criterion, "tls-receive");
    one_shot(&mut group, false);
    for (mtu, content) in TLS_SHAPES {
        let frames = frames_of(&Stream::records(BULK / content, content), mtu - 52, true);
        let mut bench = Workbench::new(roomy(NicConfig { mtu, ..NicConfig::default() }));
        group.throughput(Throughput::Bytes(BULK as u64));
        group.bench_function(BenchmarkId::new(format!("device-{mtu}"), content), |bencher| {
            anew(
                bencher,
                &mut bench,
                |bench| bench.receive_context(flow(0).reversed(), 0),
                |bench, _| {
                    arrive(bench, &frames);
                },
            );
        });
    }
}

fn context_cache(criterion: &mut Criterion) {
    const FLOWS: u32 = 64;
    let mut group = group(criterion, "context-cache");
    group.throughput(Throughput::Elements(u64::from(FLOWS)));
    let stream = Stream::records(64, 16_384);
    for (name, contexts) in [("hit", FLOWS as usize), ("miss", 1)] {
        let config = NicConfig { context_cache_bytes: contexts * CONTEXT_BYTES, ..NicConfig::default() };
        let mut bench = Workbench::new(roomy(config));
        let flows: Vec<_> =
            (0..FLOWS).map(|number| (stream.on(flow(number)), bench.transmit_context(flow(number), 0))).collect();
        let mut at = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                // Each pass over the stream begins with a resync of each flow: once in 725 packets, in both cases.
                at = if at + 1448 > stream.len() { 0 } else { at };
                for (stream, context) in &flows {
                    bench.send(stream, at..at + 1448, 1448, Some(*context));
                }
                at += 1448;
                bench.process_all()
            });
        });
    }
}

fn resync(criterion: &mut Criterion) {
    let mut group = group(criterion, "resync");
    let stream = Stream::records(2, 16_384);
    let record = 16_384 + RECORD_OVERHEAD;
    group.throughput(Throughput::Elements(1));
    let places = [
        ("transmit/in-order", None),
        ("transmit/beginning", Some(0)),
        ("transmit/middle", Some(record / 2)),
        ("transmit/end", Some(record - 1448)),
    ];
    for (name, again) in places {
        let mut bench = Workbench::new(roomy(NicConfig::default()));
        group.bench_function(name, |bencher| {
            anew(
                bencher,
                &mut bench,
                |bench| {
                    let context = bench.transmit_context(flow(0), 0);
                    bench.send(&stream, 0..record, 1448, Some(context));
                    bench.process_all();
                    context
                },
                |bench, context| {
                    let at = again.unwrap_or(record);
                    bench.send(&stream, at..at + 1448, 1448, Some(context));
                    bench.process_all();
                },
            );
        });
    }
    let whole = frames_of(&Stream::records(8, 16_384), 1448, true);
    // The twelfth packet has the second record's header.
    let gap: Vec<Frame> =
        whole.iter().enumerate().filter(|(number, _)| *number != 11).map(|(_, frame)| frame.clone()).collect();
    for (name, frames) in [("receive/whole", whole), ("receive/gap-over-a-header", gap)] {
        let mut bench = Workbench::new(roomy(NicConfig::default()));
        group.bench_function(name, |bencher| {
            anew(
                bencher,
                &mut bench,
                |bench| bench.receive_context(flow(0).reversed(), 0),
                |bench, _| {
                    for frame in &frames {
                        bench.arrive(frame.clone());
                        black_box(bench.drain());
                        while let Some(event) = bench.driver.poll_event() {
                            if let DeviceEvent::ResyncRequested { handle, header, .. } = event {
                                bench.driver.tls().unwrap().answer_resync(
                                    handle,
                                    header,
                                    Some(header.0 as u64 / record as u64),
                                );
                            }
                        }
                    }
                },
            );
        });
    }
}

/// Measures `work` with a new context each time. Adding and removing the context is not measured.
fn anew(
    bencher: &mut criterion::Bencher<'_, WallTime>,
    bench: &mut Workbench,
    context: impl Fn(&mut Workbench) -> offload_api::Handle,
    work: impl Fn(&mut Workbench, offload_api::Handle),
) {
    bencher.iter_custom(|iterations| {
        let mut elapsed = Duration::ZERO;
        for _ in 0..iterations {
            let context = context(bench);
            let start = Instant::now();
            work(bench, context);
            elapsed += start.elapsed();
            // The context is removed outside the measured time.
            bench.remove(context);
        }
        elapsed
    });
}

/// Measures ring on a whole record in one buffer.
fn one_shot(group: &mut BenchmarkGroup<'_, WallTime>, sealing: bool) {
    use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    const RECORD: usize = 16_384;
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key of 16 bytes"));
    let nonce = || Nonce::assume_unique_for_key([3; 12]);
    let mut sealed = vec![0x5a; RECORD];
    key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut sealed).expect("short enough");
    let mut buffer = sealed.clone();
    group.throughput(Throughput::Bytes(RECORD as u64));
    group.bench_function("ring/16384", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..iterations {
                buffer.copy_from_slice(&sealed);
                let start = Instant::now();
                if sealing {
                    let data = black_box(&mut buffer[..RECORD]);
                    let tag = key.seal_in_place_separate_tag(nonce(), Aad::empty(), data).expect("short enough");
                    black_box(&tag);
                } else {
                    black_box(
                        key.open_in_place(nonce(), Aad::empty(), black_box(&mut buffer)).expect("it was sealed so"),
                    );
                }
                elapsed += start.elapsed();
            }
            elapsed
        });
    });
}

/// Returns the frames that carry a stream, encrypted or in clear text.
fn frames_of(stream: &Stream, mss: u16, encrypted: bool) -> Vec<Frame> {
    let mut sender = Workbench::new(roomy(NicConfig { mtu: mss + 52, ..NicConfig::default() }));
    let context = encrypted.then(|| sender.transmit_context(flow(0), 0));
    sender.send(stream, 0..stream.len(), mss, context);
    sender.frames()
}

/// Delivers the frames as fast as the device has room, and returns the received payload bytes.
fn arrive(bench: &mut Workbench, frames: &[Frame]) -> usize {
    let mut bytes = 0;
    for batch in frames.chunks(64) {
        batch.iter().for_each(|frame| bench.arrive(frame.clone()));
        bytes += bench.drain();
    }
    bytes
}

/// Enlarges the rings so that they hold a whole measured round.
fn roomy(config: NicConfig) -> NicConfig {
    NicConfig { send_ring: 65_536, send_queue_bytes: 2 * BULK, ..config }
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    criterion.benchmark_group(format!("device/{name}"))
}

/// Bytes of a measured round.
const BULK: usize = 1 << 20;
/// Bytes of a context's image on the NIC.
const CONTEXT_BYTES: usize = 208;
/// MTU and content bytes of a record.
const TLS_SHAPES: [(u16, usize); 8] = [
    (1500, 2048),
    (1500, 4096),
    (1500, 8192),
    (1500, 16_384),
    (9000, 2048),
    (9000, 4096),
    (9000, 8192),
    (9000, 16_384),
];

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(20).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400));
    targets = segmentation, checksum, steering, tls_transmit, tls_receive, context_cache, resync
}
criterion_main!(benches);
