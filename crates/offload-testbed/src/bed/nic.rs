//! The NIC of a host, or the host's function of another host's NIC.

use crate::runtime::lock;
use nic_sim::dma::DmaBytes;
use nic_sim::{Device, Function, QueuePair, SwitchedDevice, Vport};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use std::sync::{Arc, Mutex};

/// The PCI device of a host.
#[derive(Clone)]
pub(super) enum HostNic {
    /// A NIC of the host's own, without a switch.
    Own(Arc<Mutex<Device>>),
    /// A function of a NIC with a switch. The physical function belongs to the NIC's own host.
    Function { nic: Arc<Mutex<SwitchedDevice>>, port: Vport },
}

impl HostNic {
    pub(super) fn reset(&self, now: Instant) {
        match self {
            HostNic::Own(device) => lock(device).reset(now),
            // The physical function stands for the whole NIC, so the switch is reset too.
            HostNic::Function { nic, port: Vport::Physical } => lock(nic).reset(now),
            HostNic::Function { nic, port } => {
                lock(nic).reset_function(now, *port);
            }
        }
    }

    pub(super) fn contexts(&self) -> usize {
        self.ask(Function::contexts).unwrap_or_default()
    }

    pub(super) fn queue_counters(&self) -> Vec<CounterSet> {
        let of_queue = |queue: &QueuePair| {
            let mut set = CounterSet::default();
            queue.count(&mut set);
            set
        };
        let of_each = |function: &Function| function.queue_pairs().iter().map(of_queue).collect();
        self.ask(of_each).unwrap_or_default()
    }

    pub(super) fn dma(&self) -> DmaBytes {
        self.ask(Function::dma).unwrap_or_default()
    }

    /// Adds the function's counters to `set`; for the NIC's own host, also the counters of the switch.
    pub(super) fn count(&self, set: &mut CounterSet) {
        match self {
            HostNic::Function { nic, port: Vport::Physical } => lock(nic).count(set),
            _ => {
                let _ = self.ask(|function| function.count(set));
            }
        }
    }

    /// Calls `ask` with the function. Returns `None` if the function was removed.
    fn ask<T>(&self, ask: impl FnOnce(&Function) -> T) -> Option<T> {
        match self {
            HostNic::Own(device) => Some(ask(lock(device).function())),
            HostNic::Function { nic, port } => lock(nic).function(*port).map(ask),
        }
    }
}
