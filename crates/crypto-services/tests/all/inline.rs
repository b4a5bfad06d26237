//! Chains of services between a NIC and the wire.

use core::task::Waker;
use core::time::Duration;
use crypto_services::{
    Controller, Fabric, Fixed, Goal, InlineChain, InlineWork, Packet, Predictive, Service, ServicePort,
    ServicePortConfig, Suite, TransformDirection,
};
use offload_base::Instant;
use offload_base::time::earliest;
use offload_wire::Port;
use offload_wire::frame::Frame;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A NIC that sends frames at given times, and stores received frames.
#[derive(Debug, Default)]
struct InlineNic {
    to_send: VecDeque<(Instant, Frame)>,
    taken: Vec<Frame>,
}

impl Port for InlineNic {
    fn receive_frame(&mut self, _: Instant, frame: Frame) {
        self.taken.push(frame);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        let (at, _) = self.to_send.front()?;
        if *at > now {
            return None;
        }
        Some(self.to_send.pop_front()?.1)
    }

    fn process(&mut self, _: Instant) {}

    fn next_event(&self) -> Option<Instant> {
        Some(self.to_send.front()?.0)
    }

    fn register_doorbell(&mut self, _: &Waker) {}
}

/// Creates a frame with two bytes of flow and four of number. Flow 0 bypasses the services; the lowest bit of other
/// flows selects the chain.
fn frame(flow: u16, number: u32, len: usize) -> Frame {
    let mut data = vec![0; len.max(6)];
    data[..2].copy_from_slice(&flow.to_be_bytes());
    data[2..6].copy_from_slice(&number.to_be_bytes());
    Frame::new(data.into())
}

fn flow_of(frame: &Frame) -> u16 {
    u16::from_be_bytes([frame.data[0], frame.data[1]])
}

fn look(frame: &[u8]) -> Option<InlineWork> {
    let flow = u16::from_be_bytes([frame[0], frame[1]]);
    let chain = usize::from(flow & 1);
    (flow > 0).then_some(InlineWork { chain, flow: flow.into(), bytes: frame.len() as u32 })
}

fn at(nanos: u64) -> Instant {
    Instant::ZERO + Duration::from_nanos(nanos)
}

fn config(area: f64, queue: usize) -> ServicePortConfig {
    let chains = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305].map(|suite| InlineChain { suite, share: 1 });
    let mut config = ServicePortConfig { chains: chains.into(), ..ServicePortConfig::default() };
    (config.fabric.area, config.fabric.queue) = (area, queue);
    config
}

/// Runs a port to its end, like the task of a wire. Returns the sent frames with their times, and the number of rounds.
fn run(port: &mut ServicePort<InlineNic>, mut arriving: VecDeque<(Instant, Frame)>) -> (Vec<(Instant, Frame)>, usize) {
    let (mut left, mut now, mut turns) = (Vec::new(), Instant::ZERO, 0);
    loop {
        while arriving.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, frame)) = arriving.pop_front()
        {
            port.receive_frame(now, frame);
        }
        port.process(now);
        while let Some(frame) = port.poll_frame(now) {
            left.push((now, frame));
        }
        let next = earliest(port.next_event(), arriving.front().map(|(at, _)| *at));
        let Some(next) = next else { return (left, turns) };
        assert!(next > now, "next event in the past: {next:?}");
        (now, turns) = (next, turns + 1);
    }
}

fn timed(frames: &[(u64, u16, usize)]) -> VecDeque<(Instant, Frame)> {
    let mut now = 0;
    let frames = frames.iter().enumerate().map(|(number, (gap, flow, len))| {
        now += gap;
        (at(now), frame(*flow, number as u32, *len))
    });
    frames.collect()
}

proptest! {
    #[test]
    fn frames_pass_once_and_in_flow_order(
        sent in prop::collection::vec((0u64..4000, 0u16..6, 6usize..1600), 0..60),
        received in prop::collection::vec((0u64..4000, 0u16..6, 6usize..1600), 0..60),
        area in 6.0f64..40.0,
        queue in 0usize..6,
        fixed in any::<bool>(),
    ) {
        let controller: Box<dyn Controller + Send> =
            if fixed { Box::new(Fixed) } else { Box::new(Predictive::new(Goal::new(20_000.0, area))) };
        let nic = InlineNic { to_send: timed(&sent), taken: Vec::new() };
        let mut port = ServicePort::new(nic, config(area, queue), controller, look).unwrap();
        let (left, _) = run(&mut port, timed(&received));
        // The run has ended, so no frame may be left inside.
        prop_assert_eq!(port.in_flight(), 0);
        let counters = port.counters();
        prop_assert_eq!(left.len(), sent.len(), "sent frames are never dropped");
        let taken = &port.port().taken;
        prop_assert_eq!(taken.len() as u64 + counters.services_rx_drop_full, received.len() as u64);
        for (frames, of) in [(left.iter().map(|(_, frame)| frame).collect::<Vec<_>>(), &sent), (taken.iter().collect(), &received)] {
            for flow in 0..6 {
                let numbers: Vec<&[u8]> =
                    frames.iter().filter(|frame| flow_of(frame) == flow).map(|frame| &frame.data[2..6]).collect();
                prop_assert!(numbers.is_sorted(), "flow {} was reordered", flow);
            }
            for frame in frames {
                let number = u32::from_be_bytes(frame.data[2..6].try_into().unwrap()) as usize;
                let (_, flow, len) = of[number];
                prop_assert_eq!((flow_of(frame), frame.len()), (flow, len), "a frame must be unchanged");
            }
        }
        // Frames of flow 0 bypass the services and are not counted.
        let through = sent.iter().filter(|(_, flow, _)| *flow > 0).count() as u64;
        prop_assert_eq!(counters.services_tx_packets, through);
    }
}

