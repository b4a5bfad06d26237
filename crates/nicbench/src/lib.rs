//! The tool `nicbench`, and what the programs of this workspace share.
//!
//! - [`program`]: how our programs speak: options, exit statuses, one clear line for what is wrong;
//! - [`options`], [`tls_options`], [`own_wires`], [`trace_options`]: what several of them are told on the command line;
//! - [`files`]: what keeps inputs from being written over;
//! - [`loopback`]: programs that send one file, or read one disk, several ways;
//! - [`openmetrics`]: what a run counts, for Prometheus;
//! - [`commands`]: what `nicbench` can be told to do;
//! - [`sweep`]: any of its runs over a grid; `shard`: parts of it; `results`: what came of it; `build`: which program made it; `report`: results and published figures as one page.

#![forbid(unsafe_code)]

mod build;
pub mod commands;
pub mod files;
pub mod loopback;
pub mod openmetrics;
pub mod options;
pub mod own_wires;
pub mod program;
pub mod quic_suite;
mod report;
mod results;
mod shard;
pub mod sweep;
pub mod tls_options;
pub mod trace_options;

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
