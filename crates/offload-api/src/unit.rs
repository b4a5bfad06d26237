//! Handles of device contexts, and units: the records or PDUs of a stream that a context follows.

use core::fmt;
use offload_base::Seq;

/// A handle of a device context. The generation distinguishes a context from earlier ones in the same slot. A device
/// drops and counts commands and packets with a stale handle.
///
/// ```
/// use offload_api::Handle;
///
/// let old = Handle { index: 3, generation: 1 };
/// assert_ne!(old, Handle { generation: 2, ..old });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// Engine number in the upper bits, slot in the engine's context table ([`PLACES`](Self::PLACES)) in the lower
    /// bits.
    pub index: u32,
    /// Number of earlier contexts in the slot.
    pub generation: u32,
}

impl Handle {
    /// A handle of no device. Data queued with this handle are sealed in software: a driver answers
    /// [`NeedsSoftware`](crate::TransmitResult::NeedsSoftware), as for a removed context.
    pub const NO_DEVICE: Handle = Handle { index: i32::MAX as u32, generation: u32::MAX };

    /// Maximum number of contexts of an engine.
    pub const PLACES: u32 = 1 << 24;

    /// Returns the indices of an engine's first `places` contexts.
    ///
    /// ```
    /// use offload_api::Handle;
    ///
    /// let indices = Handle::indices(2, 100);
    /// let last = Handle { index: indices.end - 1, generation: 0 };
    /// assert_eq!((last.engine(), last.place()), (2, 99));
    /// ```
    pub const fn indices(engine: u8, places: u32) -> core::ops::Range<u32> {
        let first = engine as u32 * Handle::PLACES;
        // The last slot of the last engine would have an index past `u32::MAX` as the end of its range.
        let places = if places < Handle::PLACES { places } else { Handle::PLACES - 1 };
        first..first + places
    }

    /// Returns the number of the engine.
    pub const fn engine(self) -> u8 {
        (self.index / Handle::PLACES) as u8
    }

    /// Returns the slot in the engine's context table.
    pub const fn place(self) -> u32 {
        self.index % Handle::PLACES
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "context {}:{}.{}", self.engine(), self.place(), self.generation)
    }
}

/// Engine numbers in handles ([`Handle::engine`]).
///
/// ```
/// use offload_api::{Handle, engines};
///
/// let handle = Handle { index: Handle::indices(engines::NVME_TCP, 10).start, generation: 0 };
/// assert_eq!(handle.engine(), engines::NVME_TCP);
/// ```
pub mod engines {
    /// TLS records, both directions.
    pub const TLS: u8 = 0;
    /// ESP: security associations, both directions.
    pub const ESP: u8 = 1;
    /// NVMe/TCP PDUs, both directions.
    pub const NVME_TCP: u8 = 2;
    /// QUIC packets with short headers, both directions.
    pub const QUIC: u8 = 3;
    /// Data-encryption keys, to which contexts of other engines refer.
    pub const DATA_KEYS: u8 = 4;
    /// Number of standard engines; engines added to a device are numbered from here.
    pub const STANDARD: u8 = 5;
}

/// A protocol layer with units that a device may follow, counted from TCP upward.
///
/// ```
/// use offload_api::Layer;
///
/// // TLS over TCP, and NVMe/TCP in TLS; or NVMe/TCP over TCP, and nothing above.
/// assert_eq!(Layer::FIRST.above(), Some(Layer::SECOND));
/// assert_eq!(Layer::SECOND.above(), None, "a device follows two layers");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(u8);

/// Number of layers: the length of an array with one entry per layer, indexed by [`Layer::index`].
pub const LAYERS: usize = 2;

impl Layer {
    /// Units directly in the bytes of the TCP stream.
    pub const FIRST: Layer = Layer(0);
    /// Units in the content of the first layer's units.
    pub const SECOND: Layer = Layer(1);
    /// All layers, from the lowest to the highest.
    pub const ALL: [Layer; LAYERS] = [Layer::FIRST, Layer::SECOND];

    /// Returns the index in an array with one entry per layer.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the layer in the content of this layer; `None` for the highest layer that a device follows.
    pub const fn above(self) -> Option<Layer> {
        if self.index() + 1 < LAYERS { Some(Layer(self.0 + 1)) } else { None }
    }
}

/// The position of a piece of data in its unit.
///
/// See [`TxTag`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitTag {
    /// Number of the unit: the TLS record number, or a count of PDUs.
    pub number: u64,
    /// Bytes of the unit before the piece.
    pub at: u32,
    /// Length of the unit on the wire, at least 1.
    pub len: u32,
    /// Number of leading bytes that the engine does not change: 0 for a TLS record, all but the last four for a PDU
    /// with a digest, all for a PDU without a digest.
    pub touched_from: u32,
}

