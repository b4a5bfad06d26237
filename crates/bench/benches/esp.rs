//! The cost of a packet under ESP: without ESP, by the hosts, by the NICs under headers of the hosts (crypto offload),
//! and by the NICs alone (packet offload). The clear-text run is the reference for the other runs.
//!
//! - `esp/send`, `esp/receive`: CPU time of the sending and of the receiving host for 10,240 datagrams: 64, 512, 1400
//!   and 9000 bytes over one SA, and 1400 bytes over 100 and 10,000 SAs, each with its own policy and flow. `elem/s`
//!   are packets that one CPU of this machine could process per second.
//! - `esp/lookup`: the share of lookups in that cost: the policy and the SA of a transmitted packet, and the SA of a
//!   received one, among many, in turn. With 10,000 SAs, the results are not in the processor's caches.
//! - `esp/seal`: the cost of loading keys after a lookup: packets of 64 and of 1400 bytes sealed with each of many keys
//!   in turn. The additional cost of more keys is the time to load an expanded key from memory.
//! - At the end, a stream of 64 MiB in each direction, median of five runs: the rate that one CPU could carry, as a
//!   share of clear text, beside a published row.
//!
//! Only figures of one run are comparable.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::BytesMut;
use core::hint::black_box;
use core::time::Duration;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use offload_api::{Direction, EspKey, EspSuite};
use offload_base::Seed;
use offload_bench::ipsec::{Ipsec, IpsecMode, IpsecRun, layer, usual_keys};
use offload_bench::published;
use offload_bench::sa_tables::{STEP, SaTables, sa};
use offload_bench_tls::bulk::{Bulk, Mode};
use offload_bench_tls::payload::Payload;
use offload_esp::EspCipher;

fn packets(criterion: &mut Criterion) {
    for (name, cost) in [("esp/send", sending as fn(&IpsecRun) -> f64), ("esp/receive", receiving)] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(PACKETS));
        for (packet_size, sas) in [(64, 1), (512, 1), (1400, 1), (9000, 1), (1400, 100), (1400, 10_000)] {
            for mode in IpsecMode::ALL {
                let plan = Ipsec { packet_size, sas, packets: PACKETS, ..Ipsec::new(mode, Seed(1)) };
                group.bench_function(format!("{packet_size} bytes, {sas} SAs/{mode}"), |bencher| {
                    bencher.iter_custom(|iterations| (0..iterations).map(|_| spent(plan.clone(), cost)).sum());
                });
            }
        }
    }
}

/// Returns the CPU time of a run at one of its hosts.
fn spent(plan: Ipsec, cost: fn(&IpsecRun) -> f64) -> Duration {
    let run = plan.run().expect("the run can be made");
    assert!(run.run.sha256_ok, "each datagram arrives once");
    Duration::from_secs_f64(cost(&run) * PACKETS as f64 / 1e9)
}

fn sending(run: &IpsecRun) -> f64 {
    run.tx_ns_per_packet
}

fn receiving(run: &IpsecRun) -> f64 {
    run.rx_ns_per_packet
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("esp/lookup");
    for sas in [1u32, 100, 10_000] {
        let tables = SaTables::for_peers(sas);
        group.throughput(Throughput::Elements(1));
        // Lookups and keys are visited with a large step, so that caches and prefetching do not help.
        let mut turn = 0;
        group.bench_with_input(BenchmarkId::new("policy and SA to send by", sas), &sas, |bencher, sas| {
            bencher.iter(|| {
                turn = (turn + STEP) % sas;
                tables.to_send_by(black_box(turn)).expect("there is a policy for each")
            });
        });
        group.bench_with_input(BenchmarkId::new("SA received by", sas), &sas, |bencher, sas| {
            bencher.iter(|| {
                turn = (turn + STEP) % sas;
                tables.received_by(black_box(turn)).expect("there is an SA of each")
            });
        });
    }
}

fn keys(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("esp/seal");
    for (payload, sas) in [64, 1400].into_iter().flat_map(|payload| [1u32, 100, 10_000].map(|sas| (payload, sas))) {
        let cipher = |number: u32| {
            let material: Vec<u8> = (0..20).map(|at| (number >> (at % 4 * 8)) as u8 ^ at).collect();
            let key = EspKey::new(EspSuite::Aes128Gcm, &material).expect("as long as its suite wants");
            EspCipher::new(&sa(Direction::Transmit, number, key))
        };
        // Each cipher is boxed, as in an SA database, so that keys are spread over memory.
        let ciphers: Vec<Box<EspCipher>> = (0..sas).map(|number| Box::new(cipher(number))).collect();
        let (mut frame, mut number) = (BytesMut::with_capacity(2048), 0u64);
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{payload} bytes, {sas} keys"), |bencher| {
            bencher.iter(|| {
                number += 1;
                let at = (number as u32).wrapping_mul(STEP) % sas;
                frame.clear();
                frame.resize(HEADERS + offload_esp::ESP_AND_IV + payload, 0);
                ciphers[at as usize].seal(&mut frame, HEADERS, number, 17);
                black_box(frame.len())
            });
        });
    }
}

/// Prints one stream beside the published row. Not a criterion bench.
fn beside_published(_: &mut Criterion) {
    let figures = published::figures();
    let figure = figures.iter().find(|figure| figure.id == "xfrm-one-cpu").expect("a data file of this crate");
    println!("\none stream, Gb/s that one CPU could carry, and shares of plain; published: {}", figure.source);
    println!("{:12}{:>10}{:>10}{:>10}{:>10}{:>12}{:>8}", "", "send", "share", "receive", "share", "published", "share");
    let published = |mode: &str| figure.value(mode, 1.0).expect("it has all four ways");
    let mut plain = None;
    for mode in IpsecMode::ALL {
        let (mut sends, mut receives): (Vec<f64>, Vec<f64>) = (0..RUNS).map(|_| stream(mode)).unzip();
        sends.sort_by(f64::total_cmp);
        receives.sort_by(f64::total_cmp);
        let (send, receive) = (sends[RUNS / 2], receives[RUNS / 2]);
        let (plain_send, plain_receive) = *plain.get_or_insert((send, receive));
        println!(
            "{mode:12}{send:>10.1}{:>10.2}{receive:>10.1}{:>10.2}{:>12.1}{:>8.2}",
            send / plain_send,
            receive / plain_receive,
            published(&mode.to_string()),
            published(&mode.to_string()) / published("plain")
        );
    }
}

/// Returns the Gb/s of a stream that one CPU could send, and receive.
fn stream(mode: IpsecMode) -> (f64, f64) {
    let layer = mode.offload().map(|kind| layer(usual_keys(Seed(1)).offloaded(kind)));
    let run = Bulk { layer, ..Bulk::new(Mode::Tcp, Payload::seeded(Seed(1), STREAM)) }.run();
    let run = run.expect("the transfer can be made");
    assert!(run.sha256_ok, "the received data differs from the sent data");
    (8.0 / run.tx_host_ns_per_byte.total, 8.0 / run.rx_host_ns_per_byte.total)
}

/// Number of runs, of which the median counts.
const RUNS: usize = 5;
const PACKETS: u64 = 10_240;
/// Bytes of the headers of Ethernet and IPv4.
const HEADERS: usize = 34;
const STREAM: u64 = 64 << 20;

criterion_group! {
    name = benches;
    // A run takes much longer than the measured part: the setup of 10,000 SAs is not counted.
    config = Criterion::default().without_plots().sample_size(10).warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_millis(50));
    targets = packets, lookup, keys, beside_published
}
criterion_main!(benches);
