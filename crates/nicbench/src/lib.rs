//! The tool `nicbench`. The options and messages that it shares with other programs are the crate `offload-cli`.
//!
//! - [`openmetrics`]: what a run counts, for Prometheus;
//! - [`commands`]: what `nicbench` can be told to do;
//! - [`sweep`]: any of its runs over a grid; `shard`: parts of it; `results`: what came of it; `build`: which program made it; `report`: results and published figures as one page.

#![forbid(unsafe_code)]

mod build;
pub mod commands;
pub mod openmetrics;
mod report;
mod results;
mod shard;
pub mod sweep;

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
