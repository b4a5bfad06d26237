//! A host's TCP/IP stack, sans-IO, whose segments keep what the device said about them.
//!
//! Every received range keeps its sequence number and the device's verdict through reassembly up to the
//! application; every queued range carries the context that is to work on it and its place in its records. The
//! send queue is the [`RecordSource`](offload_api::RecordSource) a driver asks when it has to rebuild a context,
//! and has units sealed by software when no device will: with nobody polling, and after the application has gone.
//!
//! ```text
//!   TcpStream, TcpListener, UdpSocket, Host      async, runtime-neutral: one mutex around stack and device
//!            |
//!          Stack                      packets and `now` in, packets and deadlines out
//!            |-- flow table, timers, udp, network (IPv4 and IPv6, ARP and NDP, ICMP, Ethernet)
//!            '-- tcp: a connection at a time
//!            |
//!       dyn NetDevice                 a driver, or a test's mock
//! ```
//!
//! [`Stack`] can be driven by hand, as its tests do; [`Host`] drives it from a service task and from the calls of
//! the application, whichever comes first.

#![forbid(unsafe_code)]

mod config;
mod counters;
mod flow_table;
mod hash;
mod limit;
mod memory;
mod network;
mod shell;
mod stack;
mod tcp;
mod timers;
mod udp;

pub use config::{Config, CongestionAlgorithm, Ecn, Ipv6Config, KeepAlive, TcpConfig, TcpMemory};
pub use counters::HostCounters;
pub use flow_table::ConnectionId;
pub use offload_api::Datagram;
pub use shell::{Host, TcpListener, TcpStream, UdpSocket};
pub use stack::{OpenError, Stack};
pub use tcp::{ConnectionError, Readiness, State, TcpStats};
pub use udp::SendError;

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {offload_api as api, offload_base as base};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
