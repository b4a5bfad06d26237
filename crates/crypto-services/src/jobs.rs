//! Chains of services behind a job queue: a device that a program drives as it drives any other accelerator.

use crate::controller::control;
use crate::{ChainId, Change, Cipher, Controller, Fabric, FabricConfig, Keys, Packet, Suite};
use core::task::Waker;
use core::time::Duration;
use offload_api::{
    Capabilities, ContextNews, Contexts, Done, EngineInfo, Handle, Job, JobQueue, JobStatus, Key, NewContext, Outcome,
    Piece, Refused, Slots, Spec, Way,
};
use offload_base::{Instant, Seq};
use offload_jobs::{TRANSFORM, TransformCapabilities, perform};
use offload_transforms::{Aead, Hash, Order, Session, Transform};
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
/// There are two engines. One has the name of that of transforms ([`TRANSFORM`]), so that programs for other accelerators run unchanged, and does
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
/// # Ok::<(), offload_api::Refused>(())
/// ```
#[derive(Debug)]
pub struct ServiceQueue {
    sessions: Sessions,
    controller: Box<dyn Controller + Send>,
    depth: usize,
    window_ns: f64,
    /// When the controller decides next.
    window_end_ns: f64,
    /// Windows in a row without work in which it changed nothing.
    quiet: u32,
    changes: VecDeque<Change>,
    /// Not flushed yet.
    submitted: VecDeque<Job>,
    /// By chain, those that the first service has no place for.
    waiting: BTreeMap<ChainId, VecDeque<Waiting>>,
    under_way: HashMap<u64, Done>,
    ended: VecDeque<Done>,
    next: u64,
    now: Instant,
}

/// Sessions, and the device that has them.
#[derive(Debug)]
struct Sessions {
    fabric: Fabric,
    /// By tenant and suite: out, in.
    chains: HashMap<(u16, Suite), [ChainId; 2]>,
    slots: Slots<Arc<Cell>>,
    most: u32,
    open: u32,
    news: VecDeque<ContextNews>,
}

/// A session: its work, and its chains out and in.
#[derive(Debug)]
struct Cell {
    work: Work,
    chains: [ChainId; 2],
}

#[derive(Debug)]
enum Work {
    Transform(Session),
    Cipher(Cipher),
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
        let window_ns = (config.window.as_nanos() as f64).max(1.0);
        ServiceQueue {
            sessions: Sessions {
                // Without a place nothing would ever pass.
                fabric: Fabric::new(FabricConfig { queue: config.fabric.queue.max(1), ..config.fabric }),
                chains: HashMap::new(),
                slots: Slots::new(Handle::indices(0, config.sessions)),
                most: config.sessions,
                open: 0,
                news: VecDeque::new(),
            },
            controller,
            depth: config.depth,
            window_ns,
            window_end_ns: window_ns,
            quiet: 0,
            changes: VecDeque::new(),
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
        &self.sessions.fabric
    }

