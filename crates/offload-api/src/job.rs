//! Jobs for an accelerator: bytes from memory to memory, without a wire.
//!
//! ```text
//!  program -- submit(Job) --> queue of limited depth --> engines, several behind one queue --> complete() -> Done
//!                 '---------------- source and target pass by ownership, there and back ----------'
//! ```
//!
//! A session is a context of one of the device's engines ([`JobQueue::contexts`]), and says what is done under which keys. A job
//! names its session. Jobs end in any order; each ends exactly once, with a status, and its buffers come back with it, whatever
//! happens to session, engine and device meanwhile. That holds for a device of `nic-sim` and for the queues of `offload-jobs`,
//! which do the same on the CPU: a program is written once.

use crate::contexts::Contexts;
use crate::unit::Handle;
use bytes::{Bytes, BytesMut};
use core::fmt;
use core::task::Waker;
use offload_base::Instant;
use smallvec::SmallVec;

/// Forwards or back.
///
/// ```
/// use offload_api::Way;
///
/// assert_eq!(Way::default(), Way::Apply);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// What the session does: seal, encrypt, compress, add.
    #[default]
    Apply,
    /// What takes that back: open, decrypt, decompress, verify.
    Undo,
}

/// Something to be done to bytes.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_api::{Handle, Job};
///
/// let session = Handle { index: 0, generation: 0 };
/// let mut job = Job::new(session, Bytes::from_static(b"some bytes"), BytesMut::with_capacity(100));
/// job.user = 7;
/// assert_eq!(job.source_len(), 10);
/// ```
#[derive(Debug)]
pub struct Job {
    /// The context that says what to do.
    pub session: Handle,
    /// A number of the submitter's, which comes back.
    pub user: u64,
    /// Which way.
    pub way: Way,
    /// What differs from job to job, as the engine says: a nonce, an IV, an LBA (little-endian).
    pub iv: [u8; 16],
    /// Bytes that are authenticated and not in the source.
    pub aad: SmallVec<[u8; 16]>,
    /// What is read, pieces in order.
    pub source: SmallVec<[Bytes; 2]>,
    /// What the result is appended to. It does not grow beyond its capacity.
    pub target: BytesMut,
}

impl Job {
    /// Applies a session to `source`, with everything else zero or empty.
    pub fn new(session: Handle, source: Bytes, target: BytesMut) -> Job {
        Job {
            session,
            user: 0,
            way: Way::Apply,
            iv: [0; 16],
            aad: SmallVec::new(),
            source: SmallVec::from_iter([source]),
            target,
        }
    }

    /// Bytes of all pieces of the source.
    pub fn source_len(&self) -> usize {
        self.source.iter().map(Bytes::len).sum()
    }

    /// Returns the bytes that an engine reads: the source, and the additional authenticated data.
    pub fn read_len(&self) -> usize {
        self.source_len() + self.aad.len()
    }

    /// Ends it.
    pub fn done(self, outcome: Outcome) -> Done {
        let Job { session, user, source, target, .. } = self;
        Done { session, user, outcome, source, target }
    }
}

/// What came of a job.
#[derive(Debug)]
pub struct Done {
    /// Its session.
    pub session: Handle,
    /// As it was submitted.
    pub user: u64,
    /// How it went.
    pub outcome: Outcome,
    /// The source.
    pub source: SmallVec<[Bytes; 2]>,
    /// The target: with the result behind what was there, if the status is [`JobStatus::Done`]; else as it was.
    pub target: BytesMut,
}

/// How a job went.
///
/// ```
/// use offload_api::{JobStatus, Outcome};
///
/// assert_eq!(Outcome::failed(JobStatus::Reset).produced, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether there is a result.
    pub status: JobStatus,
    /// Bytes of the source that were used.
    pub consumed: usize,
    /// Bytes appended to the target.
    pub produced: usize,
    /// Checksums of source and target, of engines that compute them.
    pub checksums: Option<(u32, u32)>,
}

impl Outcome {
    /// No result, for this reason.
    pub const fn failed(status: JobStatus) -> Outcome {
        Outcome { status, consumed: 0, produced: 0, checksums: None }
    }
}

