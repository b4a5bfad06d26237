//! The device: a NIC as its port and the thread that runs it see it, with one function and no switch.

use crate::function::Function;
use crate::queue_pair::QueuePair;
use crate::stats::DeviceCounters;
use core::task::Waker;
use nic_engine::EngineCounters;
use nic_rings::config::NicConfig;
use nic_rings::dma::DmaBytes;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_wire::Port;
use offload_wire::frame::Frame;

/// An offload NIC, seen from its port and from the thread that runs it. Made by `nic_sim::nic` and its siblings.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, nic};
/// use offload_base::Instant;
///
/// let (mut device, _driver) = nic(NicConfig { mtu: 9000, ..NicConfig::default() });
/// assert_eq!(device.config().mtu, 9000);
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none());
/// ```
#[derive(Debug)]
pub struct Device {
    config: NicConfig,
    /// The one function that a host sees.
    function: Function,
}

impl Device {
    /// For `nic-sim`, which makes the drivers as well.
    pub fn new(config: &NicConfig, pairs: Vec<QueuePair>) -> Device {
        Device { function: Function::new(config, pairs), config: config.clone() }
    }

    /// The function that a host sees.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// What the NIC was built with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What all queue pairs counted, together, but for engines.
    pub fn counters(&self) -> DeviceCounters {
        self.function.counters()
    }

    /// What engines with counters of the type `C` counted at all queue pairs, together.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        self.function.engine_counters()
    }

    /// Adds what all queue pairs counted to `set`, engines included.
    ///
    /// ```
    /// use nic_sim::base::Instant;
    /// use nic_sim::base::counters::CounterSet;
    /// use nic_sim::frame::Frame;
    /// use nic_sim::wire::Port;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (mut device, _driver) = nic(NicConfig::default());
    /// device.receive_frame(Instant::ZERO, Frame::new(vec![0; 60].into()));
    /// let mut set = CounterSet::default();
    /// device.count(&mut set);
    /// assert_eq!(set.value("rx_drop_address"), 1, "it was for another NIC");
    /// ```
    pub fn count(&self, set: &mut CounterSet) {
        self.function.count(set);
    }

    /// How many contexts there are, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.function.contexts()
    }

    /// What was moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        self.function.dma()
    }

    /// Resets the NIC: every queue pair's contexts are gone ([`QueuePair::reset`]). The indirection table stays.
    pub fn reset(&mut self, now: Instant) {
        self.function.reset(now);
    }
}

impl Port for Device {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        self.function.take_frame(now, &frame.data);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        frames.iter().for_each(|frame| self.function.take_frame(now, &frame.data));
        // Together: to give up a share in memory waits for all that was written before, and a copy takes a while.
        frames.clear();
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.function.poll_frame(now)
    }

    fn process(&mut self, now: Instant) {
        self.function.process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.function.next_event()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.function.register_doorbell(waker);
    }
}
