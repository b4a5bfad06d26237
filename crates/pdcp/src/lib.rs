//! PDCP of 5G (TS 38.323) as sans-IO entities: ciphering and integrity, reordering, duplicate detection, status
//! reports, discard, re-establishment.
//!
//! A [`Transmitter`] takes SDUs (IP packets, RRC messages) and makes PDUs. A [`Receiver`] takes PDUs in any order and
//! delivers each SDU once. An [`Entity`] has one of each, and exchanges status reports. The entities have no sockets
//! and no clocks. With the feature `offload`, the entities of a `gtpu::Node` send their PDUs in GTP-U over a UDP
//! socket, and a NIC or an accelerator does the ciphering.
//!
//! Modules, callers first:
//!
//! - [`Entity`] (`entity.rs`), over [`Transmitter`] (`transmitter.rs`) and [`Receiver`] (`receiver.rs`);
//! - [`Security`] (`security.rs`): keys, and batches of PDUs through [`cellular_crypto`];
//! - [`Config`] (`config.rs`): the configuration by RRC;
//! - `pdu.rs`: headers and status reports on the wire;
//! - `gtpu`, `device`: bearers over a socket, and their contexts in a device.
//!
//! A device may decipher and verify received PDUs. It passes them on as [`IncomingPdu::Opened`] with the COUNT that it
//! used. The receiver still checks the COUNT with its own window. If the device used another COUNT, the receiver undoes
//! the device's work and repeats it with the right one.
//!
//! Not supported: header compression (ROHC, EHC), uplink data compression, split bearers, and the 256-bit AEADs (NCA),
//! because no published text was found that defines their associated data in PDCP. Separate ciphering and integrity
//! (NEA and NIA 4 to 6) work.

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
pub use receiver::{IncomingPdu, ReceiveCounters, Receiver, Sdu};
pub use security::{Security, SecurityError};
pub use transmitter::{ClearPdu, CountExhausted, RepeatedKeys, SduSendError, Transmitter};

/// Compiles the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
