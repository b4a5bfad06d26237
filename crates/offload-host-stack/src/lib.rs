//! A sans-IO TCP/IP stack of a host. Segments keep the device's verdicts.
//!
//! Every received range keeps its sequence number and the device's verdict through reassembly up to the application.
//! Every queued range carries the context that processes it and its position in its records. The send queue is the
//! [`RecordSource`](offload_api::RecordSource) from which a driver rebuilds a context. If no device accepts a unit, the
//! stack has the unit sealed in software. Both work while nobody polls the stream and after the application has dropped
//! it.
//!
//! ```text
//!   TcpStream, TcpListener, UdpSocket, Host      async, runtime-neutral: one mutex around stack and device
//!            |
//!          Stack                      packets and `now` in, packets and deadlines out
//!            |-- flow table, timers, udp, network (IPv4 and IPv6, ARP and NDP, ICMP, Ethernet)
//!            '-- tcp: one state machine per connection
//!            |
//!       dyn NetDevice                 a driver, or a test's mock
//! ```
//!
//! A test can drive [`Stack`] by hand. [`Host`] drives its stack from a service task and from the application's calls.

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
pub use flow_table::FlowId;
pub use offload_api::Datagram;
pub use shell::{Host, TcpListener, TcpStream, UdpSocket};
pub use stack::{SocketOpenError, Stack};
pub use tcp::{ConnectionError, Readiness, TcpState, TcpStats};
pub use udp::SendError;

/// The crates of the types in this API, so that a program does not need its own dependency on them.
pub use {offload_api as api, offload_base as base};

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
