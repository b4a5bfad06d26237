//! Who copies which block when: streams take blocks of the files that are open, in their order, and open the next file when no
//! block waits. A stream that fails tries its block again, later and later.

use super::file::{FileJob, Finished, Opened};
use super::list::Item;
use super::{Copy, CopyError, Outcome};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};

struct Work {
    copy: Copy,
    queue: Mutex<Queue>,
    changed: Notify,
    outcome: Mutex<Outcome>,
}

struct Queue {
    items: std::vec::IntoIter<Item>,
    open: Vec<Arc<FileJob>>,
    /// Streams at work, which may bring about more.
    busy: usize,
}

enum Task {
    Open(Box<Item>),
    Block(Arc<FileJob>, u64),
}

pub(super) async fn copy(copy: &Copy, items: Vec<Item>) -> Outcome {
    let bytes: u64 = items.iter().map(|item| item.bytes_here(copy.block)).sum();
    copy.progress.begin(items.len() as u64, bytes, copy.streams);
    let queue = Queue { items: items.into_iter(), open: Vec::new(), busy: 0 };
    let work = Work { copy: copy.clone(), queue: Mutex::new(queue), changed: Notify::new(), outcome: Mutex::default() };
    let work = Arc::new(work);
    // Streams end when this future does, or is dropped.
    let (_alive, dropped) = watch::channel(());
    let (ended, mut all_ended) = mpsc::channel::<()>(1);
    for stream in 0..copy.streams {
        let (work, mut dropped, ended) = (work.clone(), dropped.clone(), ended.clone());
        copy.shell.spawn(async move {
            tokio::select! {
                biased;
                _ = dropped.changed() => {}
                () = work.stream(stream) => {}
            }
            drop(ended);
        });
    }
    drop(ended);
    let _none_comes = all_ended.recv().await;
    let mut outcome = core::mem::take(&mut *work.outcome());
    outcome.bytes = copy.progress.bytes();
    outcome
}

impl Work {
    /// One stream, until nothing is left.
    async fn stream(self: &Arc<Work>, stream: usize) {
        while let Some(task) = self.next().await {
            // Given back whatever becomes of this.
            let busy = Busy(self.clone());
            match task {
                Task::Open(item) => self.open(*item).await,
                Task::Block(job, number) => self.block(&job, number, stream).await,
            }
            drop(busy);
        }
    }

    async fn next(&self) -> Option<Task> {
        loop {
            let changed = self.changed.notified();
            {
                let mut queue = self.queue();
                let block = queue.open.iter().find_map(|job| Some((job.clone(), job.take()?)));
                let task = match block {
                    Some((job, number)) => Some(Task::Block(job, number)),
                    None => queue.items.next().map(Box::new).map(Task::Open),
                };
                if task.is_some() {
                    queue.busy += 1;
                    return task;
                }
                if queue.busy == 0 {
                    return None;
                }
            }
            changed.await;
        }
    }

    async fn open(&self, item: Item) {
        let shown = item.source();
        self.copy.progress.file_begins(&shown);
        if let Some(why) = item.refused {
            return self.failed(shown, &CopyError::Unusable(why));
        }
        let (mut round, size) = (0, item.size());
        let opened = loop {
            let opened = FileJob::open(&self.copy, item.clone()).await;
            match opened {
                Err(error) if self.tries_again(&error, round) => self.wait(round).await,
                opened => break opened,
            }
            round += 1;
        };
        match opened {
            Ok(Opened::Present) => {
                self.outcome().present += 1;
                self.copy.progress.skip(size);
                self.copy.progress.file_ends();
            }
            Ok(Opened::Job(job, resumed)) => {
                self.outcome().resumed += resumed;
                self.copy.progress.skip(resumed);
                self.queue().open.push(job.clone());
                self.changed.notify_waiters();
                if job.has_nothing_left() {
                    self.finish(&job).await;
                }
            }
            Err(error) => self.failed(shown, &error),
        }
    }

    async fn block(&self, job: &Arc<FileJob>, number: u64, stream: usize) {
        let mut round = 0;
        loop {
            match job.transfer(number, stream).await {
                Ok(()) => break,
                Err(error) if self.tries_again(&error, round) => self.wait(round).await,
                Err(error) => return self.end(job, Some(&error)),
            }
            round += 1;
        }
        if job.is_last() {
            self.finish(job).await;
        }
    }

    async fn finish(&self, job: &Arc<FileJob>) {
        let mut round = 0;
        let finished = loop {
            match job.finish().await {
                Err(error) if self.tries_again(&error, round) => self.wait(round).await,
                finished => break finished,
            }
            round += 1;
        };
        match finished {
            Ok(Finished::Again(blocks)) => {
                self.outcome().healed += blocks;
                self.changed.notify_waiters();
            }
            Ok(Finished::Done) => self.end(job, None),
            Ok(Finished::LeftToOthers) => {
                if job.end() {
                    self.outcome().left_to_others += 1;
                    self.forget(job);
                }
            }
            Err(error) => self.end(job, Some(&error)),
        }
    }

    fn end(&self, job: &Arc<FileJob>, error: Option<&CopyError>) {
        if !job.end() {
            return;
        }
        match error {
            Some(error) => self.failed(job.item.source(), error),
            None => {
                self.outcome().copied += 1;
                self.copy.progress.file_ends();
            }
        }
        self.forget(job);
    }

    fn forget(&self, job: &Arc<FileJob>) {
        self.queue().open.retain(|open| !Arc::ptr_eq(open, job));
    }

    fn failed(&self, file: String, error: &CopyError) {
        self.outcome().failed.push((file, error.to_string()));
        self.copy.progress.file_ends();
    }

    fn tries_again(&self, error: &CopyError, round: u32) -> bool {
        let may_pass = match error {
            CopyError::Remote(error) => error.may_pass(),
            CopyError::Differs(..) => true,
            _ => false,
        };
        may_pass && round < self.copy.retries
    }

    async fn wait(&self, round: u32) {
        let span = Duration::from_millis(100) * 2_u32.pow(round.min(7));
        self.copy.shell.sleep(span.min(Duration::from_secs(10))).await;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream at work.
struct Busy(Arc<Work>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.queue().busy -= 1;
        self.0.changed.notify_waiters();
    }
}
