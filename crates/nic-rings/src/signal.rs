//! Doorbells and interrupts: how the producer of a ring wakes a consumer that went to sleep.
//!
//! The consumer drains, arms, looks once more, and only then sleeps; the producer publishes, then raises. Each side has a
//! sequentially consistent fence between its write and its look at the other's, so one of the two always sees the other:
//! no wake-up is lost, and a consumer that is awake is not woken. The fence does it alone: the accesses around it have
//! only to order the waker, which is there when the line is seen to be armed.

use atomic_waker::AtomicWaker;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::task::Waker;
use std::sync::Arc;

/// A wake-up line from one side to the other, shared by both.
///
/// ```
/// use core::task::Waker;
/// use nic_rings::signal::Signal;
///
/// let doorbell = Signal::new();
/// let device_side = doorbell.clone();
/// device_side.arm(Waker::noop());
/// assert!(doorbell.is_armed());
/// assert!(doorbell.raise(), "the first raise wakes");
/// assert!(!doorbell.raise(), "the next finds nobody asleep");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Signal {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    armed: AtomicBool,
    waker: AtomicWaker,
}

impl Signal {
    /// A line that nobody waits on.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Has `waker` woken at the next raise. What was published before must be looked for after this call.
    pub fn arm(&self, waker: &Waker) {
        self.register(waker);
        self.rearm();
    }

    /// Says whom to wake when the line is armed by [`rearm`](Self::rearm).
    pub fn register(&self, waker: &Waker) {
        self.shared.waker.register(waker);
    }

    /// Has the waker of the last call of [`arm`](Self::arm) or [`register`](Self::register) woken at the next raise.
    /// What was published before must be looked for after this call.
    pub fn rearm(&self) {
        self.shared.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the arming back: the consumer is awake.
    pub fn disarm(&self) {
        self.shared.armed.store(false, Ordering::Relaxed);
    }

    /// Whether a raise would wake somebody. The producer has published before it asks.
    pub fn is_armed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.shared.armed.load(Ordering::Relaxed)
    }

    /// Wakes the consumer if it is asleep, and says whether it was.
    pub fn raise(&self) -> bool {
        fence(Ordering::SeqCst);
        let armed = self.shared.armed.swap(false, Ordering::Acquire);
        if armed {
            self.shared.waker.wake();
        }
        armed
    }
}
