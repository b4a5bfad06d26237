//! A datagram on its way in, with what the device said about the packet that it came in.

use crate::rx::RxMeta;
use bytes::BytesMut;
use core::net::SocketAddr;
use core::num::NonZeroU16;

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
