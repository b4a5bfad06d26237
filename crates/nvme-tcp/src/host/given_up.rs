//! Commands that nobody waits for any more, and that may be carried out yet: what overlaps them waits for their end.
//!
//! NVMe keeps no order between commands, not even of one queue. A user who waits for a command's end before the next one
//! has an order all the same; a user who drops the future cannot wait, so the host waits in their place.
//!
//! Invariants: a command that was given up, may change something and may be carried out yet is listed here; no command
//! submitted after that which is about the same is in a lane. Each command that waits here is in no lane.

use super::lane::{Entry, Lane, Ticket};
use super::lock;
use super::scope::Reach;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Those of one host.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    /// How many there are, so that a host without any pays for none.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: Vec<Arc<Ticket>>,
    held: Vec<Held>,
    ended: bool,
}

/// A command that waits for others to end.
#[derive(Debug)]
struct Held {
    entry: Entry,
    lane: Arc<Lane>,
    /// How many of those under way it is about the same as.
    waits_for: usize,
}

impl GivenUp {
    /// Holds a command for `lane` until it can be overtaken by none of those given up. If there is none to wait for, it
    /// comes back.
    pub(super) fn hold(&self, lane: &Arc<Lane>, entry: Entry) -> Option<Entry> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Some(entry);
        }
        let mut state = lock(&self.state);
        let reach = entry.ticket.scope().reach;
        let waits_for = state.under_way.iter().filter(|ticket| ticket.scope().reach.overlaps(reach)).count();
        if waits_for == 0 || state.ended {
            return Some(entry);
        }
        state.held.push(Held { entry, lane: lane.clone(), waits_for });
        None
    }

    /// A command was given up, and may be carried out yet.
    pub(super) fn add(&self, ticket: Arc<Ticket>) {
        if ticket.scope().reach != Reach::Nothing {
            let mut state = lock(&self.state);
            for held in &mut state.held {
                held.waits_for += usize::from(ticket.scope().reach.overlaps(held.entry.ticket.scope().reach));
            }
            state.under_way.push(ticket);
            self.count.store(state.under_way.len(), Ordering::Release);
        }
    }

    /// It cannot be carried out any more: what waited for it alone goes on.
    pub(super) fn remove(&self, ticket: &Ticket) {
        let mut released = Vec::new();
        {
            let mut state = lock(&self.state);
            let place = state.under_way.iter().position(|other| core::ptr::eq(&**other, ticket));
            let Some(place) = place else { return };
            state.under_way.swap_remove(place);
            self.count.store(state.under_way.len(), Ordering::Release);
            for mut held in core::mem::take(&mut state.held) {
                held.waits_for -= usize::from(ticket.scope().reach.overlaps(held.entry.ticket.scope().reach));
                if held.waits_for == 0 {
                    released.push(held);
                } else {
                    state.held.push(held);
                }
            }
        }
        released.into_iter().for_each(|held| held.lane.enqueue(held.entry));
    }

    /// Takes a command back that waits here.
    pub(super) fn withdraw(&self, ticket: &Arc<Ticket>) -> Option<Entry> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let place = state.held.iter().position(|held| held.entry.ticket.is(ticket))?;
        Some(state.held.remove(place).entry)
    }

    /// From now on nothing waits here: gives back all that did.
    pub(super) fn end(&self) -> Vec<Entry> {
        let mut state = lock(&self.state);
        state.ended = true;
        state.under_way.clear();
        self.count.store(0, Ordering::Release);
        core::mem::take(&mut state.held).into_iter().map(|held| held.entry).collect()
    }
}
