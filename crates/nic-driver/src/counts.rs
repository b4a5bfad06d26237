//! What is counted of contexts, by engine.

use crate::stats::DriverCounters;
use offload_api::{Direction, Handle, engines};

/// Of all engines, by number, and at the end of what names none.
#[derive(Debug)]
pub(super) struct Counts(Vec<OfEngine>);

/// Of one engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfEngine {
    transmit: OfDirection,
    receive: OfDirection,
    /// Transmit contexts that did not come from the pool, and those that did not go there.
    pub(super) pool_alloc: u64,
    pub(super) pool_free: u64,
    placed: u64,
    not_placed: u64,
    pub(super) released: u64,
    /// Times that a context was asked where it thinks a unit starts, and that it told.
    pub(super) asked: u64,
    pub(super) told: u64,
    /// Questions and answers that came to nothing.
    pub(super) skipped: u64,
    /// Answers that waited for room.
    pub(super) retried: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfDirection {
    created: u64,
    refused: u64,
    removed: u64,
}

impl Counts {
    pub(super) fn new(engines: usize) -> Counts {
        Counts(vec![OfEngine::default(); engines + 1])
    }

    pub(super) fn of(&mut self, handle: Handle) -> &mut OfEngine {
        self.of_engine(handle.engine())
    }

    /// What names no engine is counted apart.
    pub(super) fn of_engine(&mut self, engine: u8) -> &mut OfEngine {
        let last = self.0.len() - 1;
        &mut self.0[usize::from(engine).min(last)]
    }

    /// Adds them under the names that the engines of every NIC have for them.
    pub(super) fn add_to(&self, counters: &mut DriverCounters) {
        let of = |engine: u8| self.0.get(usize::from(engine)).copied().unwrap_or_default();
        let tls = of(engines::TLS);
        counters.tx_tls_ctx += tls.transmit.created;
        counters.tx_tls_del += tls.transmit.removed;
        counters.tx_tls_pool_alloc += tls.pool_alloc;
        counters.tx_tls_pool_free += tls.pool_free;
        counters.rx_tls_ctx += tls.receive.created;
        counters.rx_tls_del += tls.receive.removed;
        counters.rx_tls_resync_req_start += tls.asked;
        counters.rx_tls_resync_req_end += tls.told;
        counters.rx_tls_resync_req_skip += tls.skipped;
        counters.rx_tls_resync_res_retry += tls.retried;
        let nvme = of(engines::NVME_TCP);
        counters.rx_nvmeotcp_sk_add += nvme.receive.created;
        counters.rx_nvmeotcp_sk_add_fail += nvme.receive.refused;
        counters.rx_nvmeotcp_sk_del += nvme.receive.removed;
        counters.rx_nvmeotcp_ddp_setup += nvme.placed;
        counters.rx_nvmeotcp_ddp_setup_fail += nvme.not_placed;
        counters.rx_nvmeotcp_ddp_teardown += nvme.released;
        counters.tx_nvmeotcp_sk_add += nvme.transmit.created;
        counters.tx_nvmeotcp_sk_add_fail += nvme.transmit.refused;
        counters.tx_nvmeotcp_sk_del += nvme.transmit.removed;
    }
}

impl OfEngine {
    pub(super) fn note_created(&mut self, direction: Direction, done: bool) {
        let of = self.direction(direction);
        of.created += u64::from(done);
        of.refused += u64::from(!done);
    }

    pub(super) fn note_removed(&mut self, direction: Direction) {
        self.direction(direction).removed += 1;
    }

    pub(super) fn note_placed(&mut self, done: bool) {
        self.placed += u64::from(done);
        self.not_placed += u64::from(!done);
    }

    fn direction(&mut self, direction: Direction) -> &mut OfDirection {
        match direction {
            Direction::Transmit => &mut self.transmit,
            Direction::Receive => &mut self.receive,
        }
    }
}
