//! Tests of wires in virtual and real time, with ports that count their calls.

use super::*;
use crate::executor::{RealTime, RealTimeConfig, VirtualTime};
use core::task::Waker;
use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::signal::Signal;
use nic_sim::wire::{FrameRecorder, Impairments, LinkConfig, Overflow, Share};
use offload_base::{Instant, Seed};
use std::collections::VecDeque;

/// A port that sends queued frames when its doorbell rings, and keeps received frames.
#[derive(Debug, Default)]
struct TestPort {
    doorbell: Signal,
    to_send: VecDeque<Frame>,
    received: Vec<(Instant, Frame)>,
    /// Gap between the departures of two frames.
    gap: Duration,
    next_departure: Instant,
    /// Whether received frames are sent back.
    echo: bool,
    most_calls_of_process: u64,
    calls_of_process: u64,
}

impl Port for TestPort {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        if self.echo {
            self.to_send.push_back(frame.clone());
        }
        self.received.push((now, frame));
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        if self.next_departure > now {
            return None;
        }
        let frame = self.to_send.pop_front()?;
        self.next_departure = now + self.gap;
        Some(frame)
    }

    fn process(&mut self, _: Instant) {
        self.calls_of_process += 1;
        assert!(self.most_calls_of_process == 0 || self.calls_of_process <= self.most_calls_of_process);
    }

    fn next_event(&self) -> Option<Instant> {
        (!self.to_send.is_empty()).then_some(self.next_departure)
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.doorbell.arm(waker);
    }
}

fn numbered(number: u32) -> Frame {
    let mut data = vec![0; 1514];
    data[..4].copy_from_slice(&number.to_be_bytes());
    Frame::from(data)
}

fn numbers(port: &Arc<Mutex<TestPort>>) -> Vec<u32> {
    let number = |frame: &Frame| u32::from_be_bytes(frame.data[..4].try_into().expect("four bytes"));
    lock(port).received.iter().map(|(_, frame)| number(frame)).collect()
}

fn pair() -> (Arc<Mutex<TestPort>>, Arc<Mutex<TestPort>>) {
    (Arc::default(), Arc::default())
}

fn join(
    runtime: &Arc<dyn Runtime>,
    left: &Arc<Mutex<TestPort>>,
    right: &Arc<Mutex<TestPort>>,
    config: &LinkConfig,
) -> Cable {
    let left = Station::new("left", Domain::Device(0), left.clone());
    let right = Station::new("right", Domain::Device(1), right.clone());
    connect(runtime, left, right, Link::new(config, Seed(1)), Link::new(config, Seed(2)))
}

#[test]
fn a_slow_wire_holds_the_port_back_and_loses_nothing() {
    let mut run = VirtualTime::new();
    let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
    let (left, right) = pair();
    lock(&left).to_send.extend((0..5000).map(numbered));
    let config = LinkConfig { rate: Some(1_000_000_000), queue_limit: 8 * 1538, ..LinkConfig::default() };
    let cable = join(&runtime, &left, &right, &config);

    // When the line has sent half of the frames, the other half is still in the port.
    run.run_for(Duration::from_nanos(2500 * 12_304));
    assert!((2500 - 8 - QUEUE_FRAMES - 1..=2500).contains(&lock(&left).to_send.len()));

    run.run_for(Duration::from_nanos(2500 * 12_304 + 5_000));
    assert!(numbers(&right).into_iter().eq(0..5000), "all of them, in order");
    let mut set = CounterSet::default();
    cable.count(&mut set);
    assert_eq!((set.value("wire_queue_drops"), set.value("wire_rx_packets")), (0, 5000));
    assert_eq!(run.now(), lock(&right).received[4999].0, "the line was never idle");
}

#[test]
fn a_wire_that_drops_does_not_hold_back() {
    let mut run = VirtualTime::new();
    let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
    let (left, right) = pair();
    lock(&left).to_send.extend((0..5000).map(numbered));
    let config = LinkConfig {
        rate: Some(1_000_000_000),
        queue_limit: 8 * 1538,
        overflow: Overflow::Drop,
        ..LinkConfig::default()
    };
    let cable = join(&runtime, &left, &right, &config);
    run.run_for(Duration::from_secs(1));
    assert_eq!(numbers(&right), (0..8).collect::<Vec<_>>());
    let mut set = CounterSet::default();
    cable.count(&mut set);
    assert_eq!(set.value("wire_queue_drops"), 4992);
}

#[test]
fn a_doorbell_wakes_the_port_and_nothing_else_does() {
    let mut run = VirtualTime::new();
    let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
    let (left, right) = pair();
    join(&runtime, &left, &right, &LinkConfig::default());
    run.run_for(Duration::from_secs(1));
    assert_eq!(lock(&left).calls_of_process, 1, "an idle port sleeps");

    let doorbell = lock(&left).doorbell.clone();
    lock(&left).to_send.push_back(numbered(7));
    assert!(doorbell.raise());
    run.run_for(Duration::from_secs(1));
    assert_eq!((numbers(&right), lock(&left).calls_of_process), (vec![7], 2));
    assert_eq!(lock(&right).calls_of_process, 2, "at the start, and for the frame");
}

