//! A lookaside accelerator: a device and its drivers, connected by rings.

use nic_device::lookaside::{Lookaside, LookasideConfig};
use nic_driver::JobDriver;
use nic_engine::Engines;
use nic_engines::{DataKeys, Transforms};
use nic_rings::job::job_rings;
use offload_api::Handle;

/// Builds a lookaside accelerator with one queue per share, the standard job engines `transform` and `data keys`, and
/// the engines that `add` adds. The device goes to the thread that runs it, the queues to the submitters.
///
/// ```
/// use bytes::BytesMut;
/// use nic_sim::lookaside;
/// use nic_sim::lookaside::LookasideConfig;
/// use offload_api::{Job, JobQueue, JobStatus};
/// use offload_base::Instant;
/// use offload_jobs::OpenTransform;
/// use offload_transforms::{SecretBytes, Transform, Tweak};
///
/// let (mut device, mut queues) = lookaside(LookasideConfig::default(), |_| ());
/// let queue = &mut queues[0];
/// let volume = Transform::Xts { key: SecretBytes::new((0..64).collect()), unit: 512, tweak: Tweak::Unit };
/// let session = queue.open(volume).map_err(|(refused, _)| refused)?;
/// let mut now = Instant::ZERO;
/// queue.submit(now, Job::new(session, vec![0; 4096].into(), BytesMut::with_capacity(4096))).expect("there is room");
/// queue.flush(now);
/// let done = loop {
///     device.process(now);
///     if let Some(done) = queue.complete(now) {
///         break done;
///     }
///     now = device.next_event().expect("the job is under way");
/// };
/// assert_eq!((done.outcome.status, done.target.len()), (JobStatus::Done, 4096));
/// assert_eq!((device.dma().job_source, device.dma().job_target), (4096, 4096));
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
///
/// # Panics
/// If there is no unit or no queue, or a queue without entries.
pub fn lookaside(config: LookasideConfig, add: impl FnOnce(&mut Engines)) -> (Lookaside, Vec<JobDriver>) {
    // All queues share the engines; each queue has its own range of session slots.
    assert!(!config.shares.is_empty(), "a lookaside accelerator needs a queue");
    let mut engines = Engines::none();
    engines.add_job(Transforms::with(config.transforms), Handle::PLACES);
    engines.add_job(DataKeys::default(), Handle::PLACES);
    add(&mut engines);
    let infos = engines.infos();
    let (device_rings, drivers) = (0..config.shares.len())
        .map(|queue| {
            let (device_rings, driver_rings) = job_rings(config.depth);
            let places: Vec<_> = infos.iter().map(|info| config.places(queue, info.contexts)).collect();
            (device_rings, JobDriver::new(driver_rings, config.depth, infos.clone(), &places))
        })
        .unzip();
    (Lookaside::new(&config, device_rings, engines), drivers)
}
