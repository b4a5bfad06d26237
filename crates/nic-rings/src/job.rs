//! The rings of a job queue: what its driver and its device share.
//!
//! Jobs and commands about their sessions go on one ring, so a session is there before its jobs and is given up behind them.
//!
//! A job goes by reference, as a descriptor of hardware does: the same memory goes there and comes back, so that entries are small
//! and neither side copies what it does not look at.
//!
//! Invariant: what was put on the ring comes back, even from a device that is gone: its driver then takes from the ring what the
//! device did not.

use crate::packet::{ControlCommand, ControlCompletion};
use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;
use core::sync::atomic::{AtomicU64, Ordering};
use offload_api::{CompletedJob, Job, JobStatus, JobOutcome};
use std::sync::{Arc, Mutex, PoisonError};

/// An entry of a job ring.
#[derive(Debug)]
pub struct JobEntry {
    /// Resets that the driver knew of.
    pub epoch: u64,
    /// What is to be done.
    pub descriptor: JobDescriptor,
}

/// A job on its way, and what came of it.
///
/// See [`job_rings`] for an example.
#[derive(Debug)]
pub struct JobSlot {
    /// The job.
    pub job: Job,
    /// The device's word; [`Gone`](JobStatus::Gone) until it has said something.
    pub outcome: JobOutcome,
}

impl JobSlot {
    /// A job that the device has not heard of.
    pub fn new(job: Job) -> Box<JobSlot> {
        Box::new(JobSlot { job, outcome: JobOutcome::failed(JobStatus::Gone) })
    }

    /// The job, ended as its slot says.
    pub fn done(self) -> CompletedJob {
        self.job.done(self.outcome)
    }
}

/// What a job ring carries.
#[derive(Debug)]
pub enum JobDescriptor {
    /// A job.
    Job(Box<JobSlot>),
    /// Something about a session.
    Control(ControlCommand),
}

/// What comes back.
#[derive(Debug)]
pub enum JobCompletion {
    /// Of a job.
    Done(Box<JobSlot>),
    /// Of a command.
    Control(ControlCompletion),
}

/// What was submitted: the end that entries are taken out at. The device does that, and the driver when there is no device.
#[derive(Clone, Debug)]
pub struct Submitted(Arc<Mutex<Consumer<JobEntry>>>);

impl Submitted {
    /// The oldest entry.
    pub fn pop(&self) -> Option<JobEntry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// How often the device was reset: a register that the driver reads.
///
/// What the device had completed before is on the completion ring when the register says so.
#[derive(Clone, Debug, Default)]
pub struct Resets(Arc<AtomicU64>);

impl Resets {
    /// One more.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// So many.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The device's ends.
#[derive(Debug)]
pub struct DeviceJobRings {
    /// Jobs and commands.
    pub submitted: Submitted,
    /// What came of them.
    pub completions: Producer<JobCompletion>,
    /// Resets so far.
    pub resets: Resets,
    /// Driver to device: an entry was submitted, or the driver is gone.
    pub doorbell: Signal,
    /// Device to driver: a job ended, or the device is gone.
    pub interrupt: Signal,
    /// Declared last, because fields are dropped in the order of declaration.
    _last: RaisedByDrop,
}

/// Raises a line when it is dropped.
#[derive(Debug)]
struct RaisedByDrop(Signal);

impl Drop for RaisedByDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// The driver's ends.
#[derive(Debug)]
pub struct DriverJobRings {
    /// Jobs and commands.
    pub submit: Producer<JobEntry>,
    /// The other end of that, for when there is no device.
    pub submitted: Submitted,
    /// What came of them.
    pub completions: Consumer<JobCompletion>,
    /// Resets so far.
    pub resets: Resets,
    /// Driver to device: an entry was submitted, or the driver is gone.
    pub doorbell: Signal,
    /// Device to driver: something ended.
    pub interrupt: Signal,
    /// Declared last, because fields are dropped in the order of declaration.
    _last: RaisedByDrop,
}

/// Makes the rings of a job queue with room for `depth` jobs and commands.
///
/// ```
/// use nic_rings::job::{DeviceJobRings, DriverJobRings, JobCompletion, JobDescriptor, JobEntry, JobSlot, Resets, Submitted, job_rings};
/// use offload_api::{Handle, Job, JobStatus, JobOutcome};
///
/// let (mut device, mut driver): (DeviceJobRings, DriverJobRings) = job_rings(2);
/// let job = Job::new(Handle { index: 0, generation: 0 }, "bytes".into(), bytes::BytesMut::new());
/// driver.submit.push(JobEntry { epoch: 0, descriptor: JobDescriptor::Job(JobSlot::new(job)) }).unwrap();
///
/// let (submitted, resets): (&Submitted, &Resets) = (&device.submitted, &device.resets);
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
    let submitted = Submitted(Arc::new(Mutex::new(submitted)));
    let device = DeviceJobRings {
        submitted: submitted.clone(),
        completions: device_completions,
        resets: resets.clone(),
        doorbell: doorbell.clone(),
        interrupt: interrupt.clone(),
        // The driver that this wakes finds the completion ring abandoned.
        _last: RaisedByDrop(interrupt.clone()),
    };
    let last = RaisedByDrop(doorbell.clone());
    (device, DriverJobRings { submit, submitted, completions, resets, doorbell, interrupt, _last: last })
}
