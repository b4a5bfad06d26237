//! QUIC (RFC 9000, 9001, 9002, 9221; several paths by draft-ietf-quic-multipath-21) whose 1-RTT packets an offload NIC seals
//! and opens, where there is one, and the CPU where there is none.
//!
//! ```text
//!  application -- SendStream, ReceiveStream -- Connection -- Endpoint, Driver -- DatagramSocket (host stack, tokio)
//!                                                |               |
//!                                      noq-proto: the protocol   '-- asks, contexts, keys --> NIC
//! ```
//!
//! - [`Endpoint`] (`endpoint.rs`): a socket's connections, and the [`Driver`] that runs them, for a task to poll;
//! - [`Connection`], [`SendStream`], [`ReceiveStream`]: what an application works with;
//! - `core/`: the endpoint without sockets, clocks and tasks; which packets a device seals, what it is told of connections;
//! - `crypto/`: handshakes by rustls, and the keys that state machine and device share;
//! - [`Config`], [`Offload`]: how it is set up; [`Closed`], [`StreamError`]: what goes wrong.
//!
//! Two hosts in virtual time, whose NICs seal and open; the second sends back what it gets:
//!
//! ```
//! use nic_sim::NicConfig;
//! use offload_base::Seed;
//! use offload_host_stack::TcpConfig;
//! use offload_testbed::Testbed;
//! use offload_testbed::identity::{self, Randomness, server_name};
//! use offload_wire::LinkConfig;
//! use quic_offload::{ClientTls, Config, Connecting, Connection, Driver, Endpoint, Offload, ServerTls};
//! use quic_offload::{PathStatistics, ReceiveStream, SendStream, Statistics};
//!
//! let host = || (NicConfig::default(), TcpConfig::default());
//! let bed = Testbed::builder(Seed(7)).host("near", host().0, host().1).host("far", host().0, host().1);
//! let mut bed = bed.wires(0, 1, [LinkConfig::default()]).build()?;
//! let (near, far) = (bed.host(0).clone(), bed.host(1).clone());
//!
//! let tls = ServerTls::new(identity::server_config(Randomness::Seeded(Seed(1)), None))?;
//! let socket = far.stack().bind_udp(Some(4433))?;
//! let (server, driver): (Endpoint, Driver) = Endpoint::new(socket, far.runtime(), Config::default(), Some(tls))?;
//! let _runs = far.spawn("driver", driver);
//! let _serves = far.spawn("server", async move {
//!     let connection: Connection = server.accept().await.expect("the endpoint is open");
//!     let (mut send, mut receive): (SendStream, ReceiveStream) = connection.accept_bi().await?;
//!     while let Some(data) = receive.receive(1 << 16).await? {
//!         send.send(data).await?;
//!     }
//!     send.finish()?;
//!     Ok::<_, quic_offload::StreamError>(connection.closed().await)
//! });
//!
//! let tls = ClientTls::new(identity::client_config(Randomness::Seeded(Seed(2)), None))?;
//! let config = Config { offload: Offload::Both, ..Config::default() };
//! let (client, driver) = Endpoint::new(near.stack().bind_udp(None)?, near.runtime(), config, None)?;
//! let _runs = near.spawn("driver", driver);
//! let connecting: Connecting = client.connect(&tls, (far.address(), 4433).into(), &server_name().to_str())?;
//! let asked = near.spawn("client", async move {
//!     let connection = connecting.await?;
//!     let (mut send, mut receive) = connection.open_bi().await?;
//!     send.send("hello".into()).await?;
//!     send.finish()?;
//!     let answer = receive.receive(100).await?;
//!     let path: Option<PathStatistics> = connection.path_statistics(0);
//!     Ok::<_, quic_offload::StreamError>((answer, connection.statistics()?, path))
//! });
//! let (answer, statistics, path): (_, Statistics, _) = bed.run(asked)?;
//! assert_eq!(answer.as_deref(), Some(&b"hello"[..]));
//! assert!(statistics.lost == 0 && path.is_some_and(|path| path.sent == statistics.sent));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Whatever the device refuses, loses or does not know, software does: the wire shows the same packets. 0-RTT and version 2
//! are left out.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod core;
mod crypto;
mod endpoint;
mod error;
#[cfg(feature = "h3")]
pub mod http3;
#[cfg(feature = "qlog")]
mod qlog;
mod stream;

pub use crate::core::Counters;
pub use config::{AeadLimits, ClientTls, Config, Offload, ServerTls};
pub use connection::{Connection, PathStatistics, Statistics};
pub use crypto::session::NoInitialSuite;
pub use crypto::tokens::ResetKey;
pub use endpoint::{Connecting, Driver, Endpoint};
pub use error::{Closed, ConnectError, DatagramError, PathError, StreamError};
#[cfg(feature = "qlog")]
pub use qlog::{Qlog, QlogConnection};
pub use stream::{ReceiveStream, SendStream};

#[cfg(all(feature = "tokio", target_os = "linux"))]
pub use offload_api::TokioDatagrams;
#[cfg(feature = "tokio")]
pub use offload_api::TokioTimers;

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {bytes, offload_api as api, offload_base as base, rustls};

/// The README's example is run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
