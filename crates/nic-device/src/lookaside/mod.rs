//! A lookaside accelerator: engines behind job queues, from memory to memory, without a port.
//!
//! ```text
//! driver == job ring ==> fetched -- shares --> units (latency, rate; round robin) -- ended --> completion ring ==> driver
//! driver == job ring ==> fetched --'           each runs any of the engines
//! ```
//!
//! An engine ([`JobEngine`](nic_engine::JobEngine)) defines the work; a [`LookasideUnit`] is hardware that does it, with a
//! stated latency and rate. The device fetches a queue's entries some time after the doorbell. When a unit is free,
//! queues take turns in proportion to their shares of bytes, so a flooded queue does not starve another. A started job
//! completes after its time; jobs on different units may overtake each other.
//!
//! The sessions of all queues are in one store with one cache. Each queue has its own range of handles, and the device
//! refuses jobs with a session of another queue. A queue's engine changes, such as wrapping keys, belong to that queue
//! alone. When a driver is dropped, the device removes all state of its queue.
//!
//! - `mod.rs`: [`Lookaside`], units and turns; `queue.rs`: one queue, from fetch to completion; [`run`]: a thread for
//!   the device.

mod queue;
mod run;

use crate::context::ContextStore;
use crate::steering::Steering;
use core::ops::Range;
use core::task::Waker;
use core::time::Duration;
use nic_engine::{EngineCounters, Engines};
use nic_rings::dma::DmaBytes;
use nic_rings::job::DeviceJobRings;
use nic_rings::{Costs, Delays};
use offload_api::EngineInfo;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_jobs::TransformCapabilities;
use queue::DeviceJobQueue;
pub use queue::JobCounters;
pub use run::{StopSignal, run};

/// The configuration of a lookaside accelerator.
///
/// ```
/// use core::time::Duration;
/// use nic_device::lookaside::{LookasideConfig, LookasideUnit};
///
/// let unit = LookasideUnit { latency: Duration::from_micros(60), rate: Some(3_000_000_000) };
/// let config = LookasideConfig { units: vec![unit; 2], ..LookasideConfig::default() };
/// assert_eq!(config.shares.len(), 1, "one queue");
/// ```
#[derive(Clone, Debug)]
pub struct LookasideConfig {
    /// Maximum number of jobs and commands in a queue.
    pub depth: usize,
    /// Shares of the units' time, one per queue.
    pub shares: Vec<u32>,
    /// Hardware units.
    pub units: Vec<LookasideUnit>,
    /// Memory on the device for session states, 208 bytes each; other states are in host memory.
    pub context_cache_bytes: usize,
    /// Supported transforms; real accelerators lack some AEADs.
    pub transforms: TransformCapabilities,
    /// Delays of doorbell, DMA (once in each direction) and interrupt. `engine` is not used, because a unit has its own
    /// latency.
    pub delays: Delays,
    /// Costs of jobs: the bus, which all queues share, and the fetch of sessions from host memory. Commands cost
    /// nothing, and `crypto_rate` is not used, because a unit has its own rate.
    pub costs: Costs,
}

/// One queue of 256 entries and one unit of the default speed.
impl Default for LookasideConfig {
    fn default() -> LookasideConfig {
        LookasideConfig {
            depth: 256,
            shares: vec![1],
            units: vec![LookasideUnit::default()],
            context_cache_bytes: 4 << 20,
            transforms: TransformCapabilities::ALL,
            delays: Delays::default(),
            costs: Costs::default(),
        }
    }
}

impl LookasideConfig {
    /// Returns the session slots of queue `queue`, for an engine with `contexts` slots.
    ///
    /// ```
    /// use nic_device::lookaside::LookasideConfig;
    ///
    /// let config = LookasideConfig { shares: vec![1, 3], ..LookasideConfig::default() };
    /// assert_eq!((config.places(0, 100), config.places(1, 100)), (0..50, 50..100));
    /// ```
    pub fn places(&self, queue: usize, contexts: u32) -> Range<u32> {
        let queues = self.shares.len() as u64;
        let at = |queue: usize| (u64::from(contexts) * queue as u64 / queues) as u32;
        at(queue)..at(queue + 1)
    }
}

