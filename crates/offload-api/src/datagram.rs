//! A datagram on its way in, with what the device said about the packet that it came in; and datagrams on their way out,
//! with what the device is to do with theirs.

use crate::rx::RxMeta;
use crate::tx::PacketAsk;
use bytes::{Bytes, BytesMut};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use smallvec::SmallVec;

/// What a packet says of congestion: the two ECN bits of its IP header (RFC 3168 5).
///
/// ```
/// use offload_api::EcnCodepoint;
///
/// assert_eq!(EcnCodepoint::of_bits(0b11), EcnCodepoint::CongestionExperienced);
/// assert_eq!(EcnCodepoint::Capable0.bits(), 0b10);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnCodepoint {
    /// The transport does not react to marks.
    #[default]
    NotCapable,
    /// ECT(1); RFC 9331 uses it for L4S.
    Capable1,
    /// ECT(0).
    Capable0,
    /// A router on the way marked it.
    CongestionExperienced,
}

impl EcnCodepoint {
    /// The codepoint of the two lowest bits of `bits`.
    pub const fn of_bits(bits: u8) -> EcnCodepoint {
        match bits & 0b11 {
            0b00 => EcnCodepoint::NotCapable,
            0b01 => EcnCodepoint::Capable1,
            0b10 => EcnCodepoint::Capable0,
            _ => EcnCodepoint::CongestionExperienced,
        }
    }

    /// Its two bits.
    pub const fn bits(self) -> u8 {
        match self {
            EcnCodepoint::NotCapable => 0b00,
            EcnCodepoint::Capable1 => 0b01,
            EcnCodepoint::Capable0 => 0b10,
            EcnCodepoint::CongestionExperienced => 0b11,
        }
    }
}

/// A datagram that arrived, or several of one sender that the device joined. Those that came in packets of their own are
/// never joined above the device, so each keeps what was said of it.
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
    /// Who sent it.
    pub from: SocketAddr,
    /// The address and port that it was sent to.
    pub to: SocketAddr,
    /// The ECN bits that it came with.
    pub ecn: EcnCodepoint,
    /// What it says.
    pub data: BytesMut,
    /// What the device said about its packet.
    pub meta: RxMeta,
    /// If the device joined several: bytes of each, but for the last, which may have fewer.
    pub joined: Option<NonZeroU16>,
}

impl Datagram {
    /// The datagrams that it was joined of, each with the metadata of all; itself if it was not joined.
    pub fn split(mut self) -> impl Iterator<Item = Datagram> {
        let bytes = self.joined.take().map_or(usize::MAX, |bytes| usize::from(bytes.get()));
        let mut left = true;
        core::iter::from_fn(move || {
            if !core::mem::replace(&mut left, false) {
                return None;
            }
            left = self.data.len() > bytes;
            let data = self.data.split_to(bytes.min(self.data.len()));
            let Datagram { from, to, ecn, meta, .. } = self;
            Some(Datagram { from, to, ecn, data, meta, joined: None })
        })
    }
}

/// One datagram to be sent, or several of one size to the same address, which a device cuts if it can (USO).
///
/// With an [`ask`](Self::ask), the datagram leaves as the device makes it, or it does not leave: nobody sends it as it is.
/// What else is not met is refused, too, but for `ecn` and `dont_fragment` of a socket that says it cannot set them.
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
    /// To whom.
    pub to: SocketAddr,
    /// The address to send from, one of this host's; `None`: the one that its stack takes for `to`.
    pub source: Option<IpAddr>,
    /// The ECN bits to send it with.
    pub ecn: EcnCodepoint,
    /// If it is several: bytes of each, but for the last, which may have fewer.
    pub segment: Option<NonZeroU16>,
    /// The payload, in order. Shared and immutable: the device reads it when its turn comes.
    pub pieces: SmallVec<[Bytes; 4]>,
    /// What a context of the socket's device is to make of it. Of several, the number is the first one's, and each
    /// further one has the next, cut by host or NIC.
    pub ask: Option<PacketAsk>,
    /// Routers are not to fragment it, and it is refused if the path takes no packet of its size, rather than cut into
    /// fragments (RFC 9000 14). What has an ask, and each of several, the stack does not cut either.
    pub dont_fragment: bool,
}

impl TxDatagram {
    /// A datagram as any socket sends it.
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

    /// Bytes of payload, of all of them.
    pub fn payload_len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// How many datagrams it is.
    pub fn count(&self) -> usize {
        self.segment.map_or(1, |bytes| self.payload_len().div_ceil(bytes.get().into()).max(1))
    }

    /// Takes the first `count` datagrams off, with what is asked of them; all of them, and none are left, if they are no
    /// more.
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
        let mut left = self.segment.map_or(usize::MAX, |bytes| count.saturating_mul(bytes.get().into()));
        let mut pieces = SmallVec::new();
        while left > 0 && !self.pieces.is_empty() {
            let piece =
                if self.pieces[0].len() <= left { self.pieces.remove(0) } else { self.pieces[0].split_to(left) };
            left -= piece.len();
            pieces.push(piece);
        }
        let first = TxDatagram { pieces, ..self.clone_without_pieces() };
        if let Some(ask) = &mut self.ask {
            ask.number = ask.number.wrapping_add(first.count() as u64);
        }
        first
    }

    fn clone_without_pieces(&self) -> TxDatagram {
        TxDatagram { pieces: SmallVec::new(), ..*self }
    }
}
