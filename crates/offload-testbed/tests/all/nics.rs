//! Two emulated NICs over the fabric, each driven by a task of its host, in virtual and real time.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use nic_sim::wire::{Impairments, Link, LinkConfig, Share};
use nic_sim::{Driver, NicConfig, nic};
use offload_api::{FlowKey, NetDevice, NoRecords, TransmitResult, TxPacket};
use offload_base::cost::Domain;
use offload_base::counters::CounterSet;
use offload_base::{Instant, RealClock, Seed};
use offload_testbed::tokio_runtime;
use offload_testbed::{
    Cable, Capture, RealTime, RealTimeConfig, Runtime, Station, TokioRuntime, VirtualTime, connect, in_domain,
};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

#[test]
fn frames_go_from_driver_to_driver_in_virtual_time() {
    let run = virtual_run(Seed(1), Share::NEVER);
    assert!(run.received.iter().copied().eq(0..FRAMES));
    assert_eq!(run.wire.value("wire_rx_packets"), u64::from(FRAMES));
    // The 10 Gb/s line is the bottleneck: 1538 byte times a frame and little overhead.
    let line = Duration::from_nanos(u64::from(FRAMES) * 1538 * 8 / 10);
    let took = run.ended - Instant::ZERO;
    assert!(took >= line && took < line + Duration::from_micros(100), "{took:?} for {line:?} on the line");
}

#[test]
fn the_same_seed_makes_the_same_capture() {
    let lossy = Share::new(0.02).expect("a share");
    let (once, again) = (virtual_run(Seed(2), lossy), virtual_run(Seed(2), lossy));
    assert!(once.received.len() < FRAMES as usize, "some were lost");
    assert!(once.capture == again.capture, "two runs with seed 2 differ");
    assert!(once.received == again.received && once.wire == again.wire);
    assert!(once.capture != virtual_run(Seed(3), lossy).capture);
}

#[test]
fn frames_go_from_driver_to_driver_in_real_time() {
    let clock = RealClock::new();
    let config = RealTimeConfig { clock, ..RealTimeConfig::default() };
    let devices = RealTime::start("devices", config).expect("a thread");
    let tokio = tokio_runtime::start(1, None).expect("a thread");
    let hosts: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(tokio.handle().clone(), clock));
    let fabric: Arc<dyn Runtime> = Arc::new(devices.handle());
    let (sender, receiver, _cable) = plug(&fabric, Seed(1), Share::NEVER, None);
    hosts.spawn("sender", send(hosts.clone(), sender));
    let received = hosts.spawn("receiver", receive(hosts.clone(), receiver, FRAMES as usize, None));
    assert!(tokio.block_on(received).into_iter().eq(0..FRAMES));
}

struct NicRun {
    received: Vec<u32>,
    capture: Vec<u8>,
    wire: CounterSet,
    ended: Instant,
}

fn virtual_run(seed: Seed, loss: Share) -> NicRun {
    let mut run = VirtualTime::new();
    let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
    let file = SharedFile::default();
    let capture = Capture::new(file.clone()).expect("memory takes everything");
    let (sender, receiver, cable) = plug(&runtime, seed, loss, Some(&capture));
    runtime.spawn("sender", in_domain(Domain::Host(0), send(runtime.clone(), sender)));
    let quiet = Some(Duration::from_millis(5));
    let all = if loss == Share::NEVER { FRAMES as usize } else { usize::MAX };
    let receiver = in_domain(Domain::Host(1), receive(runtime.clone(), receiver, all, quiet));
    let received = run.block_on(runtime.spawn("receiver", receiver));
    capture.finish().expect("memory takes everything");
    let mut wire = CounterSet::default();
    cable.count(&mut wire);
    NicRun { received, capture: file.0.lock().expect("no panic").clone(), wire, ended: run.now() }
}

