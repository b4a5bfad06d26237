//! A queue pair: the rings of one driver, and the engines, contexts and buffers behind them.
//!
//! - `transmit`: send ring to port, through segmentation and the TLS transmit engine;
//! - `receive`: port to receive ring, through checksums, steering and the TLS receive engine;
//! - `coalesce`: which segments may be one packet for the host (LRO); `segmentation`: one packet in, segments out (TSO);
//!   `pacing`: lanes in which packets wait for their time;
//! - `control`: contexts created and given up, reset;
//! - `uplink`: what engines do to packets of others, of a NIC with a switch.
//!
//! Sans-IO: the device above it is the port, and asks it for frames; the host it sees through rings and signals only.

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
pub(crate) use receive::Arrived;
use receive::ReceiveSide;
use std::collections::VecDeque;
use transmit::TransmitSide;

/// One queue pair of a NIC, and what is behind it.
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
    /// When commands on the control ring are carried out, should no descriptor be fetched before.
    control_due: Option<Instant>,
    interrupt: Interrupt,
    send_interrupt: Interrupt,
    /// For the function, which spreads packets over the queues.
    pub(crate) new_indirection: Option<Box<[u16; INDIRECTION_ENTRIES]>>,
    /// The driver has not been told of the last reset.
    reset_unreported: bool,
    /// Nor of these contexts that lack a key.
    lost: VecDeque<(Handle, Handle)>,
    counters: DeviceCounters,
    dma: DmaBytes,
}

impl QueuePair {
    /// For `nic-sim`, which makes the driver as well.
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

    /// What was counted here, but by engines.
    pub fn counters(&self) -> DeviceCounters {
        let cache = self.contexts.counters();
        DeviceCounters { ctx_fetched: cache.fetched, ctx_evicted: cache.evicted, ..self.counters }
    }

    /// Adds its counters and those of its engines to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        set.add(&self.counters());
        self.contexts.engines().for_each(|engine| set.add(engine.counters()));
    }

    /// Adds the counters of its engines that are of the type of `sum`.
    pub(crate) fn add_engine_counters(&self, sum: &mut dyn Any) {
        self.contexts.engines().for_each(|engine| engine.add_counters(sum));
    }

    /// How many contexts are here, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Whether it has no contexts.
    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.len() == 0
    }

    /// What was moved over PCIe here.
    pub fn dma(&self) -> DmaBytes {
        self.dma
    }

    /// What it was built with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Whether one of its contexts follows the packets of `flow` that are received.
    pub(crate) fn follows(&self, flow: &FlowKey) -> bool {
        self.steering.followers(flow).iter().any(Option::is_some)
    }

    /// Whether it has no receive contexts.
    pub(crate) fn follows_nothing(&self) -> bool {
        self.steering.follows_nothing()
    }

    /// Whether one of its contexts opens packets that show this key of the engine of that number.
    pub(crate) fn opens(&self, engine: u8, key: KeyBytes) -> bool {
        self.steering.opener(engine, key).is_some()
    }

    /// Whether it has no contexts that open packets.
    pub(crate) fn opens_nothing(&self) -> bool {
        self.steering.opens_nothing()
    }

    /// Returns what packets have used so far. `None` if it costs no time.
    fn used(&self) -> Option<Used> {
        if self.config.costs.is_none() {
            return None;
        }
        let (dma, cache) = (&self.dma, self.contexts.counters());
        let sent = dma.tx_descriptors + dma.tx_parameters + dma.tx_resync + self.transmit.framed;
        let received = dma.rx_descriptors + dma.rx_payload + self.receive.begun * dma::COMPLETION;
        let bytes = sent + received + dma.context + dma.control + dma.completions;
        Some(Used { bytes, fetched: cache.fetched, worked_bytes: cache.worked_bytes })
    }

    /// Returns the time that bus, fetches and engines took since `before`. Payload to be sent counts when it is put into
    /// a frame, and a received packet's completion when the packet is begun.
    fn cost_since(&self, before: Option<Used>) -> Duration {
        let (Some(before), Some(used)) = (before, self.used()) else { return Duration::ZERO };
        let [bytes, fetched, worked] =
            [used.bytes - before.bytes, used.fetched - before.fetched, used.worked_bytes - before.worked_bytes];
        self.config.costs.time(bytes, fetched, worked)
    }

    /// The longest frame there is.
    fn longest_frame(&self) -> usize {
        usize::from(self.config.mtu) + ETHERNET_BYTES
    }

    /// When something else than a frame is due.
    pub(crate) fn next_other(&self) -> Option<Instant> {
        let interrupts = earliest(self.interrupt.due, self.send_interrupt.due);
        earliest(earliest(self.receive.next_due(), self.next_making()), earliest(self.control_due, interrupts))
    }

    /// Does what is due, but for frames.
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

    /// Has `waker` woken at the next doorbell.
    pub(crate) fn register_doorbell(&mut self, waker: &Waker) {
        self.rings.doorbell.arm(waker);
    }

    /// Starts an interrupt if the host waits for one and none is under way.
    fn interrupt(&mut self, now: Instant) {
        let delay = self.config.delays.interrupt;
        self.counters.interrupts += u64::from(self.interrupt.start(now, delay, &self.rings.interrupt));
    }

    fn send_interrupt(&mut self, now: Instant) {
        let delay = self.config.delays.interrupt;
        self.counters.interrupts += u64::from(self.send_interrupt.start(now, delay, &self.rings.send_interrupt));
    }
}

/// What packets used of the bus and of engines.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Bytes over the bus.
    bytes: u64,
    /// Contexts fetched.
    fetched: u64,
    /// Bytes that engines worked on.
    worked_bytes: u64,
}

/// An interrupt that may be on its way to the host.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    pub(crate) due: Option<Instant>,
}

impl Interrupt {
    /// Sends one off if the host waits for it and none is on its way. True if it has arrived already, and woken
    /// somebody.
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

    /// True if its time has come, and it has woken somebody.
    pub(crate) fn raise_when_due(&mut self, now: Instant, signal: &Signal) -> bool {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            return signal.raise();
        }
        false
    }
}

/// Memory for frames that leave: what takes turns is to stay in the nearer caches.
const SLAB_BYTES: usize = 96 << 10;

#[cfg(test)]
mod tests;
