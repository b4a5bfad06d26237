//! ESP packets that arrive before their SA.
//!
//! A peer may send by a new SA as soon as both ends have agreed on it, so its first packets race with this host's
//! keying daemon. A packet is kept if another SA already receives from this source at this destination. When its SA is
//! added, the packet is opened as if it had just arrived. Packets of unknown peers are not kept.
//!
//! Invariants: of a kept packet, only SPI and addresses are read. Forged packets occupy at most [`MAX_BYTES`] for
//! [`HELD_FOR`]; the oldest packet is dropped first.

use super::queues::DeviceQueue;
use crate::counters::IpsecCounters;
use crate::sad::Sad;
use bytes::BytesMut;
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use offload_esp::EspAt;
use std::collections::VecDeque;

/// Packets without an SA, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingPackets {
    packets: VecDeque<PendingPacket>,
    bytes: usize,
}

#[derive(Debug)]
struct PendingPacket {
    frame: BytesMut,
    /// The device queue at which the packet arrived.
    queue: usize,
    until: Instant,
    /// The SA's key: SPI, source, destination.
    name: (u32, IpAddr, IpAddr),
}

impl PendingPackets {
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.packets.front().map(|first| first.until)
    }

    /// Keeps an ESP packet that has no SA, and drops the oldest packets if there is no room.
    pub(super) fn hold(&mut self, now: Instant, queue: usize, frame: &[u8], at: &EspAt, counters: &mut IpsecCounters) {
        if frame.len() > MAX_BYTES {
            counters.in_no_states += 1;
            return;
        }
        while self.packets.len() >= MAX_PACKETS || self.bytes + frame.len() > MAX_BYTES {
            self.pop();
            counters.in_no_states += 1;
        }
        counters.in_held += 1;
        // A copy, because the frame may be a slice of a much larger receive buffer.
        let frame = BytesMut::from(frame);
        self.push(PendingPacket {
            frame,
            queue,
            until: now + HELD_FOR,
            name: (at.spi, at.ip.source, at.ip.destination),
        });
    }

    /// Hands packets that have an SA now to their queues, in the order of arrival. Returns their number.
    pub(super) fn release(&mut self, sad: &Sad, queues: &mut [DeviceQueue]) -> u64 {
        let mut released = 0;
        for _ in 0..self.packets.len() {
            let Some(waiting) = self.pop() else { break };
            let (spi, source, destination) = waiting.name;
            if sad.find_received(spi, source, destination).is_some() {
                released += 1;
                queues[waiting.queue].release(waiting.frame);
            } else {
                self.push(waiting);
            }
        }
        released
    }

    /// Drops packets that waited too long. Returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let is_due = |held: &PendingPackets| held.next_event().is_some_and(|until| until <= now);
        core::iter::from_fn(|| is_due(self).then(|| self.pop()).flatten()).count() as u64
    }

    fn push(&mut self, waiting: PendingPacket) {
        self.bytes += waiting.frame.len();
        self.packets.push_back(waiting);
    }

    fn pop(&mut self) -> Option<PendingPacket> {
        let first = self.packets.pop_front()?;
        self.bytes -= first.frame.len();
        Some(first)
    }
}

/// Limits of the kept packets, in packets and in bytes.
const MAX_PACKETS: usize = 1024;
const MAX_BYTES: usize = 1 << 20;
/// Longer than a daemon needs to install an agreed SA, and shorter than a typical retransmission timeout.
const HELD_FOR: Duration = Duration::from_millis(500);
