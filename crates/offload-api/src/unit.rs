//! Contexts in a device, and the units (records, PDUs) of the streams they follow.

use core::fmt;
use offload_base::Seq;

/// Names a context in a device. The generation tells a context from an earlier one in the same place; a device
/// that does not know a handle drops what refers to it and counts.
///
/// ```
/// use offload_api::Handle;
///
/// let old = Handle { index: 3, generation: 1 };
/// assert_ne!(old, Handle { generation: 2, ..old });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The engine, in the upper bits, and the place in the device's table of its contexts ([`PLACES`](Self::PLACES)).
    pub index: u32,
    /// How many contexts the place held before.
    pub generation: u32,
}

impl Handle {
    /// A context that no device has. What is queued for it, software works on when its turn comes: a driver that is
    /// asked for it answers [`NeedsSoftware`](crate::Sent::NeedsSoftware), as for one that is gone.
    pub const NO_DEVICE: Handle = Handle { index: i32::MAX as u32, generation: u32::MAX };

    /// How many contexts an engine can have.
    pub const PLACES: u32 = 1 << 24;

    /// Indices of the first `places` contexts of an engine.
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
        // The last place of the last engine would end where numbers do.
        let places = if places < Handle::PLACES { places } else { Handle::PLACES - 1 };
        first..first + places
    }

    /// The engine whose context it is, as the device numbers them.
    pub const fn engine(self) -> u8 {
        (self.index / Handle::PLACES) as u8
    }

    /// Its place among the contexts of the engine.
    pub const fn place(self) -> u32 {
        self.index % Handle::PLACES
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "context {}:{}.{}", self.engine(), self.place(), self.generation)
    }
}

/// How handles name the engines whose contexts they are ([`Handle::engine`]).
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
    /// Data-encryption keys, which others refer to.
    pub const DATA_KEYS: u8 = 4;
    /// How many there are; what has been added to a device has numbers from here on.
    pub const STANDARD: u8 = 5;
}

/// A protocol layer whose units a device may follow: how many others lie between it and TCP.
///
/// ```
/// use offload_api::Layer;
///
/// // TLS over TCP, and NVMe/TCP in TLS; or NVMe/TCP over TCP, and nothing above.
/// assert_eq!(Layer::FIRST.above(), Some(Layer::SECOND));
/// assert_eq!(Layer::SECOND.above(), None, "a device follows no more");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(u8);

/// How many layers there are: the length of a list with one entry a layer, indexed by [`Layer::index`].
pub const LAYERS: usize = 2;

impl Layer {
    /// Units that lie one behind the other in the bytes of a TCP stream.
    pub const FIRST: Layer = Layer(0);
    /// Units that lie in the content of those of the first layer.
    pub const SECOND: Layer = Layer(1);
    /// All of them, from the lowest to the highest.
    pub const ALL: [Layer; LAYERS] = [Layer::FIRST, Layer::SECOND];

    /// Its place in a list with one entry a layer.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The layer whose units lie in the content of this one's; `None`: a device follows no more.
    pub const fn above(self) -> Option<Layer> {
        if self.index() + 1 < LAYERS { Some(Layer(self.0 + 1)) } else { None }
    }
}

/// A piece's place in its unit.
///
/// See [`TxTag`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitTag {
    /// The unit's number: a TLS record number, a count of PDUs.
    pub number: u64,
    /// Bytes of the unit before this piece.
    pub at: u32,
    /// Bytes of the whole unit on the wire, at least one.
    pub len: u32,
    /// Bytes of the unit that leave as they are queued; the engine changes some of those behind: 0 of a TLS record, all but
    /// the last four of a PDU with a digest, all of one without.
    pub touched_from: u32,
}

/// What rides with bytes that are queued for transmission.
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
    /// A unit without bytes is none.
    units: [UnitTag; LAYERS],
}

impl TxTag {
    /// Bytes that go out as they are and belong to no unit.
    pub const PLAIN: TxTag = TxTag { contexts: [None; LAYERS], units: [UnitTag::NONE; LAYERS] };

    /// Bytes of a unit that `context` has to work on.
    pub const fn device(context: Handle, unit: UnitTag) -> TxTag {
        let mut tag = TxTag::done(unit);
        tag.contexts[Layer::FIRST.index()] = Some(context);
        tag
    }

    /// Bytes of a unit, as they belong on the wire.
    pub const fn done(unit: UnitTag) -> TxTag {
        let mut tag = TxTag::PLAIN;
        tag.units[Layer::FIRST.index()] = unit;
        tag
    }

    /// The same bytes as the content of a unit of a layer below, which `context` has to work on; `None`: a context would be
    /// above the highest layer.
    pub fn within(self, context: Option<Handle>, unit: UnitTag) -> Option<TxTag> {
        if self.contexts[LAYERS - 1].is_some() {
            return None;
        }
        let mut tag = TxTag::done(unit);
        tag.contexts[0] = context;
        tag.contexts[1..].copy_from_slice(&self.contexts[..LAYERS - 1]);
        tag.units[1..].copy_from_slice(&self.units[..LAYERS - 1]);
        Some(tag)
    }

    /// The context of `layer` that has to work on the bytes; `None`: nothing is to be done there.
    pub const fn context(&self, layer: Layer) -> Option<Handle> {
        self.contexts[layer.index()]
    }

    /// Whether a context of any layer has to work on the bytes.
    pub fn is_pending(&self) -> bool {
        self.contexts != [None; LAYERS]
    }

    /// Nothing is left to be done at `layer`.
    pub const fn note_done(&mut self, layer: Layer) {
        self.contexts[layer.index()] = None;
    }

    /// The place in a unit of `layer`, if the bytes belong to one.
    pub const fn unit(&self, layer: Layer) -> Option<UnitTag> {
        let unit = self.units[layer.index()];
        if unit.len == 0 { None } else { Some(unit) }
    }

    /// The tag of the bytes that come `bytes` later in the same piece.
    pub fn advanced(mut self, bytes: u32) -> TxTag {
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
/// A place in a layer's stream is an offset: that of the first layer counts all bytes of the TCP stream, those of higher ones
/// the bytes of their units, without what frames the units of layers below.
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
    /// Whose unit it is.
    pub layer: Layer,
    /// The unit's number in its layer.
    pub number: u64,
    /// Where in its layer's stream its first byte is.
    pub offset: u64,
    /// TCP sequence number of that byte.
    pub start: Seq,
    /// Bytes of the unit. Of a unit that lies in the content of others, more may lie between its first and its last on the wire.
    pub len: u32,
    /// As in [`UnitTag`].
    pub touched_from: u32,
}

impl Unit {
    /// Where in its layer's stream it ends.
    pub const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Whether the byte at `offset` of its layer's stream is one of the unit's.
    pub const fn contains(&self, offset: u64) -> bool {
        self.offset <= offset && offset < self.end()
    }

    /// Whether one of its bytes before `end` is not as it was queued.
    pub const fn is_touched_before(&self, end: u64) -> bool {
        self.touched_from < self.len && self.offset + (self.touched_from as u64) < end
    }
}
