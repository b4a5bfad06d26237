//! A thread for a lookaside accelerator in real time.

use super::Lookaside;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use core::time::Duration;
use offload_base::Instant;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

/// A signal that ends [`run`].
///
/// ```
/// use nic_device::lookaside::StopSignal;
///
/// let stop = StopSignal::default();
/// stop.clone().stop();
/// assert!(stop.is_stopped());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Asks the thread that runs the device to end soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Tests whether the signal was given.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Runs a device on this thread until it is stopped, and then drops the device, which ends its jobs. `now` returns the time in
/// the submitters' clock.
pub fn run(mut device: Lookaside, now: impl Fn() -> Instant, stop: &StopSignal) {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    while !stop.is_stopped() {
        device.process(now());
        if !device.arm(&waker) {
            continue;
        }
        match device.next_event().map(|at| at.saturating_since(now())) {
            Some(Duration::ZERO) => {}
            // Bounded, so that the stop signal is noticed in time.
            wait => thread::park_timeout(wait.unwrap_or(LONGEST).min(LONGEST)),
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

const LONGEST: Duration = Duration::from_millis(10);
