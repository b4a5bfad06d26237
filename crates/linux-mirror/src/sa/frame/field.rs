//! Fields of messages: numbers, addresses, what may be missing.

use super::{FrameError, MOST_BYTES};
use core::net::IpAddr;
use core::time::Duration;
use offload_api::ipsec::Limits;
use offload_api::{Direction, EspKey, EspMode, EspSuite, Lifetime, Prefix};
use zeroize::Zeroizing;

type Read<T> = Result<T, FrameError>;

/// What is left of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, length: usize) -> Read<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(FrameError::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(FrameError::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Read<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Value("a flag")),
        }
    }

    /// What a flag says is there or not.
    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    pub(super) fn text(&mut self) -> Read<String> {
        let length = self.u8()?.into();
        let bytes = self.bytes(length)?;
        // It is shown to people, and terminals obey other characters.
        match bytes.iter().all(u8::is_ascii_graphic) && length <= LONGEST_TEXT {
            true => Ok(bytes.iter().copied().map(char::from).collect()),
            false => Err(FrameError::Value("a text")),
        }
    }

    pub(super) fn address(&mut self) -> Read<IpAddr> {
        match self.u8()? {
            4 => self.array::<4>().map(IpAddr::from),
            6 => self.array::<16>().map(IpAddr::from),
            _ => Err(FrameError::Value("a family of addresses")),
        }
    }

    pub(super) fn prefix(&mut self) -> Read<Prefix> {
        let (address, bits) = (self.address()?, self.u8()?);
        let prefix = Prefix::new(address, bits).filter(|prefix| prefix.address() == address);
        prefix.ok_or(FrameError::Value("a prefix"))
    }

    pub(super) fn direction(&mut self) -> Read<Direction> {
        Ok(if self.flag()? { Direction::Receive } else { Direction::Transmit })
    }

    pub(super) fn mode(&mut self) -> Read<EspMode> {
        Ok(if self.flag()? { EspMode::Tunnel } else { EspMode::Transport })
    }

    pub(super) fn key(&mut self) -> Read<EspKey> {
        let number = self.u8()?;
        let suite = SUITES.get(usize::from(number)).ok_or(FrameError::Value("a suite"))?;
        EspKey::new(*suite, self.bytes(suite.key_len() + 4)?).ok_or(FrameError::Value("a key"))
    }

    pub(super) fn seconds(&mut self) -> Read<Duration> {
        self.u64().map(Duration::from_secs)
    }

    pub(super) fn lifetime(&mut self) -> Read<Lifetime> {
        let mut limits = || {
            Ok(Limits {
                bytes: self.option(Reader::u64)?,
                packets: self.option(Reader::u64)?,
                time: self.option(Reader::seconds)?,
            })
        };
        Ok(Lifetime { soft: limits()?, hard: limits()? })
    }

    pub(super) fn end(self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Length) }
    }
}

/// A message that is being written; overwritten when dropped.
pub(super) struct Writer(pub(super) Zeroizing<Vec<u8>>);

impl Writer {
    pub(super) fn new(kind: u8) -> Writer {
        // All the room at once: what grows leaves copies behind.
        let mut writer = Writer(Zeroizing::new(Vec::with_capacity(MOST_BYTES)));
        writer.u8(kind);
        writer
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A name that people are shown.
    pub(super) fn text(&mut self, text: &str) {
        let shown = text.chars().map(|c| if c.is_ascii_graphic() { c as u8 } else { b'?' });
        let shown: Vec<u8> = shown.take(LONGEST_TEXT).collect();
        self.u8(shown.len() as u8);
        self.bytes(&shown);
    }

    pub(super) fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => {
                self.u8(4);
                self.bytes(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.bytes(&address.octets());
            }
        }
    }

    pub(super) fn prefix(&mut self, prefix: Prefix) {
        self.address(prefix.address());
        self.u8(prefix.bits());
    }

    pub(super) fn direction(&mut self, direction: Direction) {
        self.flag(direction == Direction::Receive);
    }

    pub(super) fn mode(&mut self, mode: EspMode) {
        self.flag(mode == EspMode::Tunnel);
    }

    pub(super) fn key(&mut self, key: &EspKey) {
        let number = SUITES.iter().position(|suite| *suite == key.suite()).unwrap_or(usize::MAX);
        self.u8(number as u8);
        self.bytes(key.key());
        self.bytes(key.salt());
    }

    pub(super) fn seconds(&mut self, time: Duration) {
        self.u64(time.as_secs());
    }

    pub(super) fn lifetime(&mut self, lifetime: &Lifetime) {
        for limits in [lifetime.soft, lifetime.hard] {
            self.option(limits.bytes, Writer::u64);
            self.option(limits.packets, Writer::u64);
            self.option(limits.time, Writer::seconds);
        }
    }
}

/// `struct xfrm_algo` has no longer name.
const LONGEST_TEXT: usize = 64;
/// Suites by their number on the wire.
const SUITES: [EspSuite; 5] =
    [EspSuite::Aes128Gcm, EspSuite::Aes256Gcm, EspSuite::ChaCha20Poly1305, EspSuite::Aes128Gmac, EspSuite::Aes256Gmac];
