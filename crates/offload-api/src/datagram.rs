//! Received and outgoing UDP datagrams with the device's metadata.

use crate::rx::RxMeta;
use crate::tx::PacketAsk;
use bytes::{Bytes, BytesMut};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use smallvec::SmallVec;

/// A congestion codepoint: the two ECN bits of an IP header (RFC 3168 5).
///
/// ```
/// use offload_api::EcnCodepoint;
///
/// assert_eq!(EcnCodepoint::from_bits(0b11), EcnCodepoint::CongestionExperienced);
/// assert_eq!(EcnCodepoint::Capable0.bits(), 0b10);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnCodepoint {
    /// Not-ECT: the transport does not react to congestion marks.
    #[default]
    NotCapable,
    /// ECT(1); RFC 9331 uses it for L4S.
    Capable1,
    /// ECT(0).
    Capable0,
    /// CE: a router on the path marked the packet.
    CongestionExperienced,
}

impl EcnCodepoint {
    /// Decodes the two lowest bits of `bits`.
    pub const fn from_bits(bits: u8) -> EcnCodepoint {
        match bits & 0b11 {
            0b00 => EcnCodepoint::NotCapable,
            0b01 => EcnCodepoint::Capable1,
            0b10 => EcnCodepoint::Capable0,
            _ => EcnCodepoint::CongestionExperienced,
        }
    }

    /// Returns the two bits of the IP header.
    pub const fn bits(self) -> u8 {
        match self {
            EcnCodepoint::NotCapable => 0b00,
            EcnCodepoint::Capable1 => 0b01,
            EcnCodepoint::Capable0 => 0b10,
            EcnCodepoint::CongestionExperienced => 0b11,
        }
    }
}

/// A received datagram, or several datagrams of one sender that the device joined. Layers above the device never join
/// datagrams, so each packet keeps its own metadata.
///
/// ```
/// use bytes::BytesMut;
/// use core::num::NonZeroU16;
/// use offload_api::{Datagram, EcnCodepoint, RxMeta};
///
/// let joined = Datagram {
///     from: "10.0.0.2:443".parse().unwrap(),
///     to: "10.0.0.1:5000".parse().unwrap(),
///     ecn: EcnCodepoint::NotCapable,
///     data: BytesMut::from(&b"abcdefgh"[..]),
///     meta: RxMeta::default(),
///     joined: NonZeroU16::new(3),
/// };
/// let parts: Vec<_> = joined.split().map(|datagram| datagram.data).collect();
/// assert_eq!(parts, [&b"abc"[..], b"def", b"gh"]);
/// ```
#[derive(Debug)]
pub struct Datagram {
    /// Address and port of the sender.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// ECN bits of the packet.
    pub ecn: EcnCodepoint,
    /// Payload.
    pub data: BytesMut,
    /// Verdicts of the device on the packet.
    pub meta: RxMeta,
    /// Bytes of each joined datagram; the last one may be shorter. `None` if the device joined no datagrams.
    pub joined: Option<NonZeroU16>,
}

impl Datagram {
    /// Splits a joined datagram into the original ones, each with a copy of the metadata.
    pub fn split(mut self) -> impl Iterator<Item = Datagram> {
        // The parts must not look joined again.
        let bytes = self.joined.take().map_or(usize::MAX, |bytes| usize::from(bytes.get()));
        let mut left = true;
        core::iter::from_fn(move || {
            if !core::mem::replace(&mut left, false) {
                return None;
            }
            // A datagram may be empty, so the end is tracked by `left` and not by the remaining bytes.
            left = self.data.len() > bytes;
            let data = self.data.split_to(bytes.min(self.data.len()));
            let Datagram { from, to, ecn, meta, .. } = self;
            Some(Datagram { from, to, ecn, data, meta, joined: None })
        })
    }
}

