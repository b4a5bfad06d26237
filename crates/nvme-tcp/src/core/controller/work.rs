//! Tracking of commands that may outlive their controller.
//!
//! A write that waits for its device cannot be called back. A host that has lost its connection sends its commands
//! again, and others after these: no old command may run after that. A new controller therefore does not become ready
//! while a command of an earlier controller of the same host is running, whether the earlier controller has ended or
//! not: the host may be back before the target has noticed the loss. The host gets its new controller at once, beside
//! the old one, which ends when its keep-alive timer expires.
//!
//! The same holds for a single queue: a Disconnect promises that the queue has ended, and a host that has lost one of
//! several connections connects that queue again under the same identifier. Each queue has its own [`QueueWork`], and a
//! Connect waits for the commands of the queue's earlier connections.
//!
//! Commands still on the wire to the old controller are the host's responsibility: NVM Express Base Specification 2.1,
//! 9.6, requires the host to wait until the old controller must have given up.

use super::bell::ConnectionBell;
use super::connection::ConnectionId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running commands of one connection of an I/O queue.
#[derive(Debug, Default)]
pub(super) struct QueueWork {
    state: Mutex<QueueWorkState>,
    bell: Arc<ConnectionBell>,
}

#[derive(Debug, Default)]
struct QueueWorkState {
    /// No further command may begin.
    ended: bool,
    /// The running commands, numbered in the order they began.
    running: BTreeMap<u64, RunningCommand>,
    next: u64,
    /// Number of commands received on the queue.
    received: u64,
    /// Aborted commands not yet looked at, each with `received` at the time of its Abort.
    aborts: BTreeMap<u16, u64>,
    /// Connections to call when all commands numbered below the given number have ended.
    waiting: Vec<(u64, ConnectionId)>,
}

#[derive(Debug)]
struct RunningCommand {
    command: u16,
    aborted: bool,
}

impl QueueWorkState {
    /// Returns the number of the oldest running command; `u64::MAX` if there is none.
    fn oldest(&self) -> u64 {
        self.running.first_key_value().map_or(u64::MAX, |(number, _)| *number)
    }
}

/// A running command; dropping this ends it.
#[derive(Debug)]
pub(super) struct CommandGuard(Arc<QueueWork>, u64);

/// The commands that were running at some moment.
#[derive(Clone, Debug)]
pub(super) struct QueueBacklog {
    work: Arc<QueueWork>,
    /// Commands with this number or a higher one began later.
    until: u64,
}

/// The running commands of several queues. Queues without running commands are removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog(Vec<QueueBacklog>);

impl QueueWork {
    /// Creates the tracker of a queue.
    pub(super) fn new(bell: &Arc<ConnectionBell>) -> Arc<QueueWork> {
        Arc::new(QueueWork { state: Mutex::default(), bell: bell.clone() })
    }

    /// Begins a command. Returns `None` if the queue has ended.
    pub(super) fn begin(self: &Arc<QueueWork>, command: u16) -> Option<CommandGuard> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.running.insert(number, RunningCommand { command, aborted: false });
        Some(CommandGuard(self.clone(), number))
    }

    /// Counts a received command. Returns its number.
    pub(super) fn receive(&self) -> u64 {
        let mut state = self.state();
        state.received += 1;
        state.received - 1
    }

    /// Marks `command` as aborted. A running command ends after its current part. Otherwise, its connection sees the
    /// mark by [`take_aborts`](Self::take_aborts).
    pub(super) fn abort(&self, command: u16) {
        let mut state = self.state();
        for begun in state.running.values_mut().filter(|begun| begun.command == command) {
            begun.aborted = true;
        }
        // The count tells this command from a later one with the same identifier.
        let received = state.received;
        state.aborts.insert(command, received);
    }

    /// Returns the aborted identifiers. Commands with the given number or a higher one came later and are not aborted.
    pub(super) fn take_aborts(&self) -> BTreeMap<u16, u64> {
        core::mem::take(&mut self.state().aborts)
    }

    /// Returns the commands running now.
    pub(super) fn backlog(self: &Arc<QueueWork>) -> QueueBacklog {
        QueueBacklog { work: self.clone(), until: self.state().next }
    }

    /// Prevents further commands from beginning. Returns the running ones.
    pub(super) fn end(self: &Arc<QueueWork>) -> QueueBacklog {
        self.state().ended = true;
        self.backlog()
    }

    fn state(&self) -> MutexGuard<'_, QueueWorkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommandGuard {
    pub(super) fn is_aborted(&self) -> bool {
        self.0.state().running.get(&self.1).is_some_and(|begun| begun.aborted)
    }
}

