//! The command line of the programs of this workspace, and the first of them: the TLS loopback.
//!
//! - [`program`]: options, exit statuses, one clear line for each error;
//! - [`options`], [`tls_options`], [`own_wires`], [`quic_suite`], [`trace_options`]: groups of options that several programs take;
//! - [`files`]: files that a program writes are neither its inputs nor each other;
//! - [`loopback`]: programs that send one file several ways; [`loopback::tls`]: over TLS.

#![forbid(unsafe_code)]

pub mod files;
pub mod loopback;
pub mod options;
pub mod own_wires;
pub mod program;
pub mod quic_suite;
pub mod tls_options;
pub mod trace_options;

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
