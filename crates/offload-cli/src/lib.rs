//! The command line of the programs of this workspace, and the first of them: the TLS loopback.
//!
//! - [`program`]: options, exit statuses, one clear line for each error;
//! - [`options`], [`nic_options`], [`tls_options`], [`own_wires`], [`trace_options`]: groups of options that several programs take;
//! - [`files`]: files that a program writes are neither its inputs nor each other;
//! - [`run_options`], [`output`]: the options of every scenario: its form of output, its observers, its wire;
//! - [`scenario`]: the modes of a scenario, one after the other; [`tls`]: the TLS loopback.

#![forbid(unsafe_code)]

pub mod files;
pub mod nic_options;
pub mod options;
pub mod output;
pub mod own_wires;
pub mod program;
pub mod run_options;
pub mod scenario;
pub mod tls;
pub mod tls_options;
pub mod trace_options;
mod watch;

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
