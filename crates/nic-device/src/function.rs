//! A PCIe function of a NIC: its queue pairs, and the choice of a queue for each received packet.
//!
//! Each queue pair has its own engines, contexts and memory. A driver creates contexts on its own pair, so two pairs
//! share no handle, no order of commands and no lock, and the context of a flow is on the queue of the host's shard for
//! that flow. To keep this for any indirection table, a flow with a receive context goes to the queue of the context
//! before the hash is computed, as in real TLS NICs.
//!
//! Packets of an SA also go to the queue of the SA, because two queues must not count one SA's packets or reorder them.
//! Fragments follow if the first fragment, the only one that shows the SA, arrives first. ESP without an SA on any
//! queue is hashed by its addresses.
//!
//! Invariant: the function sends one frame at a time, and queues take turns.

use crate::queue_pair::transmit::line_time;
use crate::queue_pair::{OpenResult, QueuePair};
use crate::stats::DeviceCounters;
use bytes::Bytes;
use core::task::Waker;
use nic_engine::{EgressClaim, EngineCounters};
use nic_rings::config::NicConfig;
use nic_rings::dma::DmaBytes;
use nic_rings::rss::{Toeplitz, entry_of, first_queue};
use offload_api::Handle;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_formats::{FragmentMemory, Headers};
use offload_wire::frame::Frame;

/// A function of a NIC, with its queue pairs.
///
/// ```
/// use nic_sim::{NicConfig, multi_queue_nic};
///
/// let (device, drivers) = multi_queue_nic(NicConfig { queues: 4, ..NicConfig::default() });
/// assert_eq!((device.function().queue_pairs().len(), drivers.len()), (4, 4));
/// ```
#[derive(Debug)]
pub struct Function {
    pairs: Vec<QueuePair>,
    hash: Toeplitz,
    table: [u16; INDIRECTION_ENTRIES],
    /// Fragmented packets of packet engines: the queue with the context.
    fragments: FragmentMemory<usize>,
    /// Queue to poll first for the next frame.
    turn: usize,
    /// Line rate; `None` with one queue, which paces the port itself.
    line_rate: Option<u64>,
    /// Time at which the port has sent all frames so far.
    port_free_at: Instant,
}

/// A packet must not leave.
#[derive(Debug)]
pub(crate) struct ProtectionFailure;

impl Function {
    /// Makes a function. For `nic-sim`, which makes the drivers as well.
    pub fn new(config: &NicConfig, pairs: Vec<QueuePair>) -> Function {
        Function {
            turn: 0,
            line_rate: if pairs.len() > 1 { config.line_rate } else { None },
            port_free_at: Instant::ZERO,
            hash: Toeplitz::new(&config.rss_key),
            table: core::array::from_fn(|entry| first_queue(entry as u32, config.queues)),
            fragments: FragmentMemory::with_room_for(FRAGMENTED),
            pairs,
        }
    }

    /// Returns the queue pairs.
    pub fn queue_pairs(&self) -> &[QueuePair] {
        &self.pairs
    }

    /// Returns the sum of all queue pairs' counters, without engines.
    pub fn counters(&self) -> DeviceCounters {
        let mut all = DeviceCounters::default();
        self.pairs.iter().for_each(|pair| all += pair.counters());
        all
    }

