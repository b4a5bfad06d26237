//! Ciphers as chains of small services on a device: the bytes, the costs, the delays of packets, and the instances
//! needed.
//!
//! A chain is a sequence of services, each with a number of instances; a packet passes the services block by block.
//! Adding instances helps only at the bottleneck, until another service becomes the bottleneck. The modules, users
//! first:
//!
//! - [`Suite`], [`SuiteCipher`] (`suite.rs`): ciphers by name, as bytes and as graphs; [`primitives`]: the services as
//!   a library;
//! - [`TlsRecords`] (`records.rs`): TLS records with the keys of a handshake;
//! - [`Graph`] (`graph.rs`): the services that a packet passes, written as text;
//! - [`Fabric`] (`fabric.rs`): services with bounded queues on a device of limited area, in virtual time, shared by
//!   tenants;
//! - [`Controller`] (`controller.rs`): decides the number of instances from [`ServiceWindow`]s (`window.rs`);
//! - [`ServiceQueue`] (`jobs.rs`, `sessions.rs`): a fabric and its controller (`driven.rs`) behind a job queue, for
//!   programs written for accelerators; [`ServicePort`] (`inline.rs`): a fabric between a NIC and the wire;
//! - [`Study`] (`study.rs`): runs a [`TrafficLoad`] (`load.rs`) through a fabric and compares with the least sufficient
//!   area; [`picture`] draws the run, [`text`] prints it;
//! - [`Service`] (`service.rs`): costs of a block in each service, with the origin of each figure;
//! - [`ServiceChain`], [`Pipeline`] (`chain.rs`, `pipeline.rs`): a single chain in closed form, exact to the block;
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

pub use chain::{ChainError, ChainStage, ServiceChain};
pub use controller::{Controller, Fixed, Goal, Hysteresis, InstanceChange, InstanceDecision, Predictive};
pub use fabric::{ChainId, DepartedPacket, Fabric, FabricConfig, FabricError, Packet};
pub use graph::{Graph, GraphError, GraphStep};
pub use inline::{InlineChain, InlineCounters, InlineWork, ServicePort, ServicePortConfig};
pub use jobs::{SERVICES, ServiceQueue, ServiceQueueConfig, ServiceSpec};
pub use load::{PacketArrival, TrafficLoad};
pub use offload_transforms::{SecretBytes, TransformDirection};
pub use pipeline::{PacketTimes, Pipeline};
pub use records::TlsRecords;
pub use service::{CostOrigin, Service, ServiceCost, ServiceCosts};
pub use study::{Optimum, RunOutcome, SizeResult, Study, StudyWindow};
pub use suite::{KeysError, NotAuthentic, Suite, SuiteCipher, SuiteKeys};
pub use window::{ServiceDemand, ServiceWindow};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
