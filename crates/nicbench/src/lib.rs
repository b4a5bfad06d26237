//! The tool `nicbench`. The crate `offload-cli` holds the options and messages that it shares with other programs.
//!
//! - [`openmetrics`]: counters of a run, for Prometheus;
//! - [`commands`]: the commands of `nicbench`;
//! - [`sweep`]: runs over a grid; `shard`: parts of a sweep; `results`: results files; `build`: the program's own
//!   build; `report`: results and published figures as one page.

#![forbid(unsafe_code)]

mod build;
pub mod commands;
pub mod openmetrics;
mod report;
mod results;
mod shard;
pub mod sweep;

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
