//! A mutex that wakes tasks only after it is unlocked.
//!
//! A waker may run its executor's code at once: it may poll the task, or drop the task with all its futures. If such a
//! future locks the mutex that the caller of [`Waker::wake`] holds, the thread deadlocks. State under a [`WakingMutex`]
//! therefore collects tasks in a [`WakeList`], and the guard wakes these tasks after unlocking.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::task::Waker;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A list of tasks to wake, in the order of their addition. Dropping the list wakes the tasks.
///
/// See [`WakingMutex`] for an example.
#[derive(Debug, Default)]
pub struct WakeList(SmallVec<[Waker; 4]>);

impl WakeList {
    /// Adds tasks to the list.
    pub fn add(&mut self, tasks: impl IntoIterator<Item = Waker>) {
        self.0.extend(tasks);
    }
}

/// The tasks that wait for one event, in the order in which they began. A future keeps its number in the list.
///
/// Invariant: an entry lives until the event, or until its future removes it.
///
/// ```
/// use offload_base::{WaitList, WakeList};
/// use std::task::Waker;
///
/// let (mut list, mut number) = (WaitList::default(), None);
/// assert!(list.register(&mut number, Waker::noop()).is_none(), "no waker is replaced");
/// let mut woken = WakeList::default();
/// list.wake(&mut woken);
/// assert!(list.remove(number.unwrap()).is_none(), "the event removed it");
/// drop(woken); // wakes the task
/// ```
#[derive(Debug, Default)]
pub struct WaitList {
    next: u64,
    tasks: BTreeMap<u64, Waker>,
}

impl WaitList {
    /// Registers a task under `number`, or under a new number if the event removed the entry. Returns the waker of another
    /// task that polled the future before. Drop that waker after the lock, because it may be the last reference to a task
    /// with futures of this list.
    #[must_use]
    pub fn register(&mut self, number: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        if let Some(known) = number.and_then(|number| self.tasks.get_mut(&number)) {
            return (!known.will_wake(waker)).then(|| core::mem::replace(known, waker.clone()));
        }
        self.tasks.insert(self.next, waker.clone());
        *number = Some(self.next);
        self.next += 1;
        None
    }

    /// Removes the entry of a future that no longer waits. Drop its waker after the lock.
    #[must_use]
    pub fn remove(&mut self, number: u64) -> Option<Waker> {
        self.tasks.remove(&number)
    }

    /// Removes all entries, and adds their tasks to those that are woken.
    pub fn wake(&mut self, woken: &mut WakeList) {
        // Each packet may wake the waiters of many events, and these lists are almost always empty.
        if !self.tasks.is_empty() {
            woken.add(core::mem::take(&mut self.tasks).into_values());
        }
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// State that lists the tasks to wake after the unlock.
///
/// See [`WakingMutex`] for an example.
pub trait HasWakeList {
    /// Returns the list of tasks to wake after the unlock.
    fn wake_list(&mut self) -> &mut WakeList;
}

/// A mutex with a guard that wakes the tasks in the state's [`WakeList`] after unlocking. A panic does not poison the
/// mutex.
///
/// ```
/// use offload_base::{WakeList, HasWakeList, WakingMutex};
/// use std::task::Waker;
///
/// #[derive(Default)]
/// struct Slot {
///     value: Option<u32>,
///     reader: Option<Waker>,
///     woken: WakeList,
/// }
///
/// impl HasWakeList for Slot {
///     fn wake_list(&mut self) -> &mut WakeList {
///         &mut self.woken
///     }
/// }
///
/// let slot = WakingMutex::new(Slot { reader: Some(Waker::noop().clone()), ..Slot::default() });
/// let mut locked = slot.lock();
/// locked.value = Some(7);
/// let reader = locked.reader.take();
/// locked.wake_list().add(reader);
/// drop(locked); // unlocks the slot, then wakes the reader
/// ```
#[derive(Debug, Default)]
pub struct WakingMutex<T>(Mutex<T>);

impl<T: HasWakeList> WakingMutex<T> {
    /// Wraps the state.
    pub fn new(state: T) -> WakingMutex<T> {
        WakingMutex(Mutex::new(state))
    }

    /// Locks the state.
    pub fn lock(&self) -> WakingGuard<'_, T> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        WakingGuard { mutex: self, state, woken: WakeList::default() }
    }
}

/// The locked state of a [`WakingMutex`].
///
/// See [`WakingMutex`] for an example.
pub struct WakingGuard<'a, T: HasWakeList> {
    mutex: &'a WakingMutex<T>,
    state: MutexGuard<'a, T>,
    /// The tasks to wake. Declared after the lock's guard, because fields are dropped in the order of declaration.
    woken: WakeList,
}

impl<'a, T: HasWakeList> WakingGuard<'a, T> {
    /// Unlocks the state, wakes the listed tasks and locks again. Keeps the lock if the list is empty.
    pub fn relock(mut guard: Self) -> WakingGuard<'a, T> {
        if guard.state.wake_list().0.is_empty() {
            return guard;
        }
        // Dropping the guard unlocks first and wakes then, so the woken tasks may take the lock.
        let mutex = guard.mutex;
        drop(guard);
        mutex.lock()
    }
}

impl<T: HasWakeList> Deref for WakingGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: HasWakeList> DerefMut for WakingGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T: HasWakeList> Drop for WakingGuard<'_, T> {
    fn drop(&mut self) {
        let list = self.state.wake_list();
        // Most guards wake nobody, and moving an empty list would copy 80 bytes.
        if !list.0.is_empty() {
            self.woken = core::mem::take(list);
        }
    }
}

impl<T: HasWakeList + fmt::Debug> fmt::Debug for WakingGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct State(WakeList);

    impl HasWakeList for State {
        fn wake_list(&mut self) -> &mut WakeList {
            &mut self.0
        }
    }

    /// A task that counts the wakes that happened while the state was unlocked.
    #[derive(Default)]
    struct CountingTask {
        state: WakingMutex<State>,
        unlocked: AtomicUsize,
    }

    impl Wake for CountingTask {
        fn wake(self: Arc<Self>) {
            self.unlocked.fetch_add(self.state.0.try_lock().is_ok().into(), Ordering::Relaxed);
        }
    }

    #[test]
    fn tasks_are_woken_after_the_unlock() {
        let task = Arc::new(CountingTask::default());
        for count in [1, 9] {
            let before = task.unlocked.load(Ordering::Relaxed);
            let mut state = task.state.lock();
            state.0.add((0..count).map(|_| Waker::from(task.clone())));
            assert_eq!(task.unlocked.load(Ordering::Relaxed), before);
            let mut state = WakingGuard::relock(state);
            assert_eq!(task.unlocked.load(Ordering::Relaxed), before + count);
            state.0.add([Waker::from(task.clone())]);
            drop(state);
            assert_eq!(task.unlocked.load(Ordering::Relaxed), before + count + 1);
        }
    }
}
