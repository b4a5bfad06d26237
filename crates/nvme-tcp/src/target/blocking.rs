//! Threads for jobs that may block on a device.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

/// An executor of jobs that may block.
pub trait BlockingExecutor: Send + Sync {
    /// Runs `work` later, on any thread.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

/// A fixed number of threads, which end when the last handle is dropped.
///
/// A device that hangs blocks each waiting thread, until no thread is left. A program should serve disks that may hang
/// by a separate [`Server`](super::Server) with its own threads.
///
/// ```
/// use nvme_tcp::target::{BlockingExecutor, Threads};
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
    work: mpsc::Sender<BlockingJob>,
}

struct BlockingJob(Box<dyn FnOnce() + Send>);

impl Threads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub fn new(count: usize) -> io::Result<Threads> {
        let (work, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..count.max(1) {
            let waiting = waiting.clone();
            thread::Builder::new().name(format!("storage-{number}")).spawn(move || run_jobs(&waiting))?;
        }
        Ok(Threads { work })
    }
}

impl BlockingExecutor for Threads {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        // Cannot fail: the threads end only when all senders are gone, and this is one.
        let _ = self.work.send(BlockingJob(work));
    }
}

fn run_jobs(waiting: &Mutex<mpsc::Receiver<BlockingJob>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(BlockingJob(work)) = next else { return };
        // A panicking job must not end the thread, because other jobs need it.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_survives_a_panicking_job() {
        let threads = Threads::new(1).unwrap();
        threads.run(Box::new(|| panic!("expected panic of the test")));
        let (sender, receiver) = mpsc::channel();
        threads.run(Box::new(move || sender.send(1).unwrap()));
        assert_eq!(receiver.recv(), Ok(1));
    }
}
