//! Transforms as job engine: AEADs, AES-CBC with HMAC, AES-XTS, protection information, compression, and chains of
//! them.

use core::convert::Infallible;
use nic_engine::{Context, Engine, EngineDescription, ImageReader, ImageWriter, JobEngine};
use offload_api::{Capabilities, Direction, Job, JobOutcome, JobStatus, Way};
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

/// The engine [`TRANSFORM`](offload_jobs::TRANSFORM). Per-job parameters arrive with the job, so a context holds keys
/// and no state.
///
/// ```
/// use nic_engine::Engines;
/// use nic_engines::{DataKeys, Transforms};
///
/// let mut engines = Engines::none();
/// engines.add_job(Transforms::default(), 100);
/// engines.add_job(DataKeys::default(), 16);
/// let contexts: Vec<_> = engines.infos().iter().map(|info| info.contexts).collect();
/// assert_eq!(contexts, [100, 16], "maximum number of sessions");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Transforms {
    capabilities: TransformCapabilities,
}

impl Transforms {
    /// Makes an engine with these capabilities.
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
        // Real accelerators lack some algorithms, and the model refuses these too.
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
    fn run(&mut self, context: Context<'_, Transforms>, job: &mut Job, counters: &mut TransformCounters) -> JobOutcome {
        let outcome = perform(context.held, job);
        match (outcome.status, job.way) {
            (JobStatus::Done, Way::Apply) => counters.applied_bytes += outcome.consumed as u64,
            (JobStatus::Done, Way::Undo) => counters.undone_bytes += outcome.consumed as u64,
            _ => counters.failed += 1,
        }
        outcome
    }
}
