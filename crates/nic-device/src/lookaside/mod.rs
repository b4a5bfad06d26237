//! A lookaside accelerator: engines behind job queues, from memory to memory. It is no port and has no wire.
//!
//! ```text
//! driver == job ring ==> fetched -- shares --> units (latency, rate; round robin) -- ended --> completion ring ==> driver
//! driver == job ring ==> fetched --'           each runs any of the engines
//! ```
//!
//! An engine ([`JobEngine`](nic_engine::JobEngine)) says what is done; a [`Unit`] is hardware that does it, with a stated
//! latency and rate. A queue's entries are fetched a while after the doorbell. When a unit is free, the queues have turns: each
//! may have its share of bytes started, so one that floods its queue does not starve another. What a unit has started ends
//! after its time; jobs on several units overtake each other.
//!
//! The sessions of all queues are in one store, with one cache. Each queue has its own range of handles: the device refuses
//! jobs that name a session of another queue. A queue's changes of an engine, such as wrapping keys, belong to that queue alone. When a
//! driver is dropped, the device removes all state of its queue.
//!
//! - `mod.rs`: [`Lookaside`], units and turns; `queue.rs`: one queue, from fetching to completion; [`run`]: a thread for it.

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
pub use queue::JobCounters;
use queue::Queue;
pub use run::{Stop, run};

/// What a lookaside accelerator is built with. Build it from the default, as here, because later versions may add fields.
///
/// ```
/// use core::time::Duration;
/// use nic_device::lookaside::{LookasideConfig, Unit};
///
/// let unit = Unit { latency: Duration::from_micros(60), rate: Some(3_000_000_000) };
/// let config = LookasideConfig { units: vec![unit; 2], ..LookasideConfig::default() };
/// assert_eq!(config.shares.len(), 1, "one queue");
/// ```
#[derive(Clone, Debug)]
pub struct LookasideConfig {
    /// Jobs and commands that a queue has room for.
    pub depth: usize,
    /// A queue each, with its share of the units' time.
    pub shares: Vec<u32>,
    /// What the work is done by.
    pub units: Vec<Unit>,
    /// Memory on the device for the state of sessions, in bytes, 208 each; what does not fit lies in host memory.
    pub context_cache_bytes: usize,
    /// What the engine of transforms has: some accelerators lack some AEADs.
    pub transforms: TransformCapabilities,
    /// How long things take on the way: doorbell, DMA (once each way), interrupt. `engine` is not used: a unit has its own latency.
    pub delays: Delays,
    /// What jobs cost on the bus, which all queues share, and for sessions in host memory. Commands cost nothing, and `crypto_rate` is not
    /// used: a unit has its own rate.
    pub costs: Costs,
}

/// One queue of 256 entries and one unit of the default speed.
impl Default for LookasideConfig {
    fn default() -> LookasideConfig {
        LookasideConfig {
            depth: 256,
            shares: vec![1],
            units: vec![Unit::default()],
            context_cache_bytes: 4 << 20,
            transforms: TransformCapabilities::ALL,
            delays: Delays::default(),
            costs: Costs::default(),
        }
    }
}

impl LookasideConfig {
    /// The handles that queue `queue` numbers its sessions by, of an engine with room for `contexts` of them.
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

/// A piece of hardware that does one job after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// From when a job is started until it has ended, beside the time that its bytes take.
    pub latency: Duration,
    /// Bytes of sources and of additional authenticated data in a second. `None`: as fast as the machine is. The next job starts
    /// when the bytes of the one before are
    /// through, which may be long before that one has ended.
    pub rate: Option<u64>,
}

/// An assumed figure of the order that published ones have: SERRANO's QAT (deliverable D3.1, figure 5) does 3,109 MB/s with 128
/// jobs in flight and 249 MB/s with one, which is 66 us for 16 KiB.
impl Default for Unit {
    fn default() -> Unit {
        Unit { latency: Duration::from_micros(60), rate: Some(3_109_000_000) }
    }
}