/// One outgoing datagram, or several of one size to the same address, which the device cuts if it can (USO).
///
/// A datagram with an [`ask`](Self::ask) leaves as the device makes it, or not at all: no layer sends it unsealed. A
/// socket refuses other requests that it cannot meet, except `ecn` and `dont_fragment` if the socket documents that it
/// cannot set them.
///
/// ```
/// use bytes::Bytes;
/// use core::num::NonZeroU16;
/// use offload_api::{EcnCodepoint, TxDatagram};
///
/// let to = "10.0.0.2:443".parse().unwrap();
/// let one = TxDatagram::new(to, Bytes::from_static(b"hello"));
/// assert_eq!((one.payload_len(), one.count()), (5, 1));
/// let burst = TxDatagram {
///     segment: NonZeroU16::new(1200),
///     ecn: EcnCodepoint::Capable0,
///     ..TxDatagram::new(to, Bytes::from(vec![0; 3000]))
/// };
/// assert_eq!(burst.count(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct TxDatagram {
    /// Destination address and port.
    pub to: SocketAddr,
    /// Source address, one of this host's. `None` lets the stack choose the address for `to`.
    pub source: Option<IpAddr>,
    /// ECN bits.
    pub ecn: EcnCodepoint,
    /// Bytes of each datagram if there are several; the last one may be shorter.
    pub segment: Option<NonZeroU16>,
    /// Payload, in order. Shared and immutable, because the device reads it later.
    pub pieces: SmallVec<[Bytes; 4]>,
    /// Work for a context of the socket's device. With several datagrams the number is that of the first one; each
    /// further datagram gets the next number, whether the host or the NIC cuts.
    pub ask: Option<PacketAsk>,
    /// Forbids fragmentation: routers must not fragment the datagram, and a datagram too large for the path is refused
    /// (RFC 9000 14). The stack never fragments datagrams with an `ask` or with several segments, regardless of this
    /// flag.
    pub dont_fragment: bool,
}

impl TxDatagram {
    /// Makes a datagram without offload, ECN or source address.
    pub fn new(to: SocketAddr, data: Bytes) -> TxDatagram {
        TxDatagram {
            to,
            source: None,
            ecn: EcnCodepoint::NotCapable,
            segment: None,
            pieces: SmallVec::from_iter([data]),
            ask: None,
            dont_fragment: false,
        }
    }

    /// Returns the payload bytes of all datagrams together.
    pub fn payload_len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Returns the number of datagrams.
    pub fn count(&self) -> usize {
        self.segment.map_or(1, |bytes| self.payload_len().div_ceil(bytes.get().into()).max(1))
    }

    /// Removes and returns the first `count` datagrams with their `ask`. If there are at most `count`, returns all of
    /// them and leaves no payload.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use core::num::NonZeroU16;
    /// use offload_api::{Handle, PacketAsk, TxDatagram};
    ///
    /// let context = Handle { index: 3, generation: 0 };
    /// let mut rest = TxDatagram {
    ///     segment: NonZeroU16::new(2),
    ///     ask: Some(PacketAsk { context, number: 10, args: 0 }),
    ///     ..TxDatagram::new("10.0.0.2:443".parse().unwrap(), Bytes::from_static(b"abcde"))
    /// };
    /// let first = rest.split_to(2);
    /// assert_eq!((&first.pieces[0][..], first.ask.unwrap().number), (&b"abcd"[..], 10));
    /// assert_eq!((&rest.pieces[0][..], rest.ask.unwrap().number), (&b"e"[..], 12));
    /// ```
    pub fn split_to(&mut self, count: usize) -> TxDatagram {
        // A single datagram is taken as a whole, however long it is.
        let mut left = self.segment.map_or(usize::MAX, |bytes| count.saturating_mul(bytes.get().into()));
        let mut pieces = SmallVec::new();
        while left > 0 && !self.pieces.is_empty() {
            let piece =
                if self.pieces[0].len() <= left { self.pieces.remove(0) } else { self.pieces[0].split_to(left) };
            left -= piece.len();
            pieces.push(piece);
        }
        let first = TxDatagram { pieces, ..self.clone_without_pieces() };
        // The NIC numbers the datagrams of one send consecutively, so the rest continues after the part that was split
        // off.
        if let Some(ask) = &mut self.ask {
            ask.number = ask.number.wrapping_add(first.count() as u64);
        }
        first
    }

    fn clone_without_pieces(&self) -> TxDatagram {
        TxDatagram { pieces: SmallVec::new(), ..*self }
    }
}
