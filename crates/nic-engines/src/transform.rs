//! Transforms: AEADs, AES-CBC with HMAC, AES-XTS, protection information, compression, and chains of them, by jobs.

use core::convert::Infallible;
use nic_engine::{Context, Engine, EngineDescription, ImageReader, ImageWriter, JobEngine};
use offload_api::{Capabilities, Direction, Job, JobStatus, Outcome, Way};
use offload_jobs::{TransformCapabilities, perform};
use offload_transforms::{Session, Transform};

offload_base::counters! {
    /// Counters of the engine of transforms.
    ///
    /// ```
    /// use nic_sim::lookaside;
    /// use nic_sim::lookaside::LookasideConfig;
    /// use nic_sim::stats::TransformCounters;
    ///
    /// let (device, _queues) = lookaside(LookasideConfig::default(), |_| ());
    /// assert_eq!(device.engine_counters::<TransformCounters>().applied_bytes, 0);
    /// ```
    pub struct TransformCounters {
        /// Bytes of sources that were sealed, encrypted, compressed or protected.
        pub applied_bytes: "transform_applied_bytes",
        /// Bytes of sources that were opened, decrypted, decompressed or verified.
        pub undone_bytes: "transform_undone_bytes",
        /// Jobs without a result.
        pub failed: "transform_failed",
    }
}

/// The engine [`TRANSFORM`](offload_jobs::TRANSFORM). What differs from job to job comes with the job, so a context has no state of
/// its own; its keys are what it holds.
///
/// ```
/// use nic_engine::Engines;
/// use nic_engines::{DataKeys, Transforms};
///
/// let mut engines = Engines::none();
/// engines.add_job(Transforms::default(), 100);
/// engines.add_job(DataKeys::default(), 16);
/// let contexts: Vec<_> = engines.infos().iter().map(|info| info.contexts).collect();
/// assert_eq!(contexts, [100, 16], "sessions that there is room for");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Transforms {
    capabilities: TransformCapabilities,
}

impl Transforms {
    /// One that has these.
    ///
    /// ```
    /// use nic_engines::Transforms;
    /// use offload_jobs::TransformCapabilities;
    ///
    /// let _engine = Transforms::with(TransformCapabilities::for_driver("openssl").expect("it is known"));
    /// ```
    pub const fn with(capabilities: TransformCapabilities) -> Transforms {
        Transforms { capabilities }
    }
}

impl Engine for Transforms {
    const NAME: &'static str = offload_jobs::TRANSFORM;
    type Spec = Transform;
    type Command = Infallible;
    type Change = Infallible;
    type State = ();
    type Objects = Session;
    type Counters = TransformCounters;

    fn describe(&self, engine: &mut EngineDescription) {
        engine.info.capabilities = Capabilities::new(self.capabilities);
    }

    fn create(&mut self, _: Direction, transform: Transform) -> Option<((), Session)> {
        if !self.capabilities.include(&transform) {
            return None;
        }
        Some(((), Session::new(&transform).ok()?))
    }

    fn save((): &(), _: &mut ImageWriter<'_>) {}

    fn load(_: &mut ImageReader<'_>) -> Option<()> {
        Some(())
    }
}

impl JobEngine for Transforms {
    fn run(&mut self, context: Context<'_, Transforms>, job: &mut Job, counters: &mut TransformCounters) -> Outcome {
        let outcome = perform(context.held, job);
        match (outcome.status, job.way) {
            (JobStatus::Done, Way::Apply) => counters.applied_bytes += outcome.consumed as u64,
            (JobStatus::Done, Way::Undo) => counters.undone_bytes += outcome.consumed as u64,
            _ => counters.failed += 1,
        }
        outcome
    }
}