impl Unit {
    /// No time at all: for real time, where the machine takes its own.
    pub const NO_TIME: Unit = Unit { latency: Duration::ZERO, rate: None };

    /// How long so many bytes keep it from starting the next job.
    pub fn time_of(&self, bytes: usize) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos((bytes as u128 * 1_000_000_000).div_ceil(u128::from(rate.max(1))) as u64)
        })
    }
}

/// A lookaside accelerator, as the thread that runs it sees it. Made by `nic_sim::lookaside`.
///
/// When it is dropped, by a thread that panics say, every job in it ends with [`Gone`](offload_api::JobStatus::Gone).
///
/// ```
/// use core::convert::Infallible;
/// use bytes::BytesMut;
/// use nic_sim::engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
/// use nic_sim::lookaside::LookasideConfig;
/// use nic_sim::lookaside;
/// use offload_api::{Direction, Job, JobQueue, JobStatus, NewContext, Outcome};
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
///     fn run(&mut self, context: Context<'_, Unmask>, job: &mut Job, _: &mut NoCounters) -> Outcome {
///         let plain: Vec<u8> = job.source.iter().flatten().map(|byte| byte ^ *context.state).collect();
///         job.target.extend_from_slice(&plain);
///         Outcome { status: JobStatus::Done, consumed: plain.len(), produced: plain.len(), checksums: None }
///     }
/// }
///
/// let (mut device, mut queues) = lookaside(LookasideConfig::default(), |engines| engines.add_job(Unmask, 10));
/// let queue = &mut queues[0];
/// let engine = queue.contexts().engine("unmask").expect("it is there").number;
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
/// assert_eq!(now.as_micros(), 61, "the unit's latency, a doorbell, DMA to and fro");
/// # Ok::<(), offload_api::Refused>(())
/// ```
#[derive(Debug)]
pub struct Lookaside {
    sessions: Sessions,
    bus: Bus,
    queues: Vec<Queue>,
    units: Vec<UnitState>,
    /// The unit that is asked first.
    next_unit: usize,
    /// The queue whose turn it is.
    turn: usize,
}

/// The sessions of all queues.
#[derive(Debug)]
struct Sessions {
    store: ContextStore,
    /// Nothing is steered to a session; the store asks for it all the same.
    steering: Steering,
    /// By engine, how many contexts it has room for.
    engines: Vec<EngineInfo>,
}

/// The bus of all queues.
#[derive(Debug)]
struct Bus {
    costs: Costs,
    /// When it has read and written what was started.
    read_until: Instant,
    written_until: Instant,
}

impl Bus {
    /// Moves the bytes of a job, and returns when all are through: each direction has its turn after the jobs before.
    fn move_job(&mut self, now: Instant, read: u64, fetches: u64, written: u64) -> Instant {
        self.read_until = self.read_until.max(now) + self.costs.time(read, fetches, 0);
        self.written_until = self.written_until.max(now) + self.costs.time(written, 0, 0);
        self.read_until.max(self.written_until)
    }
}

#[derive(Debug)]
struct UnitState {
    unit: Unit,
    /// When it can start another job.
    free_at: Instant,
    lost: bool,
}

impl Lookaside {
    /// For `nic-sim`, which makes the drivers as well: `rings` are those of the queues in order.
    ///
    /// # Panics
    /// If there is no unit, or not one share for each queue.
    pub fn new(config: &LookasideConfig, rings: Vec<DeviceJobRings>, engines: Engines) -> Lookaside {
        assert!(!config.units.is_empty(), "a lookaside accelerator has a unit at least");
        assert_eq!(config.shares.len(), rings.len(), "each queue has a share");
        let infos = engines.infos();
        let queues = rings.into_iter().enumerate().map(|(number, rings)| {
            let places = infos.iter().map(|info| config.places(number, info.contexts)).collect();
            Queue::new(number, rings, places, config.shares[number].max(1), config.delays)
        });
        Lookaside {
            queues: queues.collect(),
            units: config
                .units
                .iter()
                .map(|unit| UnitState { unit: *unit, free_at: Instant::ZERO, lost: false })
                .collect(),
            sessions: Sessions {
                store: ContextStore::new(engines.into_installed(), config.context_cache_bytes),
                steering: Steering::default(),
                engines: infos,
            },
            bus: Bus { costs: config.costs, read_until: Instant::ZERO, written_until: Instant::ZERO },
            next_unit: 0,
            turn: 0,
        }
    }

