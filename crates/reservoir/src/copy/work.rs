//! Assigns blocks to streams. Lanes take blocks of the open files in order, and open the next file when no block waits.
//! A lane that fails retries its block after increasing waits.
//!
//! A stream is a connection, and begins with one lane. If responses take long, the stream gets more lanes, so that the
//! next blocks are requested or sent while the first are in flight.

use super::file::{FileJob, FinishOutcome, OpenOutcome};
use super::list::CopyItem;
use super::packs::{self, WorkUnit};
use super::place::CopyEnd;
use super::{Copy, CopyError, CopyOutcome};
use crate::remote::RemoteError;
use crate::storage::FileKind;
use core::pin::Pin;
use core::time::Duration;
use hyper::StatusCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};

struct CopyWork {
    copy: Copy,
    queue: Mutex<WorkQueue>,
    /// Number of lanes of each stream.
    lanes: Mutex<Vec<usize>>,
    changed: Notify,
    outcome: Mutex<CopyOutcome>,
    /// Known entries of servers, for files in packs.
    known: packs::ListingCache,
}

struct WorkQueue {
    units: std::vec::IntoIter<WorkUnit>,
    open: Vec<Arc<FileJob>>,
    /// Number of working lanes, which may produce more work.
    busy: usize,
}

/// The continuation of a file after an error.
enum FileProgress {
    Continues,
    /// The file is at its destination already.
    Complete,
}

enum WorkTask {
    Open(WorkUnit),
    Block(Arc<FileJob>, u64),
}

pub(super) async fn copy(copy: &Copy, items: Vec<CopyItem>) -> CopyOutcome {
    let bytes: u64 = items.iter().map(|item| item.bytes_here(copy.block)).sum();
    copy.progress.begin(items.len() as u64, bytes, copy.streams);
    let units = packs::units(copy, items).await.into_iter();
    let queue = WorkQueue { units, open: Vec::new(), busy: 0 };
    let (queue, lanes) = (Mutex::new(queue), Mutex::new(vec![1; copy.streams]));
    let (changed, outcome, known) = Default::default();
    let work = CopyWork { copy: copy.clone(), queue, lanes, changed, outcome, known };
    let work = Arc::new(work);
    // Lanes end when this future completes or is dropped.
    let (_alive, dropped) = watch::channel(());
    let (ended, mut all_ended) = mpsc::channel::<()>(1);
    for stream in 0..copy.streams {
        let lane = CopyLane { work: work.clone(), stream, dropped: dropped.clone(), ended: ended.clone() };
        lane.spawn();
    }
    drop(ended);
    // The channel closes when the last lane has dropped its sender.
    let _ = all_ended.recv().await;
    let mut outcome = core::mem::take(&mut *work.outcome());
    outcome.bytes = copy.progress.bytes();
    outcome
}

/// A worker that copies one block at a time over the connection of a stream.
#[derive(Clone)]
struct CopyLane {
    work: Arc<CopyWork>,
    stream: usize,
    dropped: watch::Receiver<()>,
    ended: mpsc::Sender<()>,
}

impl CopyLane {
    fn spawn(self) {
        let shell = self.work.copy.shell.clone();
        shell.spawn(self.run());
    }

