//! Receive-side scaling (RSS): a device spreads packets over its queues by a hash of their flow.
//!
//! A device with several queue pairs presents each queue as a [`NetDevice`](crate::NetDevice), for one shard of the
//! host. A hash of addresses and ports selects the queue through an indirection table. Flows with a context stay on the
//! queue of the context.

use crate::refused::ContextRefusal;

/// The RSS interface of one queue.
///
/// See `nic_sim::multi_queue_nic` for an example.
///
/// ```
/// use nic_sim::{NicConfig, multi_queue_nic};
/// use offload_api::{NetDevice, RssDevice};
///
/// let (_device, mut drivers) = multi_queue_nic(NicConfig { queues: 4, ..NicConfig::default() });
/// let second: &mut dyn RssDevice = drivers[1].rss().unwrap();
/// assert_eq!((second.queue(), second.queues()), (1, 4));
/// assert_eq!(second.set_indirection(&[3; 128]), Ok(()), "all new flows to the last queue");
/// ```
pub trait RssDevice {
    /// Returns the index of this queue, from 0.
    fn queue(&self) -> u16;

    /// Returns the number of queues.
    fn queues(&self) -> u16;

    /// Replaces the indirection table: packets with the last seven bits of their hash equal to `n` go to queue
    /// `table[n]` from now on. Packets of existing flows may change their queue, and the host's shards then pass them
    /// to each other.
    ///
    /// # Errors
    /// If the table names a queue that does not exist ([`ContextRefusal::Unsupported`]), or the control ring is full.
    fn set_indirection(&mut self, table: &[u16; INDIRECTION_ENTRIES]) -> Result<(), ContextRefusal>;
}

/// Number of entries of an indirection table.
pub const INDIRECTION_ENTRIES: usize = 128;