/// Why there is a result, or none.
///
/// ```
/// use offload_api::JobStatus;
///
/// assert_eq!(JobStatus::EngineLost.to_string(), "the engine was lost: submit the job again");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobStatus {
    /// There is one.
    Done,
    /// The target has too little room for it.
    OutOfSpace,
    /// The source, or the additional data, have a length that the session cannot work on.
    Length,
    /// The data are not authentic.
    NotAuthentic,
    /// Compressed data are damaged or cut short.
    Corrupt,
    /// Protection information is not that of the data or of the place.
    Integrity(Integrity),
    /// There is no such session, or none of this queue's, or it was given up before the job's turn came.
    NoSession,
    /// The engine that had the job was lost.
    EngineLost,
    /// The device was reset.
    Reset,
    /// There is no device any more.
    Gone,
    /// The engine has its own reason.
    Own(u16),
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobStatus::Done => f.write_str("done"),
            JobStatus::OutOfSpace => f.write_str("the target has too little room: give it more, or refuse the data"),
            JobStatus::Length => f.write_str("the session cannot work on a source of this length"),
            JobStatus::NotAuthentic => f.write_str("the data are not authentic: another key, or they were changed"),
            JobStatus::Corrupt => f.write_str("the data are damaged or cut short"),
            JobStatus::Integrity(integrity) => integrity.fmt(f),
            JobStatus::NoSession => f.write_str("this queue has no such session: open one"),
            JobStatus::EngineLost => f.write_str("the engine was lost: submit the job again"),
            JobStatus::Reset => f.write_str("the device was reset: open the session and submit the job again"),
            JobStatus::Gone => f.write_str("the device is gone"),
            JobStatus::Own(code) => write!(f, "the engine refused the job with code {code}"),
        }
    }
}

/// Which part of protection information is wrong, and where.
///
/// ```
/// use offload_api::{Integrity, JobStatus};
///
/// let wrong = Integrity { tag: "guard", lba: 9, offset: 4096, expected: 0x1234, actual: 0x1235 };
/// assert_eq!(JobStatus::Integrity(wrong).to_string(), "the guard of LBA 9 is 0x1235, not 0x1234");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// The tag, by name.
    pub tag: &'static str,
    /// The block's LBA.
    pub lba: u64,
    /// Where the block begins in the source, in bytes.
    pub offset: u64,
    /// What the tag should be.
    pub expected: u128,
    /// What it is.
    pub actual: u128,
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Integrity { tag, lba, actual, expected, .. } = self;
        write!(f, "the {tag} of LBA {lba} is {actual:#x}, not {expected:#x}")
    }
}

/// A queue of jobs. Nothing here blocks, and nothing has a default, so that no wrapper forgets a method.
///
/// `offload-jobs` has queues that work on the CPU, and an example; `nic-sim` has a device behind such a queue.
///
/// ```
/// use offload_api::{Done, Job, JobQueue};
/// use offload_base::Instant;
///
/// /// Submits what there is room for, and takes what has ended.
/// fn turn(queue: &mut dyn JobQueue, now: Instant, waiting: &mut Vec<Job>) -> Vec<Done> {
///     while queue.room() > 0 && let Some(job) = waiting.pop() {
///         queue.submit(now, job).expect("there is room");
///     }
///     queue.flush(now);
///     std::iter::from_fn(|| queue.complete(now)).collect()
/// }
/// ```
pub trait JobQueue: Send {
    /// Sessions.
    fn contexts(&mut self) -> &mut dyn Contexts;

    /// How many jobs can be submitted now.
    fn room(&self) -> usize;

    /// Puts a job into the queue; the device hears of it at the next [`flush`](Self::flush). Each job that was taken comes back
    /// from [`complete`](Self::complete), once.
    ///
    /// # Errors
    /// Gives the job back if there is no room.
    #[expect(clippy::result_large_err, reason = "the job comes back whole, as it went")]
    fn submit(&mut self, now: Instant, job: Job) -> Result<(), Job>;

    /// Tells the device of all jobs submitted so far: the doorbell.
    fn flush(&mut self, now: Instant);

    /// The next job that has ended, in whatever order.
    fn complete(&mut self, now: Instant) -> Option<Done>;

    /// Wakes `waker` at the next completion, at the next news of a session, or when the device is gone. Returns false if
    /// [`complete`](Self::complete) or [`poll_news`](Contexts::poll_news) has something to give now.
    ///
    /// A queue whose device is gone answers false only until everything that was submitted has come back. A caller that finds
    /// false again and again must return to its executor nevertheless: a loop around `arm` has no bound.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// When [`complete`](Self::complete) has something to give without anybody else doing anything; `None`: the device says.
    /// Entries of a device that is gone are due at once ([`Instant::ZERO`]).
    fn next_event(&self) -> Option<Instant>;
}
