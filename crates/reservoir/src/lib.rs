//! Encrypted bulk transfer over HTTPS: files from disk to disk, over many streams, block by block, so that a kill at either end
//! costs what was under way and no more.
//!
//! - [`blocks`]: a file as blocks with checksums, and its BLAKE3 hash out of theirs; [`digest`]: checksums that peers ask for;
//! - [`landing`]: a file that is arriving, with a journal beside it; [`storage`], [`rooted`]: where it arrives; [`attributes`]: what goes
//!   with it;
//! - [`Server`]: serves a folder; [`tokens`]: the rights of users; [`credentials`]: a client's token for each server; crate `http_rules`:
//!   preconditions, ranges and entity tags of requests;
//! - [`copy`]: copies between folders and servers; [`dial`]: what connects to these; [`remote`]: servers as a client sees them; `s3`: buckets (feature `s3`); [`tls`]: TLS 1.3 over the kernel's TCP; [`quic`]: HTTP/3 over its UDP; [`pin`]:
//!   trust in one certificate;
//! - [`pace`]: rates; [`name`]: names below a root; [`Shell`]: timers, pool and tasks that all of it runs on.
//!
//! ```text
//!  disk > FileBody (reads, hashes) > HTTP/1.1 > TLS > TCP ... TCP > TLS > HTTP/1.1 > Sink (hashes, writes) > Landing > disk
//!         one piece of half a MiB is read while one is sent       one is written while one arrives       journal
//! ```
//! Over HTTP/3 all requests are on one connection of QUIC, each on a stream of its own, in the place of TLS and TCP.
//! The engine works over any `AsyncRead` and `AsyncWrite`, and on any [`Shell`].
//!
//! # Features
//! `s3` (buckets) and `third-party` (copies that servers make between them) are on by default, because the program `reservoir` has both.
//! A library user who needs neither sets `default-features = false`.

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
mod line;
mod listing;
mod mtime;
pub mod name;
pub mod pace;
mod pack;
pub mod pin;
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

pub use server::{Limits, Log, Server};
pub use shell::{Shell, Task};
/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {offload_base as base, rustls};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
