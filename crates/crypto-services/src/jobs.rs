//! Chains of services behind a job queue, driven like any other accelerator.

use crate::driven::{ControlledFabric, to_ns};
use crate::sessions::{ServiceSession, ServiceSessions};
use crate::{ChainId, Controller, Fabric, FabricConfig, InstanceChange, Packet, Suite, SuiteKeys};
use core::task::Waker;
use core::time::Duration;
use offload_api::{CompletedJob, Contexts, Job, JobOutcome, JobQueue, JobStatus, Way};
use offload_base::Instant;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Name of the engine with sessions made from a [`ServiceSpec`].
pub const SERVICES: &str = "services";

/// Parameters of a session of the engine [`SERVICES`].
///
/// See [`ServiceQueue`] for an example.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    /// The cipher.
    pub suite: Suite,
    /// Its keys.
    pub keys: SuiteKeys,
    /// The tenant. Each tenant has separate places in the services' queues.
    pub tenant: u16,
    /// The tenant's share of services that several tenants use. The first session of a suite determines the share.
    pub share: u32,
}

/// Parameters of a [`ServiceQueue`].
///
/// ```
/// assert_eq!(crypto_services::ServiceQueueConfig::default().depth, 256);
/// ```
#[derive(Clone, Debug)]
pub struct ServiceQueueConfig {
    /// The device.
    pub fabric: FabricConfig,
    /// Maximum number of jobs.
    pub depth: usize,
    /// Maximum number of sessions.
    pub sessions: u32,
    /// Interval of the controller's decisions.
    pub window: Duration,
}

/// A device of 64 units of area, with a controller that decides each millisecond.
impl Default for ServiceQueueConfig {
    fn default() -> ServiceQueueConfig {
        ServiceQueueConfig {
            fabric: FabricConfig::default(),
            depth: 256,
            sessions: 1 << 16,
            window: Duration::from_millis(1),
        }
    }
}

/// A [`JobQueue`] in virtual time with jobs that pass a [`Fabric`]'s services. The jobs are really executed, and take
/// the time of the services. A [`Controller`] decides the number of instances.
///
/// There are two engines. One has the name of the transform engine ([`offload_jobs::TRANSFORM`]), so that programs for
/// other accelerators run unchanged. It supports the transforms with a [`Suite`]: AEADs of TLS, and AES-CBC with
/// HMAC-SHA1. The other engine is [`SERVICES`].
///
/// A tenant's suite keeps its services and places after its sessions are closed. There is room for 256 of these.
///
/// A job waits on the host while the first service has no place. Jobs of one session and direction end in order; others
/// may overtake each other. Moving the bytes takes no time, only the fabric does.
///
/// ```
/// use bytes::BytesMut;
/// use crypto_services::{Goal, SuiteKeys, Predictive, SERVICES, ServiceQueue, ServiceQueueConfig, ServiceSpec, Suite};
/// use offload_api::{Direction, Job, JobQueue, JobStatus, NewContext};
/// use offload_base::Instant;
///
/// let controller = Box::new(Predictive::new(Goal::new(1e6, 64.0)));
/// let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), controller);
/// let spec = ServiceSpec { suite: Suite::Nea(3), keys: SuiteKeys::from_cipher_key(vec![7; 16]), tenant: 1, share: 1 };
/// let engine = queue.contexts().engine(SERVICES).expect("it is there").number;
/// let new = NewContext { engine, direction: Direction::Transmit, flow: None, keys: vec![], spec: Box::new(spec) };
/// let session = queue.contexts().create(new).map_err(|(refused, _)| refused)?;
///
/// queue.submit(Instant::ZERO, Job::new(session, "a packet".into(), BytesMut::with_capacity(8))).expect("there is room");
/// queue.flush(Instant::ZERO);
/// let mut now = queue.next_event().expect("a job is under way");
/// let done = loop {
///     match queue.complete(now) {
///         Some(done) => break done,
///         None => now = queue.next_event().expect("it is still under way"),
///     }
/// };
/// assert_eq!((done.outcome.status, done.target.len()), (JobStatus::Done, 8));
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
#[derive(Debug)]
pub struct ServiceQueue {
    sessions: ServiceSessions,
    depth: usize,
    /// Submitted jobs before the flush.
    submitted: VecDeque<Job>,
    /// Jobs that wait for a place at the first service, by chain.
    waiting: BTreeMap<ChainId, VecDeque<WaitingJob>>,
    under_way: HashMap<u64, CompletedJob>,
    ended: VecDeque<CompletedJob>,
    next: u64,
    now: Instant,
}

