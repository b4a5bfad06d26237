//! Encoding of message fields.

use super::{FrameError, MAX_FRAME_BYTES};
use crate::sa::change::{KernelSaId, KernelSaUse, MirroredPolicy, UnsupportedSa};
use core::net::IpAddr;
use core::time::Duration;
use offload_api::ipsec::Limits;
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, Lifetime, Prefix, Selector, Template, UdpEncapsulation,
};
use zeroize::Zeroizing;

pub(super) type FieldResult<T> = Result<T, FrameError>;

/// The rest of a message.
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Reads the next field.
    pub(super) fn get<T: MessageField>(&mut self) -> FieldResult<T> {
        T::read(self)
    }

    fn bytes(&mut self, length: usize) -> FieldResult<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(FrameError::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> FieldResult<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(FrameError::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn end(self) -> FieldResult<()> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Length) }
    }
}

/// A message under construction. It is overwritten when dropped, because it may contain a key.
pub(super) struct MessageWriter(pub(super) Zeroizing<Vec<u8>>);

impl MessageWriter {
    pub(super) fn new() -> MessageWriter {
        // The whole capacity is allocated at once, because a growing vector would leave copies behind.
        MessageWriter(Zeroizing::new(Vec::with_capacity(MAX_FRAME_BYTES)))
    }

    /// Writes the fields in order.
    pub(super) fn put(&mut self, fields: &[&dyn MessageField]) {
        fields.iter().for_each(|field| field.write(self));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// A type that can be a message field.
pub(super) trait MessageField {
    fn write(&self, out: &mut MessageWriter);
    fn read(from: &mut FieldReader<'_>) -> FieldResult<Self>
    where
        Self: Sized;
}

/// Numbers in network byte order.
macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl MessageField for $number {
            fn write(&self, out: &mut MessageWriter) {
                out.bytes(&self.to_be_bytes());
            }
            fn read(from: &mut FieldReader<'_>) -> FieldResult<Self> {
                from.array().map(<$number>::from_be_bytes)
            }
        }
    )*};
}

