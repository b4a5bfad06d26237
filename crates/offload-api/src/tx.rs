//! Outgoing packets.

use crate::ipsec::Protection;
use crate::unit::{Handle, LAYERS, Layer, Unit};
use bytes::Bytes;
use core::num::NonZeroU64;
use offload_base::Seq;
use smallvec::SmallVec;

/// Headers from Ethernet to the transport layer. Ethernet, IPv6 and a TCP header with all options fit without an
/// allocation.
pub type Header = SmallVec<[u8; 128]>;

/// The requests to the device for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxAsk {
    /// TCP sequence number of the first payload byte.
    pub seq: Seq,
    /// Contexts that work on the payload, indexed by [`Layer::index`](crate::Layer::index). The highest layer works
    /// first.
    pub streams: [Option<StreamAsk>; LAYERS],
    /// Fill in the IP header checksum and the transport checksum.
    pub checksum: bool,
    /// Maximum payload of a segment or datagram into which the device cuts the packet, each with its own headers: TSO,
    /// or UDP segmentation if [`PathCaps::udp_segmentation`](crate::PathCaps::udp_segmentation) is set. The device
    /// fills in the lengths in the headers.
    pub mss: Option<u16>,
    /// Maximum rate of the flow's frames in bytes per second (packet pacing). The rate counts Ethernet frames from the
    /// destination address to the last payload byte, as Linux's fq does. Each segment keeps its distance from the
    /// previous segment of the flow, even from another packet; a device delays a segment by at most one second. Only
    /// for TCP and UDP, and only if [`PathCaps::pacing`](crate::PathCaps::pacing) is set.
    pub rate: Option<NonZeroU64>,
    /// Work of an engine that wraps whole packets, on this packet or on each segment ([`EspAsk`](crate::EspAsk) for
    /// ESP).
    pub packet: Option<PacketAsk>,
    /// Protection of the received data that this packet reveals, for example in an ICMP quote. An IPsec layer sends the
    /// packet only through an SA with at least this protection. Other layers ignore the field.
    pub shows: Protection,
}

impl TxAsk {
    /// Returns the context of `layer` that works on the payload.
    pub fn context(&self, layer: Layer) -> Option<Handle> {
        self.streams[layer.index()].map(|ask| ask.context)
    }

    /// Tests whether a context of any layer works on the payload.
    pub fn has_context(&self) -> bool {
        self.streams.iter().any(Option::is_some)
    }

    /// Tests whether the packet needs no work by the device, so that any layer may fragment it.
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

/// A request to an engine that works on whole packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAsk {
    /// The context.
    pub context: Handle,
    /// Number of the packet or of its first segment; further segments have the following numbers.
    pub number: u64,
    /// Engine-specific arguments.
    pub args: u64,
}

/// A request to a context that follows a stream: the part of a packet's payload on which the context works.
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
    /// Bytes of the layer's stream in the packet.
    pub bytes: u32,
    /// Offset of the first of these bytes in the layer's stream.
    pub offset: u64,
    /// Bit mask of the packet's fragments that contain the bytes, lowest bit first. The other fragments are framing of
    /// lower layers.
    pub fragments: u64,
}

impl StreamAsk {
    /// Maximum number of fragments of a packet for a context.
    pub const FRAGMENTS: usize = u64::BITS as usize;

    /// Requests work on the whole payload, which starts at `offset` of the layer's stream.
    pub const fn whole(context: Handle, offset: u64, bytes: u32) -> StreamAsk {
        StreamAsk { context, bytes, offset, fragments: u64::MAX }
    }

    /// Tests whether a fragment belongs to the layer's stream.
    pub const fn is_of(&self, fragment: usize) -> bool {
        fragment < StreamAsk::FRAGMENTS && self.fragments & 1 << fragment != 0
    }

    /// Returns the offset after the last byte in the stream.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }
}

/// A packet from a stack to a driver: headers, shared payload and requests to the device.
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
    /// Payload, in order. Shared and immutable, because the device reads it later.
    pub fragments: SmallVec<[Bytes; 4]>,
    /// Requests to the device.
    pub ask: TxAsk,
}

impl TxPacket {
    /// Returns the payload bytes.
    pub fn payload_len(&self) -> usize {
        self.fragments.iter().map(Bytes::len).sum()
    }
}

/// The result of [`NetDevice::transmit`](crate::NetDevice::transmit).
///
/// ```
/// use offload_api::{DropReason, TransmitResult};
///
/// /// Whether a stack keeps the packet, to hand it over once more.
/// fn again(sent: TransmitResult) -> bool {
///     match sent {
///         TransmitResult::Posted => false,
///         TransmitResult::NeedsSoftware(_unit) => true, // once the unit is sealed
///         TransmitResult::Dropped(reason) => reason == DropReason::RingFull,
///     }
/// }
///
/// assert!(again(TransmitResult::Dropped(DropReason::RingFull)) && !again(TransmitResult::Posted));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TransmitResult {
    /// The packet is on its ring; the doorbell rings at the next flush.
    Posted,
    /// The packet was not sent because the device cannot work on this unit. Seal the unit, then send again.
    NeedsSoftware(Unit),
    /// The packet was not sent and must not be sent, because it would leave in plaintext. The driver counted it.
    Dropped(DropReason),
}

/// The reason for which a driver dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// Earlier bytes of the unit are released, so the device's state cannot be rebuilt.
    NoSyncData,
    /// The packet exceeds the device's abilities (size, number of fragments, or an unknown offload).
    Unsupported,
    /// The ring was full because the caller did not check `room` first.
    RingFull,
    /// A policy forbids the packet, or requires a protection that no SA provides.
    Policy,
    /// The device is gone, and the packet belongs to no unit that software could seal.
    DeviceGone,
}
