//! NVMe/TCP, host and controller, over any stream.
//!
//! - [`nvme`]: what NVMe itself defines: commands, completions, status;
//! - [`pdu`]: the PDUs of NVMe/TCP: typed, framed for sending, taken from a stream however it is cut;
//! - [`host`]: what sends commands: one connection of a host;
//! - [`controller`]: what serves commands: subsystems, controllers, queues;
//! - [`namespace`]: blocks in memory or in a file;
//! - [`shell`]: the futures around the cores;
//! - [`mod@digest`]: CRC32C, over headers and data.
//!
//! All cores take bytes and the time and give bytes: no sockets, clocks or tasks. Only namespaces, which queues share,
//! look after their own locking.

#![forbid(unsafe_code)]

pub mod controller;
pub mod digest;
pub mod host;
pub mod namespace;
pub mod nvme;
pub mod pdu;
pub mod shell;

pub use digest::Digest;
pub use nvme::{AdminOpcode, Command, Completion, FabricsType, IoOpcode, Sgl, SglKind, Status};
pub use pdu::{FatalError, FatalStatus, Framing, Pdu, Received, Receiver, WirePdu};
