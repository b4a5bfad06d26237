//! How a transport keeps an encrypted stream alive by itself: what it tells a driver about the bytes it may
//! send again, and what seals them when no device will.

use crate::unit::{Layer, TxTag, Unit};
use bytes::Bytes;
use offload_base::Seq;

/// What a transport knows about a sequence number it may have to send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It lies before the first unit of the layer: bytes that were never meant for the device.
    BeforeStart,
    /// It belonged to a unit that was acknowledged and forgotten, or was never queued.
    Released,
    /// It lies in this unit, all of whose bytes are still there.
    In(Unit),
}

/// The send queue, as a driver may ask it while it transmits. Lent for the one call.
pub trait RecordSource {
    /// The unit of `layer` that the byte at `seq` belongs to.
    fn unit_at(&self, layer: Layer, seq: Seq) -> Lookup;

    /// Hands the queued bytes from `from` up to `to` to `sink`, in order. Only bytes of units that
    /// [`unit_at`](Self::unit_at) finds are sure to be there.
    fn bytes(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes));

    /// The same bytes, each piece with its tag as far as there is still work to be done: whose digests are to be filled in
    /// before a record is sealed. Without PDUs in records there is nothing to tell.
    fn pieces(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes, TxTag)) {
        self.bytes(layer, from, to, &mut |bytes| sink(bytes, TxTag::PLAIN));
    }
}

/// The source of a packet that belongs to no unit.
///
/// ```
/// use offload_api::{Layer, Lookup, NoRecords, RecordSource};
/// use offload_base::Seq;
///
/// assert_eq!(NoRecords.unit_at(Layer::Tls, Seq(0)), Lookup::BeforeStart);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecords;

impl RecordSource for NoRecords {
    fn unit_at(&self, _: Layer, _: Seq) -> Lookup {
        Lookup::BeforeStart
    }

    fn bytes(&self, _: Layer, _: Seq, _: Seq, _: &mut dyn FnMut(Bytes)) {}
}

/// Does in software what the device would have done to a unit. The transport keeps it until the last byte it
/// answers for is acknowledged, so that a stream outlives both its device and its application.
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