    /// The last 4,096 changes that the controller made.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// All that happens until `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let now_ns = to_ns(self.now);
        loop {
            if self.is_idle() && self.quiet >= QUIET && self.window_end_ns <= now_ns {
                // Nothing happened, and the controller has settled: it will decide the same until something does.
                let windows = ((now_ns - self.window_end_ns) / self.window_ns).floor() + 1.0;
                self.window_end_ns += windows * self.window_ns;
            }
            let event =
                self.sessions.fabric.next_event_ns().map_or(self.window_end_ns, |at| at.min(self.window_end_ns));
            if event > now_ns {
                break;
            }
            self.sessions.fabric.advance(event);
            if event >= self.window_end_ns {
                self.window_end_ns += self.window_ns;
                self.decide(event);
            }
            self.take_departed();
            self.offer_waiting(event);
        }
        self.sessions.fabric.advance(now_ns);
    }

    /// Whether the device has nothing to do.
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }

    fn decide(&mut self, now_ns: f64) {
        let changes = control(&mut self.sessions.fabric, &mut *self.controller, now_ns, self.window_ns);
        let is_quiet = self.is_idle() && !changes.iter().any(|of| of.done && of.from != of.decision.instances);
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        self.changes.extend(changes);
        self.changes.drain(..self.changes.len().saturating_sub(CHANGES_MAX));
    }

    fn take_departed(&mut self) {
        while let Some(departed) = self.sessions.fabric.poll() {
            self.ended.extend(self.under_way.remove(&departed.packet.name));
        }
    }

    /// Has the fabric take what it has places for.
    fn offer_waiting(&mut self, now_ns: f64) {
        let ServiceQueue { sessions, waiting, under_way, .. } = self;
        waiting.retain(|_, jobs| {
            while let Some(Waiting { packet, .. }) = jobs.front()
                && sessions.fabric.has_room(packet)
                && sessions.fabric.offer(now_ns, *packet).is_ok()
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
            self.quiet = 0;
        }
        for job in core::mem::take(&mut self.submitted) {
            let Some(session) = self.sessions.slots.get(job.session) else {
                self.ended.push_back(job.done(Outcome::failed(JobStatus::NoSession)));
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

    fn complete(&mut self, now: Instant) -> Option<Done> {
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
        if self.is_idle() {
            return None;
        }
        let event = self.sessions.fabric.next_event_ns().map_or(self.window_end_ns, |at| at.min(self.window_end_ns));
        Some(Instant::ZERO + Duration::from_nanos(event.ceil() as u64))
    }
}

impl Work {
    /// Does a job.
    fn done(&self, mut job: Job) -> Done {
        let outcome = match self {
            Work::Transform(session) => perform(session, &mut job),
            Work::Cipher(cipher) => run(cipher, &mut job),
        };
        job.done(outcome)
    }
}

/// A job by a suite's cipher.
fn run(cipher: &Cipher, job: &mut Job) -> Outcome {
    let mut packet = Vec::with_capacity(job.source_len() + TAG_MAX);
    job.source.iter().for_each(|piece| packet.extend_from_slice(piece));
    let consumed = packet.len();
    match job.way {
        Way::Apply => cipher.seal(&job.iv, &job.aad, &mut packet),
        Way::Undo if cipher.open(&job.iv, &job.aad, &mut packet).is_err() => {
            return Outcome::failed(JobStatus::NotAuthentic);
        }
        Way::Undo => {}
    }
    let may_be_empty = consumed == 0 && matches!(cipher.suite(), Suite::Nea(_));
    if packet.is_empty() && !may_be_empty && job.way == Way::Apply {
        return Outcome::failed(JobStatus::Length);
    }
    if job.target.capacity() - job.target.len() < packet.len() {
        return Outcome::failed(JobStatus::OutOfSpace);
    }
    job.target.extend_from_slice(&packet);
    Outcome { status: JobStatus::Done, consumed, produced: packet.len(), checksums: None }
}

impl Contexts for Sessions {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        match name {
            TRANSFORM => {
                let capabilities = Capabilities::new(TransformCapabilities { aeads: &AEADS });
                Some(EngineInfo { capabilities, ..EngineInfo::new(OF_TRANSFORMS, TRANSFORM, self.most) })
            }
            SERVICES => Some(EngineInfo::new(OF_SUITES, SERVICES, self.most)),
            _ => None,
        }
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let made = match new.engine {
            OF_TRANSFORMS => new.spec.downcast_ref().and_then(|transform| {
                let work = Work::Transform(Session::new(transform).ok()?);
                Some((work, suite_of(transform)?, 0, 1))
            }),
            _ => new.spec.downcast_ref().and_then(|spec: &ServiceSpec| {
                let work = Work::Cipher(Cipher::new(spec.suite, &spec.keys).ok()?);
                Some((work, spec.suite, spec.tenant, spec.share))
            }),
        };
        let Some((work, suite, tenant, share)) = made else { return Err((Refused::Unsupported, new.spec)) };
        let session = self.chains(tenant, suite, share).map(|chains| Arc::new(Cell { work, chains }));
        let handle = session.and_then(|session| self.slots.insert(session).ok());
        let Some(handle) = handle else { return Err((Refused::NoSpace, new.spec)) };
        self.open += 1;
        self.news.push_back(ContextNews::Ready(handle));
        Ok(handle)
    }

    fn steer(&mut self, _: Handle, _: Key, _: bool) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn command(&mut self, _: Handle, command: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, command))
    }

    fn change(&mut self, _: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, change))
    }

    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>) {}

    fn release(&mut self, _: Handle, _: u64) {}

    fn answer(&mut self, _: Handle, _: Seq, _: Option<u64>) {}

    fn remove(&mut self, context: Handle) {
        if self.slots.remove(context).is_some() {
            self.open -= 1;
            self.news.push_back(ContextNews::Removed(context));
        }
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.news.pop_front()
    }
}

impl Sessions {
    /// A tenant's chains of a suite, out and in. `None`: the device has no room for their services, or for more chains.
    fn chains(&mut self, tenant: u16, suite: Suite, share: u32) -> Option<[ChainId; 2]> {
        if let Some(chains) = self.chains.get(&(tenant, suite)) {
            return Some(*chains);
        }
        if self.chains.len() >= CHAINS_MAX || self.open >= self.most {
            return None;
        }
        // The way in needs all services of the way out, and so goes first: what it leaves room for is enough.
        let back = self.fabric.add_chain(suite.graph(crate::Way::Undo), share).ok()?;
        let out = self.fabric.add_chain(suite.graph(crate::Way::Apply), share).ok()?;
        self.chains.insert((tenant, suite), [out, back]);
        Some([out, back])
    }
}

/// The suite that does a transform.
fn suite_of(transform: &Transform) -> Option<Suite> {
    match transform {
        Transform::Aead { aead: Aead::Aes128Gcm, .. } => Some(Suite::Aes128Gcm),
        Transform::Aead { aead: Aead::Aes256Gcm, .. } => Some(Suite::Aes256Gcm),
        Transform::Aead { aead: Aead::ChaCha20Poly1305, .. } => Some(Suite::ChaCha20Poly1305),
        Transform::CbcHmac { order, hash: Hash::Sha1, cipher_key, .. } => match (order, cipher_key.bytes().len()) {
            (Order::MacThenEncrypt, 16) => Some(Suite::Aes128CbcSha),
            (Order::MacThenEncrypt, _) => Some(Suite::Aes256CbcSha),
            (Order::EncryptThenMac, 16) => Some(Suite::Aes128CbcShaEtm),
            (Order::EncryptThenMac, _) => Some(Suite::Aes256CbcShaEtm),
            _ => None,
        },
        _ => None,
    }
}

fn to_ns(at: Instant) -> f64 {
    (at - Instant::ZERO).as_nanos() as f64
}

const AEADS: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];
const OF_TRANSFORMS: u8 = 0;
const OF_SUITES: u8 = 1;
/// Windows without a change after which a controller has settled: many times as many as one keeps in mind.
const QUIET: u32 = 1000;
/// Changes that are kept.
const CHANGES_MAX: usize = 4096;
/// Tenants' suites, each of which has places at each service.
const CHAINS_MAX: usize = 256;
/// The longest thing that a suite appends: padding and a MAC.
const TAG_MAX: usize = 64;
