//! Encrypted bulk file transfer over HTTPS, with many streams and checksummed blocks. After a kill of either end, a
//! copy resumes and repeats only the blocks in flight.
//!
//! - [`blocks`]: division of files into blocks with checksums, and BLAKE3 hashes from these; [`digest`]: digests that
//!   peers request;
//! - [`landing`]: a file being received, with its journal; [`storage`], [`rooted`]: the folder that holds it;
//!   [`attributes`]: rights and extended attributes;
//! - [`Server`]: serves a folder; [`tokens`]: the rights of users; [`credentials`]: a client's token for each server;
//!   crate `http_rules`: preconditions, ranges and entity tags of requests;
//! - [`copy`]: copies between folders and servers; [`dial`]: connectors to servers; [`remote`]: servers from a client's
//!   view; `s3`: buckets (feature `s3`); [`tls`]: TLS 1.3 over kernel TCP; [`quic`]: HTTP/3 over kernel UDP; [`pin`]:
//!   trust in one certificate;
//! - [`pace`]: rates; [`name`]: names below a root; [`Shell`]: timers, thread pool and tasks.
//!
//! ```text
//!  disk > FileRangeBody (hashes) > HTTP/1.1 > TLS > TCP ... TCP > TLS > HTTP/1.1 > Sink (hashes) > LandingFile > disk
//!         one piece of half a MiB is read while one is sent      one is written while one arrives   journal
//! ```
//! Over HTTP/3, all requests share one QUIC connection, each on its own stream, instead of TLS and TCP. The library
//! works over any `AsyncRead` and `AsyncWrite`, and on any [`Shell`].
//!
//! # Features
//! `s3` (buckets) and `third-party` (copies between two servers) are enabled by default, because the program
//! `reservoir` has both. A library user who needs neither sets `default-features = false`.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod blocks;
mod body;
pub mod copy;
pub mod credentials;
pub mod dial;
pub mod digest;
mod direct;
mod http3;
mod journal;
mod kernel_pace;
pub mod landing;
mod listing;
mod mtime;
pub mod name;
pub mod pace;
mod pack;
pub mod pin;
mod pipelined_connection;
mod protocol;
pub mod quic;
pub mod remote;
pub mod rooted;
#[cfg(feature = "s3")]
pub mod s3;
mod server;
mod shell;
mod sink;
mod small;
pub mod storage;
pub mod tls;
pub mod tokens;
mod watch;

pub use server::{AccessLog, Server, ServerLimits};
pub use shell::{Shell, Task};
/// Re-exports of the crates whose types appear in this API, so that a program needs no other dependency.
pub use {offload_base as base, rustls};

/// Runs the README's example with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
