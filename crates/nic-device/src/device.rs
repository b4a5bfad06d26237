//! The device: a NIC with one function and no switch, for its port and the thread that runs it.

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

/// An offload NIC for its port and the thread that runs it. Made by `nic_sim::nic` and its siblings.
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
    /// The function that the host sees.
    function: Function,
}

impl Device {
    /// Makes a device. For `nic-sim`, which makes the drivers as well.
    pub fn new(config: &NicConfig, pairs: Vec<QueuePair>) -> Device {
        Device { function: Function::new(config, pairs), config: config.clone() }
    }

    /// Returns the function that the host sees.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Returns the configuration.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Returns the sum of all queue pairs' counters, without engines.
    pub fn counters(&self) -> DeviceCounters {
        self.function.counters()
    }

    /// Returns the sum over all queue pairs of the engine counters of type `C`.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        self.function.engine_counters()
    }

    /// Adds the counters of all queue pairs and engines to `set`.
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
    /// assert_eq!(set.value("rx_drop_address"), 1, "the frame was for another NIC");
    /// ```
    pub fn count(&self, set: &mut CounterSet) {
        self.function.count(set);
    }

    /// Returns the number of contexts, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.function.contexts()
    }

    /// Returns the bytes moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        self.function.dma()
    }

    /// Resets the NIC: every queue pair loses its contexts ([`QueuePair::reset`]). The indirection table stays.
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
        // Dropped together: releasing shared memory waits for all earlier writes, which include the copies just made.
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
