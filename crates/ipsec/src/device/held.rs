//! ESP packets that come before their SA.
//!
//! A peer may send by a successor as soon as both have agreed on it, and before the keying of this host has brought it: the message that
//! agreed and the packet are under way at the same time. A packet of a peer that has an SA here already waits for its own, and is opened
//! when that is added, as if it came then; nobody else's waits.
//!
//! Invariants: nothing of a held packet is read but what names its SA. Forged packets fill [`MOST_BYTES`] at most, for
//! [`HELD_FOR`]; the oldest gives way.

use super::queues::Queue;
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
pub(super) struct Held {
    packets: VecDeque<Waiting>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    frame: BytesMut,
    /// Where it came.
    queue: usize,
    until: Instant,
    /// What names its SA: SPI, source, destination.
    name: (u32, IpAddr, IpAddr),
}

impl Held {
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.packets.front().map(|first| first.until)
    }

    /// Keeps an ESP packet without an SA until that is added, or drops it.
    pub(super) fn hold(&mut self, now: Instant, queue: usize, frame: &[u8], at: &EspAt, counters: &mut IpsecCounters) {
        if frame.len() > MOST_BYTES {
            counters.in_no_states += 1;
            return;
        }
        while self.packets.len() >= MOST || self.bytes + frame.len() > MOST_BYTES {
            self.pop();
            counters.in_no_states += 1;
        }
        counters.in_held += 1;
        // A copy: what it came in is a part of something larger.
        let frame = BytesMut::from(frame);
        self.push(Waiting { frame, queue, until: now + HELD_FOR, name: (at.spi, at.ip.source, at.ip.destination) });
    }

    /// Hands those packets to their queues that have an SA by now, to be opened next in the order they came; returns their
    /// number.
    pub(super) fn release(&mut self, sad: &Sad, queues: &mut [Queue]) -> u64 {
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

    /// Drops what waited long enough; returns the number of packets.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let is_due = |held: &Held| held.next_event().is_some_and(|until| until <= now);
        core::iter::from_fn(|| is_due(self).then(|| self.pop()).flatten()).count() as u64
    }

    fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.frame.len();
        self.packets.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let first = self.packets.pop_front()?;
        self.bytes -= first.frame.len();
        Some(first)
    }
}

/// So many packets wait at most, and so many bytes.
const MOST: usize = 1024;
const MOST_BYTES: usize = 1 << 20;
/// Longer than a daemon takes to install what it has agreed on, and shorter than what is retransmitted anyhow.
const HELD_FOR: Duration = Duration::from_millis(500);
