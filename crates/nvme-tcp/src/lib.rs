//! NVMe/TCP, host and controller, over any stream.
//!
//! - [`host`]: a host: connected to a controller, reconnected when it loses it; disks, discovery;
//! - [`target`]: a target, served on streams;
//! - [`namespace`]: blocks in memory or in a file;
//! - [`core`]: the state machines under both, for those who drive them by themselves;
//! - [`wire`]: commands, completions, structures and PDUs.
//!
//! A stream is a [`SegmentStream`](offload_api::SegmentStream): an emulated TCP, TLS over it, or an adapter around any
//! `AsyncRead + AsyncWrite`. Nothing here spawns tasks or sleeps by itself: futures are the caller's to run, and alarms
//! come from the [`Timers`](offload_base::Timers) given.
//!
//! A host writes to a disk of a target and reads it back, over an emulated wire, in virtual time:
//!
//! ```
//! use offload_host_stack::TcpConfig;
//! use nic_sim::{NicConfig, wire::LinkConfig};
//! use nvme_tcp::{Host, HostConfig, HostIdentity, MemoryStorage, Namespace, Server, Target, TargetConfig, Threads};
//! use std::{net::SocketAddr, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! const NAME: &str = "nqn.2026-01.example:disk";
//! let bed = offload_testbed::Testbed::builder(offload_base::Seed(7));
//! let bed = bed.host("target", NicConfig::default(), TcpConfig::default());
//! let bed = bed.host("host", NicConfig::default(), TcpConfig::default());
//! let mut bed = bed.wire(0, 1, LinkConfig::default()).build()?;
//!
//! let mut target = Target::new(TargetConfig::default())?;
//! target.add_subsystem(NAME, None)?;
//! target.add_namespace(NAME, Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20)))?)?;
//! let server = Server::new(target, bed.host(0).runtime(), Arc::new(Threads::new(1)?));
//! let mut listener = bed.host(0).stack().listen(4420, 16)?;
//! let near = bed.host(0).clone();
//! bed.host(0).spawn("accept", async move {
//!     while let Ok(stream) = listener.accept().await {
//!         let server = server.clone();
//!         near.spawn("serve", async move { drop(server.serve(stream).await) });
//!     }
//! });
//!
//! let (near, far) = (bed.host(1).clone(), SocketAddr::from((bed.host(0).address(), 4420)));
//! let connector = move || {
//!     let near = near.clone();
//!     async move { near.stack().connect(None, far).await }
//! };
//! let config = HostConfig::new(NAME, HostIdentity::of_uuid([7; 16]));
//! let (host, tasks) = Host::new(connector, bed.host(1).runtime(), config);
//! for task in tasks {
//!     bed.host(1).spawn("host", task);
//! }
//! let read = bed.host(1).spawn("application", async move {
//!     host.ready().await?;
//!     let disk = host.disk(1).await?;
//!     disk.write(8, [bytes::Bytes::from_static(&[42; 512])]).await?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(disk.read(8, disk.buffer(1)).await?.to_vec())
//! });
//! assert_eq!(bed.run(read)?, [42; 512]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod asking;
pub mod core;
#[cfg(feature = "measure")]
pub mod exercise;
pub mod host;
pub mod namespace;
mod sending;
pub mod target;
mod volume;
mod volumes;
pub mod wire;

pub use asking::OffloadCounters;
pub use host::{Buffer, CommandError, Connecting, Connector, Disk, Host, HostConfig, HostError, HostIdentity, Offload};
pub use namespace::{FileStorage, MemoryStorage, Namespace, Storage};
pub use target::{Server, Target, TargetConfig, Threads};
pub use wire::{AdminOpcode, Command, Completion, IoOpcode, Status};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing here leaves shared state half changed, so a lock that a panic poisoned is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(feature = "tokio")]
pub use offload_api::TokioTimers;

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {bytes, offload_api as api, offload_base as base, resumable_aead};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
