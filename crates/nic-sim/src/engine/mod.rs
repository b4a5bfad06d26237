//! The engines of the device: pure functions and small state machines over bytes.
//!
//! - `coalesce`: which segments may be one packet for the host (LRO);
//! - `esp`: security associations and policies; `esp_tx`, `esp_rx`: what each direction makes of them;
//! - `nvme`: PDUs of NVMe/TCP followed, their data placed, digests checked;
//! - `pacing`: lanes in which packets wait for their time;
//! - `segmentation`: one packet in, segments out (TSO);
//! - `tls`: its kind of context; `tls_record`: the walk over TLS records that both TLS engines share, a byte range at a time;
//! - `tls_tx`, `tls_rx`: what each direction makes of it.
//!
//! Stream engines see the payload of one flow in sequence order and keep a state of constant size.

pub(crate) mod coalesce;
pub(crate) mod esp;
pub(crate) mod esp_rx;
pub(crate) mod esp_tx;

pub(crate) mod nvme;
pub(crate) mod pacing;
pub(crate) mod segmentation;
pub(crate) mod tls;
pub(crate) mod tls_record;
pub(crate) mod tls_rx;
pub(crate) mod tls_tx;

/// The bytes are not the next of an engine's stream, or not framed as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep;
