//! The costs, counters and PCIe bytes of a finished run, reported alike by all scenarios.

use crate::facts::{HostCost, Run};
use core::time::Duration;
use ktls_offload::TlsCounters;
use offload_base::cost::{CpuMeter, CpuReport, Domain};
use offload_base::counters::CounterSet;
use offload_testbed::bed::Testbed;

/// Costs and counters of a finished run. Host 0 is the sender, host 1 the receiver. See [`Bulk`](crate::bulk::Bulk) for an example.
pub struct Measured {
    /// The CPU time of hosts and devices.
    pub report: CpuReport,
    counters: CounterSet,
    dma_bytes: CounterSet,
}

impl Measured {
    /// Takes all measurements and ends the testbed, because its threads report their CPU time at their end.
    pub fn take<'a>(bed: Testbed, meter: &CpuMeter, others: impl IntoIterator<Item = &'a TlsCounters>) -> Measured {
        let (mut counters, mut dma_bytes) = (bed.counters(), CounterSet::default());
        // Counters of closed TLS streams are not part of the testbed's.
        others.into_iter().for_each(|other| counters.add(other));
        dma_bytes.add(&bed.dma());
        drop(bed);
        Measured { report: meter.take(), counters, dma_bytes }
    }

    /// Returns the facts of a run that moved `bytes` bytes in `span`.
    pub fn run(&self, mode: impl ToString, bytes: u64, whole: bool, span: Duration) -> Run {
        let devices = self.report.total(Domain::Device(0)) + self.report.total(Domain::Device(1));
        let owned = |(name, value): (&'static str, u64)| (name.to_string(), value);
        Run {
            mode: mode.to_string(),
            bytes,
            sha256_ok: whole,
            goodput_gbps: bytes as f64 * 8.0 / span.as_nanos().max(1) as f64,
            tx_host_ns_per_byte: HostCost::from_report(&self.report, Domain::Host(0), bytes),
            rx_host_ns_per_byte: HostCost::from_report(&self.report, Domain::Host(1), bytes),
            device_ns_per_byte: devices.as_nanos() as f64 / bytes.max(1) as f64,
            packets: self.counters.value("tx_packets"),
            counters: self.counters.moved().map(owned).collect(),
            dma_bytes: self.dma_bytes.iter().map(owned).collect(),
        }
    }
}