    /// Does what is due.
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

    /// When there is something to do, doorbells apart.
    pub fn next_event(&self) -> Option<Instant> {
        let own = self.queues.iter().filter_map(Queue::next_event).min();
        let waits = self.queues.iter().any(Queue::has_fetched);
        let unit = self.units.iter().filter(|unit| !unit.lost).map(|unit| unit.free_at).min();
        earliest(own, if waits { unit } else { None })
    }

    /// Has `waker` woken by the next doorbell. False: something was submitted already, so [`process`](Self::process) it.
    pub fn arm(&mut self, waker: &Waker) -> bool {
        // All of them, whatever the first says.
        self.queues.iter_mut().map(|queue| queue.arm(waker)).fold(true, |all, empty| all & empty)
    }

    /// A unit is lost: what it had started ends with [`EngineLost`](offload_api::JobStatus::EngineLost), and it starts nothing
    /// more. When all are lost, all jobs end so.
    pub fn lose_unit(&mut self, now: Instant, unit: usize) {
        if let Some(state) = self.units.get_mut(unit) {
            state.lost = true;
            self.queues.iter_mut().for_each(|queue| queue.lose(now, unit));
        }
    }

    /// A unit that was lost is there again.
    pub fn restore_unit(&mut self, now: Instant, unit: usize) {
        if let Some(state) = self.units.get_mut(unit) {
            *state = UnitState { lost: false, free_at: now, ..*state };
        }
    }

    /// Resets the device: all jobs that were submitted end with [`Reset`](offload_api::JobStatus::Reset), and all sessions are
    /// gone, of which the drivers are told.
    pub fn reset(&mut self, now: Instant) {
        self.sessions.store.clear();
        self.queues.iter_mut().for_each(|queue| queue.reset(now));
        self.units.iter_mut().for_each(|unit| unit.free_at = now);
    }

    /// What was moved over PCIe, by all queues.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.queues.iter().for_each(|queue| all += queue.dma());
        all
    }

    /// What queue `queue` counted.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn counters(&self, queue: usize) -> JobCounters {
        self.queues[queue].counters()
    }

    /// What engines with counters of the type `C` counted.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        let mut sum = C::default();
        self.sessions.store.engines().for_each(|engine| engine.add_counters(&mut sum));
        sum
    }

    /// Adds what all queues and all engines counted to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        self.queues.iter().for_each(|queue| set.add(&queue.counters()));
        self.sessions.store.engines().for_each(|engine| set.add(engine.counters()));
    }

    /// Sessions that there are, on the device and in host memory.
    pub fn sessions(&self) -> usize {
        self.sessions.store.len()
    }

    /// Starts jobs as long as a unit can, the queues in turn by their shares.
    fn start_jobs(&mut self, now: Instant) {
        while self.has_jobs(now) {
            let Some(unit) = self.free_unit(now) else {
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

    /// Whether a unit could start a job. Commands in front of all queues' jobs are carried out.
    fn has_jobs(&mut self, now: Instant) -> bool {
        let Lookaside { queues, sessions, .. } = self;
        queues.iter_mut().fold(false, |any, queue| queue.next_job(sessions, now).is_some() | any)
    }

    /// A unit that can start a job, the next in the round.
    fn free_unit(&mut self, now: Instant) -> Option<usize> {
        let count = self.units.len();
        let mut round = (0..count).map(|turn| (self.next_unit + turn) % count);
        let free = round.find(|unit| !self.units[*unit].lost && self.units[*unit].free_at <= now)?;
        self.next_unit = (free + 1) % count;
        Some(free)
    }

    /// The queue that may start a job: deficit round robin, as of Shreedhar and Varghese. There is a queue with a job.
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