    /// Runs until no work is left. Boxed, because a lane may start others.
    fn run(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut dropped = self.dropped.clone();
            tokio::select! {
                biased;
                _ = dropped.changed() => {}
                // The caller has dropped the copy if `dropped` fires first.
                () = self.work_off() => {}
            }
            drop(self.ended);
        })
    }

    async fn work_off(&self) {
        while let Some(task) = self.work.next().await {
            // Released even if this future is dropped.
            let busy = BusyGuard(self.work.clone());
            match task {
                WorkTask::Open(WorkUnit::File(item)) => self.work.open(*item).await,
                WorkTask::Open(WorkUnit::Pack(items)) => self.work.pack(items, self.stream).await,
                WorkTask::Block(job, number) => {
                    // One lane carries a block per round trip, which is too little on long paths.
                    self.widen(&job).await;
                    self.work.block(&job, number, self.stream).await;
                }
            }
            drop(busy);
        }
    }

    /// Starts more lanes of this stream, if its round trip is long and blocks are waiting.
    async fn widen(&self, job: &FileJob) {
        let depth = job.depth(self.stream).await.min(1 + job.waiting() / self.work.copy.streams);
        let more = {
            let mut lanes = self.work.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            let lanes = &mut lanes[self.stream];
            let more = depth.saturating_sub(*lanes);
            // Reserved before the spawn, so that other lanes of the stream do not start the same ones.
            *lanes += more;
            more
        };
        (0..more).for_each(|_| self.clone().spawn());
    }
}

impl CopyWork {
    async fn next(&self) -> Option<WorkTask> {
        loop {
            // Registered before the queue is examined, so that no notification is lost between.
            let changed = self.changed.notified();
            {
                let mut queue = self.queue();
                // Blocks of open files come first, so that few files are open at the same time.
                let block = queue.open.iter().find_map(|job| Some((job.clone(), job.take()?)));
                let task = match block {
                    Some((job, number)) => Some(WorkTask::Block(job, number)),
                    None => queue.units.next().map(WorkTask::Open),
                };
                if task.is_some() {
                    queue.busy += 1;
                    return task;
                }
                // A working lane may still reopen blocks, so idle lanes must not end before.
                if queue.busy == 0 {
                    return None;
                }
            }
            changed.await;
        }
    }

    async fn open(&self, item: CopyItem) {
        let shown = item.source();
        self.copy.progress.file_begins(&shown);
        if let Some(why) = item.refused {
            return self.failed(shown, &CopyError::Unusable(why));
        }
        let (mut round, size) = (0, item.size());
        if item.about.kind == FileKind::Folder {
            loop {
                match make_folder(&self.copy, &item).await {
                    Err(error) if self.tries_again(&error, round) => self.wait(&error, round).await,
                    Err(error) => return self.failed(shown, &error),
                    Ok(()) => {
                        self.outcome().folders += 1;
                        return self.copy.progress.file_ends();
                    }
                }
                round += 1;
            }
        }
        let opened = loop {
            let opened = FileJob::open(&self.copy, item.clone()).await;
            match opened {
                Err(error) if self.tries_again(&error, round) => self.wait(&error, round).await,
                opened => break opened,
            }
            round += 1;
        };
        match opened {
            Ok(OpenOutcome::Present) => {
                self.outcome().present += 1;
                self.copy.progress.skip(size);
                self.copy.progress.file_ends();
            }
            Ok(OpenOutcome::Job(job, resumed)) => {
                self.outcome().resumed += resumed;
                self.copy.progress.skip(resumed);
                self.queue().open.push(job.clone());
                self.changed.notify_waiters();
                // An empty file, or a complete one that only lacks its name.
                if job.has_nothing_left() {
                    self.finish(&job).await;
                }
            }
            Err(error) => self.failed(shown, &error),
        }
    }

    async fn pack(&self, mut items: Vec<CopyItem>, stream: usize) {
        if let Some(first) = items.first() {
            self.copy.progress.file_begins(&first.source());
        }
        let mut round = 0;
        let copied = loop {
            match packs::copy_pack(&self.copy, &self.known, items, stream).await {
                Ok(copied) => break copied,
                Err((error, all)) if self.tries_again(&error, round) => {
                    items = all;
                    self.wait(&error, round).await;
                }
                Err((error, all)) => return all.iter().for_each(|item| self.failed(item.source(), &error)),
            }
            round += 1;
        };
        self.outcome().copied += copied.copied;
        self.outcome().present += copied.present.len() as u64;
        copied.present.iter().for_each(|item| self.copy.progress.skip(item.size()));
        (0..copied.copied + copied.present.len() as u64).for_each(|_| self.copy.progress.file_ends());
        // Files that the pack left out are copied one by one.
        for item in copied.left {
            self.open(item).await;
        }
    }

