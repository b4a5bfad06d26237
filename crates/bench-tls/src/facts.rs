//! The facts of a run, as a table for people and as JSON for programs.

use offload_base::cost::{CpuReport, Domain, WORKS, WorkKind};
use serde::Serialize;
use std::collections::BTreeMap;

/// One or more runs with the same options.
///
/// ```
/// use offload_bench_tls::facts::{RunClock, Facts};
///
/// let facts: Facts = Facts { command: "ktls_loopback".into(), seed: 1, clock: RunClock::Virtual, ..Facts::default() };
/// assert!(facts.to_json().contains(r#""clock":"virtual""#));
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Facts<R = Run> {
    /// The command that made the runs.
    pub command: String,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The clock of the goodput.
    pub clock: RunClock,
    /// Options that affect the result, as given or by default.
    pub options: BTreeMap<String, String>,
    /// Values of the NICs by name, if the options can set them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nic: BTreeMap<String, String>,
    /// The runs, in the order they were made.
    pub runs: Vec<R>,
}

impl<R> Default for Facts<R> {
    fn default() -> Facts<R> {
        Facts {
            command: String::new(),
            seed: 0,
            clock: RunClock::Virtual,
            options: BTreeMap::new(),
            nic: BTreeMap::new(),
            runs: Vec::new(),
        }
    }
}

impl<R: Serialize> Facts<R> {
    /// Returns everything as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// The clock of the goodput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunClock {
    /// Simulated time.
    #[default]
    Virtual,
    /// Real time of this machine.
    Real,
}

impl core::fmt::Display for RunClock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            RunClock::Virtual => "virtual",
            RunClock::Real => "real",
        })
    }
}

/// The result of one run.
///
/// See [`Bulk`](crate::bulk::Bulk) for an example.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The mode: `tcp`, `tls-cpu`, `tls-nic`.
    pub mode: String,
    /// Received bytes of user data.
    pub bytes: u64,
    /// Whether the received data has the SHA-256 of the sent data.
    pub sha256_ok: bool,
    /// User data per second from the receiver's *go* to the last byte, in 10^9 bits.
    pub goodput_gbps: f64,
    /// The sending host's CPU time.
    pub tx_host_ns_per_byte: HostCost,
    /// The receiving host's CPU time.
    pub rx_host_ns_per_byte: HostCost,
    /// CPU time of both emulated devices.
    pub device_ns_per_byte: f64,
    /// Packets sent in both directions.
    pub packets: u64,
    /// Counters of both hosts, devices and the wire that moved, summed by name.
    pub counters: BTreeMap<String, u64>,
    /// Bytes over PCIe at both ends, by purpose.
    pub dma_bytes: BTreeMap<String, u64>,
}

impl Run {
    /// Returns the CPU time of both hosts per byte of user data, in nanoseconds.
    pub fn host_ns_per_byte(&self) -> f64 {
        self.tx_host_ns_per_byte.total + self.rx_host_ns_per_byte.total
    }
}

/// CPU time of a host per byte of user data, in nanoseconds, by kind of work.
///
/// See [`Bulk`](crate::bulk::Bulk) for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HostCost {
    /// TCP/IP and driver.
    pub stack: f64,
    /// Copying payload.
    pub copy: f64,
    /// Building and parsing records.
    pub framing: f64,
    /// Encryption, decryption and authentication.
    pub crypto: f64,
    /// Digests.
    pub crc: f64,
    /// The sum.
    pub total: f64,
}

impl HostCost {
    /// Returns the sum of two hosts' costs.
    pub fn plus(&self, other: &HostCost) -> HostCost {
        HostCost {
            stack: self.stack + other.stack,
            copy: self.copy + other.copy,
            framing: self.framing + other.framing,
            crypto: self.crypto + other.crypto,
            crc: self.crc + other.crc,
            total: self.total + other.total,
        }
    }

    /// Returns the cost of `host` in a report, divided by `bytes` bytes.
    pub fn from_report(report: &CpuReport, host: Domain, bytes: u64) -> HostCost {
        let per_byte = |work| report.cpu(host, work).as_nanos() as f64 / bytes.max(1) as f64;
        HostCost {
            stack: per_byte(WorkKind::Stack),
            copy: per_byte(WorkKind::Copy),
            framing: per_byte(WorkKind::Framing),
            crypto: per_byte(WorkKind::Crypto),
            crc: per_byte(WorkKind::Digest),
            // The test application's own work is no cost of the stack.
            total: WORKS.iter().filter(|work| **work != WorkKind::Application).map(|work| per_byte(*work)).sum(),
        }
    }
}
