//! Jobs run by the sessions of `offload-transforms`.

use crate::TransformCapabilities;
use offload_api::{
    ContextRefusal, Contexts, Direction, Handle, Integrity, Job, JobOutcome, JobQueue, JobStatus, NewContext, Spec, Way,
};
use offload_transforms::protection::{Mismatch, ProtectionTag};
use offload_transforms::{Fault, Parameters, Session, Transform};

/// Name of the engine that runs transforms, on a device and on the CPU.
pub const TRANSFORM: &str = "transform";

/// Runs a job. Appends the result to the job's target, or leaves the target unchanged on failure.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Handle, Job, JobStatus};
/// use offload_jobs::perform;
/// use offload_transforms::{Session, Transform};
///
/// let copy = Session::new(&Transform::Copy)?;
/// let mut job = Job::new(Handle { index: 0, generation: 0 }, "bytes".into(), BytesMut::with_capacity(4));
/// assert_eq!(perform(&copy, &mut job).status, JobStatus::OutOfSpace);
/// # Ok::<(), offload_transforms::SpecError>(())
/// ```
pub fn perform(session: &Session, job: &mut Job) -> JobOutcome {
    let way = match job.way {
        Way::Apply => offload_transforms::TransformDirection::Apply,
        Way::Undo => offload_transforms::TransformDirection::Undo,
    };
    let with = Parameters { iv: job.iv, aad: &job.aad };
    match session.run(way, with, &job.source, &mut job.target) {
        Ok(report) => JobOutcome {
            status: JobStatus::Done,
            consumed: report.consumed,
            produced: report.produced,
            checksums: report.checksums.map(|sums| (sums.source, sums.target)),
        },
        Err(fault) => JobOutcome::failed(status_of(fault)),
    }
}

fn status_of(fault: Fault) -> JobStatus {
    match fault {
        Fault::OutOfSpace { .. } => JobStatus::OutOfSpace,
        Fault::SourceLength { .. } => JobStatus::Length,
        Fault::NotAuthentic => JobStatus::NotAuthentic,
        Fault::Integrity(Mismatch { tag, lba, offset, expected, actual }) => {
            let tag = match tag {
                ProtectionTag::Guard => "guard",
                ProtectionTag::Application => "application tag",
                ProtectionTag::Storage => "storage tag",
                _ => "reference tag",
            };
            JobStatus::Integrity(Integrity { tag, lba, offset, expected, actual })
        }
        _ => JobStatus::Corrupt,
    }
}

/// A queue that opens sessions of transforms. Implemented for all queues.
///
/// See the crate's README for an example.
pub trait OpenTransform: JobQueue {
    /// Creates a session of the engine [`TRANSFORM`]. If the engine refuses the transform, the queue reports
    /// [`Removed`](offload_api::ContextNews::Removed), and the session's jobs end with [`JobStatus::NoSession`].
    ///
    /// # Errors
    /// If the queue has no such engine, no room for sessions, or no room on its ring now. The transform is returned,
    /// unless the device is gone.
    fn open(&mut self, transform: Transform) -> Result<Handle, (ContextRefusal, Option<Transform>)> {
        open(self.contexts(), TRANSFORM, transform)
    }

    /// Returns the transforms of the engine, or `None` if there is no such engine.
    fn capabilities(&mut self) -> Option<TransformCapabilities> {
        self.contexts().engine(TRANSFORM)?.capabilities.get().copied()
    }
}

impl<Q: JobQueue + ?Sized> OpenTransform for Q {}

/// Creates a session of the engine `name`.
pub(crate) fn open<S: core::any::Any + Send>(
    contexts: &mut dyn Contexts,
    name: &str,
    spec: S,
) -> Result<Handle, (ContextRefusal, Option<S>)> {
    let Some(engine) = contexts.engine(name) else { return Err((ContextRefusal::Unsupported, Some(spec))) };
    let spec: Spec = Box::new(spec);
    let new = NewContext { engine: engine.number, direction: Direction::Transmit, flow: None, keys: Vec::new(), spec };
    // The transform is lost with a device that is gone.
    contexts.create(new).map_err(|(refused, spec)| (refused, spec.downcast().ok().map(|spec| *spec)))
}
