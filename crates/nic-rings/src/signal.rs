//! Doorbells and interrupts: the producer of a ring wakes a sleeping consumer.
//!
//! The consumer drains the ring, arms the signal, checks the ring once more, and only then sleeps. The producer
//! publishes, then raises. Each side has a sequentially consistent fence between its write and its read of the other
//! side's variable, so at least one side sees the other's write. No wake-up is lost, and a consumer that is awake is
//! not woken. The fences alone ensure this. The atomic accesses only have to order the waker, which must be visible
//! once the signal is seen as armed.

use atomic_waker::AtomicWaker;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::task::Waker;
use std::sync::Arc;

/// A wake-up signal from one side to the other, shared by both.
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
    shared: Arc<SharedSignal>,
}

#[derive(Debug, Default)]
struct SharedSignal {
    armed: AtomicBool,
    waker: AtomicWaker,
}

impl Signal {
    /// Creates a signal that is not armed.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Arms the signal to wake `waker` at the next raise. After this call, the caller must check for entries published
    /// before.
    pub fn arm(&self, waker: &Waker) {
        self.register(waker);
        self.rearm();
    }

    /// Sets the waker for [`rearm`](Self::rearm) without arming the signal.
    pub fn register(&self, waker: &Waker) {
        self.shared.waker.register(waker);
    }

    /// Arms the signal with the waker of the last [`arm`](Self::arm) or [`register`](Self::register). After this call,
    /// the caller must check for entries published before.
    pub fn rearm(&self) {
        // The fence orders this store before the consumer's next look at the ring.
        self.shared.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Disarms the signal, because the consumer is awake.
    pub fn disarm(&self) {
        self.shared.armed.store(false, Ordering::Relaxed);
    }

    /// Tests whether a raise would wake the consumer. The producer must publish first.
    pub fn is_armed(&self) -> bool {
        // The fence orders the producer's publishing before this look at the flag.
        fence(Ordering::SeqCst);
        self.shared.armed.load(Ordering::Relaxed)
    }

    /// Wakes the consumer if the signal is armed, and returns whether it was.
    pub fn raise(&self) -> bool {
        fence(Ordering::SeqCst);
        // The swap lets only one of several raises wake the consumer.
        let armed = self.shared.armed.swap(false, Ordering::Acquire);
        if armed {
            self.shared.waker.wake();
        }
        armed
    }
}
