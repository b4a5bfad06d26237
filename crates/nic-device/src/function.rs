//! A function: what a host sees of a NIC on PCIe. Its queue pairs, and which of them a received packet comes to.
//!
//! Each queue pair has engines, contexts and memory for them of its own: what a driver creates is on the pair it was
//! created from, so two pairs share no handle, no order of commands and no lock, and a context is where the shard
//! of the host is that knows its flow. So that this holds whatever the indirection table says, a flow that a
//! receive context follows is steered to that context's queue, before the hash is asked; NICs that offload TLS do
//! likewise. So are the packets of an SA, which is at one queue: two must not count one SA's packets, nor one of them
//! overtake others at another queue. That goes for fragments as well, if a packet's first, which alone shows the SA,
//! comes before the rest of it. ESP that no queue has an SA for is hashed by its addresses.
//!
//! Invariant: it sends one frame at a time, the queues' in turn.

use crate::queue_pair::transmit::line_time;
use crate::queue_pair::{Arrived, QueuePair};
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
    /// Packets that engines open, and that come in fragments: the queue with the context.
    fragments: FragmentMemory<usize>,
    /// The queue that is asked for a frame next.
    turn: usize,
    /// `None` with one queue, which keeps the time itself.
    line_rate: Option<u64>,
    /// When what it was given to send is sent.
    port_free_at: Instant,
}

/// A packet must not leave.
#[derive(Debug)]
pub(crate) struct Refused;

impl Function {
    /// For `nic-sim`, which makes the drivers as well.
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

    /// Its queue pairs, each with what it counted.
    pub fn queue_pairs(&self) -> &[QueuePair] {
        &self.pairs
    }

    /// What all queue pairs counted, together, but for engines.
    pub fn counters(&self) -> DeviceCounters {
        let mut all = DeviceCounters::default();
        self.pairs.iter().for_each(|pair| all += pair.counters());
        all
    }

    /// What engines with counters of the type `C` counted at all queue pairs, together.
    pub fn engine_counters<C: EngineCounters>(&self) -> C {
        let mut sum = C::default();
        self.pairs.iter().for_each(|pair| pair.add_engine_counters(&mut sum));
        sum
    }

    /// Adds what all queue pairs counted to `set`, engines included.
    pub fn count(&self, set: &mut CounterSet) {
        self.pairs.iter().for_each(|pair| pair.count(set));
    }

    /// How many contexts there are, on the NIC and in host memory.
    pub fn contexts(&self) -> usize {
        self.pairs.iter().map(QueuePair::contexts).sum()
    }

