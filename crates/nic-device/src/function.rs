//! A function: what a host sees of a NIC on PCIe. Its queue pairs, and which of them a received packet comes to.
//!
//! Each queue pair has engines, contexts and memory for them of its own: what a driver creates is on the pair it was
//! created from, so two pairs share no handle, no order of commands and no lock, and a context is where the shard
//! of the host is that knows its flow. So that this holds whatever the indirection table says, a flow that a
//! receive context follows is steered to that context's queue, before the hash is asked; NICs that offload TLS do
//! likewise. So are the packets of an SA, which is at one queue: two must not count one SA's packets, nor one of them
//! overtake others at another queue. That goes for fragments as well, if a packet's first, which alone shows the SA,
//! comes before the rest of it. ESP that no queue has an SA for is hashed by its addresses.

use crate::fragments::Fragments;
use crate::queue_pair::QueuePair;
use nic_rings::config::NicConfig;
use nic_rings::rss::{Toeplitz, entry_of, first_queue};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_base::Instant;
use offload_formats::Headers;

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
    /// Packets that engines open, and that come in fragments.
    fragments: Fragments,
}

impl Function {
    pub(crate) fn new(config: &NicConfig, pairs: Vec<QueuePair>) -> Function {
        Function {
            hash: Toeplitz::new(&config.rss_key),
            table: core::array::from_fn(|entry| first_queue(entry as u32, config.queues)),
            fragments: Fragments::default(),
            pairs,
        }
    }

    /// Its queue pairs, each with what it counted.
    pub fn queue_pairs(&self) -> &[QueuePair] {
        &self.pairs
    }

    pub(crate) fn pairs_mut(&mut self) -> &mut [QueuePair] {
        &mut self.pairs
    }

    /// Takes a frame that is for one of its queues.
    pub(crate) fn take_frame(&mut self, now: Instant, frame: &[u8]) {
        // Found once, here: whoever asks for them later is handed them.
        let headers = Headers::parse(frame);
        let queue = self.queue_for(frame, &headers);
        self.pairs[queue].take_frame(now, frame, &headers);
    }

    /// The queue that a received frame goes to.
    fn queue_for(&mut self, frame: &[u8], headers: &Headers) -> usize {
        if self.pairs.len() == 1 {
            return 0;
        }
        let following = self.queue_that_follows(frame, headers).or_else(|| self.queue_that_opens(frame, headers));
        following
            .or_else(|| self.hash.of_frame(frame, headers).map(|hash| self.table[entry_of(hash)].into()))
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
        fragments.queue_for(frame, |packet, headers| {
            let engines = pairs[0].contexts.packet_engines();
            let mut keys = engines.filter_map(|(number, engine)| Some((number, engine.key_of_first(packet, headers)?)));
            keys.find_map(|(number, key)| pairs.iter().position(|queue| queue.opens(number, key)))
        })
    }

    /// Takes the table that a queue's driver has set, if that was carried out, which is so on the way to a frame and without one.
    pub(crate) fn take_table(&mut self, queue: usize) {
        if let Some(table) = self.pairs[queue].new_indirection.take() {
            self.table = *table;
        }
    }
}
