//! A protocol above that uses the device too: what it is to hear of the device.
//!
//! Invariant: nothing is kept for a protocol that never reached for the device, and no more than [`EVENTS`] of what one has
//! not asked for; it is told of the first.

use offload_api::DeviceEvent;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Above {
    /// It has reached for the device.
    watches: bool,
    events: VecDeque<DeviceEvent>,
}

impl Above {
    /// It has, and the device has or will have records for it to work in.
    pub(super) fn note_watching(&mut self) {
        self.watches = true;
    }

    pub(super) fn watches(&self) -> bool {
        self.watches
    }

    /// Keeps what is for it.
    pub(super) fn tell(&mut self, event: DeviceEvent) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }

    /// What it has not heard yet.
    pub(super) fn next_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }
}

const EVENTS: usize = 64;
