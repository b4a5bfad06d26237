//! What a run reports: the same facts as a table for people and as JSON for programs.

use offload_base::cost::{CpuReport, Domain, WORKS, WorkKind};
use serde::Serialize;
use std::collections::BTreeMap;

/// One or more runs, made with the same options.
///
/// ```
/// use offload_bench_tls::facts::{Clock, Facts};
///
/// let facts: Facts = Facts { command: "ktls_loopback".into(), seed: 1, clock: Clock::Virtual, ..Facts::default() };
/// assert!(facts.to_json().contains(r#""clock":"virtual""#));
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Facts<R = Run> {
    /// The command that made them.
    pub command: String,
    /// The seed everything random came from.
    pub seed: u64,
    /// Whose seconds goodput is in.
    pub clock: Clock,
    /// The options that matter for the outcome, as they were given or stand.
    pub options: BTreeMap<String, String>,
    /// The values of the NICs by name, where the options can set them.
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
            clock: Clock::Virtual,
            options: BTreeMap::new(),
            nic: BTreeMap::new(),
            runs: Vec::new(),
        }
    }
}

impl<R: Serialize> Facts<R> {
    /// All of it as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// Whose seconds a goodput is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Simulated ones.
    #[default]
    Virtual,
    /// This machine's.
    Real,
}

impl core::fmt::Display for Clock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Clock::Virtual => "virtual",
            Clock::Real => "real",
        })
    }
}

/// What one run reports.
///
/// See [`Bulk`](crate::bulk::Bulk) for an example.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was run: `tcp`, `tls-cpu`, `tls-nic`.
    pub mode: String,
    /// Bytes of user data that arrived.
    pub bytes: u64,
    /// Whether the SHA-256 of what arrived is that of what was sent.
    pub sha256_ok: bool,
    /// User data per second between the receiver's go and its last byte, in 10^9 bits.
    pub goodput_gbps: f64,
    /// The sending host's CPU time.
    pub tx_host_ns_per_byte: HostCost,
    /// The receiving host's CPU time.
    pub rx_host_ns_per_byte: HostCost,
    /// CPU time of both devices: what emulating them cost.
    pub device_ns_per_byte: f64,
    /// Packets sent, both ways.
    pub packets: u64,
    /// Counters of both hosts, devices and the wire, added up by name; those that moved.
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
    /// Moving payload.
    pub copy: f64,
    /// Making and taking apart records.
    pub framing: f64,
    /// Encrypting, decrypting, authenticating.
    pub crypto: f64,
    /// Checking and making digests.
    pub crc: f64,
    /// All of it.
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

    /// The cost of `host` in a report, spread over `bytes` bytes.
    pub fn of(report: &CpuReport, host: Domain, bytes: u64) -> HostCost {
        let per_byte = |work| report.cpu(host, work).as_nanos() as f64 / bytes.max(1) as f64;
        HostCost {
            stack: per_byte(WorkKind::Stack),
            copy: per_byte(WorkKind::Copy),
            framing: per_byte(WorkKind::Framing),
            crypto: per_byte(WorkKind::Crypto),
            crc: per_byte(WorkKind::Digest),
            total: WORKS.iter().filter(|work| **work != WorkKind::Application).map(|work| per_byte(*work)).sum(),
        }
    }
}
