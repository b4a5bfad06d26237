//! The NVMe/TCP receive engine: follows PDUs as their bytes arrive, puts data where they belong, checks their digests.
//!
//! - `framing`: how a PDU's first bytes tell where its parts are;
//! - `cursor`: a place in a PDU, and what passing its bytes does;
//! - `receive`: the stream: gaps, searching, tracking, asking;
//! - `placement`: the buffers of commands.
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, and the ULP DDP series proposed for Linux.

mod cursor;
mod framing;
mod placement;
mod receive;

pub(crate) use placement::Placement;
pub(crate) use receive::{NvmeReceive, Received};
