//! A packet on its way out.

use crate::ipsec::Protection;
use crate::unit::{Handle, LAYERS, Layer, Unit};
use bytes::Bytes;
use core::num::NonZeroU64;
use offload_base::Seq;
use smallvec::SmallVec;

/// Headers from Ethernet to transport, in front of the payload. Without an allocation up to Ethernet, IPv6 and
/// a TCP header full of options.
pub type Header = SmallVec<[u8; 128]>;

/// What is asked of the device for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxAsk {
    /// TCP sequence number of the first payload byte.
    pub seq: Seq,
    /// What contexts are to work on the payload, by [`Layer::index`](crate::Layer::index): that of the highest layer first.
    pub streams: [Option<StreamAsk>; LAYERS],
    /// Fill in the IP header checksum and the transport checksum.
    pub checksum: bool,
    /// Cut the payload into segments, or datagrams, of at most this many bytes, each with its own headers: TSO, and where
    /// [`PathCaps::udp_segmentation`](crate::PathCaps::udp_segmentation) says so, UDP segmentation. The lengths in the
    /// headers are then the device's to fill in.
    pub mss: Option<u16>,
    /// Let the flow's frames leave no faster than this (packet pacing), in bytes a second: those of Ethernet frames, from
    /// the destination address to the last byte of the payload, as Linux's fq counts. Each segment keeps its distance
    /// from the one before it in its flow, whatever packets they were cut from; a device does not hold one back for more
    /// than a second. Only where [`PathCaps::pacing`](crate::PathCaps::pacing) says so, and of TCP or UDP.
    pub rate: Option<NonZeroU64>,
    /// Make another packet of this one, or of each segment: an engine's that works on whole packets
    /// ([`EspAsk`](crate::EspAsk) says which work of ESP's).
    pub packet: Option<PacketAsk>,
    /// It shows what came so protected: an IPsec layer lets it leave by an SA that protects as much, or not at all. To
    /// everybody else it means nothing.
    pub shows: Protection,
}

impl TxAsk {
    /// The context of `layer` that is to work on the payload.
    pub fn context(&self, layer: Layer) -> Option<Handle> {
        self.streams[layer.index()].map(|ask| ask.context)
    }

    /// Whether a context of any layer is to work on the payload.
    pub fn has_context(&self) -> bool {
        self.streams.iter().any(Option::is_some)
    }

    /// Whether the packet is complete as it is, and any layer may cut it: nothing is to be done to it as a whole.
    ///
    /// ```
    /// use offload_api::{Protection, TxAsk};
    ///
    /// assert!(TxAsk { shows: Protection::Secret, ..TxAsk::default() }.is_nothing());
    /// assert!(!TxAsk { checksum: true, ..TxAsk::default() }.is_nothing());
    /// ```
    pub fn is_nothing(&self) -> bool {
        *self == TxAsk { shows: self.shows, ..TxAsk::default() }
    }
}

/// What an engine is asked that works on whole packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAsk {
    /// The context that does it.
    pub context: Handle,
    /// Number of the packet, or of the first segment of it; each further one has the next.
    pub number: u64,
    /// More about it, in the engine's own words.
    pub args: u64,
}

/// What a context that follows a stream is asked to do with the payload of a packet.
///
/// ```
/// use offload_api::{Handle, StreamAsk};
///
/// let context = Handle { index: 0, generation: 0 };
/// // Of three fragments (the end of a record, the header of the next, its content) the last is of a PDU.
/// let ask = StreamAsk { context, fragments: 0b100, offset: 70_000, bytes: 900 };
/// assert!(ask.is_of(2) && !ask.is_of(1) && !ask.is_of(64));
/// assert_eq!(ask.end(), 70_900);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAsk {
    /// The context.
    pub context: Handle,
    /// How many bytes of its layer's stream the packet has.
    pub bytes: u32,
    /// Where in that stream the first of them is.
    pub offset: u64,
    /// Which fragments of the packet those are, a bit each from the lowest on; the others frame units of layers below.
    pub fragments: u64,
}

impl StreamAsk {
    /// Fragments that a packet for a context may have.
    pub const FRAGMENTS: usize = u64::BITS as usize;

    /// The whole payload of a packet, from `offset` of the layer's stream on.
    pub const fn whole(context: Handle, offset: u64, bytes: u32) -> StreamAsk {
        StreamAsk { context, bytes, offset, fragments: u64::MAX }
    }

    /// Whether a fragment is of the layer's stream.
    pub const fn is_of(&self, fragment: usize) -> bool {
        fragment < StreamAsk::FRAGMENTS && self.fragments & 1 << fragment != 0
    }

    /// Where in the stream its bytes end.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }
}

/// A packet that a stack hands to a driver: headers, payload as shared pieces, and what the device is to do.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{TxAsk, TxPacket};
///
/// let packet = TxPacket {
///     header: [0u8; 54].into_iter().collect(),
///     fragments: [Bytes::from_static(b"hello "), Bytes::from_static(b"wire")].into_iter().collect(),
///     ask: TxAsk { checksum: true, ..TxAsk::default() },
/// };
/// assert_eq!(packet.payload_len(), 10);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TxPacket {
    /// Ethernet, IP and transport headers.
    pub header: Header,
    /// The payload, in order. Shared and immutable: the device reads it when its turn comes.
    pub fragments: SmallVec<[Bytes; 4]>,
    /// What the device is asked to do.
    pub ask: TxAsk,
}

impl TxPacket {
    /// Bytes of payload.
    pub fn payload_len(&self) -> usize {
        self.fragments.iter().map(Bytes::len).sum()
    }
}

/// What became of a packet handed to [`NetDevice::transmit`](crate::NetDevice::transmit).
///
/// ```
/// use offload_api::{DropReason, Sent};
///
/// /// Whether a stack keeps the packet, to hand it over once more.
/// fn again(sent: Sent) -> bool {
///     match sent {
///         Sent::Posted => false,
///         Sent::NeedsSoftware(_unit) => true, // once the unit is sealed
///         Sent::Dropped(reason) => reason == DropReason::RingFull,
///     }
/// }
///
/// assert!(again(Sent::Dropped(DropReason::RingFull)) && !again(Sent::Posted));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// It is on its ring; the doorbell rings at the next flush.
    Posted,
    /// It was not sent: the device cannot work on this unit. Have it sealed, then send again.
    NeedsSoftware(Unit),
    /// It was not sent, and may not be: it must not leave in plaintext. The driver counted it.
    Dropped(DropReason),
}

/// Why a driver dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The bytes before it in its unit are gone, so the device's state cannot be rebuilt.
    NoSyncData,
    /// It asks for more than the device can do (size, number of fragments, an offload it does not have).
    Unsupported,
    /// The ring was full; the caller did not ask for room first.
    RingFull,
    /// A policy forbids it, or asks for protection that no SA gives.
    Policy,
    /// The device is gone and the packet belongs to no unit that software could seal.
    DeviceGone,
}
