//! The receive-side scaling face of a device: packets spread over its queues by a hash of their flow.
//!
//! A device with several queue pairs shows each as a [`NetDevice`](crate::NetDevice) of its own, for a shard of the
//! host. Which one a flow's packets come to is decided by a hash of its addresses and ports, by way of a table; but a
//! flow that one of the queue's contexts follows stays with that queue.

use crate::refused::Refused;

/// What a stack may ask of a device that spreads packets over queues.
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
    /// Which queue this is, from 0 on.
    fn queue(&self) -> u16;

    /// How many there are.
    fn queues(&self) -> u16;

    /// Has the packets whose hash ends in `n` (in its last seven bits) come to queue `table[n]` from now on. Packets of
    /// flows that are alive may come to another queue than before: the hosts' shards hand them to each other.
    ///
    /// # Errors
    /// If the table names a queue that is not there ([`Refused::Unsupported`]), or the control ring is full.
    fn set_indirection(&mut self, table: &[u16; INDIRECTION_ENTRIES]) -> Result<(), Refused>;
}

/// Entries of an indirection table.
pub const INDIRECTION_ENTRIES: usize = 128;
