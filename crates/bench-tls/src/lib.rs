//! A transfer over TLS through two emulated NICs, and the parts that all measured runs share.
//!
//! - [`payload`]: the bytes that are sent: a file, or seeded data;
//! - [`bulk`]: one stream from one host to the other, plain, sealed by the CPU or by the NIC;
//! - [`connection`]: plain and TLS streams used alike, NICs and TCP for a clock;
//! - [`bounded`]: a limit for every run; [`measured`]: the costs and counters of a finished run;
//! - [`observers`]: captures, timelines and progress of a run; [`live`]: its counters while it goes;
//! - [`facts`], [`table`]: the results, for programs and for people;
//! - [`choice`]: modes and their names in options, tables and results.
//!
//! The first program that a newcomer builds stands on this crate, so its dependencies stay few: other scenarios are in
//! `offload-bench`.

#![forbid(unsafe_code)]

pub mod bounded;
pub mod bulk;
pub mod choice;
pub mod connection;
pub mod facts;
pub mod live;
pub mod measured;
pub mod observers;
pub mod payload;
pub mod table;

/// Runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
