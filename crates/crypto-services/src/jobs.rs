//! Chains of services behind a job queue: a device that a program drives as it drives any other accelerator.

use crate::driven::{Driven, to_ns};
use crate::sessions::{Cell, Sessions};
use crate::{ChainId, Change, Controller, Fabric, FabricConfig, Keys, Packet, Suite};
use core::task::Waker;
use core::time::Duration;
use offload_api::{CompletedJob, Contexts, Job, JobOutcome, JobQueue, JobStatus, Way};
use offload_base::Instant;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The name of the engine whose sessions are a [`ServiceSpec`].
pub const SERVICES: &str = "services";

/// What a session of the engine [`SERVICES`] is made of.
///
/// See [`ServiceQueue`] for an example.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    /// The cipher.
    pub suite: Suite,
    /// Its keys.
    pub keys: Keys,
    /// Whose it is: each tenant has places of its own in the queues of services.
    pub tenant: u16,
    /// The tenant's part of services that others want as well; that of its first session of a suite counts.
    pub share: u32,
}

/// What a [`ServiceQueue`] is built with.
///
/// ```
/// assert_eq!(crypto_services::ServiceQueueConfig::default().depth, 256);
/// ```
#[derive(Clone, Debug)]
pub struct ServiceQueueConfig {
    /// The device.
    pub fabric: FabricConfig,
    /// Jobs that there is room for.
    pub depth: usize,
    /// Sessions that there is room for.
    pub sessions: u32,
    /// How often the controller decides.
    pub window: Duration,
}

/// A device of 64 units of area, whose controller decides each millisecond.
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

/// A [`JobQueue`] in virtual time whose jobs pass a [`Fabric`]'s services: they really are done, and take the time that the services take. A
/// [`Controller`] says how many instances there are of each.
///
/// There are two engines. One has the name of that of transforms ([`offload_jobs::TRANSFORM`]), so that programs for other accelerators run unchanged, and does
/// those of which there is a [`Suite`]: AEADs of TLS, and AES-CBC with HMAC-SHA1. The other one is [`SERVICES`].
///
/// A tenant's suite keeps its services and places when its sessions are gone; there is room for 256 of them.
///
/// A job waits on the host as long as the first service has no place for it; jobs of one session and way end in the order in which they came, others
/// overtake each other. Bytes are moved in no time: the fabric's alone counts.
///
/// ```
/// use bytes::BytesMut;
/// use crypto_services::{Goal, Keys, Predictive, SERVICES, ServiceQueue, ServiceQueueConfig, ServiceSpec, Suite};
/// use offload_api::{Direction, Job, JobQueue, JobStatus, NewContext};
/// use offload_base::Instant;
///
/// let controller = Box::new(Predictive::new(Goal::new(1e6, 64.0)));
/// let mut queue = ServiceQueue::new(ServiceQueueConfig::default(), controller);
/// let spec = ServiceSpec { suite: Suite::Nea(3), keys: Keys::of_cipher(vec![7; 16]), tenant: 1, share: 1 };
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
    sessions: Sessions,
    depth: usize,
    /// Not flushed yet.
    submitted: VecDeque<Job>,
    /// By chain, those that the first service has no place for.
    waiting: BTreeMap<ChainId, VecDeque<Waiting>>,
    under_way: HashMap<u64, CompletedJob>,
    ended: VecDeque<CompletedJob>,
    next: u64,
    now: Instant,
}

/// A job that the first service of its chain has no place for.
#[derive(Debug)]
struct Waiting {
    session: Arc<Cell>,
    packet: Packet,
    job: Job,
}

impl ServiceQueue {
    /// A device without sessions, whose instances the controller decides on.
    pub fn new(config: ServiceQueueConfig, controller: Box<dyn Controller + Send>) -> ServiceQueue {
        ServiceQueue {
            sessions: Sessions::new(Driven::new(config.fabric, config.window, controller), config.sessions),
            depth: config.depth,
            submitted: VecDeque::new(),
            waiting: BTreeMap::new(),
            under_way: HashMap::new(),
            ended: VecDeque::new(),
            next: 0,
            now: Instant::ZERO,
        }
    }

    /// The device.
    pub fn fabric(&self) -> &Fabric {
        &self.sessions.device.fabric
    }

    /// The last 4,096 changes that the controller made.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.sessions.device.changes()
    }

    /// All that happens until `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let now_ns = to_ns(self.now);
        while let Some(event) = self.sessions.device.step(now_ns, self.is_idle()) {
            self.take_departed();
            self.offer_waiting(event);
        }
    }

    /// Whether the device has nothing to do.
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    fn take_departed(&mut self) {
        while let Some(departed) = self.sessions.device.fabric.poll() {
            self.ended.extend(self.under_way.remove(&departed.packet.name));
        }
    }

    /// Has the fabric take what it has places for.
    fn offer_waiting(&mut self, now_ns: f64) {
        let ServiceQueue { sessions, waiting, under_way, .. } = self;
        let fabric = &mut sessions.device.fabric;
        waiting.retain(|_, jobs| {
            while let Some(Waiting { packet, .. }) = jobs.front()
                && fabric.has_room(packet)
                && fabric.offer(now_ns, *packet).is_ok()
                && let Some(Waiting { session, packet, job }) = jobs.pop_front()
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
            let flow = u64::from(job.session.generation) << 32 | u64::from(job.session.index);
            let bytes = job.source_len().min(u32::MAX as usize) as u32;
            let packet = Packet { chain, flow, bytes, name: self.next };
            self.next += 1;
            self.waiting.entry(chain).or_default().push_back(Waiting { session, packet, job });
        }
        self.offer_waiting(to_ns(self.now));
    }

    fn complete(&mut self, now: Instant) -> Option<CompletedJob> {
        self.advance(now);
        self.ended.pop_front()
    }

    /// Nobody is woken: time has to pass first, and the program says when it has.
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