#[test]
fn sent_frames_wait_and_received_frames_are_dropped() {
    let burst: Vec<_> = (0..40).map(|_| (0, 2, 1464)).collect();
    let nic = InlineNic { to_send: timed(&burst), taken: Vec::new() };
    // A queue of one place is full most of the time.
    let mut port = ServicePort::new(nic, config(64.0, 1), Box::new(Fixed), look).unwrap();
    let (left, _) = run(&mut port, timed(&burst));
    let counters = port.counters();
    assert_eq!(left.len(), 40);
    assert!(counters.services_tx_waits > 10, "{counters:?}");
    assert!(counters.services_rx_drop_full > 10, "{counters:?}");
    assert_eq!(counters.services_rx_drop_full as usize + port.port().taken.len(), 40);
}

#[test]
fn blocked_wire_holds_back_the_nic() {
    let burst: Vec<_> = (0..1000).map(|_| (0, 2, 64)).collect();
    let nic = InlineNic { to_send: timed(&burst), taken: Vec::new() };
    let mut port = ServicePort::new(nic, config(64.0, 16), Box::new(Fixed), look).unwrap();
    // The wire takes one frame, and then none for a long time.
    let mut now = Instant::ZERO;
    while port.poll_frame(now).is_none() {
        now = port.next_event().unwrap();
        port.process(now);
    }
    for _ in 0..1000 {
        now += Duration::from_micros(100);
        port.process(now);
    }
    let waiting = port.port().to_send.len();
    assert!(waiting > 900, "{waiting} frames are still in the NIC");
    assert!(port.in_flight() < 100);
}

#[test]
fn single_frame_takes_the_time_of_its_chain() {
    let nic = InlineNic { to_send: timed(&[(0, 2, 1464), (100_000, 2, 1464)]), taken: Vec::new() };
    let mut port = ServicePort::new(nic, config(64.0, 16), Box::new(Fixed), look).unwrap();
    let (left, _) = run(&mut port, VecDeque::new());
    // The second frame, because the first one also expands the key.
    let took = (left[1].0 - at(100_000)).as_nanos() as f64;
    let mut fabric = Fabric::new(config(64.0, 16).fabric);
    let chain = fabric.add_chain(Suite::Aes128Gcm.graph(TransformDirection::Apply), 1).unwrap();
    for (name, at_ns) in [(0, 0.0), (1, 100_000.0)] {
        fabric.offer(at_ns, Packet { chain, flow: 2, bytes: 1464, name }).unwrap();
    }
    fabric.advance(1e9);
    let alone: Vec<f64> = core::iter::from_fn(|| fabric.poll()).map(|departed| departed.sojourn_ns()).collect();
    assert!((took - alone[1]).abs() <= 1.0, "{took} ns in the port, {alone:?} alone");
    assert!(alone[0] > alone[1], "the key is expanded once");
}

#[test]
fn dropped_frames_count_as_demand() {
    let load: Vec<_> = (0..20_000).map(|_| (1000, 2, 1464)).collect();
    let grown = |controller: Box<dyn Controller + Send>| {
        let mut port = ServicePort::new(InlineNic::default(), config(64.0, 8), controller, look).unwrap();
        run(&mut port, timed(&load));
        (port.fabric().instances(Service::Aes128), port.counters().services_rx_drop_full)
    };
    let (one, lost) = grown(Box::new(Fixed));
    let (several, fewer) = grown(Box::new(Predictive::new(Goal::new(20_000.0, 64.0))));
    assert_eq!(one, 1);
    assert!(several > 4 && fewer * 3 < lost, "{several} instances, {fewer} of {lost} dropped");
}

#[test]
fn device_without_room_for_the_chains_is_refused() {
    let refused = ServicePort::new(InlineNic::default(), config(1.0, 8), Box::new(Fixed), look).unwrap_err();
    assert!(refused.to_string().contains("units of area"), "{refused}");
}
