//! The wire between two ports.
//!
//! ```text
//!  Port --poll_frame--> Tap --> Link: queue, line, impairments, delay --> Tap --receive_frame--> Port
//! ```
//!
//! - [`port`]: [`Port`], the interface between a wire and a NIC, or any other source and sink of frames;
//! - [`link`]: [`Link`], one direction of a wire, with rate, delay and queue;
//! - [`impairment`]: faults on the way (loss, corruption and others), each seeded, counted, and off by default;
//! - [`tap`]: [`Tap`], an observer of the frames at a port;
//! - [`pcapng`]: captures for Wireshark, with the secrets for decryption;
//! - [`attach`]: framing and segmentation for attachments to other programs.
//!
//! The crate is sans-IO: the owner of a link sends frames into it and polls for arrived frames.

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
pub use tap::{FrameRecorder, Tap, TapDirection};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