/// A hardware unit that does one job after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookasideUnit {
    /// Time from the start to the end of a job, in addition to the time for its bytes.
    pub latency: Duration,
    /// Bytes of source and additional authenticated data per second; `None` for as fast as the machine is. The next job
    /// starts when the bytes of the current one are through, which may be long before that job ends.
    pub rate: Option<u64>,
}

/// The default is an assumption near a published figure: SERRANO's QAT (deliverable D3.1, figure 5) does 3,109 MB/s
/// with 128 jobs in flight and 249 MB/s with one, which is 66 us for 16 KiB.
impl Default for LookasideUnit {
    fn default() -> LookasideUnit {
        LookasideUnit { latency: Duration::from_micros(60), rate: Some(3_109_000_000) }
    }
}

impl LookasideUnit {
    /// A unit without modelled time, for real time.
    pub const NO_TIME: LookasideUnit = LookasideUnit { latency: Duration::ZERO, rate: None };

    /// Returns the time for which `bytes` bytes occupy the unit.
    pub fn time_of(&self, bytes: usize) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos((bytes as u128 * 1_000_000_000).div_ceil(u128::from(rate.max(1))) as u64)
        })
    }
}

/// A lookaside accelerator for the thread that runs it. Made by `nic_sim::lookaside`.
///
/// When the device is dropped, for example by a panic of its thread, every pending job ends with
/// [`Gone`](offload_api::JobStatus::Gone).
///
/// ```
/// use core::convert::Infallible;
/// use bytes::BytesMut;
/// use nic_sim::engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
/// use nic_sim::lookaside::LookasideConfig;
/// use nic_sim::lookaside;
/// use offload_api::{Direction, Job, JobQueue, JobStatus, NewContext, JobOutcome};
/// use offload_base::Instant;
///
/// /// Takes a mask off.
/// #[derive(Debug)]
/// struct Unmask;
///
/// impl Engine for Unmask {
///     const NAME: &'static str = "unmask";
///     type Spec = u8;
///     type Command = Infallible;
///     type Change = Infallible;
///     type State = u8;
///     type Objects = ();
///     type Counters = NoCounters;
///
///     fn create(&mut self, _: Direction, mask: u8) -> Option<(u8, ())> {
///         Some((mask, ()))
///     }
///     fn save(mask: &u8, image: &mut ImageWriter<'_>) {
///         image.put_u8(*mask);
///     }
///     fn load(image: &mut ImageReader<'_>) -> Option<u8> {
///         image.take_u8()
///     }
/// }
///
/// impl JobEngine for Unmask {
///     fn run(&mut self, context: Context<'_, Unmask>, job: &mut Job, _: &mut NoCounters) -> JobOutcome {
///         let plain: Vec<u8> = job.source.iter().flatten().map(|byte| byte ^ *context.state).collect();
///         job.target.extend_from_slice(&plain);
///         JobOutcome { status: JobStatus::Done, consumed: plain.len(), produced: plain.len(), checksums: None }
///     }
/// }
///
/// let (mut device, mut queues) = lookaside(LookasideConfig::default(), |engines| engines.add_job(Unmask, 10));
/// let queue = &mut queues[0];
/// let engine = queue.contexts().engine("unmask").expect("the engine exists").number;
/// let new = NewContext { engine, direction: Direction::Transmit, flow: None, keys: vec![], spec: Box::new(0x20u8) };
/// let session = queue.contexts().create(new).map_err(|(refused, _)| refused)?;
/// let mut now = Instant::ZERO;
/// queue.submit(now, Job::new(session, "hEADER".into(), BytesMut::with_capacity(6))).expect("there is room");
/// queue.flush(now);
/// let done = loop {
///     device.process(now);
///     if let Some(done) = queue.complete(now) {
///         break done;
///     }
///     now = device.next_event().expect("the job is under way");
/// };
/// assert_eq!((done.outcome.status, &done.target[..]), (JobStatus::Done, &b"Header"[..]));
/// assert_eq!(now.as_micros(), 61, "the unit's latency, a doorbell, DMA in both directions");
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
#[derive(Debug)]
pub struct Lookaside {
    sessions: SessionStore,
    bus: Bus,
    queues: Vec<DeviceJobQueue>,
    units: Vec<UnitState>,
    /// Index of the unit to try first.
    next_unit: usize,
    /// Queue with the current turn.
    turn: usize,
}