/// Joins two NICs by a wire that is slower than the NICs.
fn plug(runtime: &Arc<dyn Runtime>, seed: Seed, loss: Share, capture: Option<&Capture>) -> (Driver, Driver, Cable) {
    let mut stations = Vec::new();
    let mut drivers = Vec::new();
    for (number, name) in ["nic0", "nic1"].into_iter().enumerate() {
        // The ring has a place for every frame, so that nothing slows the sender. In real time the receiving host may
        // lose its core for the whole transfer.
        let config = NicConfig { mac: mac(number), receive_ring: FRAMES as usize, ..NicConfig::default() };
        let (device, driver) = nic(config);
        let mut station = Station::new(name, Domain::Device(number as u8), device);
        if let Some(capture) = capture {
            station = station.tapped(capture.tap(name).expect("memory takes everything"));
        }
        stations.push(station);
        drivers.push(driver);
    }
    let config = LinkConfig {
        rate: Some(10_000_000_000),
        impairments: Impairments { loss, ..Impairments::default() },
        ..LinkConfig::default()
    };
    let link = |name| Link::new(&config, seed.derive(name));
    let (right, left) = (stations.pop().expect("two"), stations.pop().expect("two"));
    let cable = connect(runtime, left, right, link("there"), link("back"));
    let (receiver, sender) = (drivers.pop().expect("two"), drivers.pop().expect("two"));
    (sender, receiver, cable)
}

/// A host that sends numbered frames.
async fn send(runtime: Arc<dyn Runtime>, mut driver: Driver) {
    let mut alarm = runtime.alarm();
    let mut next = 0;
    poll_fn(|cx| {
        loop {
            let now = runtime.now();
            driver.handle_timeout(now);
            while driver.receive(now).is_some() || driver.poll_event().is_some() {}
            while next < FRAMES && driver.room(&flow()) > 0 {
                assert_eq!(driver.transmit(now, numbered(next), &NoRecords), TransmitResult::Posted);
                next += 1;
            }
            driver.flush(now);
            // The task continues after the last frame, because dropping a driver drops its rings with their frames.
            if driver.arm(cx.waker()) && alarm.poll(cx, driver.next_event()).is_pending() {
                return Poll::<()>::Pending;
            }
        }
    })
    .await;
}

/// Receives frames until `all` have come, or no frame has come for `quiet`. Returns the frames' numbers.
async fn receive(runtime: Arc<dyn Runtime>, mut driver: Driver, all: usize, quiet: Option<Duration>) -> Vec<u32> {
    let mut alarm = runtime.alarm();
    let mut numbers = Vec::new();
    let mut last = runtime.now();
    poll_fn(|cx| {
        loop {
            let now = runtime.now();
            driver.handle_timeout(now);
            while let Some(packet) = driver.receive(now) {
                numbers.push(u32::from_be_bytes(packet.frame[14..18].try_into().expect("four bytes")));
                last = now;
            }
            while driver.poll_event().is_some() {}
            driver.flush(now);
            // On a lossy wire the number of arriving frames is unknown, so silence ends the run.
            if numbers.len() >= all || quiet.is_some_and(|quiet| now >= last + quiet) {
                return Poll::Ready(());
            }
            let next = offload_base::time::earliest(driver.next_event(), quiet.map(|quiet| last + quiet));
            if driver.arm(cx.waker()) && alarm.poll(cx, next).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    numbers
}

fn numbered(number: u32) -> TxPacket {
    let mut header = [mac(1), mac(0)].concat();
    header.extend([0x88, 0xb5]); // IEEE 802 EtherType for experiments
    header.extend(number.to_be_bytes());
    header.resize(1514, 0);
    TxPacket { header: header.into(), ..TxPacket::default() }
}

fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, number as u8]
}

fn flow() -> FlowKey {
    FlowKey::tcp(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into())
}

/// A file in memory that outlives its writer.
#[derive(Clone, Default)]
struct SharedFile(Arc<Mutex<Vec<u8>>>);

impl Write for SharedFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const FRAMES: u32 = 5000;
