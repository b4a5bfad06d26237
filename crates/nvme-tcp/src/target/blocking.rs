//! Threads for work that may wait for a device.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

/// Runs work that may wait, where nothing else waits for it.
pub trait Blocking: Send + Sync {
    /// Runs `work` at some time, on some thread.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

/// A fixed number of threads, which end when the last handle is dropped.
///
/// A device that hangs keeps each thread that waits for it, until none is left for others. A program that serves disks that may
/// hang beside others serves them by a [`Server`](super::Server) with threads of its own.
///
/// ```
/// use nvme_tcp::target::{Blocking, Threads};
/// use std::sync::mpsc;
///
/// let threads = Threads::new(2)?;
/// let (sender, receiver) = mpsc::channel();
/// threads.run(Box::new(move || sender.send(6 * 7).unwrap()));
/// assert_eq!(receiver.recv(), Ok(42));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Threads {
    work: mpsc::Sender<Work>,
}

struct Work(Box<dyn FnOnce() + Send>);

impl Threads {
    /// `count` threads, at least one.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn new(count: usize) -> io::Result<Threads> {
        let (work, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..count.max(1) {
            let waiting = waiting.clone();
            thread::Builder::new().name(format!("storage-{number}")).spawn(move || work_off(&waiting))?;
        }
        Ok(Threads { work })
    }
}

impl Blocking for Threads {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        // The threads end only when all senders are gone, and here is one.
        let _ = self.work.send(Work(work));
    }
}

fn work_off(waiting: &Mutex<mpsc::Receiver<Work>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work(work)) = next else { return };
        // Work that panics is its own loss; the thread has more to do.
        let _panicked = catch_unwind(AssertUnwindSafe(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_outlives_work_that_panics() {
        let threads = Threads::new(1).unwrap();
        threads.run(Box::new(|| panic!("as it should")));
        let (sender, receiver) = mpsc::channel();
        threads.run(Box::new(move || sender.send(1).unwrap()));
        assert_eq!(receiver.recv(), Ok(1));
    }
}