#[test]
fn port_is_polled_at_its_own_events() {
    let mut run = VirtualTime::new();
    let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
    let (left, right) = pair();
    *lock(&left) = TestPort { gap: Duration::from_micros(3), most_calls_of_process: 101, ..TestPort::default() };
    lock(&left).to_send.extend((0..100).map(numbered));
    join(&runtime, &left, &right, &LinkConfig { rate: None, delay: Duration::ZERO, ..LinkConfig::default() });
    run.run_for(Duration::from_secs(1));
    let arrivals: Vec<u64> = lock(&right).received.iter().map(|(at, _)| at.as_nanos()).collect();
    assert_eq!(arrivals, (0..100).map(|number| number * 3_000).collect::<Vec<_>>());
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let observe = |seed: u64| {
        let mut run = VirtualTime::new();
        let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
        let (left, right) = pair();
        lock(&left).to_send.extend((0..500).map(numbered));
        lock(&right).echo = true;
        let share = Share::new(0.05).expect("a share");
        let impairments = Impairments {
            loss: share,
            duplicate: share,
            corrupt: share,
            jitter: Duration::from_micros(2),
            ..Impairments::default()
        };
        let config = LinkConfig { impairments, ..LinkConfig::default() };
        let recorder = FrameRecorder::default();
        let stations = [("left", &left), ("right", &right)]
            .map(|(name, port)| Station::new(name, Domain::Device(0), port.clone()).tapped(recorder.clone()));
        let [left_station, right_station] = stations;
        let link = |name| Link::new(&config, Seed(seed).derive(name));
        connect(&runtime, left_station, right_station, link("there"), link("back"));
        run.run_for(Duration::from_secs(1));
        assert!(lock(&left).received.len() > 400);
        recorder.take()
    };
    assert!(observe(1) == observe(1), "two runs with seed 1 differ");
    assert!(observe(1) != observe(2));
}

#[test]
fn doorbell_works_across_threads_in_real_time() {
    let config = RealTimeConfig { spin: Duration::ZERO, ..RealTimeConfig::default() };
    let executor = RealTime::start("fabric", config).expect("a thread");
    let runtime: Arc<dyn Runtime> = Arc::new(executor.handle());
    let (left, right) = pair();
    lock(&right).echo = true;
    let config = LinkConfig { rate: Some(10_000_000_000), delay: Duration::from_nanos(100), ..LinkConfig::default() };
    join(&runtime, &left, &right, &config);
    let doorbell = lock(&left).doorbell.clone();
    for number in 0..500 {
        lock(&left).to_send.push_back(numbered(number));
        doorbell.raise();
        if number % 50 == 49 {
            while lock(&left).received.len() <= number as usize {
                std::thread::yield_now();
            }
        }
    }
    executor.shutdown();
    assert!(numbers(&left).into_iter().eq(0..500), "all of them, in order");
}

#[test]
fn frames_of_any_size_cross_threads_unchanged() {
    let config = RealTimeConfig { spin: Duration::ZERO, ..RealTimeConfig::default() };
    let executors = ["left", "right"].map(|name| RealTime::start(name, config.clone()).expect("a thread"));
    let [left_runs, right_runs] = executors.each_ref().map(|executor| Arc::new(executor.handle()) as Arc<dyn Runtime>);
    let (left, right) = pair();
    lock(&right).echo = true;
    let stations = [(&left, "left"), (&right, "right")];
    let [left_end, right_end] = stations.map(|(port, name)| Station::new(name, Domain::Wire, port.clone()));
    let config = LinkConfig { rate: None, delay: Duration::ZERO, ..LinkConfig::default() };
    let links = [1, 2].map(|seed| Link::new(&config, Seed(seed)));
    let [there, back] = links;
    connect_threads([&left_runs, &right_runs], left_end, right_end, there, back);

    let doorbell = lock(&left).doorbell.clone();
    let sizes = [60, 64, 1514, 1536, 1537, 9014];
    let sent: Vec<Frame> =
        (0..3000).map(|number| Frame::from(vec![number as u8; sizes[number % sizes.len()]])).collect();
    // Each batch exceeds the capacity of the queues.
    for batch in sent.chunks(1000) {
        let expected = lock(&left).received.len() + batch.len();
        lock(&left).to_send.extend(batch.iter().cloned());
        doorbell.raise();
        while lock(&left).received.len() < expected {
            std::thread::yield_now();
        }
    }
    executors.into_iter().for_each(RealTime::shutdown);
    assert!(lock(&left).received.iter().map(|(_, frame)| frame).eq(&sent), "all of them, in order, as they were");
}
