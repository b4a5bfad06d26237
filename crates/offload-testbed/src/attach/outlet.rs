//! A short queue of frames that the outside has not taken yet, with the port's counters.

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
    /// Queues a frame, or drops the frame if the queue is full.
    pub(super) fn push(&mut self, frame: Frame) {
        // The newest frame is dropped, as a full NIC ring does, so that earlier frames keep their order.
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(frame);
        } else {
            self.counters.tx_queue_drops += 1;
        }
    }

    /// Returns the next frame.
    pub(super) fn first(&self) -> Option<&Frame> {
        self.waiting.front()
    }

    /// Iterates over the waiting frames, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Frame> {
        self.waiting.iter()
    }

    /// Removes the next frame and counts the frame as sent.
    pub(super) fn sent(&mut self) {
        if let Some(frame) = self.waiting.pop_front() {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.len() as u64;
        }
    }

    /// Removes the next frame and counts the frame as unreachable.
    pub(super) fn lost(&mut self) {
        self.counters.tx_unreachable += u64::from(self.waiting.pop_front().is_some());
    }

    /// Removes all frames and counts the frames as unreachable.
    pub(super) fn all_lost(&mut self) {
        self.counters.tx_unreachable += self.waiting.len() as u64;
        self.waiting.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Queue limit, about a NIC's ring size, so that a guest that runs only now and then loses no frames.
const MAX_WAITING: usize = 1024;
