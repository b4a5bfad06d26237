//! The wire: what lies between two ports.
//!
//! ```text
//!  Port --poll_frame--> Tap --> Link: queue, line, impairments, delay --> Tap --receive_frame--> Port
//! ```
//!
//! - [`port`]: [`Port`], what a wire is plugged into: a NIC, or anything else that takes and gives frames;
//! - [`link`]: [`Link`], one direction of a wire, with its rate, delay and queue;
//! - [`impairment`]: what may happen to a frame on its way, each seeded, off by default and counted;
//! - [`tap`]: [`Tap`], who looks on;
//! - [`pcapng`]: captures for Wireshark, secrets included;
//! - [`attach`]: what it takes to plug a wire into something outside.
//!
//! Everything here is sans-IO: the owner of a link hands frames in and takes them out when they have arrived.

#![forbid(unsafe_code)]

pub mod attach;
pub mod frame;
pub mod impairment;
pub mod link;
pub mod pcapng;
pub mod port;
pub mod tap;

pub use impairment::{BurstLoss, Crossing, Impairment, ImpairmentChain, Impairments, InvalidShare, Reorder, Share};
pub use link::{Link, LinkConfig, LinkCounters, Overflow};
pub use port::Port;
pub use tap::{Direction, Recorder, Tap};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
