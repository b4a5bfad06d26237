//! A queue pair: the rings of one driver, with their engines, contexts and buffers.
//!
//! - `transmit`: send ring to port, with segmentation and transmit engines;
//! - `receive`: port to receive ring, with checksums, steering and receive engines;
//! - `coalesce`: joining of segments (LRO); `segmentation`: cutting of packets (TSO); `pacing`: rate limits of flows;
//! - `control`: creation and removal of contexts, reset;
//! - `uplink`: engine work on packets of other functions, for a NIC with a switch.
//!
//! Sans-IO: the device above is the port and polls for frames; the host is reached only by rings and signals.

mod coalesce;
mod control;
mod pacing;
mod receive;
pub(crate) mod segmentation;
pub(crate) mod transmit;
mod uplink;

use crate::context::ContextStore;
use crate::stats::DeviceCounters;
use crate::steering::Steering;
use core::any::Any;
use core::task::Waker;
use core::time::Duration;
use nic_engine::Engines;
use nic_rings::dma::{self, DmaBytes};
use nic_rings::signal::Signal;
use nic_rings::{DeviceRings, NicConfig};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{FlowKey, Handle, KeyBytes};
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_base::{BufferPool, Instant};
use offload_formats::frame::ETHERNET_BYTES;
pub(crate) use receive::OpenResult;
use receive::ReceiveSide;
use std::collections::VecDeque;
use transmit::TransmitSide;

/// One queue pair of a NIC.
///
/// ```
/// use nic_sim::{NicConfig, nic};
///
/// let (device, _driver) = nic(NicConfig::default());
/// let [pair] = device.function().queue_pairs() else { panic!("one driver, one pair") };
/// assert_eq!((pair.contexts(), pair.counters().resets), (0, 0));
/// ```
#[derive(Debug)]
pub struct QueuePair {
    config: NicConfig,
    rings: DeviceRings,
    pub(crate) contexts: ContextStore,
    steering: Steering,
    transmit: TransmitSide,
    receive: ReceiveSide,
    frames: BufferPool,
    /// Time at which commands on the control ring are executed, if no descriptor is fetched earlier.
    control_due: Option<Instant>,
    interrupt: Interrupt,
    send_interrupt: Interrupt,
    /// A new indirection table for the function, which distributes packets to the queues.
    pub(crate) new_indirection: Option<Box<[u16; INDIRECTION_ENTRIES]>>,
    /// Whether the driver has not been told of the last reset.
    reset_unreported: bool,
    /// Removed contexts with their missing keys, of which the driver has not been told.
    lost: VecDeque<(Handle, Handle)>,
    counters: DeviceCounters,
    dma: DmaBytes,
}

impl QueuePair {
    /// Makes a queue pair. For `nic-sim`, which makes the driver as well.
    pub fn new(config: NicConfig, rings: DeviceRings, engines: Engines) -> QueuePair {
        let frame_bytes = (usize::from(config.mtu) + ETHERNET_BYTES).next_multiple_of(64);
        QueuePair {
            frames: BufferPool::new(frame_bytes, (SLAB_BYTES / frame_bytes).max(1)),
            contexts: ContextStore::new(engines.into_installed(), config.context_cache_bytes),
            config,
            rings,
            steering: Steering::default(),
            transmit: TransmitSide::default(),
            receive: ReceiveSide::default(),
            control_due: None,
            interrupt: Interrupt::default(),
            send_interrupt: Interrupt::default(),
            new_indirection: None,
            reset_unreported: false,
            lost: VecDeque::new(),
            counters: DeviceCounters::default(),
            dma: DmaBytes::default(),
        }
    }

    /// Returns the counters, without engines.
    pub fn counters(&self) -> DeviceCounters {
        let cache = self.contexts.counters();
        DeviceCounters { ctx_fetched: cache.fetched, ctx_evicted: cache.evicted, ..self.counters }
    }

