//! Ciphers as chains of small services on a device: what they cost, how long packets take, how many instances they need.
//!
//! A chain is a row of services, each with a number of instances; a packet passes them block by block. The bottleneck alone is worth
//! multiplying, until another service is the bottleneck. This crate has the model:
//!
//! - [`Service`] (`service.rs`): what a block costs in each service, and where the figure comes from;
//! - [`Chain`] (`chain.rs`): services in a row, their area, their bottleneck, how many instances a rate asks for;
//! - [`Pipeline`] (`pipeline.rs`): packets through a chain, in virtual time, to the block;
//! - [`queueing`]: closed forms and approximations that predict waiting;
//! - [`published`]: the figures of the poster that the idea comes from, and the line through two of them.
//!
//! The services' bytes are not here yet: the ciphers themselves are in `cellular-crypto`, `resumable-aead` and `offload-transforms`.

#![forbid(unsafe_code)]

mod chain;
mod pipeline;
pub mod published;
pub mod queueing;
mod service;

pub use chain::{Chain, ChainError, Stage};
pub use pipeline::{Passed, Pipeline};
pub use service::{Cost, Origin, Service};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