    /// What was moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        self.pairs.iter().for_each(|pair| all += pair.dma());
        all
    }

    /// Every queue pair's contexts are gone ([`QueuePair::reset`]). The indirection table stays.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.pairs.iter_mut().for_each(|pair| pair.reset(now));
    }

    /// The next frame that leaves it, if one does at `now` or earlier.
    pub(crate) fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        if self.port_free_at > now {
            return None;
        }
        for _ in 0..self.pairs.len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.pairs.len();
            let frame = self.pairs[queue].poll_frame(now);
            self.take_table(queue);
            if let Some(frame) = frame {
                self.port_free_at = self.port_free_at.max(now) + line_time(&frame, self.line_rate);
                return Some(frame);
            }
        }
        None
    }

    /// Does what is due, but for frames.
    pub(crate) fn process(&mut self, now: Instant) {
        for queue in 0..self.pairs.len() {
            self.pairs[queue].process(now);
            self.take_table(queue);
        }
    }

    /// When something else is due.
    pub(crate) fn next_other(&self) -> Option<Instant> {
        self.pairs.iter().filter_map(QueuePair::next_other).min()
    }

    /// When anything is due.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let of_pair = |pair: &QueuePair| {
            let frame = pair.next_transmit().map(|at| at.max(self.port_free_at));
            earliest(frame, pair.next_other())
        };
        self.pairs.iter().filter_map(of_pair).min()
    }

    /// Has `waker` woken at the next doorbell of any queue.
    pub(crate) fn register_doorbell(&mut self, waker: &Waker) {
        self.pairs.iter_mut().for_each(|pair| pair.register_doorbell(waker));
    }

    /// Runs a frame that came by the uplink through the engine that it is for, if any is; tells at which queue, and when that is done.
    pub(crate) fn open(&mut self, now: Instant, frame: &[u8], headers: &Headers) -> ((usize, Arrived), Instant) {
        let queue = if self.pairs.len() == 1 { Some(0) } else { self.queue_that_opens(frame, headers) };
        match queue {
            Some(queue) => {
                let (arrived, done_at) = self.pairs[queue].open_at_uplink(now, frame, headers);
                ((queue, arrived), done_at)
            }
            None => ((0, Arrived::AsItWas), now),
        }
    }

    /// Takes a frame that is for one of its queues.
    pub(crate) fn take_frame(&mut self, now: Instant, frame: &[u8]) {
        // Found once, here: whoever asks for them later is handed them.
        let headers = Headers::parse(frame);
        let queue = self.queue_for(frame, &headers);
        self.pairs[queue].take_frame(now, frame, &headers);
    }

    /// Takes a frame that no rule of a switch took, and for which the engines of a queue have done what they can.
    pub(crate) fn take_represented(&mut self, now: Instant, frame: &[u8], (queue, arrived): (usize, Arrived)) {
        let headers = Headers::parse(frame);
        let queue = if matches!(arrived, Arrived::AsItWas) { self.queue_for(frame, &headers) } else { queue };
        self.pairs[queue].take_represented(now, frame, &headers, arrived);
    }

    /// Counts a packet that an engine of a queue would not have.
    pub(crate) fn note_dropped(&mut self, frame: &[u8], queue: usize) {
        self.pairs[queue].note_dropped(frame);
    }

    /// Wraps a packet by a context of the first queue, or by that of any queue which its policies ask for. `Ok`: it may leave, from then on.
    /// `Err`: it must not, which is counted.
    pub(crate) fn wrap(&mut self, now: Instant, frame: Bytes, sa: Option<Handle>) -> Result<(Bytes, Instant), Refused> {
        if let Some(sa) = sa {
            return self.pairs[0].wrap(now, sa, &frame).ok_or(Refused);
        }
        if self.pairs.iter().all(QueuePair::is_empty) {
            return Ok((frame, now));
        }
        let headers = Headers::parse(&frame);
        for pair in &mut self.pairs {
            match pair.claims(&frame, &headers) {
                EgressClaim::Nobody => {}
                EgressClaim::Context(sa) => return pair.wrap(now, sa, &frame).ok_or(Refused),
                EgressClaim::Unclear => return Err(Refused),
            }
        }
        Ok((frame, now))
    }

    /// The queue that a received frame goes to.
    fn queue_for(&mut self, frame: &[u8], headers: &Headers) -> usize {
        if self.pairs.len() == 1 {
            return 0;
        }
        let following = self.queue_that_follows(frame, headers).or_else(|| self.queue_that_opens(frame, headers));
        following
            .or_else(|| self.hash.hash_frame(frame, headers).map(|hash| self.table[entry_of(hash)].into()))
            .unwrap_or(0)
    }

    /// The queue with a receive context for the frame's flow.
    fn queue_that_follows(&self, frame: &[u8], headers: &Headers) -> Option<usize> {
        if self.pairs.iter().all(QueuePair::follows_nothing) {
            return None;
        }
        let flow = headers.transport()?.flow_of_receiver(frame);
        self.pairs.iter().position(|queue| queue.follows(&flow))
    }

    /// The queue with the context that opens a frame.
    fn queue_that_opens(&mut self, frame: &[u8], headers: &Headers) -> Option<usize> {
        if self.pairs.iter().all(QueuePair::opens_nothing) {
            return None;
        }
        let Self { pairs, fragments, .. } = self;
        // All have the same engines, but each queue's know what that queue's host told them.
        let opens = |queue: &QueuePair| {
            !queue.opens_nothing()
                && queue
                    .contexts
                    .packet_engines()
                    .any(|(number, engine)| engine.key(frame, headers).is_some_and(|key| queue.opens(number, key)))
        };
        let opener = pairs.iter().position(opens);
        if opener.is_some() || !headers.is_fragment() {
            return opener;
        }
        fragments.look_up(frame, |packet, headers, _| {
            let engines = pairs[0].contexts.packet_engines();
            let mut keys = engines.filter_map(|(number, engine)| Some((number, engine.key_of_first(packet, headers)?)));
            keys.find_map(|(number, key)| pairs.iter().position(|queue| queue.opens(number, key)))
        })
    }

    /// Takes the table that a queue's driver has set, if that was carried out, which is so on the way to a frame and without one.
    fn take_table(&mut self, queue: usize) {
        if let Some(table) = self.pairs[queue].new_indirection.take() {
            self.table = *table;
        }
    }
}

/// Packets of SAs that come in fragments at a time.
const FRAGMENTED: usize = 64;
