//! A port around a NIC that reports frames, engine work and PCIe transfers to a [`Tracer`].

use super::perfetto::{Note, Slice};
use super::{Tracer, TrackKind};
use crate::runtime::lock;
use core::task::Waker;
use core::time::Duration;
use nic_sim::dma::DmaBytes;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Device, SwitchedDevice};
use offload_base::Instant;
use offload_base::counters::{CounterSet, Counters};
use std::sync::{Arc, Mutex};

/// A NIC port with readable counters.
pub(crate) trait TracedNic: Port {
    /// Returns the counters of all queues, and the bytes moved over PCIe.
    fn counted(&self) -> (CounterSet, DmaBytes);
}

impl TracedNic for Arc<Mutex<Device>> {
    fn counted(&self) -> (CounterSet, DmaBytes) {
        let (device, mut set) = (lock(self), CounterSet::default());
        device.count(&mut set);
        (set, device.dma())
    }
}

impl TracedNic for Arc<Mutex<SwitchedDevice>> {
    fn counted(&self) -> (CounterSet, DmaBytes) {
        let (device, mut set) = (lock(self), CounterSet::default());
        device.count_functions(&mut set);
        (set, device.dma())
    }
}

/// A tracing port around a NIC. It changes no frame.
pub(crate) struct TracedPort<N> {
    device: N,
    tracer: Tracer,
    nic: u64,
    engines: u64,
    rings: u64,
    /// Track of frames on the outgoing wire.
    wire: u64,
    /// Bits per second. `None` if frames take no time on the line.
    rate: Option<u64>,
    line_free_at: Instant,
    counted: CounterSet,
    dma: DmaBytes,
}

impl<N: TracedNic> TracedPort<N> {
    /// Wraps the NIC of `host`, with a wire of `rate` bits per second to `peer`.
    pub(crate) fn new(device: N, tracer: &Tracer, host: &str, peer: &str, rate: Option<u64>) -> TracedPort<N> {
        let mut state = tracer.lock();
        let mut track = |group: &str, name: &str| state.track(group, name, TrackKind::Slices);
        let (rings, engines, nic) = (track(host, "rings"), track(host, "engines"), track(host, "NIC"));
        let wire = track("wire", &format!("{host} to {peer}"));
        TracedPort {
            device,
            tracer: tracer.clone(),
            nic,
            engines,
            rings,
            wire,
            rate,
            line_free_at: Instant::ZERO,
            counted: CounterSet::default(),
            dma: DmaBytes::default(),
        }
    }

    /// Draws the changes of the NIC's counters since the last call.
    fn tell(&mut self, now: Instant) {
        let (counted, dma) = self.device.counted();
        let by = |(name, value): (&'static str, u64)| (name, value.saturating_sub(self.counted.value(name)));
        let work: Vec<Note<'_>> = counted.iter().map(by).filter(|(_, by)| *by > 0).collect();
        for (engine, belongs) in ENGINES {
            let notes: Vec<Note<'_>> = work.iter().copied().filter(|(name, _)| belongs(name)).collect();
            self.slice(self.engines, engine, now, &notes);
        }
        self.slice(self.rings, "DMA, in bytes", now, &moved(&dma, &self.dma));
        (self.counted, self.dma) = (counted, dma);
    }

    fn slice(&self, track: u64, name: &str, now: Instant, notes: &[Note<'_>]) {
        if !notes.is_empty() {
            self.tracer.lock().slice(&Slice { track, name, from: now, to: now, notes, flows: &[], ends: &[] });
        }
    }

    fn taken(&self, now: Instant, frame: &Frame) {
        let mut state = self.tracer.lock();
        let (flows, ends) = match state.arrows.frame_taken(&frame.data) {
            Some((arrow, true)) => (None, Some(arrow)),
            Some((arrow, false)) => (Some(arrow), None),
            None => (None, None),
        };
        let notes = [("bytes", frame.len() as u64)];
        let (flows, ends) = (flows.as_slice(), ends.as_slice());
        state.slice(&Slice { track: self.nic, name: "take frame", from: now, to: now, notes: &notes, flows, ends });
    }

    fn sent(&mut self, now: Instant, frame: &Frame) {
        // The NIC may hand over a frame while the line still sends an earlier one: the slice begins when the line is
        // free.
        let from = now.max(self.line_free_at);
        let nanos = self.rate.map_or(0, |rate| frame.wire_len() as u128 * 8_000_000_000 / u128::from(rate));
        self.line_free_at = from + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut state = self.tracer.lock();
        let arrow = [state.arrows.frame_sent(&frame.data)];
        let notes = [("bytes", frame.len() as u64)];
        let left =
            Slice { track: self.nic, name: "send frame", from: now, to: now, notes: &notes, flows: &arrow, ends: &[] };
        state.slice(&left);
        state.slice(&Slice { track: self.wire, name: "frame", from, to: self.line_free_at, ..left });
    }
}

/// Returns the counters that grew, with their increase.
fn moved(now: &dyn Counters, before: &dyn Counters) -> Vec<Note<'static>> {
    let mut values = Vec::new();
    before.visit(&mut |_, value| values.push(value));
    let (mut values, mut moved) = (values.into_iter(), Vec::new());
    now.visit(&mut |name, value| {
        let by = value.saturating_sub(values.next().unwrap_or(0));
        if by > 0 {
            moved.push((name, by));
        }
    });
    moved
}

impl<N: TracedNic> Port for TracedPort<N> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        self.taken(now, &frame);
        self.device.receive_frame(now, frame);
        self.tell(now);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        // Without frames nothing changes, so the counters need not be read.
        if frames.is_empty() {
            return self.device.receive_frames(now, frames);
        }
        frames.iter().for_each(|frame| self.taken(now, frame));
        self.device.receive_frames(now, frames);
        self.tell(now);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        let frame = self.device.poll_frame(now);
        if let Some(frame) = &frame {
            self.sent(now, frame);
            self.tell(now);
        }
        frame
    }

    fn process(&mut self, now: Instant) {
        self.device.process(now);
        self.tell(now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.device.next_event()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.device.register_doorbell(waker);
    }
}

/// A test whether a counter, given its name, belongs to an engine.
type Belongs = fn(&str) -> bool;

const ENGINES: [(&str, Belongs); 5] = [
    ("TLS", |name| name.contains("_tls_")),
    ("ESP", |name| name.starts_with("ipsec_")),
    ("NVMe/TCP", |name| name.contains("nvmeotcp")),
    ("QUIC", |name| name.starts_with("quic_")),
    ("contexts", |name| name.starts_with("ctx_")),
];
