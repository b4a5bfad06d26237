//! ESP packets that come before their SA.
//!
//! A peer may send by a successor as soon as both have agreed on it, and before the keying of this host has brought it: the message that
//! agreed and the packet are under way at the same time. A packet of a peer that has an SA here already waits for its own, and is opened
//! when that is added, as if it came then; nobody else's waits.
//!
//! Invariants: nothing of a held packet is read but what names its SA. Forged packets fill [`MOST_BYTES`] at most, for
//! [`HELD_FOR`]; the oldest gives way.

use super::SecureDevice;
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

    fn pop(&mut self) -> Option<Waiting> {
        let first = self.packets.pop_front()?;
        self.bytes -= first.frame.len();
        Some(first)
    }
}

impl SecureDevice {
    /// An ESP packet without an SA: it waits for one, or is dropped.
    pub(super) fn hold(&mut self, now: Instant, queue: usize, frame: &[u8], at: &EspAt) {
        if !self.sad.receives_between(at.ip.source, at.ip.destination) || frame.len() > MOST_BYTES {
            self.counters.in_no_states += 1;
            return;
        }
        while self.held.packets.len() >= MOST || self.held.bytes + frame.len() > MOST_BYTES {
            self.held.pop();
            self.counters.in_no_states += 1;
        }
        self.counters.in_held += 1;
        self.held.bytes += frame.len();
        let name = (at.spi, at.ip.source, at.ip.destination);
        // A copy: what it came in is a part of something larger.
        let frame = BytesMut::from(frame);
        self.held.packets.push_back(Waiting { frame, queue, until: now + HELD_FOR, name });
    }

    /// An SA that receives was added: what waited for it is opened next, in the order it came.
    pub(super) fn release_held(&mut self) {
        for _ in 0..self.held.packets.len() {
            let Some(waiting) = self.held.pop() else { return };
            let (spi, source, destination) = waiting.name;
            if self.sad.find_received(spi, source, destination).is_some() {
                self.counters.in_held_opened += 1;
                self.queues[waiting.queue].released.push_back(waiting.frame);
            } else {
                self.held.bytes += waiting.frame.len();
                self.held.packets.push_back(waiting);
            }
        }
    }

    /// Drops what waited long enough.
    pub(super) fn expire_held(&mut self, now: Instant) {
        while self.held.next_event().is_some_and(|until| until <= now) {
            self.held.pop();
            self.counters.in_no_states += 1;
        }
    }
}

/// So many packets wait at most, and so many bytes.
const MOST: usize = 1024;
const MOST_BYTES: usize = 1 << 20;
/// Longer than a daemon takes to install what it has agreed on, and shorter than what is retransmitted anyhow.
const HELD_FOR: Duration = Duration::from_millis(500);
