//! Work on namespaces that may outlive its controller.
//!
//! A write that waits for its device cannot be called back. A host that has lost its connection sends its commands
//! again, and others after them: nothing of the old ones may be carried out after that. So a controller does not become
//! ready while something is under way that an earlier one of the same host began, whether the earlier one is gone or
//! still stands: a host may be back before anybody has noticed that its connections are dead. It gets its new
//! controller at once, beside the old one, which ends when its keep-alive expires.
//!
//! The same holds for one queue: Disconnect says that the queue is gone, and a host that has lost one connection of
//! several connects the queue again under its number. Each queue has [`Work`] of its own, and a Connect of a number waits
//! for what the connection before it left under way.
//!
//! What is still on its way to the old one is the host's to look after: NVM Express Base Specification 2.1, 9.6, has it
//! send nothing again before the old controller must have given up.

use super::bell::Bell;
use super::connection::ConnectionId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The commands that one connection of an I/O queue has under way.
#[derive(Debug, Default)]
pub(super) struct Work {
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing more begins.
    ended: bool,
    /// Numbered as they began.
    running: BTreeMap<u64, Begun>,
    next: u64,
    /// Commands that came to the queue.
    received: u64,
    /// Commands that an Abort named, and nobody has looked at since; each with how many had come then.
    aborts: BTreeMap<u16, u64>,
    /// Connections to call when nothing is left that began before a number.
    waiting: Vec<(u64, ConnectionId)>,
}

#[derive(Debug)]
struct Begun {
    command: u16,
    aborted: bool,
}

impl State {
    /// The number of what is under way for longest; beyond all if nothing is.
    fn oldest(&self) -> u64 {
        self.running.first_key_value().map_or(u64::MAX, |(number, _)| *number)
    }
}

/// One piece of work, under way until this is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<Work>, u64);

/// The commands that were under way at some moment.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    work: Arc<Work>,
    /// A command with this number or a greater one began later.
    until: u64,
}

/// The same of several queues, no more than have something under way.
#[derive(Clone, Debug, Default)]
pub(super) struct AllUnderWay(Vec<UnderWay>);

impl Work {
    /// Of a queue that has nothing under way yet.
    pub(super) fn new(bell: &Arc<Bell>) -> Arc<Work> {
        Arc::new(Work { state: Mutex::default(), bell: bell.clone() })
    }

    /// `None`: the queue is gone, and nothing is to be done for it any more.
    pub(super) fn begin(self: &Arc<Work>, command: u16) -> Option<Running> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.running.insert(number, Begun { command, aborted: false });
        Some(Running(self.clone(), number))
    }

    /// A command comes: how many came before it.
    pub(super) fn receive(&self) -> u64 {
        let mut state = self.state();
        state.received += 1;
        state.received - 1
    }

    /// Has `command` end before its time, if it can: what is under way after the part that it is at, and what is not yet
    /// when its connection looks at [`take_aborts`](Self::take_aborts).
    pub(super) fn abort(&self, command: u16) {
        let mut state = self.state();
        for begun in state.running.values_mut().filter(|begun| begun.command == command) {
            begun.aborted = true;
        }
        let received = state.received;
        state.aborts.insert(command, received);
    }

    /// The commands that were named, each with the number that those have which came later.
    pub(super) fn take_aborts(&self) -> BTreeMap<u16, u64> {
        core::mem::take(&mut self.state().aborts)
    }

    /// The commands that are under way now.
    pub(super) fn so_far(self: &Arc<Work>) -> UnderWay {
        UnderWay { work: self.clone(), until: self.state().next }
    }

    /// Has nothing more begin; what is under way.
    pub(super) fn end(self: &Arc<Work>) -> UnderWay {
        self.state().ended = true;
        self.so_far()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    pub(super) fn is_aborted(&self) -> bool {
        self.0.state().running.get(&self.1).is_some_and(|begun| begun.aborted)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
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

impl UnderWay {
    fn is_over(&self) -> bool {
        self.work.state().oldest() >= self.until
    }

    /// Whether it is over; if not, `connection` is called when it is.
    fn is_over_or_calls(&self, connection: ConnectionId) -> bool {
        let mut state = self.work.state();
        let is_over = state.oldest() >= self.until;
        let waiter = (self.until, connection);
        if !is_over && !state.waiting.contains(&waiter) {
            state.waiting.push(waiter);
        }
        is_over
    }
}

impl AllUnderWay {
    /// Forgets what is over; whether that is all.
    pub(super) fn prune(&mut self) -> bool {
        self.0.retain(|under_way| !under_way.is_over());
        self.0.is_empty()
    }

    /// Whether there is nothing left of it.
    pub(super) fn is_over(&self) -> bool {
        self.0.iter().all(UnderWay::is_over)
    }

    /// Whether there is nothing left of it; if there is, `connection` is called when some of it is over.
    pub(super) fn is_over_or_calls(&self, connection: ConnectionId) -> bool {
        self.0.iter().all(|under_way| under_way.is_over_or_calls(connection))
    }

    /// Adds `more`, each queue once.
    pub(super) fn extend(&mut self, more: impl IntoIterator<Item = UnderWay>) {
        for under_way in more {
            match self.0.iter_mut().find(|known| Arc::ptr_eq(&known.work, &under_way.work)) {
                Some(known) => known.until = known.until.max(under_way.until),
                None => self.0.push(under_way),
            }
        }
        self.prune();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnderWay> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_later_is_not_waited_for() {
        let work = Arc::<Work>::default();
        let (first, second) = (work.begin(1).unwrap(), work.begin(1).unwrap());
        let mut all = AllUnderWay::default();
        all.extend([work.so_far()]);
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
    fn who_waits_is_called_when_the_last_of_it_is_over() {
        let bell = Arc::<Bell>::default();
        let work = Work::new(&bell);
        let (first, second) = (work.begin(1).unwrap(), work.begin(1).unwrap());
        let mut all = AllUnderWay::default();
        all.extend([work.so_far()]);
        let _later = work.begin(1);
        let waiter = ConnectionId(7);
        assert!(!all.is_over_or_calls(waiter) && !all.is_over_or_calls(waiter));
        drop(second);
        assert_eq!(bell.take(), []);
        drop(first);
        assert_eq!(bell.take(), [waiter], "once");
        assert!(all.is_over_or_calls(waiter));
    }

    #[test]
    fn a_queue_is_listed_once() {
        let work = Arc::<Work>::default();
        let _runs = work.begin(1);
        let mut all = AllUnderWay::default();
        for _ in 0..10 {
            let known = all.clone();
            all.extend(known.iter().cloned().chain([work.so_far()]));
        }
        assert_eq!(all.iter().count(), 1);
    }
}
