//! The rings of a job queue, shared by driver and device.
//!
//! Jobs and commands about their sessions share one ring, so a session exists before its jobs run, and is removed after
//! them.
//!
//! A job travels as a reference, like a hardware descriptor: the same allocation goes to the device and comes back.
//! Ring entries are therefore small, and no side copies a job.
//!
//! Invariant: every submitted entry comes back, even if the device is gone. The driver then takes the remaining entries
//! from the ring itself.

use crate::packet::{ControlCommand, ControlCompletion};
use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;
use core::sync::atomic::{AtomicU64, Ordering};
use offload_api::{CompletedJob, Job, JobOutcome, JobStatus};
use std::sync::{Arc, Mutex, PoisonError};

/// An entry of a job ring.
#[derive(Debug)]
pub struct JobEntry {
    /// Number of resets that the driver had seen at the submission.
    pub epoch: u64,
    /// Job or command.
    pub descriptor: JobDescriptor,
}

/// A job in transit, with its outcome.
///
/// See [`job_rings`] for an example.
#[derive(Debug)]
pub struct JobSlot {
    /// The job.
    pub job: Job,
    /// Outcome reported by the device. [`Gone`](JobStatus::Gone) until the device has reported one.
    pub outcome: JobOutcome,
}

impl JobSlot {
    /// Wraps a job for submission.
    pub fn new(job: Job) -> Box<JobSlot> {
        Box::new(JobSlot { job, outcome: JobOutcome::failed(JobStatus::Gone) })
    }

    /// Returns the job with the outcome of its slot.
    pub fn done(self) -> CompletedJob {
        self.job.done(self.outcome)
    }
}

/// A job or a command on the ring.
#[derive(Debug)]
pub enum JobDescriptor {
    /// A job.
    Job(Box<JobSlot>),
    /// A command about a session.
    Control(ControlCommand),
}

/// A completion on the ring.
#[derive(Debug)]
pub enum JobCompletion {
    /// Completion of a job.
    Done(Box<JobSlot>),
    /// Completion of a command.
    Control(ControlCompletion),
}

/// The consumer's end of the submission ring. Used by the device, and by the driver once the device is gone.
#[derive(Clone, Debug)]
pub struct SubmissionRing(Arc<Mutex<Consumer<JobEntry>>>);

impl SubmissionRing {
    /// Takes the oldest entry.
    pub fn pop(&self) -> Option<JobEntry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Tests whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// The number of resets of the device, in a register that the driver reads.
///
/// Completions from before a reset are on the completion ring when the register shows that reset.
#[derive(Clone, Debug, Default)]
pub struct Resets(Arc<AtomicU64>);

impl Resets {
    /// Counts one reset.
    pub fn count(&self) {
        // Pairs with the acquiring load in `read`: the completions pushed before are then visible.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Reads the number of resets.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The device's ends of the job rings.
#[derive(Debug)]
pub struct DeviceJobRings {
    /// Jobs and commands from the driver.
    pub submitted: SubmissionRing,
    /// Completions of jobs and commands.
    pub completions: Producer<JobCompletion>,
    /// Number of resets.
    pub resets: Resets,
    /// Doorbell from driver to device: an entry was submitted, or the driver is gone.
    pub doorbell: Signal,
    /// Interrupt from device to driver: a job was completed, or the device is gone.
    pub interrupt: Signal,
    /// Declared last, because fields are dropped in the order of declaration.
    _last: RaisedByDrop,
}

/// A guard that raises a signal on drop.
#[derive(Debug)]
struct RaisedByDrop(Signal);

impl Drop for RaisedByDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// The driver's ends of the job rings.
#[derive(Debug)]
pub struct DriverJobRings {
    /// Submission of jobs and commands.
    pub submit: Producer<JobEntry>,
    /// Consumer's end of the submission ring, for use once the device is gone.
    pub submitted: SubmissionRing,
    /// Completions of jobs and commands.
    pub completions: Consumer<JobCompletion>,
    /// Number of resets.
    pub resets: Resets,
    /// Doorbell from driver to device: an entry was submitted, or the driver is gone.
    pub doorbell: Signal,
    /// Interrupt from device to driver: an entry was completed, or the device is gone.
    pub interrupt: Signal,
    /// Declared last, because fields are dropped in the order of declaration.
    _last: RaisedByDrop,
}

/// Makes the rings of a job queue with room for `depth` jobs and commands.
///
/// ```
/// use nic_rings::job::{DeviceJobRings, DriverJobRings, JobCompletion, JobDescriptor, JobEntry, JobSlot, Resets, SubmissionRing, job_rings};
/// use offload_api::{Handle, Job, JobStatus, JobOutcome};
///
/// let (mut device, mut driver): (DeviceJobRings, DriverJobRings) = job_rings(2);
/// let job = Job::new(Handle { index: 0, generation: 0 }, "bytes".into(), bytes::BytesMut::new());
/// driver.submit.push(JobEntry { epoch: 0, descriptor: JobDescriptor::Job(JobSlot::new(job)) }).unwrap();
///
/// let (submitted, resets): (&SubmissionRing, &Resets) = (&device.submitted, &device.resets);
/// let JobDescriptor::Job(mut slot) = submitted.pop().unwrap().descriptor else { panic!("a job was submitted") };
/// assert!(submitted.is_empty());
/// resets.count();
/// slot.outcome = JobOutcome::failed(JobStatus::Reset);
/// device.completions.push(JobCompletion::Done(slot)).unwrap();
///
/// assert_eq!(driver.resets.read(), 1);
/// let Some(JobCompletion::Done(slot)) = driver.completions.pop() else { panic!("it came back") };
/// assert_eq!(slot.done().source[0], "bytes");
/// ```
///
/// # Panics
/// If `depth` is zero.
pub fn job_rings(depth: usize) -> (DeviceJobRings, DriverJobRings) {
    let (submit, submitted) = ring(depth);
    let (device_completions, completions) = ring(depth);
    let resets = Resets::default();
    let (doorbell, interrupt) = (Signal::new(), Signal::new());
    // Both ends share the consumer, so that the driver can take back the entries of a device that is gone.
    let submitted = SubmissionRing(Arc::new(Mutex::new(submitted)));
    let device = DeviceJobRings {
        submitted: submitted.clone(),
        completions: device_completions,
        resets: resets.clone(),
        doorbell: doorbell.clone(),
        interrupt: interrupt.clone(),
        // The driver that this wakes finds the completion ring abandoned.
        _last: RaisedByDrop(interrupt.clone()),
    };
    // Likewise, the device that this wakes finds the submission ring abandoned.
    let last = RaisedByDrop(doorbell.clone());
    (device, DriverJobRings { submit, submitted, completions, resets, doorbell, interrupt, _last: last })
}
