//! NVMe/TCP, host and controller, over any stream.
//!
//! - [`nvme`]: what NVMe itself defines: commands, completions, status;
//! - [`pdu`]: the PDUs of NVMe/TCP: typed, framed for sending, taken from a stream however it is cut;
//! - [`mod@digest`]: CRC32C, over headers and data.
//!
//! Everything here takes bytes and the time and gives bytes: no sockets, clocks, tasks or locks.

#![forbid(unsafe_code)]

pub mod digest;
pub mod nvme;
pub mod pdu;

pub use digest::Digest;
pub use nvme::{AdminOpcode, Command, Completion, FabricsType, IoOpcode, Sgl, SglKind, Status};
pub use pdu::{FatalError, FatalStatus, Framing, Pdu, Received, Receiver, WirePdu};
