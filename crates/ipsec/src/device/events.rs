//! SA events that wait for the keying daemon.
//!
//! Invariants: limits, used-up numbers and lost offloads are never dropped. Each waits only once, however often it
//! happens before the daemon asks, so an SA has only a few events in the queue. Packets that need missing SAs can fill
//! only a part of the queue.

use crate::keying::{SaEvent, SaId};
use core::net::IpAddr;
use offload_api::{EspMode, Template};
use std::collections::{HashSet, VecDeque};

/// The events, in the order of occurrence.
#[derive(Debug, Default)]
pub(super) struct SaEventQueue {
    queue: VecDeque<SaEvent>,
    /// The kinds of the queued events. Only looked up, never iterated.
    there: HashSet<SaEventKind>,
    /// Number of queued [`SaEvent::Acquire`] events.
    acquires: usize,
}

/// The identity of an event: events of one kind wait only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SaEventKind {
    Soft(SaId),
    Hard(SaId),
    Exhausted(SaId),
    Crossed(SaId),
    Lost(SaId),
    /// Template and, in transport mode, the ends. A tunnel's template has the ends already.
    Acquire(Template, Option<(IpAddr, IpAddr)>),
}

impl SaEventQueue {
    /// Queues an event. Returns false if it waits already or there is no room.
    pub(super) fn push(&mut self, event: SaEvent) -> bool {
        let kind = SaEventKind::from_event(&event);
        let acquires = matches!(kind, SaEventKind::Acquire(..));
        // Acquires are limited, because any packet to a new destination causes one.
        if acquires && self.acquires >= ACQUIRES {
            return false;
        }
        if !self.there.insert(kind) {
            // Only the latest crossing matters, because numbers only grow.
            if matches!(kind, SaEventKind::Crossed(_))
                && let Some(before) = self.queue.iter_mut().find(|before| SaEventKind::from_event(before) == kind)
            {
                *before = event;
            }
            return false;
        }
        self.acquires += usize::from(acquires);
        self.queue.push_back(event);
        true
    }

    /// Returns the oldest event.
    pub(super) fn pop(&mut self) -> Option<SaEvent> {
        let event = self.queue.pop_front()?;
        let kind = SaEventKind::from_event(&event);
        self.there.remove(&kind);
        self.acquires -= usize::from(matches!(kind, SaEventKind::Acquire(..)));
        Some(event)
    }

    /// Drops the events of deleted SAs, if the queue is longer than `sas` SAs can make it.
    pub(super) fn keep_within(&mut self, sas: usize, is_there: impl Fn(SaId) -> bool) {
        if self.queue.len() <= ACQUIRES + KINDS * (sas + DELETED) {
            return;
        }
        let Self { queue, there, .. } = self;
        queue.retain(|event| {
            let kind = SaEventKind::from_event(event);
            let kept = kind.sa().is_none_or(&is_there);
            if !kept {
                there.remove(&kind);
            }
            kept
        });
    }
}

impl SaEventKind {
    fn from_event(event: &SaEvent) -> SaEventKind {
        match event {
            SaEvent::SoftLimit { sa, .. } => SaEventKind::Soft(*sa),
            SaEvent::HardLimit { sa, .. } => SaEventKind::Hard(*sa),
            SaEvent::SequenceExhausted { sa } => SaEventKind::Exhausted(*sa),
            SaEvent::Crossed { sa, .. } => SaEventKind::Crossed(*sa),
            SaEvent::OffloadLost { sa } => SaEventKind::Lost(*sa),
            SaEvent::Acquire { template, packet } => {
                let own = (packet.source, packet.destination);
                SaEventKind::Acquire(*template, (template.mode == EspMode::Transport).then_some(own))
            }
        }
    }

    fn sa(&self) -> Option<SaId> {
        match self {
            SaEventKind::Soft(sa)
            | SaEventKind::Hard(sa)
            | SaEventKind::Exhausted(sa)
            | SaEventKind::Crossed(sa)
            | SaEventKind::Lost(sa) => Some(*sa),
            SaEventKind::Acquire(..) => None,
        }
    }
}

/// Limit of queued acquires. A dropped acquire is repeated by the packet's retransmission.
const ACQUIRES: usize = 256;
/// Number of event kinds per SA.
const KINDS: usize = 5;
/// Deleted SAs that may have events before the queue is searched.
const DELETED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::ipsec::Packet;
    use offload_api::{Handle, Limit};

    fn sa(index: u32) -> SaId {
        SaId(Handle { index, generation: 0 })
    }

    fn acquire(host: u8) -> SaEvent {
        let packet =
            Packet { source: [10, 0, 0, 1].into(), destination: [10, 0, 1, host].into(), protocol: 17, ports: None };
        SaEvent::Acquire { template: Template::transport(1), packet }
    }

    #[test]
    fn equal_event_is_queued_again_only_after_delivery() {
        let mut events = SaEventQueue::default();
        let soft = SaEvent::SoftLimit { sa: sa(1), limit: Limit::Packets };
        assert!(events.push(soft) && events.push(acquire(1)) && events.push(acquire(2)));
        assert!(!events.push(soft) && !events.push(acquire(1)));
        let crossed = |number| SaEvent::Crossed { sa: sa(1), number };
        assert!(events.push(crossed(1 << 31)) && !events.push(crossed(1 << 32)));
        assert_eq!(events.pop(), Some(soft));
        assert!(events.push(soft));
        let rest: Vec<SaEvent> = core::iter::from_fn(|| events.pop()).collect();
        assert_eq!(rest, [acquire(1), acquire(2), crossed(1 << 32), soft]);
    }

    #[test]
    fn acquire_events_leave_room_for_events_of_sas() {
        let mut events = SaEventQueue::default();
        let tunnel = |reqid| Template::tunnel([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), reqid);
        let wants = |reqid| match acquire(1) {
            SaEvent::Acquire { packet, .. } => SaEvent::Acquire { template: tunnel(reqid), packet },
            other => other,
        };
        assert_eq!((0..5000).filter(|reqid| events.push(wants(*reqid))).count(), ACQUIRES);
        let hard = |index| SaEvent::HardLimit { sa: sa(index), limit: Limit::Bytes };
        assert!((0..3000).all(|index| events.push(hard(index))));
        // All SAs but one are deleted, so their events may be dropped.
        events.keep_within(1, |of| of == sa(2999));
        assert_eq!(events.queue.len(), ACQUIRES + 1);
        assert_eq!(events.there.len(), ACQUIRES + 1);
        assert_eq!(core::iter::from_fn(|| events.pop()).last(), Some(hard(2999)));
        assert_eq!((events.acquires, events.there.len()), (0, 0));
    }
}
