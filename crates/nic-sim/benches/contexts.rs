//! Measures how many connections per second can set up and remove their contexts on a NIC: transmit contexts with and
//! without the driver's pool, receive contexts, and both.
//!
//! One iteration is one connection: `add` and `remove`, each with all work of driver and device. A thousand other
//! contexts exist meanwhile. Device and driver run on one thread, so the figure is the sum of both. Compare figures of
//! one run only. `expand-key` is the cost of the key expansion, which is included in all figures.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, TlsEngineConfig, nic};
use offload_api::{Direction, FlowKey, Handle, NetDevice, TlsKey, TlsSuite, TlsVersion, TypedContexts};
use offload_base::{Instant, Seq};
use std::collections::VecDeque;
use std::hint::black_box;

fn contexts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("connections");
    group.throughput(Throughput::Elements(1));
    for (name, pool, directions) in [
        ("tx", 0, &[Direction::Transmit][..]),
        ("tx-pool", 1024, &[Direction::Transmit]),
        ("rx", 0, &[Direction::Receive]),
        ("both", 0, &[Direction::Transmit, Direction::Receive]),
        ("both-pool", 1024, &[Direction::Transmit, Direction::Receive]),
    ] {
        let mut rig = ContextBench::new(pool);
        group.bench_function(name, |bencher| bencher.iter(|| rig.connect(directions)));
        rig.report(name);
    }
    group.bench_function("expand-key", |bencher| {
        bencher.iter(|| resumable_aead::Key::new(resumable_aead::Algorithm::Aes128Gcm, black_box(&[7; 16])).unwrap())
    });
    group.finish();
}

/// A NIC with a thousand contexts. A new context replaces the oldest.
struct ContextBench {
    device: Device,
    driver: Driver,
    living: VecDeque<Handle>,
    key: TlsKey,
    port: u16,
    added: u64,
    control: u64,
}

impl ContextBench {
    fn new(pool: usize) -> ContextBench {
        let config = NicConfig {
            delays: Delays::NONE,
            line_rate: None,
            engines: TlsEngineConfig { context_pool: pool, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        };
        let (device, driver) = nic(config);
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).expect("a key's length");
        let mut rig = ContextBench { device, driver, living: VecDeque::new(), key, port: 0, added: 0, control: 0 };
        while rig.living.len() < LIVING {
            rig.add(Direction::Transmit);
        }
        // From here on the pool, if enabled, has a context to reuse.
        rig.connect(&[Direction::Transmit]);
        (rig.added, rig.control) = (0, rig.device.dma().control);
        rig
    }

    fn connect(&mut self, directions: &[Direction]) {
        for direction in directions {
            if let Some(oldest) = self.living.pop_front() {
                self.driver.tls().unwrap().remove(oldest);
                self.run();
            }
            self.add(*direction);
        }
    }

    fn add(&mut self, direction: Direction) {
        self.port = self.port.wrapping_add(1);
        let flow = FlowKey::tcp(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], self.port).into());
        let added = self.driver.tls().unwrap().add(&flow, direction, Seq(1), 0, &self.key);
        self.living.push_back(added.expect("there is room for a quarter of a million"));
        self.added += 1;
        self.run();
    }

    /// Runs the device, and lets the driver process its answers.
    fn run(&mut self) {
        self.device.process(Instant::ZERO);
        while self.device.poll_frame(Instant::ZERO).is_some() {}
        while self.driver.poll_event().is_some() {}
    }

    fn report(&self, name: &str) {
        let bytes = (self.device.dma().control - self.control) as f64 / self.added.max(1) as f64;
        println!("{name}: {bytes:.0} bytes of commands over PCIe per context");
    }
}

const LIVING: usize = 1000;

criterion_group!(benches, contexts);
criterion_main!(benches);