/// The metadata of bytes queued for transmission: for each layer, the unit and the context that still has to work on
/// the bytes.
///
/// ```
/// use offload_api::{Handle, Layer, TxTag, UnitTag};
///
/// // 100 bytes that begin at byte 8 of PDU 9, the last 4 bytes of which a device fills in.
/// let digests = Handle { index: 1, generation: 0 };
/// let tag = TxTag::device(digests, UnitTag { number: 9, at: 8, len: 300, touched_from: 296 });
/// assert_eq!(tag.unit(Layer::FIRST).unwrap().number, 9);
/// // TLS makes them the content of record 7, to be encrypted by the device: what was said of them stays, one layer higher.
/// let record = UnitTag { number: 7, at: 5, len: 122, touched_from: 0 };
/// let cipher = Handle { index: 0, generation: 0 };
/// let tag = tag.within(Some(cipher), record).unwrap();
/// assert_eq!(tag.unit(Layer::FIRST), Some(record));
/// assert_eq!(tag.context(Layer::SECOND), Some(digests));
/// // Later bytes of the same piece have the same tag, further on.
/// assert_eq!(tag.advanced(10).unit(Layer::FIRST).unwrap().at, 15);
/// // There is no third layer.
/// assert_eq!(tag.within(Some(cipher), record), None);
/// assert_eq!(TxTag::PLAIN.context(Layer::FIRST), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxTag {
    contexts: [Option<Handle>; LAYERS],
    /// An entry with length 0 means that the bytes belong to no unit of the layer.
    units: [UnitTag; LAYERS],
}

impl TxTag {
    /// The tag of bytes that leave unchanged and belong to no unit.
    pub const PLAIN: TxTag = TxTag { contexts: [None; LAYERS], units: [UnitTag::NONE; LAYERS] };

    /// Makes the tag of bytes of a unit on which `context` has to work.
    pub const fn device(context: Handle, unit: UnitTag) -> TxTag {
        let mut tag = TxTag::done(unit);
        tag.contexts[Layer::FIRST.index()] = Some(context);
        tag
    }

    /// Makes the tag of bytes of a unit that are ready for the wire.
    pub const fn done(unit: UnitTag) -> TxTag {
        let mut tag = TxTag::PLAIN;
        tag.units[Layer::FIRST.index()] = unit;
        tag
    }

    /// Makes the tag of the same bytes as content of a unit of a lower layer, on which `context` has to work. Returns
    /// `None` if a pending context would move above the highest layer.
    pub fn within(self, context: Option<Handle>, unit: UnitTag) -> Option<TxTag> {
        // Only pending work forbids the shift: a finished unit above the highest layer means nothing to a device.
        if self.contexts[LAYERS - 1].is_some() {
            return None;
        }
        let mut tag = TxTag::done(unit);
        tag.contexts[0] = context;
        // The bytes' own layers move up by one.
        tag.contexts[1..].copy_from_slice(&self.contexts[..LAYERS - 1]);
        tag.units[1..].copy_from_slice(&self.units[..LAYERS - 1]);
        Some(tag)
    }

    /// Returns the context of `layer` that has to work on the bytes; `None` if nothing is left to do at the layer.
    pub const fn context(&self, layer: Layer) -> Option<Handle> {
        self.contexts[layer.index()]
    }

    /// Tests whether a context of any layer has to work on the bytes.
    pub fn is_pending(&self) -> bool {
        self.contexts != [None; LAYERS]
    }

    /// Marks the work of `layer` as done.
    pub const fn note_done(&mut self, layer: Layer) {
        self.contexts[layer.index()] = None;
    }

    /// Returns the position in a unit of `layer`; `None` if the bytes belong to no unit.
    pub const fn unit(&self, layer: Layer) -> Option<UnitTag> {
        let unit = self.units[layer.index()];
        if unit.len == 0 { None } else { Some(unit) }
    }

    /// Returns the tag of the data `bytes` bytes later in the same piece.
    pub fn advanced(mut self, bytes: u32) -> TxTag {
        // All layers advance together, because the bytes lie in a unit of each layer.
        for unit in self.units.iter_mut().filter(|unit| unit.len > 0) {
            unit.at += bytes;
        }
        self
    }
}

impl UnitTag {
    const NONE: UnitTag = UnitTag { number: 0, at: 0, len: 0, touched_from: 0 };
}

/// A unit (record or PDU) in a stream.
///
/// Positions in a layer's stream are offsets. Offsets of the first layer count all bytes of the TCP stream. Offsets of
/// higher layers count only bytes of that layer's units, without the framing of lower layers.
///
/// ```
/// use offload_api::{Layer, Unit};
/// use offload_base::Seq;
///
/// let record = Unit { layer: Layer::FIRST, number: 0, offset: 700, start: Seq(u32::MAX), len: 100, touched_from: 0 };
/// assert_eq!(record.end(), 800);
/// assert!(record.contains(799) && !record.contains(800));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Layer of the unit.
    pub layer: Layer,
    /// Number of the unit in its layer.
    pub number: u64,
    /// Offset of the first byte in the layer's stream.
    pub offset: u64,
    /// TCP sequence number of the first byte.
    pub start: Seq,
    /// Length of the unit in its layer. On the wire, framing of lower layers may lie between the first and the last
    /// byte.
    pub len: u32,
    /// Number of leading bytes that the engine does not change, as in [`UnitTag`].
    pub touched_from: u32,
}

impl Unit {
    /// Returns the offset after the last byte, in the layer's stream.
    pub const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Tests whether the byte at `offset` of the layer's stream belongs to the unit.
    pub const fn contains(&self, offset: u64) -> bool {
        self.offset <= offset && offset < self.end()
    }

    /// Tests whether the engine changes a byte of the unit before `end`.
    pub const fn is_touched_before(&self, end: u64) -> bool {
        self.touched_from < self.len && self.offset + (self.touched_from as u64) < end
    }
}
