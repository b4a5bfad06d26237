//! How a transport keeps an encrypted stream alive by itself: what it tells a driver about the bytes it may
//! send again, and what seals them when no device will.

use crate::unit::{LAYERS, Layer, TxTag, Unit};
use bytes::Bytes;

/// What a transport knows about a place in a layer's stream that it may have to send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It lies before the first unit of the layer: bytes that were never meant for the device.
    BeforeStart,
    /// It belonged to a unit that was acknowledged and forgotten, or was never queued.
    Released,
    /// It lies in this unit, all of whose bytes are still there.
    In(Unit),
}

/// Bytes that lie one behind the other in a send queue.
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
    /// They, as they were queued or as software sealed them.
    pub bytes: Bytes,
    /// What is to be done with them.
    pub tag: TxTag,
    /// Where the first of them is in each layer's stream; where that goes on, for a layer that they are not of.
    pub offsets: [u64; LAYERS],
}

/// The send queue, as a driver may ask it while it transmits. Lent for the one call.
pub trait RecordSource {
    /// The unit of `layer` that the byte at `offset` of the layer's stream belongs to.
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup;

    /// Hands the bytes of the layer's stream from `from` up to `to` to `sink`, in order. Only bytes of units that
    /// [`unit_at`](Self::unit_at) finds are sure to be there.
    fn pieces(&self, layer: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes));
}

/// The source of a packet that belongs to no unit.
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

/// Does in software what the device would have done to a unit. The transport keeps it until the last byte it
/// answers for is acknowledged, so that a stream outlives both its device and its application.
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
    /// The bytes of `unit` as they belong on the wire: exactly as many as `plain` has, and the same ones every
    /// time, for a part may have been sent already.
    ///
    /// # Errors
    /// If the unit cannot be sealed; the connection then has to be reset, for nothing else may be sent.
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError>;
}

/// A unit could not be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The bytes are not a unit as the sealer frames them.
    #[error("unit {number} is not framed as its sealer frames units")]
    Malformed {
        /// The unit's number.
        number: u64,
    },
    /// The key may not be used for one more unit.
    #[error("the key is used up at unit {number}")]
    KeyExhausted {
        /// The unit's number.
        number: u64,
    },
}
