//! The NVMe/TCP engines. The receiving one follows PDUs as their bytes arrive, puts data where they belong and checks
//! their digests; the sending one fills digests in.
//!
//! - `framing`: how a PDU's first bytes tell where its parts are;
//! - `cursor`: a place in a PDU, and what passing its bytes does;
//! - `receive`: the stream: gaps, searching, tracking, asking;
//! - `placement`: the buffers of commands;
//! - `transmit`: digests of what leaves.
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, and the ULP DDP series proposed for Linux.

mod cursor;
mod framing;
mod placement;
mod receive;
mod transmit;

pub(crate) use placement::Placement;
pub(crate) use receive::{NvmeReceive, Received};
pub(crate) use transmit::NvmeTransmit;
