//! Abandoned commands that may still be executed. Overlapping later commands wait for their end.
//!
//! NVMe does not order commands, not even of one queue. A caller that awaits each command before sending the next has
//! an order all the same. A caller that drops a future cannot wait, so the host waits in its place.
//!
//! Invariants: an abandoned command that may change something and may still be executed is listed here. As long as the
//! list has the command, no later overlapping command is in a lane. A command that waits here is in no lane.

use super::lane::{CommandLane, CommandTicket, LaneEntry};
use super::lock;
use super::scope::Reach;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The abandoned commands of one host.
#[derive(Debug, Default)]
pub(super) struct AbandonedCommands {
    /// Number of listed commands, so that a host without any does not need the lock.
    count: AtomicUsize,
    state: Mutex<AbandonedState>,
}

#[derive(Debug, Default)]
struct AbandonedState {
    under_way: Vec<Arc<CommandTicket>>,
    held: Vec<HeldCommand>,
    ended: bool,
}

/// A command that waits for abandoned ones to end.
#[derive(Debug)]
struct HeldCommand {
    entry: LaneEntry,
    lane: Arc<CommandLane>,
    /// Number of listed commands that it overlaps.
    waits_for: usize,
}

impl AbandonedCommands {
    /// Holds a command for `lane` if it overlaps a listed command. Otherwise returns the command.
    pub(super) fn hold_back(&self, lane: &Arc<CommandLane>, entry: LaneEntry) -> Option<LaneEntry> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Some(entry);
        }
        let mut state = lock(&self.state);
        let reach = entry.ticket.scope().reach;
        let waits_for = state.under_way.iter().filter(|ticket| ticket.scope().reach.overlaps(reach)).count();
        if waits_for == 0 || state.ended {
            return Some(entry);
        }
        state.held.push(HeldCommand { entry, lane: lane.clone(), waits_for });
        None
    }

    /// Lists an abandoned command that may still be executed.
    pub(super) fn add(&self, ticket: Arc<CommandTicket>) {
        if ticket.scope().reach != Reach::Nothing {
            let mut state = lock(&self.state);
            // Commands already held were submitted before or after; either way they must not overtake this command.
            for held in &mut state.held {
                held.waits_for += usize::from(ticket.scope().reach.overlaps(held.entry.ticket.scope().reach));
            }
            state.under_way.push(ticket);
            self.count.store(state.under_way.len(), Ordering::Release);
        }
    }

    /// Removes a command that cannot be executed any more. Commands that waited only for it are queued.
    pub(super) fn remove(&self, ticket: &CommandTicket) {
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
        // Queued after the lock is released, because lanes take their own locks.
        released.into_iter().for_each(|held| held.lane.enqueue(held.entry));
    }

    /// Takes back a held command.
    pub(super) fn withdraw(&self, ticket: &Arc<CommandTicket>) -> Option<LaneEntry> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let place = state.held.iter().position(|held| held.entry.ticket.is(ticket))?;
        Some(state.held.remove(place).entry)
    }

    /// Ends holding and returns all held commands.
    pub(super) fn end(&self) -> Vec<LaneEntry> {
        let mut state = lock(&self.state);
        state.ended = true;
        state.under_way.clear();
        self.count.store(0, Ordering::Release);
        core::mem::take(&mut state.held).into_iter().map(|held| held.entry).collect()
    }
}
