//! Ciphers as chains of small services on a device: what they make, what they cost, how long packets take, how many instances they need.
//!
//! A chain is a row of services, each with a number of instances; a packet passes them block by block. The bottleneck alone is worth
//! multiplying, until another service is the bottleneck. Where things live, users first:
//!
//! - [`Suite`], [`Cipher`] (`suite.rs`): ciphers by name, as bytes and as graphs; [`primitives`]: the services as a library;
//! - [`TlsRecords`] (`records.rs`): records of TLS by the keys of a handshake;
//! - [`Graph`] (`graph.rs`): which services a packet passes, written as text;
//! - [`Fabric`] (`fabric.rs`): services with bounded queues on a device of limited area, in virtual time; tenants share them;
//! - [`Controller`] (`controller.rs`): decides how many instances there are, by what [`ServiceWindow`]s (`window.rs`) show;
//! - [`ServiceQueue`] (`jobs.rs`, `sessions.rs`): a fabric and its controller (`driven.rs`) behind a job queue, so that programs for accelerators
//!   run on it; [`ServicePort`] (`inline.rs`): the same between a NIC and its wire;
//! - [`Study`] (`study.rs`): a [`Load`] (`load.rs`) through a fabric, beside the least area that would have sufficed; [`picture`] draws it, [`text`] tells it;
//! - [`Service`] (`service.rs`): what a block costs in each service, and where the figure comes from;
//! - [`Chain`], [`Pipeline`] (`chain.rs`, `pipeline.rs`): one chain by itself, in closed form, exact to the block;
//! - [`queueing`]: closed forms and approximations that predict waiting;
//! - [`published`]: the figures of the poster that the idea comes from, and the line through two of them.

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
pub use offload_transforms::{SecretBytes, TransformDirection};
pub use pipeline::{Passed, Pipeline};
pub use records::TlsRecords;
pub use service::{Cost, Costs, Origin, Service};
pub use study::{OfSize, Optimum, Outcome, Study, Window};
pub use suite::{Cipher, Keys, KeysError, NotAuthentic, Suite};
pub use window::{ServiceWindow, Work};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
