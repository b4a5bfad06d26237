//! Wire formats: the structures of NVMe, and the PDUs of NVMe/TCP that carry these structures.
//!
//! - [`Command`], [`Completion`], [`Status`]: queue entries; [`commands`]: builders of commands;
//! - [`ConnectData`], [`property`]: NVMe over Fabrics;
//! - [`ControllerData`], [`NamespaceData`], [`DiscoveryLog`], [`page`]: descriptions that controllers return;
//! - [`Pdu`]: a typed PDU header; [`PduFraming`]: frames PDUs for sending; [`PduReceiver`]: parses PDUs from a stream
//!   that is cut at arbitrary positions; [`Digest`]: CRC32C of headers and data.

mod command;
pub mod commands;
mod completion;
mod digest;
mod fabrics;
pub(crate) mod identify;
pub(crate) mod log;
mod pdu;
mod status;

pub use command::{AdminOpcode, Command, DataDirection, FabricsType, IoOpcode, Sgl, SglKind};
pub use completion::Completion;
pub(crate) use digest::DIGEST_LEN;
pub use digest::Digest;
pub(crate) use fabrics::{
    CC_ENABLE, CC_SHUTDOWN, CSTS_READY, CSTS_SHUT_DOWN, CSTS_SHUTTING_DOWN, NO_FLOW_CONTROL, VERSION,
};
pub use fabrics::{ConnectData, DISCOVERY_NQN, property};
pub use identify::{ControllerData, ControllerKind, NamespaceData, NamespaceIds, Notices, parse_namespace_list};
pub use log::{DiscoveryEntry, DiscoveryLog, page};
pub(crate) use log::{ErrorEntry, Smart};
pub(crate) use pdu::{CIPHER_BLOCK, DataEncryption, slice};
pub use pdu::{
    ConnectionSide, DataHeader, FatalError, FatalStatus, InitializeRequest, InitializeResponse, Pdu, PduFraming,
    PduItem, PduLimits, PduReceiver, PduType, ReadyToTransfer, Termination, WirePdu,
};
pub use status::Status;

/// Reads a little-endian `u16` at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a little-endian `u32` at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a little-endian `u64` at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Writes `value` at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
