//! The command line of this workspace's programs, and the TLS loopback, the first of these programs.
//!
//! - [`program`]: options, exit statuses, one clear line for each error;
//! - [`options`], [`nic_options`], [`tls_options`], [`own_wires`], [`trace_options`]: groups of options that several
//!   programs share;
//! - [`files`]: checks that a program's outputs are neither its inputs nor each other;
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

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
