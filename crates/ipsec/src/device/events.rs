//! What keying is to hear of SAs, until it asks.
//!
//! Invariants: that an SA reached a limit, has no more numbers or lost its device is never left out, and waits once,
//! however often it happens before anybody asks; so there are no more events than a few for each SA. Who sends packets
//! for SAs that do not exist fills a part of the queue at most.

use crate::keying::{SaEvent, SaId};
use core::net::IpAddr;
use offload_api::{EspMode, Template};
use std::collections::{HashSet, VecDeque};

/// Events in the order of occurrence.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<SaEvent>,
    /// What is in the queue. Looked up, never walked.
    there: HashSet<Kind>,
    /// How many of them want an SA.
    acquires: usize,
}

/// Events of one kind wait once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Soft(SaId),
    Hard(SaId),
    Exhausted(SaId),
    Crossed(SaId),
    Lost(SaId),
    /// By what the SA is to be between: of a tunnel, its template says so.
    Acquire(Template, Option<(IpAddr, IpAddr)>),
}

impl Events {
    /// Notes an event; false if there is no need to, or no room.
    pub(super) fn push(&mut self, event: SaEvent) -> bool {
        let kind = Kind::of(&event);
        let acquires = matches!(kind, Kind::Acquire(..));
        if acquires && self.acquires >= ACQUIRES {
            return false;
        }
        if !self.there.insert(kind) {
            // Numbers go on: the last edge that was crossed is of interest.
            if matches!(kind, Kind::Crossed(_))
                && let Some(before) = self.queue.iter_mut().find(|before| Kind::of(before) == kind)
            {
                *before = event;
            }
            return false;
        }
        self.acquires += usize::from(acquires);
        self.queue.push_back(event);
        true
    }

    /// The oldest event.
    pub(super) fn pop(&mut self) -> Option<SaEvent> {
        let event = self.queue.pop_front()?;
        let kind = Kind::of(&event);
        self.there.remove(&kind);
        self.acquires -= usize::from(matches!(kind, Kind::Acquire(..)));
        Some(event)
    }

    /// Forgets what happened to SAs that are deleted, if there is more than `sas` SAs can have caused.
    pub(super) fn keep_within(&mut self, sas: usize, is_there: impl Fn(SaId) -> bool) {
        if self.queue.len() <= ACQUIRES + KINDS * (sas + DELETED) {
            return;
        }
        let Self { queue, there, .. } = self;
        queue.retain(|event| {
            let kind = Kind::of(event);
            let kept = kind.sa().is_none_or(&is_there);
            if !kept {
                there.remove(&kind);
            }
            kept
        });
    }
}

impl Kind {
    fn of(event: &SaEvent) -> Kind {
        match event {
            SaEvent::SoftLimit { sa, .. } => Kind::Soft(*sa),
            SaEvent::HardLimit { sa, .. } => Kind::Hard(*sa),
            SaEvent::SequenceExhausted { sa } => Kind::Exhausted(*sa),
            SaEvent::Crossed { sa, .. } => Kind::Crossed(*sa),
            SaEvent::OffloadLost { sa } => Kind::Lost(*sa),
            SaEvent::Acquire { template, packet } => {
                let own = (packet.source, packet.destination);
                Kind::Acquire(*template, (template.mode == EspMode::Transport).then_some(own))
            }
        }
    }

    fn sa(&self) -> Option<SaId> {
        match self {
            Kind::Soft(sa) | Kind::Hard(sa) | Kind::Exhausted(sa) | Kind::Crossed(sa) | Kind::Lost(sa) => Some(*sa),
            Kind::Acquire(..) => None,
        }
    }
}

/// So many wanted SAs wait to be asked for; their packets come again.
const ACQUIRES: usize = 256;
/// Kinds of events that an SA has.
const KINDS: usize = 5;
/// So many deleted SAs may have events before they are looked for.
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
    fn an_event_waits_once_and_comes_again_after_it_was_asked_for() {
        let mut events = Events::default();
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
    fn whoever_wants_sas_takes_no_room_from_those_that_are_there() {
        let mut events = Events::default();
        let tunnel = |reqid| Template::tunnel([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), reqid);
        let wants = |reqid| match acquire(1) {
            SaEvent::Acquire { packet, .. } => SaEvent::Acquire { template: tunnel(reqid), packet },
            other => other,
        };
        assert_eq!((0..5000).filter(|reqid| events.push(wants(*reqid))).count(), ACQUIRES);
        let hard = |index| SaEvent::HardLimit { sa: sa(index), limit: Limit::Bytes };
        assert!((0..3000).all(|index| events.push(hard(index))));
        // All but the last one deleted: there is no end to those that may come.
        events.keep_within(1, |of| of == sa(2999));
        assert_eq!(events.queue.len(), ACQUIRES + 1);
        assert_eq!(events.there.len(), ACQUIRES + 1);
        assert_eq!(core::iter::from_fn(|| events.pop()).last(), Some(hard(2999)));
        assert_eq!((events.acquires, events.there.len()), (0, 0));
    }
}
