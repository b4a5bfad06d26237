//! Configuration of an entity by RRC (TS 38.331 PDCP-Config).

use std::time::Duration;

use crate::pdu::{header_len, sequence_number};

/// The length of sequence numbers.
///
/// See [`Config`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnLen {
    /// 12 bits: a window of 2,048 PDUs. Signalling bearers always use 12 bits.
    Twelve,
    /// 18 bits: a window of 131,072 PDUs.
    Eighteen,
}

impl SnLen {
    /// Returns the number of bits, 12 or 18.
    pub fn bits(self) -> u32 {
        match self {
            SnLen::Twelve => 12,
            SnLen::Eighteen => 18,
        }
    }

    /// Returns the window size: half of the sequence numbers (TS 38.323 7.2).
    pub fn window(self) -> u32 {
        1 << (self.bits() - 1)
    }

    /// Returns RCVD_COUNT (TS 38.323 5.2.2.1): the COUNT with the PDU's sequence number that is nearest to `next`, the
    /// first COUNT still expected. `None` if the PDU has no complete header or no COUNT is possible.
    ///
    /// ```
    /// use pdcp::SnLen;
    ///
    /// assert_eq!(SnLen::Twelve.count_near(4095, &[0x80, 0x01]), Some(4097), "a sequence number that went round");
    /// assert_eq!(SnLen::Twelve.count_near(0, &[0x8f, 0xff]), None, "before the first");
    /// ```
    pub fn count_near(self, next: u64, pdu: &[u8]) -> Option<u32> {
        let (received, window) = (i64::from(sequence_number(self, pdu)?), i64::from(self.window()));
        let delivered = i64::from(self.sn(next as u32));
        let hfn = (next >> self.bits()) as i64;
        let hfn = match received {
            sn if sn < delivered - window => hfn + 1,
            sn if sn >= delivered + window => hfn - 1,
            _ => hfn,
        };
        u32::try_from((hfn << self.bits()) + received).ok()
    }

    /// Returns the sequence number of a COUNT.
    pub(crate) fn sn(self, count: u32) -> u32 {
        count & ((1 << self.bits()) - 1)
    }
}

/// The kind of a bearer, and the RLC mode below it.
///
/// See [`Config`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BearerKind {
    /// A signalling bearer, always with MAC-I.
    Signalling,
    /// A data bearer over unacknowledged RLC.
    Unacknowledged,
    /// A data bearer over acknowledged RLC. SDUs are kept until confirmed, and survive a re-establishment.
    Acknowledged,
}

/// The configuration of an entity, equal at both ends.
///
/// ```
/// use std::time::Duration;
/// use pdcp::{BearerKind, Config, SnLen};
///
/// let mut config = Config::data(BearerKind::Acknowledged, SnLen::Eighteen);
/// config.reordering = Some(Duration::from_millis(40));
/// assert!(config.check().is_ok());
/// config.sn = SnLen::Twelve;
/// assert_eq!(config.sn.window(), 2048);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The kind of the bearer.
    pub kind: BearerKind,
    /// The length of sequence numbers.
    pub sn: SnLen,
    /// t-Reordering: how long a missing PDU holds up later ones. `None`: for ever.
    pub reordering: Option<Duration>,
    /// discardTimer: how long an SDU is useful. `None`: for ever.
    pub discard: Option<Duration>,
    /// outOfOrderDelivery: SDUs are delivered as they arrive.
    pub out_of_order: bool,
    /// Bytes at the start of an SDU (the SDAP header) that are not ciphered: 0 or 1.
    pub clear: usize,
    /// Buffer limit in bytes. A transmitter may keep as many bytes of waiting and unconfirmed SDUs. A receiver may keep
    /// as many bytes of early SDUs, as many of unread SDUs, and as many of PDUs that wait for an earlier job. Each SDU
    /// costs 256 bytes more than its length, so that empty SDUs are bounded too. An SDU delivered out of order costs 64
    /// bytes until its COUNT is passed. One SDU always fits, whatever its length.
    pub buffer: usize,
}

impl Config {
    /// Returns the configuration of a data bearer.
    pub fn data(kind: BearerKind, sn: SnLen) -> Config {
        let reordering = Some(Duration::from_millis(100));
        Config { kind, sn, reordering, discard: None, out_of_order: false, clear: 0, buffer: 8 << 20 }
    }

    /// Returns the configuration of a signalling bearer.
    pub fn signalling() -> Config {
        Config { reordering: None, ..Config::data(BearerKind::Signalling, SnLen::Twelve) }
    }

    /// Returns the length of the part of a PDU that is not ciphered: the PDU's header and the SDAP header.
    pub fn clear_bytes(&self) -> usize {
        header_len(self.sn) + self.clear
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// [`ConfigError`] names the inconsistent values.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.kind == BearerKind::Signalling && self.sn != SnLen::Twelve {
            return Err(ConfigError::SignallingSn);
        }
        if self.clear > 1 {
            return Err(ConfigError::Clear(self.clear));
        }
        Ok(())
    }
}

/// Error of the caller: inconsistent values of a [`Config`].
///
/// ```
/// use pdcp::{Config, ConfigError, SnLen};
///
/// let mut config = Config::signalling();
/// config.sn = SnLen::Eighteen;
/// assert_eq!(config.check(), Err(ConfigError::SignallingSn));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A signalling bearer with long sequence numbers.
    #[error("a signalling bearer has sequence numbers of 12 bits")]
    SignallingSn,
    /// An SDAP header of more than one byte.
    #[error("{0} bytes in clear: an SDAP header has one, or is absent")]
    Clear(usize),
}

/// Returns the cost in bytes of keeping an SDU of this length.
pub(crate) const fn cost(bytes: usize) -> usize {
    bytes + 256
}

/// The maximum length of an SDU (TS 38.323 4.3.1).
pub(crate) const SDU_MAX: usize = 9000;
