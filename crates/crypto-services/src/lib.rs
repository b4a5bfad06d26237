//! Ciphers as chains of small services on a device: the bytes, the costs, the delays of packets, and the instances
//! needed.
//!
//! A chain is a sequence of services, each with a number of instances; a packet passes the services block by block.
//! Adding instances helps only at the bottleneck, until another service becomes the bottleneck. The modules, users
//! first:
//!
//! - [`Suite`], [`Cipher`] (`suite.rs`): ciphers by name, as bytes and as graphs; [`primitives`]: the services as a
//!   library;
//! - [`TlsRecords`] (`records.rs`): TLS records with the keys of a handshake;
//! - [`Graph`] (`graph.rs`): the services that a packet passes, written as text;
//! - [`Fabric`] (`fabric.rs`): services with bounded queues on a device of limited area, in virtual time, shared by
//!   tenants;
//! - [`Controller`] (`controller.rs`): decides the number of instances from [`ServiceWindow`]s (`window.rs`);
//! - [`ServiceQueue`] (`jobs.rs`, `sessions.rs`): a fabric and its controller (`driven.rs`) behind a job queue, for
//!   programs written for accelerators; [`ServicePort`] (`inline.rs`): a fabric between a NIC and the wire;
//! - [`Study`] (`study.rs`): runs a [`Load`] (`load.rs`) through a fabric and compares with the least sufficient area;
//!   [`picture`] draws the run, [`text`] prints it;
//! - [`Service`] (`service.rs`): costs of a block in each service, with the origin of each figure;
//! - [`Chain`], [`Pipeline`] (`chain.rs`, `pipeline.rs`): a single chain in closed form, exact to the block;
//! - [`queueing`]: closed forms and approximations of waiting times;
//! - [`published`]: the figures of the poster, and the line through two of its rows.

#![forbid(unsafe_code)]

mod chain;
mod controller;
mod driven;
mod fabric;
mod graph;
mod inline;
mod jobs;
mod load;
pub mod picture;
mod pipeline;
pub mod primitives;
pub mod published;
pub mod queueing;
mod records;
mod service;
mod sessions;
mod study;
mod suite;
pub mod text;
mod window;

pub use chain::{Chain, ChainError, Stage};
pub use controller::{Change, Controller, Decision, Fixed, Goal, Hysteresis, Predictive};
pub use fabric::{ChainId, Departed, Fabric, FabricConfig, FabricError, Packet};
pub use graph::{Graph, GraphError, Step};
pub use inline::{InlineChain, InlineCounters, InlineWork, ServicePort, ServicePortConfig};
pub use jobs::{SERVICES, ServiceQueue, ServiceQueueConfig, ServiceSpec};
pub use load::{Arrival, Load};
pub use offload_transforms::{Secret, Way};
pub use pipeline::{Passed, Pipeline};
pub use records::TlsRecords;
pub use service::{Cost, Costs, Origin, Service};
pub use study::{OfSize, Optimum, Outcome, Study, Window};
pub use suite::{Cipher, Keys, KeysError, NotAuthentic, Suite};
pub use window::{ServiceWindow, Work};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
