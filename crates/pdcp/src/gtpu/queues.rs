//! Assignment of bearers to queues, and forwarding of datagrams between queues.
//!
//! A NIC steers the PDUs that it opens to the bearer's queue. It spreads all other datagrams by addresses and ports,
//! which are equal for all bearers between two nodes, so the receiving queue forwards them. Invariant: no queue's lock
//! is held while another's is taken.

use super::NodeShared;
use super::core::NodeCore;
use offload_api::{Datagram, PacketMark};
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue's number, and datagrams to and from other queues.
pub(super) struct QueuePlace {
    number: usize,
    queues: usize,
    /// Datagrams received here for other queues.
    astray: Vec<(usize, Datagram)>,
    /// Datagrams forwarded to this queue.
    handed: VecDeque<Datagram>,
}

impl QueuePlace {
    pub(super) fn new(number: usize, queues: usize) -> QueuePlace {
        QueuePlace { number, queues, astray: Vec::new(), handed: VecDeque::new() }
    }

    /// Tests whether the bearer with this TEID belongs to this queue.
    pub(super) fn has(&self, tunnel: u32) -> bool {
        queue_of(tunnel, self.queues) == self.number
    }

    pub(super) fn take_forwarded(&mut self) -> VecDeque<Datagram> {
        ::core::mem::take(&mut self.handed)
    }

    pub(super) fn has_forwarded(&self) -> bool {
        !self.handed.is_empty()
    }

    pub(super) fn take_astray(&mut self) -> Vec<(usize, Datagram)> {
        ::core::mem::take(&mut self.astray)
    }
}

impl NodeCore {
    /// Records a datagram for another queue.
    pub(super) fn record_astray(&mut self, tunnel: u32, datagram: Datagram) {
        if matches!(datagram.meta.marks.packet(), PacketMark::Opened { .. }) {
            // Opened for an earlier node at this port: in clear, and by keys that this node does not have.
            self.counters.stale += 1;
            return;
        }
        self.counters.handed_on += 1;
        let QueuePlace { queues, astray, .. } = &mut self.place;
        astray.push((queue_of(tunnel, *queues), datagram));
    }

    fn take_over(&mut self, datagram: Datagram) {
        if self.ended || self.place.handed.len() >= MAX_FORWARDED {
            self.counters.handed_drops += 1;
            return;
        }
        self.place.handed.push_back(datagram);
        self.wake_driver();
    }
}

/// Forwards datagrams to their queues in the order of arrival, taking each queue's lock once.
pub(super) fn forward(queues: &[Arc<NodeShared>], mut astray: Vec<(usize, Datagram)>) {
    astray.sort_by_key(|(queue, _)| *queue);
    let mut astray = astray.into_iter().peekable();
    while let Some((queue, first)) = astray.next() {
        let mut core = queues[queue].lock();
        core.take_over(first);
        while let Some((_, datagram)) = astray.next_if(|(next, _)| *next == queue) {
            core.take_over(datagram);
        }
    }
}

/// Returns the queue of the bearer with this TEID. Multiplication by the golden ratio spreads numbers of any constant
/// step evenly.
pub(super) fn queue_of(tunnel: u32, queues: usize) -> usize {
    let place = u64::from(tunnel.wrapping_mul(0x9e37_79b9));
    ((place * queues as u64) >> 32) as usize
}

/// Limit of forwarded datagrams: as many as a device's receive ring holds.
const MAX_FORWARDED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teids_with_any_step_are_spread_evenly() {
        for queues in 1..=16 {
            for (first, step) in [(0, 1), (1, 1), (1, 2), (7, 3), (65_537, 1), (0, 16), (u32::MAX - 50, 1)] {
                let mut at = vec![0usize; queues];
                (0..1000u32)
                    .for_each(|number| at[queue_of(number.wrapping_mul(step).wrapping_add(first), queues)] += 1);
                let even = 1000 / queues;
                assert!(at.iter().all(|there| there.abs_diff(even) <= 40), "{queues} queues, step {step}: {at:?}");
            }
        }
    }
}