/// Structures: the given fields in the given order.
macro_rules! structures {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl MessageField for $name {
            fn write(&self, out: &mut MessageWriter) {
                out.put(&[$(&self.$field),*]);
            }
            fn read(from: &mut FieldReader<'_>) -> FieldResult<Self> {
                Ok($name { $($field: from.get()?),* })
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 }

structures! {
    KernelSaId { source, destination, spi }
    KernelSaUse { bytes, packets }
    UdpEncapsulation { source_port, destination_port }
    Lifetime { soft, hard }
    Limits { bytes, packets, time }
    Selector { source, destination, protocol, source_port, destination_port }
    Template { mode, source, destination, reqid }
    MirroredPolicy { index, direction, selector, priority, action }
}

impl MessageField for bool {
    fn write(&self, out: &mut MessageWriter) {
        u8::from(*self).write(out);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<bool> {
        match from.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Value("a flag")),
        }
    }
}

/// A flag, then the value if the flag is set.
impl<T: MessageField> MessageField for Option<T> {
    fn write(&self, out: &mut MessageWriter) {
        self.is_some().write(out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<Option<T>> {
        if from.get()? { from.get().map(Some) } else { Ok(None) }
    }
}

/// A printable name. Other characters become `?`, and long names are cut.
impl MessageField for String {
    fn write(&self, out: &mut MessageWriter) {
        let shown = self.chars().map(|c| if c.is_ascii_graphic() { c as u8 } else { b'?' });
        let shown: Vec<u8> = shown.take(MAX_TEXT_BYTES).collect();
        (shown.len() as u8).write(out);
        out.bytes(&shown);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<String> {
        let length = from.get::<u8>()?.into();
        let bytes = from.bytes(length)?;
        // The text is shown to people, and terminals would obey control characters.
        match bytes.iter().all(u8::is_ascii_graphic) && length <= MAX_TEXT_BYTES {
            true => Ok(bytes.iter().copied().map(char::from).collect()),
            false => Err(FrameError::Value("a text")),
        }
    }
}

impl MessageField for IpAddr {
    fn write(&self, out: &mut MessageWriter) {
        match self {
            IpAddr::V4(address) => out.bytes(&[&[4][..], &address.octets()].concat()),
            IpAddr::V6(address) => out.bytes(&[&[6][..], &address.octets()].concat()),
        }
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<IpAddr> {
        match from.get::<u8>()? {
            4 => from.array::<4>().map(IpAddr::from),
            6 => from.array::<16>().map(IpAddr::from),
            _ => Err(FrameError::Value("a family of addresses")),
        }
    }
}

impl MessageField for Prefix {
    fn write(&self, out: &mut MessageWriter) {
        out.put(&[&self.address(), &self.bits()]);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<Prefix> {
        let (address, bits) = (from.get()?, from.get()?);
        // Host bits must be zero, so that each prefix has one encoding.
        let prefix = Prefix::new(address, bits).filter(|prefix| prefix.address() == address);
        prefix.ok_or(FrameError::Value("a prefix"))
    }
}

impl MessageField for Direction {
    fn write(&self, out: &mut MessageWriter) {
        (*self == Direction::Receive).write(out);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<Direction> {
        Ok(if from.get()? { Direction::Receive } else { Direction::Transmit })
    }
}

impl MessageField for EspMode {
    fn write(&self, out: &mut MessageWriter) {
        (*self == EspMode::Tunnel).write(out);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<EspMode> {
        Ok(if from.get()? { EspMode::Tunnel } else { EspMode::Transport })
    }
}

impl MessageField for EspKey {
    fn write(&self, out: &mut MessageWriter) {
        // An unknown suite gets an invalid number, which the reader refuses.
        let number = SUITES.iter().position(|suite| *suite == self.suite()).unwrap_or(usize::MAX);
        (number as u8).write(out);
        out.bytes(self.key());
        out.bytes(self.salt());
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<EspKey> {
        let number = from.get::<u8>()?;
        let suite = SUITES.get(usize::from(number)).ok_or(FrameError::Value("a suite"))?;
        EspKey::new(*suite, from.bytes(suite.key_len() + 4)?).ok_or(FrameError::Value("a key"))
    }
}

/// A duration in seconds.
impl MessageField for Duration {
    fn write(&self, out: &mut MessageWriter) {
        self.as_secs().write(out);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<Duration> {
        from.get().map(Duration::from_secs)
    }
}

impl MessageField for DontFragment {
    fn write(&self, out: &mut MessageWriter) {
        let code: u8 = match self {
            DontFragment::Copy => 0,
            DontFragment::Set => 1,
            DontFragment::Clear => 2,
        };
        code.write(out);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<DontFragment> {
        Ok(match from.get::<u8>()? {
            0 => DontFragment::Copy,
            1 => DontFragment::Set,
            2 => DontFragment::Clear,
            _ => return Err(FrameError::Value("don't fragment")),
        })
    }
}

impl MessageField for Result<Action, UnsupportedSa> {
    fn write(&self, out: &mut MessageWriter) {
        match self {
            Ok(Action::Discard) => out.put(&[&0u8]),
            Ok(Action::Bypass) => out.put(&[&1u8]),
            Ok(Action::Protect(template)) => out.put(&[&2u8, template]),
            Err(why) => out.put(&[&3u8, why]),
        }
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<Result<Action, UnsupportedSa>> {
        Ok(match from.get::<u8>()? {
            0 => Ok(Action::Discard),
            1 => Ok(Action::Bypass),
            2 => Ok(Action::Protect(from.get()?)),
            3 => Err(from.get()?),
            _ => return Err(FrameError::Value("an action")),
        })
    }
}

impl MessageField for UnsupportedSa {
    fn write(&self, out: &mut MessageWriter) {
        let (code, value): (u8, u32) = match self {
            UnsupportedSa::Protocol(protocol) => (0, (*protocol).into()),
            // The algorithm's name follows as a text; all other reasons have a number.
            UnsupportedSa::Algorithm(name) => return out.put(&[&ALGORITHM, name]),
            UnsupportedSa::Mode(mode) => (2, (*mode).into()),
            UnsupportedSa::Mark => (3, 0),
            UnsupportedSa::Selector => (4, 0),
            UnsupportedSa::SaSelector => (5, 0),
            UnsupportedSa::Flags(flags) => (6, *flags),
            UnsupportedSa::Encapsulation(kind) => (7, (*kind).into()),
            UnsupportedSa::Attribute(kind) => (8, (*kind).into()),
            UnsupportedSa::Templates => (9, 0),
            UnsupportedSa::TunnelEnds => (10, 0),
            UnsupportedSa::PolicyType(kind) => (11, (*kind).into()),
        };
        out.put(&[&code, &value]);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<UnsupportedSa> {
        let code = from.get::<u8>()?;
        if code == ALGORITHM {
            return from.get().map(UnsupportedSa::Algorithm);
        }
        let value = from.get::<u32>()?;
        let byte = || u8::try_from(value).map_err(|_| FrameError::Value("a reason"));
        let word = || u16::try_from(value).map_err(|_| FrameError::Value("a reason"));
        Ok(match code {
            0 => UnsupportedSa::Protocol(byte()?),
            2 => UnsupportedSa::Mode(byte()?),
            3 => UnsupportedSa::Mark,
            4 => UnsupportedSa::Selector,
            5 => UnsupportedSa::SaSelector,
            6 => UnsupportedSa::Flags(value),
            7 => UnsupportedSa::Encapsulation(word()?),
            8 => UnsupportedSa::Attribute(word()?),
            9 => UnsupportedSa::Templates,
            10 => UnsupportedSa::TunnelEnds,
            11 => UnsupportedSa::PolicyType(byte()?),
            _ => return Err(FrameError::Value("a reason")),
        })
    }
}

/// Maximum length of a text: that of a name in `struct xfrm_algo`.
const MAX_TEXT_BYTES: usize = 64;
/// Code of [`UnsupportedSa::Algorithm`], the only one followed by a text.
const ALGORITHM: u8 = 1;
/// Suites, by their number on the wire.
const SUITES: [EspSuite; 5] =
    [EspSuite::Aes128Gcm, EspSuite::Aes256Gcm, EspSuite::ChaCha20Poly1305, EspSuite::Aes128Gmac, EspSuite::Aes256Gmac];
