//! Wakes a port's task when its file can be read or written again.
//!
//! A thread waits in epoll and does nothing else: it rings the port's doorbell, and the port looks for itself.
//!
//! Invariant: a file that is armed and becomes ready rings the doorbell once, however long before or after the
//! arming it did; then it is no longer armed.

use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;
use nic_sim::signal::Signal;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

/// Watches the files of one port.
#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    doorbell: Signal,
    /// What each file is armed for, by its number; zero: it is not.
    armed: [AtomicU32; FILES],
}

/// What a file is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Read,
    Write,
}

impl Watcher {
    /// Starts the thread that waits.
    pub(super) fn start(name: &str) -> io::Result<Watcher> {
        let shared = Arc::new(Shared {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            doorbell: Signal::new(),
            armed: Default::default(),
        });
        epoll::add(&shared.epoll, &shared.stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let waiting = shared.clone();
        let thread = thread::Builder::new().name(format!("wait {name}")).spawn(move || waiting.run())?;
        Ok(Watcher { shared, thread: Some(thread) })
    }

    /// Adds a file as number `number`, in place of an earlier one that is closed. It is not armed yet.
    pub(super) fn add(&self, number: usize, file: impl AsFd) -> io::Result<()> {
        self.shared.armed[number].store(0, Ordering::SeqCst);
        epoll::add(&self.shared.epoll, file, EventData::new_u64(number as u64), EventFlags::ONESHOT)?;
        Ok(())
    }

    /// Has the doorbell rung when the file is ready, if it is not armed for that already. Ready is also a file that
    /// has failed.
    pub(super) fn arm(&self, number: usize, file: impl AsFd, readiness: Readiness) -> io::Result<()> {
        let wanted = match readiness {
            Readiness::Read => EventFlags::IN,
            Readiness::Write => EventFlags::OUT,
        };
        let armed = &self.shared.armed[number];
        let before = EventFlags::from_bits_retain(armed.load(Ordering::SeqCst));
        if before.contains(wanted) {
            return Ok(());
        }
        // In this order: an event in between rings the doorbell for nothing, and none goes by unheard.
        armed.store((before | wanted).bits(), Ordering::SeqCst);
        let flags = before | wanted | EventFlags::ONESHOT;
        epoll::modify(&self.shared.epoll, file, EventData::new_u64(number as u64), flags)?;
        Ok(())
    }

    /// Has `waker` woken when the doorbell rings.
    pub(super) fn register(&self, waker: &Waker) {
        self.shared.doorbell.arm(waker);
    }
}

impl Shared {
    fn run(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; FILES + 1];
        loop {
            let ready = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                // Of an epoll and a buffer that are what they should be, nothing else can be said.
                Err(_) => return,
            };
            for event in &events[..ready] {
                let number = event.data.u64();
                if number == STOP {
                    return;
                }
                self.armed[number as usize].store(0, Ordering::SeqCst);
            }
            self.doorbell.raise();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // An eventfd takes eight bytes unless 2^64 were written before.
        let _written = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Most files a port watches.
const FILES: usize = 2;
/// What stands for the end of the thread among the numbers of files.
const STOP: u64 = u64::MAX;