/// A job that waits for a place at the first service of its chain.
#[derive(Debug)]
struct WaitingJob {
    session: Arc<ServiceSession>,
    packet: Packet,
    job: Job,
}

impl ServiceQueue {
    /// Creates a device without sessions.
    pub fn new(config: ServiceQueueConfig, controller: Box<dyn Controller + Send>) -> ServiceQueue {
        ServiceQueue {
            sessions: ServiceSessions::new(
                ControlledFabric::new(config.fabric, config.window, controller),
                config.sessions,
            ),
            depth: config.depth,
            submitted: VecDeque::new(),
            waiting: BTreeMap::new(),
            under_way: HashMap::new(),
            ended: VecDeque::new(),
            next: 0,
            now: Instant::ZERO,
        }
    }

    /// Returns the device.
    pub fn fabric(&self) -> &Fabric {
        &self.sessions.device.fabric
    }

    /// Returns the last 4,096 decisions of the controller.
    pub fn changes(&self) -> impl Iterator<Item = &InstanceChange> {
        self.sessions.device.changes()
    }

    /// Processes all events up to `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let now_ns = to_ns(self.now);
        // The waiting jobs are offered at the time of each event, not only at the end.
        while let Some(event) = self.sessions.device.step(now_ns, self.is_idle()) {
            self.take_departed();
            self.offer_waiting(event);
        }
    }

    /// Returns whether the device has no jobs.
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    fn take_departed(&mut self) {
        while let Some(departed) = self.sessions.device.fabric.poll() {
            self.ended.extend(self.under_way.remove(&departed.packet.name));
        }
    }

    /// Offers waiting jobs to the fabric, as far as it has places.
    fn offer_waiting(&mut self, now_ns: f64) {
        let ServiceQueue { sessions, waiting, under_way, .. } = self;
        let fabric = &mut sessions.device.fabric;
        // Each chain has its own places, so a full chain must not hold up the other chains.
        waiting.retain(|_, jobs| {
            while let Some(WaitingJob { packet, .. }) = jobs.front()
                && fabric.has_room(packet)
                && fabric.offer(now_ns, *packet).is_ok()
                && let Some(WaitingJob { session, packet, job }) = jobs.pop_front()
            {
                under_way.insert(packet.name, session.work.done(job));
            }
            !jobs.is_empty()
        });
    }
}

impl JobQueue for ServiceQueue {
    fn contexts(&mut self) -> &mut dyn Contexts {
        &mut self.sessions
    }

    fn room(&self) -> usize {
        // Finished jobs count until the caller takes their results.
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        self.depth.saturating_sub(self.submitted.len() + waiting + self.under_way.len() + self.ended.len())
    }

    fn submit(&mut self, _: Instant, job: Job) -> Result<(), Job> {
        if self.room() == 0 {
            return Err(job);
        }
        self.submitted.push_back(job);
        Ok(())
    }

    fn flush(&mut self, now: Instant) {
        self.advance(now);
        if !self.submitted.is_empty() {
            self.sessions.device.wake();
        }
        for job in core::mem::take(&mut self.submitted) {
            let Some(session) = self.sessions.slots.get(job.session) else {
                self.ended.push_back(job.done(JobOutcome::failed(JobStatus::NoSession)));
                continue;
            };
            let session = session.clone();
            let chain = session.chains[usize::from(job.way == Way::Undo)];
            // The generation keeps a new session with a reused index apart from the old one.
            let flow = u64::from(job.session.generation) << 32 | u64::from(job.session.index);
            let bytes = job.source_len().min(u32::MAX as usize) as u32;
            let packet = Packet { chain, flow, bytes, name: self.next };
            self.next += 1;
            self.waiting.entry(chain).or_default().push_back(WaitingJob { session, packet, job });
        }
        self.offer_waiting(to_ns(self.now));
    }

    fn complete(&mut self, now: Instant) -> Option<CompletedJob> {
        self.advance(now);
        self.ended.pop_front()
    }

    /// Wakes nobody: the caller advances the virtual time, and knows when to poll.
    fn arm(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        if !self.ended.is_empty() {
            return Some(self.now);
        }
        self.sessions.device.next_event(self.is_idle())
    }
}