/// The sessions of all queues.
#[derive(Debug)]
struct SessionStore {
    store: ContextStore,
    /// Empty: nothing is steered to a session, but the store requires a table.
    steering: Steering,
    /// Description of each engine.
    engines: Vec<EngineInfo>,
}

/// The bus of all queues.
#[derive(Debug)]
struct Bus {
    costs: Costs,
    /// Time at which the bus has read and written the data of all started jobs.
    read_until: Instant,
    written_until: Instant,
}

impl Bus {
    /// Moves the bytes of a job after the bytes of earlier jobs, in each direction by itself. Returns the time at which all
    /// are moved.
    fn move_job(&mut self, now: Instant, read: u64, fetches: u64, written: u64) -> Instant {
        self.read_until = self.read_until.max(now) + self.costs.time(read, fetches, 0);
        self.written_until = self.written_until.max(now) + self.costs.time(written, 0, 0);
        self.read_until.max(self.written_until)
    }
}

#[derive(Debug)]
struct UnitState {
    unit: LookasideUnit,
    /// Time at which the unit can start another job.
    free_at: Instant,
    lost: bool,
}

impl Lookaside {
    /// Makes a device. For `nic-sim`, which makes the drivers as well. `rings` are the rings of the queues, in order.
    ///
    /// # Panics
    /// If there is no unit, or the number of shares is not the number of queues.
    pub fn new(config: &LookasideConfig, rings: Vec<DeviceJobRings>, engines: Engines) -> Lookaside {
        assert!(!config.units.is_empty(), "a lookaside accelerator needs a unit");
        assert_eq!(config.shares.len(), rings.len(), "the number of shares must be the number of queues");
        let infos = engines.infos();
        let queues = rings.into_iter().enumerate().map(|(number, rings)| {
            let places = infos.iter().map(|info| config.places(number, info.contexts)).collect();
            DeviceJobQueue::new(number, rings, places, config.shares[number].max(1), config.delays)
        });
        Lookaside {
            queues: queues.collect(),
            units: config
                .units
                .iter()
                .map(|unit| UnitState { unit: *unit, free_at: Instant::ZERO, lost: false })
                .collect(),
            sessions: SessionStore {
                store: ContextStore::new(engines.into_installed(), config.context_cache_bytes),
                steering: Steering::default(),
                engines: infos,
            },
            bus: Bus { costs: config.costs, read_until: Instant::ZERO, written_until: Instant::ZERO },
            next_unit: 0,
            turn: 0,
        }
    }

    /// Performs the work that is due.
    pub fn process(&mut self, now: Instant) {
        for queue in &mut self.queues {
            queue.fetch(now);
            queue.clear_if_abandoned(&mut self.sessions);
        }
        self.start_jobs(now);
        for queue in &mut self.queues {
            queue.end_jobs(now);
        }
    }

    /// Returns the time of the next event without a doorbell.
    pub fn next_event(&self) -> Option<Instant> {
        let own = self.queues.iter().filter_map(DeviceJobQueue::next_event).min();
        let waits = self.queues.iter().any(DeviceJobQueue::has_fetched);
        let unit = self.units.iter().filter(|unit| !unit.lost).map(|unit| unit.free_at).min();
        earliest(own, if waits { unit } else { None })
    }

    /// Wakes `waker` at the next doorbell. Returns false if a job was submitted already; the caller must call
    /// [`process`](Self::process).
    pub fn arm(&mut self, waker: &Waker) -> bool {
        // No short circuit: every queue must register the waker.
        self.queues.iter_mut().map(|queue| queue.arm(waker)).fold(true, |all, empty| all & empty)
    }

