//! Several queue pairs behind one port.
//!
//! Each queue has engines, contexts and memory for them of its own: what a driver creates is on the queue it was
//! created from, so two queues share no handle, no order of commands and no lock, and a context is where the shard
//! of the host is that knows its flow. So that this holds whatever the indirection table says, a flow that a
//! receive context follows is steered to that context's queue, before the hash is asked; NICs that offload TLS do
//! likewise. So are the packets of an SA, which is at one queue: two must not count one SA's packets, nor one of them
//! overtake others at another queue. That goes for fragments as well, if a packet's first, which alone shows the SA,
//! comes before the rest of it. ESP that no queue has an SA for is hashed by its addresses.
//!
//! Invariant: the port sends one frame at a time, the queues' in turn.

use super::Device;
use super::fragments::Fragments;
use super::transmit::line_time;
use core::task::Waker;
use nic_rings::config::NicConfig;
use nic_rings::dma::DmaBytes;
use nic_rings::rss::{Toeplitz, entry_of, first_queue};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_formats::Headers;
use offload_wire::Port;
use offload_wire::frame::Frame;

/// An offload NIC with several queue pairs, seen from its port. Made by `nic_sim::multi_queue_nic`.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, multi_queue_nic};
/// use offload_base::Instant;
///
/// let (mut device, drivers) = multi_queue_nic(NicConfig { queues: 4, ..NicConfig::default() });
/// assert_eq!((device.queues().len(), drivers.len()), (4, 4));
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none());
/// ```
#[derive(Debug)]
pub struct MultiQueueDevice {
    queues: Vec<Device>,
    hash: Toeplitz,
    table: [u16; INDIRECTION_ENTRIES],
    /// Packets that engines open, and that come in fragments.
    fragments: Fragments,
    /// The queue that is asked for a frame next.
    turn: usize,
    /// `None` with one queue, which keeps the time itself.
    line_rate: Option<u64>,
    /// When the port has sent what it was given.
    port_free_at: Instant,
}

impl MultiQueueDevice {
    /// For `nic-sim`, which makes the driver as well.
    pub fn new(config: &NicConfig, queues: Vec<Device>) -> MultiQueueDevice {
        MultiQueueDevice {
            hash: Toeplitz::new(&config.rss_key),
            table: core::array::from_fn(|entry| first_queue(entry as u32, config.queues)),
            fragments: Fragments::default(),
            turn: 0,
            line_rate: if queues.len() > 1 { config.line_rate } else { None },
            port_free_at: Instant::ZERO,
            queues,
        }
    }

    /// The queues, each with what it counted.
    pub fn queues(&self) -> &[Device] {
        &self.queues
    }

    /// Adds what all queues counted to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        self.queues.iter().for_each(|queue| set.add(&queue.counters()));
    }

    /// How many contexts there are, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.queues.iter().map(Device::contexts).sum()
    }

    /// What was moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.queues.iter().for_each(|queue| all += queue.dma());
        all
    }

    /// Resets the NIC: every queue's contexts are gone ([`Device::reset`]). The indirection table stays.
    pub fn reset(&mut self, now: Instant) {
        self.queues.iter_mut().for_each(|queue| queue.reset(now));
    }

    fn take_frame(&mut self, now: Instant, frame: &[u8]) {
        let queue = self.queue_for(frame);
        self.queues[queue].take_frame(now, frame);
    }

    /// The queue that a received frame goes to.
    fn queue_for(&mut self, frame: &[u8]) -> usize {
        if self.queues.len() == 1 {
            return 0;
        }
        let following = self.queue_that_follows(frame).or_else(|| self.queue_that_opens(frame));
        following.or_else(|| self.hash.of_frame(frame).map(|hash| self.table[entry_of(hash)].into())).unwrap_or(0)
    }

    /// The queue with a receive context for the frame's flow.
    fn queue_that_follows(&self, frame: &[u8]) -> Option<usize> {
        if self.queues.iter().all(Device::follows_nothing) {
            return None;
        }
        let flow = Headers::parse(frame).transport()?.flow_of_receiver(frame);
        self.queues.iter().position(|queue| queue.follows(&flow))
    }

    /// The queue with the context that opens a frame.
    fn queue_that_opens(&mut self, frame: &[u8]) -> Option<usize> {
        if self.queues.iter().all(Device::opens_nothing) {
            return None;
        }
        let Self { queues, fragments, .. } = self;
        // All have the same engines.
        let engines = || queues[0].contexts.packet_engines();
        let queue_of = |engine, key| queues.iter().position(|queue| queue.opens(engine, key));
        let opens = engines().find_map(|(number, engine)| queue_of(number, engine.key(frame)?));
        opens.or_else(|| {
            fragments.queue_for(frame, |packet, headers| {
                engines().find_map(|(number, engine)| queue_of(number, engine.key_of_first(packet, headers)?))
            })
        })
    }

    /// Takes the table that a queue's driver has set, if that was carried out, which is so on the way to a frame and without one.
    fn take_table(&mut self, queue: usize) {
        if let Some(table) = self.queues[queue].new_indirection.take() {
            self.table = *table;
        }
    }
}

impl Port for MultiQueueDevice {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        self.take_frame(now, &frame.data);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        frames.iter().for_each(|frame| self.take_frame(now, &frame.data));
        frames.clear();
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        if self.port_free_at > now {
            return None;
        }
        for _ in 0..self.queues.len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.queues.len();
            let frame = self.queues[queue].poll_frame(now);
            self.take_table(queue);
            if let Some(frame) = frame {
                self.port_free_at = self.port_free_at.max(now) + line_time(&frame, self.line_rate);
                return Some(frame);
            }
        }
        None
    }

    fn process(&mut self, now: Instant) {
        for queue in 0..self.queues.len() {
            self.queues[queue].process(now);
            self.take_table(queue);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let of_queue = |queue: &Device| {
            let frame = queue.next_transmit().map(|at| at.max(self.port_free_at));
            earliest(frame, queue.next_other())
        };
        self.queues.iter().filter_map(of_queue).min()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.queues.iter_mut().for_each(|queue| queue.register_doorbell(waker));
    }
}
