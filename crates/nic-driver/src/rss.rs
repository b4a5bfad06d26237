//! The distribution of packets over queues, and its table.

use super::Driver;
use nic_rings::config::NicConfig;
use nic_rings::packet::ControlCommand;
use nic_rings::rss::{Toeplitz, first_queue};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{ContextRefusal, FlowKey, RssDevice};

/// The number of this queue, and the means to tell its flows.
#[derive(Debug)]
pub(super) struct RssQueue {
    queue: u16,
    queues: u16,
    /// Hash of flows. `None` with a single queue.
    hash: Option<Box<Toeplitz>>,
}

impl RssQueue {
    pub(super) fn new(config: &NicConfig, queue: u16) -> RssQueue {
        let hash = (config.queues > 1).then(|| Box::new(Toeplitz::new(&config.rss_key)));
        RssQueue { queue, queues: config.queues, hash }
    }

    /// Uses the initial table, so that flows chosen for a queue stay apart if the table changes later.
    pub(super) fn serves(&self, flow: &FlowKey) -> bool {
        self.hash.as_ref().is_none_or(|hash| first_queue(hash.hash_flow(flow), self.queues) == self.queue)
    }
}

impl RssDevice for Driver {
    fn queue(&self) -> u16 {
        self.rss.queue
    }

    fn queues(&self) -> u16 {
        self.rss.queues
    }

    fn set_indirection(&mut self, table: &[u16; INDIRECTION_ENTRIES]) -> Result<(), ContextRefusal> {
        // The device would index a queue that does not exist.
        if table.iter().any(|queue| *queue >= self.rss.queues) {
            return Err(ContextRefusal::Unsupported);
        }
        self.command(ControlCommand::SetIndirection { table: Box::new(*table) })?;
        self.ring_doorbell();
        Ok(())
    }
}
