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
    /// How many there are; what has been added to a device has numbers from here on.
    pub const STANDARD: u8 = 3;
}

/// A protocol layer whose units a device may follow. The order is from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// TLS records.
    Tls,
    /// NVMe/TCP PDUs, over TCP or over TLS.
    NvmeTcp,
}

/// How many layers there are: the length of a list with one entry a layer, indexed by `layer as usize`.
pub const LAYERS: usize = 2;

/// A piece's place in its unit.
///
/// See [`TxTag`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTag {
    /// The unit's number: a TLS record number, a count of PDUs.
    pub number: u64,
    /// Bytes of the unit before this piece.
    pub at: u32,
    /// Bytes of the whole unit on the wire.
    pub len: u32,
}

/// A place in a layer's stream: before so many bytes of a unit, the content of lower layers' units taken together. In the
/// order of the stream.
///
/// ```
/// use offload_api::{UnitPlace, UnitTag};
///
/// let tag = UnitTag { number: 7, at: 20, len: 24 };
/// assert_eq!(UnitPlace::of(tag), UnitPlace { number: 7, at: 20 });
/// // Behind the last byte of a unit the next one begins.
/// assert_eq!(UnitPlace::behind(tag, 4), UnitPlace { number: 8, at: 0 });
/// assert!(UnitPlace::of(tag) < UnitPlace::behind(tag, 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitPlace {
    /// The unit's number.
    pub number: u64,
    /// Bytes of it before the place.
    pub at: u32,
}

impl UnitPlace {
    /// Where a piece begins.
    pub const fn of(tag: UnitTag) -> UnitPlace {
        UnitPlace { number: tag.number, at: tag.at }
    }

    /// Where its first `bytes` bytes end.
    pub const fn behind(tag: UnitTag, bytes: u32) -> UnitPlace {
        let at = tag.at + bytes;
        if at < tag.len { UnitPlace { number: tag.number, at } } else { UnitPlace { number: tag.number + 1, at: 0 } }
    }
}

/// What rides with bytes that are queued for transmission.
///
/// ```
/// use offload_api::{Handle, Layer, TxTag, UnitTag};
///
/// let context = Handle { index: 0, generation: 0 };
/// // 100 bytes that begin at byte 5 of record 7, which has 122 bytes, to be encrypted by the device.
/// let tag = TxTag::device(context, Layer::Tls, UnitTag { number: 7, at: 5, len: 122 });
/// assert_eq!(tag.unit(Layer::Tls).unwrap().number, 7);
/// assert_eq!(tag.unit(Layer::NvmeTcp), None);
/// assert_eq!(tag.digests, None);
/// // Later bytes of the same piece have the same tag, further on.
/// assert_eq!(tag.advanced(10).unit(Layer::Tls).unwrap().at, 15);
/// assert_eq!(TxTag::PLAIN.context, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxTag {
    /// The context that turns the queued bytes into those that belong on the wire; `None`: they are ready as they are.
    pub context: Option<Handle>,
    /// The context that fills the digests of PDUs in before `context` encrypts the records that the PDUs are in; `None`:
    /// there are none, or they are there already.
    pub digests: Option<Handle>,
    /// Where the bytes lie in the units of each layer, by `Layer as usize`. A PDU in records counts its own bytes only.
    pub units: [Option<UnitTag>; LAYERS],
}

impl TxTag {
    /// Bytes that go out as they are and belong to no unit.
    pub const PLAIN: TxTag = TxTag { context: None, digests: None, units: [None; LAYERS] };

    /// Bytes of a unit of `layer` that `context` has to work on.
    pub const fn device(context: Handle, layer: Layer, unit: UnitTag) -> TxTag {
        let mut units = [None; LAYERS];
        units[layer as usize] = Some(unit);
        TxTag { context: Some(context), digests: None, units }
    }

    /// The place in a unit of `layer`, if the bytes belong to one.
    pub const fn unit(&self, layer: Layer) -> Option<UnitTag> {
        self.units[layer as usize]
    }

    /// Whether the bytes are content of a record.
    pub const fn is_in_record(&self) -> bool {
        self.units[Layer::Tls as usize].is_some()
    }

    /// The tag of the bytes that come `bytes` later in the same piece.
    pub fn advanced(self, bytes: u32) -> TxTag {
        let units = self.units.map(|unit| unit.map(|unit| UnitTag { at: unit.at + bytes, ..unit }));
        TxTag { units, ..self }
    }
}

/// A unit (record or PDU) in a stream: its layer, its number, and where on the wire it lies. Between the parts of a PDU in
/// records lies what frames those.
///
/// ```
/// use offload_api::{Layer, Unit};
/// use offload_base::Seq;
///
/// let record = Unit { layer: Layer::Tls, number: 0, start: Seq(u32::MAX), end: Seq(99) };
/// assert_eq!(record.len(), 100);
/// assert!(record.contains(Seq(0)) && !record.contains(Seq(99)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Whose unit it is.
    pub layer: Layer,
    /// The unit's number in its layer.
    pub number: u64,
    /// Sequence number of its first byte.
    pub start: Seq,
    /// Sequence number after its last byte.
    pub end: Seq,
}

impl Unit {
    /// Bytes of the unit on the wire.
    pub const fn len(&self) -> u32 {
        self.end.distance_from(self.start)
    }

    /// Whether the unit has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the byte at `seq` is one of the unit's.
    pub const fn contains(&self, seq: Seq) -> bool {
        seq.within(self.start, self.end)
    }
}
