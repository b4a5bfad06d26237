//! What RRC configures of an entity (TS 38.331 PDCP-Config).

use std::time::Duration;

use crate::pdu::{header_len, sequence_number};

/// Bits in a sequence number.
///
/// See [`Config`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnLen {
    /// 12 bits: a window of 2,048 PDUs. Signalling bearers have it always.
    Twelve,
    /// 18 bits: a window of 131,072 PDUs.
    Eighteen,
}

impl SnLen {
    /// 12 or 18.
    pub fn bits(self) -> u32 {
        match self {
            SnLen::Twelve => 12,
            SnLen::Eighteen => 18,
        }
    }

    /// Half of the sequence numbers (TS 38.323 7.2).
    pub fn window(self) -> u32 {
        1 << (self.bits() - 1)
    }

    /// RCVD_COUNT (TS 38.323 5.2.2.1): the COUNT with the PDU's sequence number that is nearest to `next`, the first that is waited for.
    /// None: the PDU has no whole header, or no COUNT can be its.
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

    /// The sequence number of a COUNT.
    pub(crate) fn sn(self, count: u32) -> u32 {
        count & ((1 << self.bits()) - 1)
    }
}

/// What the entity serves, and what RLC does below it.
///
/// See [`Config`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BearerKind {
    /// A signalling bearer: always with MAC-I.
    Signalling,
    /// A data bearer over RLC that does not acknowledge.
    Unacknowledged,
    /// A data bearer over RLC that acknowledges: SDUs are kept until they are confirmed, and survive a re-establishment.
    Acknowledged,
}

/// An entity's configuration, the same at both ends.
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
    /// What it serves.
    pub kind: BearerKind,
    /// Bits in a sequence number.
    pub sn: SnLen,
    /// t-Reordering: how long a missing PDU holds up those behind it. None: for ever.
    pub reordering: Option<Duration>,
    /// discardTimer: how long an SDU is of use. None: for ever.
    pub discard: Option<Duration>,
    /// outOfOrderDelivery: SDUs are given as they come.
    pub out_of_order: bool,
    /// Bytes at the start of an SDU (the SDAP header) that are not ciphered: 0 or 1.
    pub clear: usize,
    /// Bytes of SDUs that a transmitter keeps (waiting and unconfirmed SDUs), and a receiver (early SDUs, as many bytes again of unread SDUs,
    /// and as many of PDUs that wait for an earlier job). Each SDU costs 256 bytes more than its length, so that empty SDUs are bounded, too; an
    /// SDU that was delivered out of order
    /// costs 64 bytes until its COUNT is passed. There is always room for one SDU, however long.
    pub buffer: usize,
}

impl Config {
    /// A data bearer.
    pub fn data(kind: BearerKind, sn: SnLen) -> Config {
        let reordering = Some(Duration::from_millis(100));
        Config { kind, sn, reordering, discard: None, out_of_order: false, clear: 0, buffer: 8 << 20 }
    }

    /// A signalling bearer.
    pub fn signalling() -> Config {
        Config { reordering: None, ..Config::data(BearerKind::Signalling, SnLen::Twelve) }
    }

    /// Bytes at the start of a PDU that are not ciphered: its header, and the SDAP header.
    pub fn clear_bytes(&self) -> usize {
        header_len(self.sn) + self.clear
    }

    /// Whether the values go together.
    ///
    /// # Errors
    /// [`ConfigError`] says which do not.
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

/// Values of a [`Config`] that do not go together: the caller's mistake.
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
    /// Signalling bearers have short sequence numbers.
    #[error("a signalling bearer has sequence numbers of 12 bits")]
    SignallingSn,
    /// An SDAP header has one byte.
    #[error("{0} bytes in clear: an SDAP header has one, or is absent")]
    Clear(usize),
}

/// Returns the bytes that an SDU of this length costs while it is kept.
pub(crate) const fn cost(bytes: usize) -> usize {
    bytes + 256
}

/// The longest SDU (TS 38.323 4.3.1).
pub(crate) const SDU_MAX: usize = 9000;