    /// Adds the counters of the queue pair and its engines to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        set.add(&self.counters());
        self.contexts.engines().for_each(|engine| set.add(engine.counters()));
    }

    /// Adds the engine counters that have the type of `sum`.
    pub(crate) fn add_engine_counters(&self, sum: &mut dyn Any) {
        self.contexts.engines().for_each(|engine| engine.add_counters(sum));
    }

    /// Returns the number of contexts, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Tests whether there are no contexts.
    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.len() == 0
    }

    /// Returns the bytes moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        self.dma
    }

    /// Returns the configuration.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Tests whether a context follows received packets of `flow`.
    pub(crate) fn follows(&self, flow: &FlowKey) -> bool {
        self.steering.followers(flow).iter().any(Option::is_some)
    }

    /// Tests whether no context follows a flow.
    pub(crate) fn follows_nothing(&self) -> bool {
        self.steering.follows_nothing()
    }

    /// Tests whether a context opens packets with this key of engine `engine`.
    pub(crate) fn opens(&self, engine: u8, key: KeyBytes) -> bool {
        self.steering.opener(engine, key).is_some()
    }

    /// Tests whether no context opens packets.
    pub(crate) fn opens_nothing(&self) -> bool {
        self.steering.opens_nothing()
    }

    /// Returns the resources used so far; `None` if costs are not modelled.
    fn used(&self) -> Option<ResourceUse> {
        if self.config.costs.is_none() {
            return None;
        }
        let (dma, cache) = (&self.dma, self.contexts.counters());
        let sent = dma.tx_descriptors + dma.tx_parameters + dma.tx_resync + self.transmit.framed;
        let received = dma.rx_descriptors + dma.rx_payload + self.receive.begun * dma::COMPLETION;
        let bytes = sent + received + dma.context + dma.control + dma.completions;
        Some(ResourceUse { bytes, fetched: cache.fetched, worked_bytes: cache.worked_bytes })
    }

    /// Returns the time that bus, fetches and engines took since `before`. Sent payload counts when it is copied into a
    /// frame.
    fn cost_since(&self, before: Option<ResourceUse>) -> Duration {
        let (Some(before), Some(used)) = (before, self.used()) else { return Duration::ZERO };
        let [bytes, fetched, worked] =
            [used.bytes - before.bytes, used.fetched - before.fetched, used.worked_bytes - before.worked_bytes];
        self.config.costs.time(bytes, fetched, worked)
    }

    /// Returns the maximum frame length.
    fn longest_frame(&self) -> usize {
        usize::from(self.config.mtu) + ETHERNET_BYTES
    }

    /// Returns the time of the next event other than a frame.
    pub(crate) fn next_other(&self) -> Option<Instant> {
        let interrupts = earliest(self.interrupt.due, self.send_interrupt.due);
        earliest(earliest(self.receive.next_due(), self.next_making()), earliest(self.control_due, interrupts))
    }

    /// Performs the work that is due, except sending frames.
    pub(crate) fn process(&mut self, now: Instant) {
        self.notice_doorbell(now);
        self.run_control_when_due(now);
        self.make_ahead(now);
        self.show_received(now);
        self.report_reset(now);
        self.report_events(now);
        self.report_lost(now);
        if self.interrupt.raise_when_due(now, &self.rings.interrupt) {
            self.counters.interrupts += 1;
        }
        if self.send_interrupt.raise_when_due(now, &self.rings.send_interrupt) {
            self.counters.interrupts += 1;
        }
    }

    /// Wakes `waker` at the next doorbell.
    pub(crate) fn register_doorbell(&mut self, waker: &Waker) {
        self.rings.doorbell.arm(waker);
    }

    /// Starts an interrupt if the host waits and no interrupt is pending.
    fn interrupt(&mut self, now: Instant) {
        let delay = self.config.delays.interrupt;
        self.counters.interrupts += u64::from(self.interrupt.start(now, delay, &self.rings.interrupt));
    }

    fn send_interrupt(&mut self, now: Instant) {
        let delay = self.config.delays.interrupt;
        self.counters.interrupts += u64::from(self.send_interrupt.start(now, delay, &self.rings.send_interrupt));
    }
}

/// Use of bus and engines by packets.
#[derive(Clone, Copy, Debug)]
struct ResourceUse {
    /// Bytes over the bus.
    bytes: u64,
    /// Contexts fetched.
    fetched: u64,
    /// Bytes processed by engines.
    worked_bytes: u64,
}

/// An interrupt, possibly on its way to the host.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    pub(crate) due: Option<Instant>,
}

impl Interrupt {
    /// Starts the interrupt if the host waits and no interrupt is pending. Returns whether the interrupt arrived at once and woke a
    /// task.
    pub(crate) fn start(&mut self, now: Instant, delay: Duration, signal: &Signal) -> bool {
        if self.due.is_some() || !signal.is_armed() {
            return false;
        }
        if delay.is_zero() {
            return signal.raise();
        }
        self.due = Some(now + delay);
        false
    }

    /// Raises the interrupt if due. Returns whether a task was woken.
    pub(crate) fn raise_when_due(&mut self, now: Instant, signal: &Signal) -> bool {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            return signal.raise();
        }
        false
    }
}

/// Memory for outgoing frames. Small, so that reused buffers stay in the CPU's caches.
const SLAB_BYTES: usize = 96 << 10;

#[cfg(test)]
mod tests;
