//! Device events for a protocol above TLS that uses the device too.
//!
//! Invariant: events are queued only for a protocol that has accessed the device, and at most [`EVENTS`] at a time;
//! later ones are dropped.

use offload_api::DeviceEvent;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct UpperEvents {
    /// Whether the protocol above has accessed the device.
    watches: bool,
    events: VecDeque<DeviceEvent>,
}

impl UpperEvents {
    /// Notes that the protocol above accessed the device while the device has, or will have, records with its units.
    pub(super) fn note_watching(&mut self) {
        self.watches = true;
    }

    pub(super) fn watches(&self) -> bool {
        self.watches
    }

    /// Queues an event for the protocol above.
    pub(super) fn tell(&mut self, event: DeviceEvent) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }

    /// Returns the next queued event.
    pub(super) fn next_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }
}

const EVENTS: usize = 64;
