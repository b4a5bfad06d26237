//! Wakes a port's task when its file becomes readable or writable.
//!
//! A thread waits in epoll and only rings the port's doorbell; the port then checks its files itself.
//!
//! Invariant: an armed file that becomes ready rings the doorbell once, whether it became ready before or after arming.
//! The file is then no longer armed.

use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;
use nic_sim::signal::Signal;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

/// A watcher of one port's files.
#[derive(Debug)]
pub(super) struct FileWatcher {
    shared: Arc<WatcherState>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct WatcherState {
    epoll: OwnedFd,
    stop: OwnedFd,
    doorbell: Signal,
    /// Event that each file is armed for, by file number. Zero means not armed.
    armed: [AtomicU32; FILES],
}

/// The event that a file is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileReadiness {
    Read,
    Write,
}

impl FileWatcher {
    /// Starts the thread that waits in epoll.
    pub(super) fn start(name: &str) -> io::Result<FileWatcher> {
        let shared = Arc::new(WatcherState {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            // An eventfd ends the thread even if no file ever becomes ready.
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            doorbell: Signal::new(),
            armed: Default::default(),
        });
        epoll::add(&shared.epoll, &shared.stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let waiting = shared.clone();
        let thread = thread::Builder::new().name(format!("wait {name}")).spawn(move || waiting.run())?;
        Ok(FileWatcher { shared, thread: Some(thread) })
    }

    /// Adds a file as number `number`. The file replaces an earlier, closed one and is not armed yet.
    pub(super) fn add(&self, number: usize, file: impl AsFd) -> io::Result<()> {
        self.shared.armed[number].store(0, Ordering::SeqCst);
        epoll::add(&self.shared.epoll, file, EventData::new_u64(number as u64), EventFlags::ONESHOT)?;
        Ok(())
    }

    /// Arms the file: rings the doorbell when the file is ready. Does nothing if the file is already armed for this
    /// event. A failed file counts as ready.
    pub(super) fn arm(&self, number: usize, file: impl AsFd, readiness: FileReadiness) -> io::Result<()> {
        let wanted = match readiness {
            FileReadiness::Read => EventFlags::IN,
            FileReadiness::Write => EventFlags::OUT,
        };
        let armed = &self.shared.armed[number];
        let before = EventFlags::from_bits_retain(armed.load(Ordering::SeqCst));
        if before.contains(wanted) {
            return Ok(());
        }
        // The flag is stored before the kernel is told. An event in between rings the doorbell once too often, but no
        // event is lost.
        armed.store((before | wanted).bits(), Ordering::SeqCst);
        let flags = before | wanted | EventFlags::ONESHOT;
        epoll::modify(&self.shared.epoll, file, EventData::new_u64(number as u64), flags)?;
        Ok(())
    }

    /// Wakes `waker` when the doorbell rings.
    pub(super) fn register(&self, waker: &Waker) {
        self.shared.doorbell.arm(waker);
    }
}

impl WatcherState {
    fn run(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; FILES + 1];
        loop {
            let ready = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                // With a valid epoll and buffer, no other error can occur.
                Err(_) => return,
            };
            for event in &events[..ready] {
                let number = event.data.u64();
                if number == STOP {
                    return;
                }
                // One-shot: the kernel has disarmed the file, so the port must arm again.
                self.armed[number as usize].store(0, Ordering::SeqCst);
            }
            self.doorbell.raise();
        }
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        // Writing to an eventfd fails only after 2^64 unread writes.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Maximum number of files of a port.
const FILES: usize = 2;
/// Event number that ends the thread; no file has this number.
const STOP: u64 = u64::MAX;
