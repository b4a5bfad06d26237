#![doc = include_str!("../README.md")]
//!
//! # Parts
//! ```text
//!  application: SendStream, ReceiveStream, Connection, Endpoint
//!       |
//!  Driver --- noq-proto: the protocol
//!       |
//!  DatagramSocket (host stack, tokio) --- contexts, keys, asks --> NIC
//! ```
//!
//! - [`Endpoint`]: the connections of a UDP socket. Its [`Driver`] runs them; a task polls the driver. `TokioEndpoint`
//!   does both.
//! - [`Connection`], [`SendStream`], [`ReceiveStream`]: the application's handles.
//! - [`Config`], [`Offload`]: the configuration. [`Closed`], [`StreamError`]: failures.
//! - `core/`: the endpoint without sockets, clocks and tasks. `crypto/`: TLS handshakes by rustls, and the keys that
//!   the QUIC state machine and the device share.
//!
//! Work that the device refuses, loses or does not support is done in software. The wire shows the same packets.
//!
//! The crate `tracing` gets a span for each connection. Events (level DEBUG) report connections and paths that open or
//! close, key updates, and contexts that the device takes, refuses or loses.
//!
//! # On an emulated host
//! The same endpoints run over an emulated host's UDP, and the host's NIC seals and opens the packets:
//!
//! ```
//! use nic_sim::NicConfig;
//! use offload_base::Seed;
//! use offload_host_stack::TcpConfig;
//! use offload_testbed::Testbed;
//! use offload_testbed::identity::{self, Randomness, server_name};
//! use offload_wire::LinkConfig;
//! use quic_offload::{ClientTls, Config, Connecting, Connection, Driver};
//! use quic_offload::{Endpoint, Offload, PathStatistics, ReceiveStream};
//! use quic_offload::{SendStream, ServerTls, Statistics, StreamError};
//!
//! let host = || (NicConfig::default(), TcpConfig::default());
//! let mut bed = Testbed::builder(Seed(7))
//!     .host("near", host().0, host().1)
//!     .host("far", host().0, host().1)
//!     .wires(0, 1, [LinkConfig::default()])
//!     .build()?;
//! let (near, far) = (bed.host(0).clone(), bed.host(1).clone());
//! let seeded = |seed| Randomness::Seeded(Seed(seed));
//!
//! let tls = ServerTls::new(identity::server_config(seeded(1), None))?;
//! let socket = far.stack().bind_udp(Some(4433))?;
//! let (server, driver): (Endpoint, Driver) =
//!     Endpoint::new(socket, far.runtime(), Config::default(), Some(tls))?;
//! let _driver_task = far.spawn("driver", driver);
//! let _server_task = far.spawn("server", async move {
//!     let connection: Connection = server.accept().await.expect("it is open");
//!     let (mut send, mut receive): (SendStream, ReceiveStream) =
//!         connection.accept_bi().await?;
//!     while let Some(data) = receive.receive(1 << 16).await? {
//!         send.send(data).await?;
//!     }
//!     send.finish()?;
//!     Ok::<_, StreamError>(connection.closed().await)
//! });
//!
//! let tls = ClientTls::new(identity::client_config(seeded(2), None))?;
//! let config = Config::default().with(|config| config.offload = Offload::Both);
//! let socket = near.stack().bind_udp(None)?;
//! let (client, driver) = Endpoint::new(socket, near.runtime(), config, None)?;
//! let _driver_task = near.spawn("driver", driver);
//! let to = (far.address(), 4433).into();
//! let connecting: Connecting =
//!     client.connect(&tls, to, &server_name().to_str())?;
//! let asked = near.spawn("client", async move {
//!     let connection = connecting.await?;
//!     let (mut send, mut receive) = connection.open_bi().await?;
//!     send.send("hello".into()).await?;
//!     send.finish()?;
//!     let answer = receive.receive(100).await?;
//!     let path: Option<PathStatistics> = connection.path_statistics(0);
//!     Ok::<_, StreamError>((answer, connection.statistics(), path))
//! });
//! let (answer, total, path): (_, Statistics, _) = bed.run(asked)?;
//! assert_eq!(answer.as_deref(), Some(&b"hello"[..]));
//! assert!(total.lost == 0 && path.is_some_and(|path| path.sent == total.sent));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod config;
mod connection;
mod core;
mod crypto;
mod endpoint;
mod error;
#[cfg(feature = "h3")]
pub mod http3;
mod incoming;
#[cfg(feature = "qlog")]
mod qlog;
mod statistics;
mod stream;
#[cfg(all(feature = "tokio", target_os = "linux"))]
mod tokio_endpoint;

pub use crate::core::Counters;
pub use config::{AeadLimits, ClientTls, Config, Offload, ServerTls};
pub use connection::Connection;
pub use crypto::session::{HandshakeData, NoInitialSuite};
pub use crypto::tokens::ResetKey;
pub use endpoint::{Connecting, Driver, Endpoint};
pub use error::{Closed, ConnectError, DatagramError, PathError, StreamError};
pub use incoming::Incoming;
#[cfg(feature = "qlog")]
pub use qlog::{Qlog, QlogConnection};
pub use statistics::{PathStatistics, Statistics};
pub use stream::{ReceiveStream, SendStream};

#[cfg(feature = "tokio")]
pub use offload_api::TokioTimers;
#[cfg(all(feature = "tokio", target_os = "linux"))]
pub use {offload_api::TokioDatagrams, tokio_endpoint::TokioEndpoint};

/// The crates that appear in this crate's API, so that a program needs no further line in its Cargo.toml.
pub use {bytes, offload_api as api, offload_base as base, rustls};
