//! Which packets come to this queue, and the table that says so.

use super::Driver;
use nic_rings::config::NicConfig;
use nic_rings::packet::ControlCommand;
use nic_rings::rss::{Toeplitz, first_queue};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{FlowKey, ContextRefusal, RssDevice};

/// Which of the NIC's queues this is, and which flows' packets come to it.
#[derive(Debug)]
pub(super) struct RssQueue {
    queue: u16,
    queues: u16,
    /// With one queue there is nothing to hash.
    hash: Option<Box<Toeplitz>>,
}

impl RssQueue {
    pub(super) fn new(config: &NicConfig, queue: u16) -> RssQueue {
        let hash = (config.queues > 1).then(|| Box::new(Toeplitz::new(&config.rss_key)));
        RssQueue { queue, queues: config.queues, hash }
    }

    /// By the table the device began with: what is chosen by it stays apart, whatever the table is later.
    pub(super) fn serves(&self, flow: &FlowKey) -> bool {
        self.hash.as_ref().is_none_or(|hash| first_queue(hash.of_flow(flow), self.queues) == self.queue)
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
        if table.iter().any(|queue| *queue >= self.rss.queues) {
            return Err(ContextRefusal::Unsupported);
        }
        self.command(ControlCommand::SetIndirection { table: Box::new(*table) })?;
        self.ring_doorbell();
        Ok(())
    }
}