    /// Loses a unit: its started jobs end with [`EngineLost`](offload_api::JobStatus::EngineLost), and it starts no
    /// others. When all units are lost, all jobs end in this way.
    pub fn lose_unit(&mut self, now: Instant, unit: usize) {
        if let Some(state) = self.units.get_mut(unit) {
            state.lost = true;
            self.queues.iter_mut().for_each(|queue| queue.lose(now, unit));
        }
    }

    /// Restores a lost unit.
    pub fn restore_unit(&mut self, now: Instant, unit: usize) {
        if let Some(state) = self.units.get_mut(unit) {
            *state = UnitState { lost: false, free_at: now, ..*state };
        }
    }

    /// Resets the device: all submitted jobs end with [`Reset`](offload_api::JobStatus::Reset), and all sessions are
    /// removed. The drivers are informed.
    pub fn reset(&mut self, now: Instant) {
        self.sessions.store.clear();
        self.queues.iter_mut().for_each(|queue| queue.reset(now));
        self.units.iter_mut().for_each(|unit| unit.free_at = now);
        (self.bus.read_until, self.bus.written_until) = (now, now);
    }

    /// Returns the bytes moved over PCIe by all queues.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.queues.iter().for_each(|queue| all += queue.dma());
        all
    }

    /// Returns the counters of queue `queue`.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn counters(&self, queue: usize) -> JobCounters {
        self.queues[queue].counters()
    }

    /// Returns the counters of type `C` of the engines that have them.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        let mut sum = C::default();
        self.sessions.store.engines().for_each(|engine| engine.add_counters(&mut sum));
        sum
    }

    /// Adds the counters of all queues and all engines to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        self.queues.iter().for_each(|queue| set.add(&queue.counters()));
        self.sessions.store.engines().for_each(|engine| set.add(engine.counters()));
    }

    /// Returns the number of sessions, on the device and in host memory.
    pub fn sessions(&self) -> usize {
        self.sessions.store.len()
    }

    /// Starts jobs while a unit is free; queues take turns by their shares.
    fn start_jobs(&mut self, now: Instant) {
        while self.has_jobs(now) {
            let Some(unit) = self.free_unit(now) else {
                // A busy unit will finish; only if all units are lost must the jobs end here.
                if self.units.iter().all(|unit| unit.lost) {
                    self.queues.iter_mut().for_each(|queue| queue.refuse_fetched(now));
                    continue;
                }
                return;
            };
            let queue = self.queue_in_turn(now);
            let UnitState { unit: speed, free_at, .. } = &mut self.units[unit];
            if let Some(through_at) = self.queues[queue].start(&mut self.sessions, &mut self.bus, unit, *speed, now) {
                *free_at = through_at;
            }
        }
    }

    /// Tests whether a job could start. Executes commands in front of all queues' jobs.
    fn has_jobs(&mut self, now: Instant) -> bool {
        let Lookaside { queues, sessions, .. } = self;
        // No short circuit: the commands of every queue must be executed.
        queues.iter_mut().fold(false, |any, queue| queue.next_job(sessions, now).is_some() | any)
    }

    /// Returns the next free unit in round-robin order.
    fn free_unit(&mut self, now: Instant) -> Option<usize> {
        let count = self.units.len();
        let mut round = (0..count).map(|turn| (self.next_unit + turn) % count);
        let free = round.find(|unit| !self.units[*unit].lost && self.units[*unit].free_at <= now)?;
        self.next_unit = (free + 1) % count;
        Some(free)
    }

    /// Returns the queue that may start a job, by deficit round robin (Shreedhar and Varghese). At least one queue must
    /// have a job.
    fn queue_in_turn(&mut self, now: Instant) -> usize {
        loop {
            let queue = self.turn;
            match self.queues[queue].next_job(&mut self.sessions, now) {
                Some(bytes) if self.queues[queue].has_credit(bytes) => return queue,
                Some(_) => self.queues[queue].add_credit(),
                None => self.queues[queue].lose_credit(),
            }
            self.turn = (queue + 1) % self.queues.len();
        }
    }
}

#[cfg(test)]
mod tests;