    /// Returns the sum over all queue pairs of the engine counters of type `C`.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        let mut sum = C::default();
        self.pairs.iter().for_each(|pair| pair.add_engine_counters(&mut sum));
        sum
    }

    /// Adds the counters of all queue pairs and engines to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        self.pairs.iter().for_each(|pair| pair.count(set));
    }

    /// Returns the number of contexts, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.pairs.iter().map(QueuePair::contexts).sum()
    }

    /// Returns the bytes moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.pairs.iter().for_each(|pair| all += pair.dma());
        all
    }

    /// Removes the contexts of every queue pair ([`QueuePair::reset`]). The indirection table stays.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.pairs.iter_mut().for_each(|pair| pair.reset(now));
    }

    /// Returns the next frame that leaves at `now` or earlier.
    pub(crate) fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        if self.port_free_at > now {
            return None;
        }
        for _ in 0..self.pairs.len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.pairs.len();
            let frame = self.pairs[queue].poll_frame(now);
            // Polling may have executed a `SetIndirection` command.
            self.take_table(queue);
            if let Some(frame) = frame {
                self.port_free_at = self.port_free_at.max(now) + line_time(&frame, self.line_rate);
                return Some(frame);
            }
        }
        None
    }

    /// Performs the work that is due, except sending frames.
    pub(crate) fn process(&mut self, now: Instant) {
        for queue in 0..self.pairs.len() {
            self.pairs[queue].process(now);
            self.take_table(queue);
        }
    }

    /// Returns the time of the next event other than a frame.
    pub(crate) fn next_other(&self) -> Option<Instant> {
        self.pairs.iter().filter_map(QueuePair::next_other).min()
    }

    /// Returns the time of the next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let of_pair = |pair: &QueuePair| {
            // A pair's frame cannot leave before the shared port is free.
            let frame = pair.next_transmit().map(|at| at.max(self.port_free_at));
            earliest(frame, pair.next_other())
        };
        self.pairs.iter().filter_map(of_pair).min()
    }

    /// Wakes `waker` at the next doorbell of any queue.
    pub(crate) fn register_doorbell(&mut self, waker: &Waker) {
        self.pairs.iter_mut().for_each(|pair| pair.register_doorbell(waker));
    }

    /// Runs a frame from the uplink through its engine, if it has one. Returns the queue, the result, and the time at which
    /// the work ends.
    pub(crate) fn open(&mut self, now: Instant, frame: &[u8], headers: &Headers) -> ((usize, OpenResult), Instant) {
        let queue = if self.pairs.len() == 1 { Some(0) } else { self.queue_that_opens(frame, headers) };
        match queue {
            Some(queue) => {
                let (arrived, done_at) = self.pairs[queue].open_at_uplink(now, frame, headers);
                ((queue, arrived), done_at)
            }
            None => ((0, OpenResult::AsItWas), now),
        }
    }

    /// Receives a frame for one of the queues.
    pub(crate) fn take_frame(&mut self, now: Instant, frame: &[u8]) {
        // The headers are parsed once, here, and passed along.
        let headers = Headers::parse(frame);
        let queue = self.queue_for(frame, &headers);
        self.pairs[queue].take_frame(now, frame, &headers);
    }

    /// Receives a frame that no rule of a switch took, after the engines of a queue have processed it.
    pub(crate) fn take_represented(&mut self, now: Instant, frame: &[u8], (queue, arrived): (usize, OpenResult)) {
        let headers = Headers::parse(frame);
        let queue = if matches!(arrived, OpenResult::AsItWas) { self.queue_for(frame, &headers) } else { queue };
        self.pairs[queue].take_represented(now, frame, &headers, arrived);
    }

    /// Counts a packet that an engine of a queue dropped.
    pub(crate) fn note_dropped(&mut self, frame: &[u8], queue: usize) {
        self.pairs[queue].note_dropped(frame);
    }

    /// Wraps a packet by the context `sa` of the first queue, or by the context that a policy of any queue requires. Returns
    /// the packet and the time from which it may leave.
    ///
    /// # Errors
    /// If the packet must not leave; the reason is counted.
    pub(crate) fn wrap(
        &mut self,
        now: Instant,
        frame: Bytes,
        sa: Option<Handle>,
    ) -> Result<(Bytes, Instant), ProtectionFailure> {
        // Handles are local to a queue; switch rules name contexts of the first one.
        if let Some(sa) = sa {
            return self.pairs[0].wrap(now, sa, &frame).ok_or(ProtectionFailure);
        }
        if self.pairs.iter().all(QueuePair::is_empty) {
            return Ok((frame, now));
        }
        let headers = Headers::parse(&frame);
        for pair in &mut self.pairs {
            match pair.claims(&frame, &headers) {
                EgressClaim::Nobody => {}
                EgressClaim::Context(sa) => return pair.wrap(now, sa, &frame).ok_or(ProtectionFailure),
                EgressClaim::Unclear => return Err(ProtectionFailure),
            }
        }
        Ok((frame, now))
    }

    /// Returns the queue of a received frame.
    fn queue_for(&mut self, frame: &[u8], headers: &Headers) -> usize {
        if self.pairs.len() == 1 {
            return 0;
        }
        // A context decides before the hash, because only its own queue can process the packet.
        let following = self.queue_that_follows(frame, headers).or_else(|| self.queue_that_opens(frame, headers));
        following
            .or_else(|| self.hash.hash_frame(frame, headers).map(|hash| self.table[entry_of(hash)].into()))
            .unwrap_or(0)
    }

    /// Returns the queue with a receive context for the frame's flow.
    fn queue_that_follows(&self, frame: &[u8], headers: &Headers) -> Option<usize> {
        if self.pairs.iter().all(QueuePair::follows_nothing) {
            return None;
        }
        let flow = headers.transport()?.flow_of_receiver(frame);
        self.pairs.iter().position(|queue| queue.follows(&flow))
    }

    /// Returns the queue with the context that opens a frame.
    fn queue_that_opens(&mut self, frame: &[u8], headers: &Headers) -> Option<usize> {
        if self.pairs.iter().all(QueuePair::opens_nothing) {
            return None;
        }
        let Self { pairs, fragments, .. } = self;
        // All queues have the same engines, but each engine knows only the ports and policies of its own host shard.
        let opens = |queue: &QueuePair| {
            !queue.opens_nothing()
                && queue
                    .contexts
                    .packet_engines()
                    .any(|(number, engine)| engine.key(frame, headers).is_some_and(|key| queue.opens(number, key)))
        };
        let opener = pairs.iter().position(opens);
        // Only a fragment needs the memory of its packet's first fragment.
        if opener.is_some() || !headers.is_fragment() {
            return opener;
        }
        fragments.look_up(frame, |packet, headers, _| {
            let engines = pairs[0].contexts.packet_engines();
            let mut keys = engines.filter_map(|(number, engine)| Some((number, engine.key_of_first(packet, headers)?)));
            keys.find_map(|(number, key)| pairs.iter().position(|queue| queue.opens(number, key)))
        })
    }

    /// Applies an indirection table that the driver of a queue has set. Commands may run with or without a frame, so
    /// the caller checks after both.
    fn take_table(&mut self, queue: usize) {
        if let Some(table) = self.pairs[queue].new_indirection.take() {
            self.table = *table;
        }
    }
}

/// Maximum number of fragmented SA packets that are tracked at a time.
const FRAGMENTED: usize = 64;
