//! Test beds: hosts, NICs and wires put together, in virtual or in real time.
//!
//! - [`bed`]: the builder, and the hosts it builds;
//! - [`runtime`]: the runtime interface of hosts, devices and wires, for every clock;
//! - [`executor`]: two executors: [`VirtualTime`] runs a sequence of events and repeats to the byte, [`RealTime`] runs
//!   tasks on a thread;
//! - [`tokio_runtime`]: tokio for applications outside a testbed, on the clock of the devices;
//! - [`domain`]: charges a task's time to a host, a device or the wires;
//! - [`drive`]: drives in virtual time, and threads on which storage waits for its drives;
//! - [`fabric`]: the tasks that join ports by wires;
//! - [`attach`]: ports to the outside: a guest's network card, a TAP of this machine;
//! - [`bridge`]: relays between the kernel's sockets and emulated hosts, so that any program can be a peer;
//! - [`overlay`]: tenants with virtual machines on two hypervisors, in networks over tunnels;
//! - [`capture`]: captures for Wireshark, secrets included;
//! - [`trace`]: timelines for Perfetto;
//! - [`identity`], [`secrets`]: TLS configurations with a fixed certificate, and randomness from a seed.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod attach;
pub mod bed;
pub mod bridge;
pub mod capture;
mod ccm_suite;
pub mod domain;
pub mod drive;
pub mod executor;
pub mod fabric;
pub mod identity;
pub mod overlay;
mod real_threads;
pub mod runtime;
pub mod secrets;
pub mod tokio_runtime;
pub mod trace;

pub use bed::{BedHost, Builder, ClockKind, Eswitch, Testbed};
pub use capture::Capture;
pub use domain::in_domain;
pub use executor::{Handle, RealTime, RealTimeConfig, VirtualTime};
pub use fabric::{Cable, Station, connect};
pub use runtime::{JoinHandle, Runtime, Sleep};
pub use tokio_runtime::TokioRuntime;
pub use trace::{ApplicationTrack, TraceSummary, Tracer};

pub use nic_sim::{NicConfig, wire};
pub use offload_base::Seed;
pub use offload_host_stack::TcpConfig;
/// Re-exports of the crates with types in this interface, so that a program needs no other dependency.
pub use {nic_sim, offload_api as api, offload_base as base, offload_host_stack as host_stack};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
