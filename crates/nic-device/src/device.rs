//! The device: a NIC as its port and the thread that runs it see it.
//!
//! Invariant: the port sends one frame at a time, the queues' in turn.

use crate::function::Function;
use crate::queue_pair::QueuePair;
use crate::queue_pair::transmit::line_time;
use crate::stats::DeviceCounters;
use core::task::Waker;
use nic_rings::config::NicConfig;
use nic_rings::dma::DmaBytes;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_wire::Port;
use offload_wire::frame::Frame;

/// An offload NIC, seen from its port and from the thread that runs it. Made by `nic_sim::nic` and its siblings.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, nic};
/// use offload_base::Instant;
///
/// let (mut device, _driver) = nic(NicConfig::default());
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none());
/// ```
#[derive(Debug)]
pub struct Device {
    config: NicConfig,
    /// The one function that a host sees.
    function: Function,
    /// The queue that is asked for a frame next.
    turn: usize,
    /// `None` with one queue, which keeps the time itself.
    line_rate: Option<u64>,
    /// When the port has sent what it was given.
    port_free_at: Instant,
}

impl Device {
    /// For `nic-sim`, which makes the drivers as well.
    pub fn new(config: &NicConfig, pairs: Vec<QueuePair>) -> Device {
        Device {
            turn: 0,
            line_rate: if pairs.len() > 1 { config.line_rate } else { None },
            port_free_at: Instant::ZERO,
            function: Function::new(config, pairs),
            config: config.clone(),
        }
    }

    /// The function that a host sees.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// What the NIC was built with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What all queue pairs counted, together.
    pub fn counters(&self) -> DeviceCounters {
        let mut all = DeviceCounters::default();
        self.function.queue_pairs().iter().for_each(|pair| all += pair.counters());
        all
    }

    /// Adds what all queue pairs counted to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        self.function.queue_pairs().iter().for_each(|pair| set.add(&pair.counters()));
    }

    /// How many contexts there are, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.function.queue_pairs().iter().map(QueuePair::contexts).sum()
    }

    /// What was moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.function.queue_pairs().iter().for_each(|pair| all += pair.dma());
        all
    }

    /// Resets the NIC: every queue pair's contexts are gone ([`QueuePair::reset`]). The indirection table stays.
    pub fn reset(&mut self, now: Instant) {
        self.function.pairs_mut().iter_mut().for_each(|pair| pair.reset(now));
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
        if self.port_free_at > now {
            return None;
        }
        for _ in 0..self.function.queue_pairs().len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.function.queue_pairs().len();
            let frame = self.function.pairs_mut()[queue].poll_frame(now);
            self.function.take_table(queue);
            if let Some(frame) = frame {
                self.port_free_at = self.port_free_at.max(now) + line_time(&frame, self.line_rate);
                return Some(frame);
            }
        }
        None
    }

    fn process(&mut self, now: Instant) {
        for queue in 0..self.function.queue_pairs().len() {
            self.function.pairs_mut()[queue].process(now);
            self.function.take_table(queue);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let of_pair = |pair: &QueuePair| {
            let frame = pair.next_transmit().map(|at| at.max(self.port_free_at));
            earliest(frame, pair.next_other())
        };
        self.function.queue_pairs().iter().filter_map(of_pair).min()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.function.pairs_mut().iter_mut().for_each(|pair| pair.register_doorbell(waker));
    }
}
