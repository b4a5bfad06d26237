//! A simulated wire in both directions, with faults.

use core::time::Duration;
use offload_base::{Instant, Rng, Seed};
use offload_formats::{IpHeaders, IpVersion};
use smoltcp::wire::Ipv4Packet;
use std::collections::BTreeMap;

/// Faults and properties of a wire. All faults are off by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireConfig {
    pub(crate) delay: Duration,
    /// Rate in bits per second. 0 means unlimited.
    pub(crate) rate: u64,
    /// Maximum queueing delay; further frames are dropped.
    pub(crate) queue: Duration,
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    /// Additional delay of a reordered frame.
    pub(crate) held: Duration,
    pub(crate) duplicate: f64,
    pub(crate) corrupt: f64,
    /// Share of ECN-capable packets that are marked.
    pub(crate) mark: f64,
}

impl Default for WireConfig {
    fn default() -> WireConfig {
        WireConfig {
            delay: Duration::from_micros(50),
            rate: 0,
            queue: Duration::from_millis(5),
            loss: 0.0,
            reorder: 0.0,
            held: Duration::from_micros(60),
            duplicate: 0.0,
            corrupt: 0.0,
            mark: 0.0,
        }
    }
}

/// Called with the sending side and each frame. Returns true to drop the frame.
type FrameFilter = Box<dyn FnMut(usize, &[u8]) -> bool>;

pub(crate) struct FaultyWire {
    pub(crate) config: WireConfig,
    rng: Rng,
    frames: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    number: u64,
    free_at: [Instant; 2],
    /// Number of marked packets.
    pub(crate) marked: u64,
    /// Called with each frame before all other faults.
    pub(crate) filter: Option<FrameFilter>,
}

impl FaultyWire {
    pub(crate) fn new(config: WireConfig, seed: Seed) -> FaultyWire {
        FaultyWire {
            config,
            rng: seed.stream("wire"),
            frames: BTreeMap::new(),
            number: 0,
            free_at: [Instant::ZERO; 2],
            marked: 0,
            filter: None,
        }
    }

    /// Sends a frame from side `from`.
    pub(crate) fn send(&mut self, now: Instant, from: usize, mut frame: Vec<u8>) {
        if self.filter.as_mut().is_some_and(|filter| filter(from, &frame)) {
            return;
        }
        if self.rng.chance(self.config.loss) {
            return;
        }
        let mut at = now;
        // Preamble, frame check sequence and inter-frame gap occupy the wire, too.
        let bits = (frame.len() as u64 + 24) * 8;
        if let Some(nanos) = (bits * 1_000_000_000).checked_div(self.config.rate) {
            let start = self.free_at[from].max(now);
            if start - now > self.config.queue {
                return;
            }
            at = start + Duration::from_nanos(nanos);
            self.free_at[from] = at;
        }
        at += self.config.delay;
        if self.rng.chance(self.config.reorder) {
            at += self.config.held;
        }
        if self.rng.chance(self.config.corrupt) {
            let bit = self.rng.below(frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        if self.config.mark > 0.0 && self.rng.chance(self.config.mark) {
            self.marked += u64::from(mark(&mut frame));
        }
        if self.rng.chance(self.config.duplicate) {
            let later = Duration::from_nanos(self.rng.below(200_000));
            // A duplicate arrives at a random later time, possibly after newer frames.
            self.put(at + later, 1 - from, frame.clone());
        }
        self.put(at, 1 - from, frame);
    }

    fn put(&mut self, at: Instant, to: usize, frame: Vec<u8>) {
        self.frames.insert((at, self.number), (to, frame));
        self.number += 1;
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.frames.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next frame that has arrived, and its destination side.
    pub(crate) fn receive(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        let first = self.frames.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// Marks a packet (RFC 3168 5). Returns false if the packet is not ECN-capable.
fn mark(frame: &mut [u8]) -> bool {
    let packet = &mut frame[14..];
    let Ok(headers) = IpHeaders::walk(packet) else { return false };
    let capable = headers.ecn(packet) != 0;
    if capable {
        headers.version.set_ecn(packet, 0b11);
        if headers.version == IpVersion::V4 {
            Ipv4Packet::new_unchecked(packet).fill_checksum();
        }
    }
    capable
}
