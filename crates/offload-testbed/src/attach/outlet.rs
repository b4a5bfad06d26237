//! Frames on their way outside that have not been taken yet: a short queue, and what is counted at it.

use super::AttachCounters;
use nic_sim::frame::Frame;
use std::collections::VecDeque;

/// The queue in front of a socket.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    waiting: VecDeque<Frame>,
    pub(super) counters: AttachCounters,
}

impl Outlet {
    /// Takes a frame, or drops it.
    pub(super) fn push(&mut self, frame: Frame) {
        if self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(frame);
        } else {
            self.counters.tx_queue_drops += 1;
        }
    }

    /// The next one.
    pub(super) fn first(&self) -> Option<&Frame> {
        self.waiting.front()
    }

    /// Those that wait, the next first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Frame> {
        self.waiting.iter()
    }

    /// The next one was taken.
    pub(super) fn sent(&mut self) {
        if let Some(frame) = self.waiting.pop_front() {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.len() as u64;
        }
    }

    /// Nobody will take the next one.
    pub(super) fn lost(&mut self) {
        self.counters.tx_unreachable += u64::from(self.waiting.pop_front().is_some());
    }

    /// Nobody will take any of them.
    pub(super) fn all_lost(&mut self) {
        self.counters.tx_unreachable += self.waiting.len() as u64;
        self.waiting.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// About as many frames as a NIC's ring holds: a guest that gets a processor only now and then is no reason to drop.
const MOST_WAITING: usize = 1024;