impl Drop for CommandGuard {
    fn drop(&mut self) {
        // Waiters are called after the lock is released, because a listener may take other locks.
        let mut called = Vec::new();
        {
            let mut state = self.0.state();
            state.running.remove(&self.1);
            let oldest = state.oldest();
            called.extend(state.waiting.extract_if(.., |(until, _)| *until <= oldest).map(|(_, id)| id));
        }
        self.0.bell.ring(&called);
    }
}

impl QueueBacklog {
    fn is_over(&self) -> bool {
        self.work.state().oldest() >= self.until
    }

    /// Returns whether all have ended. If not, `connection` is called when they have.
    fn is_over_or_registers(&self, connection: ConnectionId) -> bool {
        let mut state = self.work.state();
        let is_over = state.oldest() >= self.until;
        let waiter = (self.until, connection);
        if !is_over && !state.waiting.contains(&waiter) {
            state.waiting.push(waiter);
        }
        is_over
    }
}

impl Backlog {
    /// Forgets queues without running commands. Returns whether no queue is left.
    pub(super) fn prune(&mut self) -> bool {
        self.0.retain(|under_way| !under_way.is_over());
        self.0.is_empty()
    }

    /// Returns whether all commands have ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.iter().all(QueueBacklog::is_over)
    }

    /// Returns whether all commands have ended. If not, `connection` is called when those of one queue have.
    pub(super) fn is_over_or_registers(&self, connection: ConnectionId) -> bool {
        self.0.iter().all(|under_way| under_way.is_over_or_registers(connection))
    }

    /// Adds `more`, with one entry for each queue.
    pub(super) fn extend(&mut self, more: impl IntoIterator<Item = QueueBacklog>) {
        for under_way in more {
            match self.0.iter_mut().find(|known| Arc::ptr_eq(&known.work, &under_way.work)) {
                // The later moment includes all commands of the earlier one.
                Some(known) => known.until = known.until.max(under_way.until),
                None => self.0.push(under_way),
            }
        }
        self.prune();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueueBacklog> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_commands_are_not_waited_for() {
        let work = Arc::<QueueWork>::default();
        let (first, second) = (work.begin(1).unwrap(), work.begin(1).unwrap());
        let mut all = Backlog::default();
        all.extend([work.backlog()]);
        let later = work.begin(1);
        drop(second);
        assert!(!all.is_over());
        drop(first);
        assert!(all.is_over() && all.prune());
        all.extend([work.end()]);
        assert!(!all.is_over() && work.begin(1).is_none());
        drop(later);
        assert!(all.is_over());
    }

    #[test]
    fn waiter_is_called_when_the_last_command_ends() {
        let bell = Arc::<ConnectionBell>::default();
        let work = QueueWork::new(&bell);
        let (first, second) = (work.begin(1).unwrap(), work.begin(1).unwrap());
        let mut all = Backlog::default();
        all.extend([work.backlog()]);
        let _later_command = work.begin(1);
        let waiter = ConnectionId(7);
        assert!(!all.is_over_or_registers(waiter) && !all.is_over_or_registers(waiter));
        drop(second);
        assert_eq!(bell.take(), []);
        drop(first);
        assert_eq!(bell.take(), [waiter], "called once");
        assert!(all.is_over_or_registers(waiter));
    }

    #[test]
    fn a_queue_is_listed_once() {
        let work = Arc::<QueueWork>::default();
        let _running_command = work.begin(1);
        let mut all = Backlog::default();
        for _ in 0..10 {
            let known = all.clone();
            all.extend(known.iter().cloned().chain([work.backlog()]));
        }
        assert_eq!(all.iter().count(), 1);
    }
}
