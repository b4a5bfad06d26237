//! PDCP of 5G (TS 38.323) as sans-IO entities: ciphering and integrity, reordering, duplicates, status reports, discard, re-establishment.
//!
//! A [`Transmitter`] takes SDUs (IP packets, messages of RRC) and makes PDUs; a [`Receiver`] takes PDUs in any order and gives each SDU once.
//! An [`Entity`] is one of each, with status reports between. None of these knows a socket or a clock. With feature `offload`, a
//! `gtpu::Node` has entities whose PDUs ride in GTP-U over a UDP socket, and whose ciphering a NIC or an accelerator does.
//!
//! Where things live, callers first:
//!
//! - [`Entity`] (`entity.rs`), over [`Transmitter`] (`transmitter.rs`) and [`Receiver`] (`receiver.rs`);
//! - [`Security`] (`security.rs`): keys, and batches of PDUs through [`cellular_crypto`];
//! - [`Config`] (`config.rs`): what RRC configures;
//! - `pdu.rs`: headers and status reports on the wire;
//! - `gtpu`, `device`: bearers over a socket; what a device is told of them.
//!
//! A device may decipher and check PDUs on their way in: it hands them on as [`Incoming::Opened`] with the COUNT that it took. The receiver
//! goes by its own window all the same; where the device took another COUNT, it undoes the device's work and does it again.
//!
//! Not here: header compression (ROHC, EHC), uplink data compression, split bearers, and the 256-bit AEADs (NCA): no published text seen says
//! what PDCP gives them as associated data. Their ciphering and integrity apart (NEA and NIA 4 to 6) work.

#![forbid(unsafe_code)]

mod config;
#[cfg(feature = "offload")]
pub mod device;
mod entity;
#[cfg(feature = "offload")]
pub mod gtpu;
mod pdu;
mod receiver;
mod security;
mod transmitter;

pub use cellular_crypto as crypto;
pub use config::{BearerKind, Config, ConfigError, SnLen};
pub use entity::Entity;
pub use pdu::{MalformedPdu, StatusReport};
pub use receiver::{Incoming, ReceiveCounters, Receiver, Sdu};
pub use security::{Security, SecurityError};
pub use transmitter::{ClearPdu, CountExhausted, RepeatedKeys, SendError, Transmitter};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