    async fn block(&self, job: &Arc<FileJob>, number: u64, stream: usize) {
        let mut round = 0;
        loop {
            match job.transfer(number, stream).await {
                Ok(()) => break,
                Err(error) => match self.retry_or_fail(job, error, round).await {
                    Ok(FileProgress::Continues) => {}
                    Ok(FileProgress::Complete) => break,
                    Err(error) => return self.end(job, Some(&error)),
                },
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
                Err(error) => match self.retry_or_fail(job, error, round).await {
                    Ok(FileProgress::Continues) => {}
                    Ok(FileProgress::Complete) => break Ok(FinishOutcome::Done),
                    Err(error) => break Err(error),
                },
                finished => break finished,
            }
            round += 1;
        };
        match finished {
            Ok(FinishOutcome::Again(blocks)) => {
                self.outcome().healed += blocks;
                self.changed.notify_waiters();
            }
            Ok(FinishOutcome::Done) => self.end(job, None),
            Ok(FinishOutcome::LeftToOthers) => {
                if job.end() {
                    self.outcome().left_to_others += 1;
                    self.forget(job);
                }
            }
            Err(error) => self.end(job, Some(&error)),
        }
    }

    /// Decides about a file after an error: a restarted server resumes its upload, a temporary error is waited out, and
    /// any other error is returned.
    async fn retry_or_fail(&self, job: &FileJob, error: CopyError, round: u32) -> Result<FileProgress, CopyError> {
        let error = match job.is_forgotten(&error) && round < self.copy.retries {
            true => match job.resume_upload().await {
                Ok(true) => return Ok(FileProgress::Complete),
                Ok(false) => None,
                Err(error) => Some(error),
            },
            false => Some(error),
        };
        match error {
            Some(error) if !self.tries_again(&error, round) => return Err(error),
            Some(error) => self.wait(&error, round).await,
            None => self.wait_at_least(FIRST_WAIT, round).await,
        }
        Ok(FileProgress::Continues)
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

    async fn wait(&self, error: &CopyError, round: u32) {
        // After a kill, the server reserves the name for the killed client until that client's connections end.
        let is_locked = matches!(error, CopyError::Remote(RemoteError::Refused { status: StatusCode::LOCKED, .. }));
        self.wait_at_least(if is_locked { 10 * FIRST_WAIT } else { FIRST_WAIT }, round).await;
    }

    async fn wait_at_least(&self, first: Duration, round: u32) {
        let span = first * 2_u32.pow(round.min(7));
        self.copy.shell.sleep(span.min(Duration::from_secs(10))).await;
    }

    fn queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self) -> MutexGuard<'_, CopyOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates an empty folder, unless it exists.
async fn make_folder(copy: &Copy, item: &CopyItem) -> Result<(), CopyError> {
    let (side, name) = &item.to;
    let shown = || side.shown(name);
    match side {
        CopyEnd::Remote(server, _) if server.is_bucket() => {
            Err(CopyError::Unusable(format!("{}: a bucket has no empty folders: leave it out by --exclude", shown())))
        }
        CopyEnd::Remote(server, _) => Ok(server.for_name(name).make_folder(name).await?),
        CopyEnd::Local(folder, _) => {
            let (folder, at) = (folder.clone(), name.clone());
            let made = copy.shell.blocking(move || folder.create_folder(&at));
            made.await.map_err(|error| CopyError::Local { path: shown().into(), error })
        }
    }
}

/// A guard that counts a working lane.
struct BusyGuard(Arc<CopyWork>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.queue().busy -= 1;
        self.0.changed.notify_waiters();
    }
}

/// The wait before a block's first retry.
const FIRST_WAIT: Duration = Duration::from_millis(100);
