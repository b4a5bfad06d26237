//! The part of a transport that keeps an encrypted stream alive: queued bytes for retransmission by a driver, and
//! sealers for units that no device encrypts.

use crate::unit::{LAYERS, Layer, TxTag, Unit};
use bytes::Bytes;

/// The result of a lookup of an offset in a layer's send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The offset lies before the first unit of the layer, in bytes that were never meant for the device.
    BeforeStart,
    /// The unit was acknowledged and released, or was never queued.
    Released,
    /// The offset lies in this unit, and all of the unit's bytes are still queued.
    In(Unit),
}

/// Consecutive bytes of a send queue.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{LAYERS, QueuedBytes, TxTag};
///
/// let queued = QueuedBytes { bytes: Bytes::from_static(b"plain"), tag: TxTag::PLAIN, offsets: [700; LAYERS] };
/// assert_eq!(queued.bytes.len(), 5);
/// ```
#[derive(Clone, Debug)]
pub struct QueuedBytes {
    /// The bytes as they were queued, or as software sealed them.
    pub bytes: Bytes,
    /// Pending work on the bytes.
    pub tag: TxTag,
    /// Offset of the first byte in each layer's stream. For a layer to which the bytes do not belong, the offset at
    /// which the layer continues.
    pub offsets: [u64; LAYERS],
}

/// A send queue that a driver may query during one call of `transmit`.
pub trait RecordSource {
    /// Returns the unit of `layer` that contains the byte at `offset` of the layer's stream.
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup;

    /// Passes the bytes of the layer's stream in `from..to` to `sink`, in order. Only bytes of units that
    /// [`unit_at`](Self::unit_at) finds are guaranteed to be present.
    fn pieces(&self, layer: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes));
}

/// The source of a packet without units.
///
/// ```
/// use offload_api::{Layer, Lookup, NoRecords, RecordSource};
///
/// assert_eq!(NoRecords.unit_at(Layer::FIRST, 0), Lookup::BeforeStart);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecords;

impl RecordSource for NoRecords {
    fn unit_at(&self, _: Layer, _: u64) -> Lookup {
        Lookup::BeforeStart
    }

    fn pieces(&self, _: Layer, _: u64, _: u64, _: &mut dyn FnMut(QueuedBytes)) {}
}

/// A software replacement for the device's work on units. The transport keeps a sealer until the last byte of its units
/// is acknowledged, so a stream outlives both its device and its application.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{SealError, Sealer, Unit};
///
/// /// Seals by flipping all bits, for a test.
/// struct Flips;
///
/// impl Sealer for Flips {
///     fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
///         if plain.is_empty() {
///             return Err(SealError::Malformed { number: unit.number });
///         }
///         Ok(plain.iter().flatten().map(|byte| !byte).collect())
///     }
/// }
/// ```
pub trait Sealer: Send {
    /// Returns the bytes of `unit` for the wire. The result has the length of `plain` and is the same in every call,
    /// because a part may have been sent already.
    ///
    /// # Errors
    /// If the unit cannot be sealed. The connection must then be reset, because other bytes must not be sent in place
    /// of the unit.
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError>;
}

/// The reasons why a unit cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The bytes do not have the sealer's framing.
    #[error("unit {number} is not framed as its sealer frames units")]
    Malformed {
        /// Number of the unit.
        number: u64,
    },
    /// The key has reached its usage limit.
    #[error("the key is used up at unit {number}")]
    KeyExhausted {
        /// Number of the unit.
        number: u64,
    },
}
