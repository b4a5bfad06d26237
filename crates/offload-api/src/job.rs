//! Jobs for an accelerator: work from memory to memory, without a wire.
//!
//! ```text
//!  program -- submit(Job) --> queue of limited depth --> engines, several behind one queue --> complete() -> CompletedJob
//!                 '---------------- source and target pass by ownership, there and back ----------'
//! ```
//!
//! A session is a context of one of the device's engines ([`JobQueue::contexts`]), with the algorithm and keys. Each
//! job names its session. Jobs complete in any order. Each job completes exactly once, with a status and its buffers,
//! whatever happens to session, engine and device meanwhile. Devices of `nic-sim` and the CPU queues of `offload-jobs`
//! both keep these rules, so a program needs only one code path.

use crate::contexts::Contexts;
use crate::unit::Handle;
use bytes::{Bytes, BytesMut};
use core::fmt;
use core::task::Waker;
use offload_base::Instant;
use smallvec::SmallVec;

/// The direction of a job's transformation.
///
/// ```
/// use offload_api::Way;
///
/// assert_eq!(Way::default(), Way::Apply);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// The session's transformation: seal, encrypt, compress, add.
    #[default]
    Apply,
    /// The inverse: open, decrypt, decompress, verify.
    Undo,
}

/// A job: one transformation of bytes in memory.
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
    /// The session.
    pub session: Handle,
    /// A number of the submitter, returned with the result.
    pub user: u64,
    /// Direction of the transformation.
    pub way: Way,
    /// Per-job parameter of the engine: a nonce, an IV, or an LBA (little-endian).
    pub iv: [u8; 16],
    /// Additional authenticated data.
    pub aad: SmallVec<[u8; 16]>,
    /// Input, in order.
    pub source: SmallVec<[Bytes; 2]>,
    /// Output buffer. The result is appended within the buffer's capacity.
    pub target: BytesMut,
}

impl Job {
    /// Makes a job that applies a session to `source`; all other fields are zero or empty.
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

    /// Returns the total length of the source.
    pub fn source_len(&self) -> usize {
        self.source.iter().map(Bytes::len).sum()
    }

    /// Returns the number of bytes that an engine reads: the source and the additional authenticated data.
    pub fn read_len(&self) -> usize {
        self.source_len() + self.aad.len()
    }

    /// Completes the job with `outcome`.
    pub fn done(self, outcome: JobOutcome) -> CompletedJob {
        let Job { session, user, source, target, .. } = self;
        CompletedJob { session, user, outcome, source, target }
    }
}

/// A completed job.
#[derive(Debug)]
pub struct CompletedJob {
    /// The session.
    pub session: Handle,
    /// The submitter's number.
    pub user: u64,
    /// Result of the job.
    pub outcome: JobOutcome,
    /// The source.
    pub source: SmallVec<[Bytes; 2]>,
    /// The target, with the result appended if the status is [`JobStatus::Done`]; otherwise unchanged.
    pub target: BytesMut,
}

/// The result of a job.
///
/// ```
/// use offload_api::{JobStatus, JobOutcome};
///
/// assert_eq!(JobOutcome::failed(JobStatus::Reset).produced, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOutcome {
    /// Success, or the reason of the failure.
    pub status: JobStatus,
    /// Bytes of the source that were used.
    pub consumed: usize,
    /// Bytes appended to the target.
    pub produced: usize,
    /// Checksums of source and target, from engines that compute them.
    pub checksums: Option<(u32, u32)>,
}

impl JobOutcome {
    /// Makes the outcome of a failed job.
    pub const fn failed(status: JobStatus) -> JobOutcome {
        JobOutcome { status, consumed: 0, produced: 0, checksums: None }
    }
}

/// Success of a job, or the reason of its failure.
///
/// ```
/// use offload_api::JobStatus;
///
/// assert_eq!(JobStatus::EngineLost.to_string(), "the engine was lost: submit the job again");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobStatus {
    /// The result is in the target.
    Done,
    /// The result does not fit into the target.
    OutOfSpace,
    /// The session does not support this length of the source or of the additional data.
    Length,
    /// The data are not authentic.
    NotAuthentic,
    /// The compressed data are damaged or truncated.
    Corrupt,
    /// Protection information does not match the data or their address.
    Integrity(Integrity),
    /// The session does not exist, belongs to another queue, or was removed before the job started.
    NoSession,
    /// The engine that had the job was lost.
    EngineLost,
    /// The device was reset.
    Reset,
    /// The device is gone.
    Gone,
    /// An engine-specific reason.
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

/// A mismatch of protection information: the tag and its position.
///
/// ```
/// use offload_api::{Integrity, JobStatus};
///
/// let wrong = Integrity { tag: "guard", lba: 9, offset: 4096, expected: 0x1234, actual: 0x1235 };
/// assert_eq!(JobStatus::Integrity(wrong).to_string(), "the guard of LBA 9 is 0x1235, not 0x1234");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// Name of the tag.
    pub tag: &'static str,
    /// LBA of the block.
    pub lba: u64,
    /// Offset of the block in the source, in bytes.
    pub offset: u64,
    /// Expected value.
    pub expected: u128,
    /// Actual value.
    pub actual: u128,
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Integrity { tag, lba, actual, expected, .. } = self;
        write!(f, "the {tag} of LBA {lba} is {actual:#x}, not {expected:#x}")
    }
}

/// A queue of jobs. No method blocks, and no method has a default, because a wrapper could then forget to forward the
/// method.
///
/// `offload-jobs` has queues that work on the CPU, and an example; `nic-sim` has a device behind such a queue.
///
/// ```
/// use offload_api::{CompletedJob, Job, JobQueue};
/// use offload_base::Instant;
///
/// /// Submits what there is room for, and takes what has ended.
/// fn turn(queue: &mut dyn JobQueue, now: Instant, waiting: &mut Vec<Job>) -> Vec<CompletedJob> {
///     while queue.room() > 0 && let Some(job) = waiting.pop() {
///         queue.submit(now, job).expect("there is room");
///     }
///     queue.flush(now);
///     std::iter::from_fn(|| queue.complete(now)).collect()
/// }
/// ```
pub trait JobQueue: Send {
    /// Returns the contexts: the sessions of the queue.
    fn contexts(&mut self) -> &mut dyn Contexts;

    /// Returns the number of jobs that can be submitted now.
    fn room(&self) -> usize;

    /// Queues a job; the device sees the job after the next [`flush`](Self::flush). Each accepted job is returned by
    /// [`complete`](Self::complete) once.
    ///
    /// # Errors
    /// Returns the job if the queue is full.
    #[expect(clippy::result_large_err, reason = "the job is returned as a whole")]
    fn submit(&mut self, now: Instant, job: Job) -> Result<(), Job>;

    /// Rings the doorbell for all jobs submitted so far.
    fn flush(&mut self, now: Instant);

    /// Returns the next completed job, in any order.
    fn complete(&mut self, now: Instant) -> Option<CompletedJob>;

    /// Wakes `waker` at the next completion, at the next event of a session, or when the device is gone. Returns false
    /// if [`complete`](Self::complete) or [`poll_news`](Contexts::poll_news) has a result now.
    ///
    /// A queue without a device returns false only until all submitted jobs are returned. A caller must still return to
    /// its executor between calls, because a loop around `arm` has no bound.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// Returns the time at which [`complete`](Self::complete) has a result without an action of the device; `None` if
    /// the device will signal. Jobs of a device that is gone are due at once ([`Instant::ZERO`]).
    fn next_event(&self) -> Option<Instant>;
}
