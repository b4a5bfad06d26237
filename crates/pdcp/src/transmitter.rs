//! From SDUs to PDUs (TS 38.323 5.2.1, 5.3, 5.4, 5.1.2).

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use offload_base::Instant;
use offload_base::time::earliest;

use crate::config::{SDU_MAX, cost};
use crate::pdu::{header_len, write_header};
use crate::{BearerKind, Config, ConfigError, Security, StatusReport};

/// Numbers, ciphers and authenticates SDUs.
///
/// An SDU gets its COUNT when its PDU is taken, so that an SDU discarded earlier leaves no gap. Under the same keys, no
/// two SDUs get the same COUNT, and a retransmitted PDU has the same bytes.
///
/// ```
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{BearerKind, Config, Security, SnLen, Transmitter};
///
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
/// let mut transmitter = Transmitter::new(config, Security::new(1, Direction::Uplink)?)?;
/// transmitter.send(Instant::ZERO, b"an IP packet".as_slice().into())?;
/// let pdus = transmitter.take(32)?;
/// assert_eq!(pdus[0][..], *b"\x80\x00an IP packet");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Transmitter {
    config: Config,
    security: Security,
    /// TX_NEXT. Exceeds 32 bits when all COUNTs are used.
    next: u64,
    /// SDUs without a COUNT.
    waiting: VecDeque<WaitingSdu>,
    /// SDUs of an acknowledged bearer that were sent and not confirmed.
    sent: BTreeMap<u32, WaitingSdu>,
    /// COUNTs of SDUs in `sent` that must be sent again.
    again: VecDeque<u32>,
    /// The cost of `waiting` and `sent`.
    bytes: usize,
}

#[derive(Debug)]
struct WaitingSdu {
    sdu: Bytes,
    discard: Option<Instant>,
}

/// The reason why an SDU was not accepted.
///
/// ```
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{Config, Security, SduSendError, Transmitter};
///
/// let mut transmitter = Transmitter::new(Config::signalling(), Security::new(1, Direction::Uplink)?)?;
/// assert_eq!(transmitter.send(Instant::ZERO, vec![0; 9001].into()), Err(SduSendError::TooLong(9001)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SduSendError {
    /// Error of the caller: an SDU has at most 9,000 bytes.
    #[error("an SDU of {0} bytes: it has at most 9000")]
    TooLong(usize),
    /// The waiting SDUs fill [`Config::buffer`]. Retry when PDUs were taken or confirmed.
    #[error("the buffer is full: take PDUs, or wait for the peer to confirm some")]
    Full,
}

/// All COUNTs of the keys are used, so the entity must be re-established with new keys.
///
/// See [`Transmitter::take`].
///
/// ```
/// let told = pdcp::CountExhausted.to_string();
/// assert!(told.contains("new keys"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no COUNT is left: re-establish the entity with new keys")]
pub struct CountExhausted;

/// Error of the caller: a key was used before with the same identity and direction, so a COUNT would be used for a
/// second SDU.
///
/// ```
/// use offload_base::Instant;
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::{Config, RepeatedKeys, Security, Transmitter};
///
/// let key = |byte| Key::new(Algorithm::Zuc128, &[byte; 16]).expect("16 bytes");
/// let security = |byte| Security::new(1, Direction::Uplink).expect("a bearer").ciphered(key(byte));
/// let mut transmitter = Transmitter::new(Config::signalling(), security(1))?;
/// transmitter.send(Instant::ZERO, b"RRC".as_slice().into())?;
/// transmitter.take(1)?;
/// assert_eq!(transmitter.reestablish(security(1)), Err(RepeatedKeys));
/// assert_eq!(transmitter.reestablish(security(2)), Ok(()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has been used with this identity and direction: a COUNT would be used twice; give new keys")]
pub struct RepeatedKeys;

impl Transmitter {
    /// Creates a transmitter that has sent nothing.
    ///
    /// # Errors
    /// As for [`Config::check`].
    pub fn new(config: Config, security: Security) -> Result<Transmitter, ConfigError> {
        config.check()?;
        let (waiting, sent, again) = Default::default();
        Ok(Transmitter { config, security, next: 0, waiting, sent, again, bytes: 0 })
    }

    /// Queues an SDU.
    ///
    /// # Errors
    /// [`SduSendError`] gives the reason for a refusal.
    pub fn send(&mut self, now: Instant, sdu: Bytes) -> Result<(), SduSendError> {
        if sdu.len() > SDU_MAX {
            return Err(SduSendError::TooLong(sdu.len()));
        }
        if self.bytes > 0 && self.bytes + cost(sdu.len()) > self.config.buffer {
            return Err(SduSendError::Full);
        }
        self.bytes += cost(sdu.len());
        self.waiting.push_back(WaitingSdu { sdu, discard: self.config.discard.map(|after| now + after) });
        Ok(())
    }

    /// Takes up to `max` PDUs for RLC, protected as one batch.
    ///
    /// Fewer are returned if an acknowledged bearer has a full window of unconfirmed PDUs, because the receiver could
    /// not distinguish more.
    ///
    /// # Errors
    /// [`CountExhausted`] if SDUs wait and no COUNT is left.
    pub fn take(&mut self, max: usize) -> Result<Vec<Bytes>, CountExhausted> {
        let mut pdus: Vec<_> = self.take_clear(max)?.iter().map(|pdu| (pdu.count, pdu.to_bytes())).collect();
        self.security.protect(self.config.clear_bytes(), &mut pdus);
        Ok(pdus.into_iter().map(|(_, pdu)| pdu.freeze()).collect())
    }

    /// Takes PDUs in clear, for a device that protects them ([`Security::protect`]) and drops PDUs that it cannot
    /// protect.
    ///
    /// # Errors
    /// As for [`Transmitter::take`].
    pub fn take_clear(&mut self, max: usize) -> Result<Vec<ClearPdu>, CountExhausted> {
        let mut pdus = Vec::new();
        while pdus.len() < max {
            // Retransmissions come first, because the receiver waits for them.
            if let Some(count) = self.again.pop_front() {
                if let Some(again) = self.sent.get(&count) {
                    pdus.push(self.clear_pdu(count, again.sdu.clone()));
                }
                continue;
            }
            if self.waiting.is_empty() || self.is_window_full() {
                break;
            }
            // PDUs already taken are returned, and the next call reports the error.
            let Ok(count) = u32::try_from(self.next) else {
                if pdus.is_empty() {
                    return Err(CountExhausted);
                }
                break;
            };
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.next += 1;
            pdus.push(self.clear_pdu(count, waiting.sdu.clone()));
            match self.config.kind {
                // Kept until confirmed; the cost is freed then.
                BearerKind::Acknowledged => {
                    self.sent.insert(count, waiting);
                }
                _ => self.bytes -= cost(waiting.sdu.len()),
            }
        }
        Ok(pdus)
    }

    /// Tests whether [`Transmitter::take`] would return a PDU.
    pub fn has_pdus(&self) -> bool {
        !self.again.is_empty() || !self.waiting.is_empty() && !self.is_window_full()
    }

    /// Processes RLC's confirmation that the peer has received an SDU.
    pub fn confirm(&mut self, count: u32) {
        if let Some(sent) = self.sent.remove(&count) {
            self.bytes -= cost(sent.sdu.len());
        }
    }

    /// Processes the peer's status report: received SDUs are confirmed, missing ones are sent again.
    pub fn handle_status(&mut self, report: &StatusReport) {
        let (bytes, mut missing) = (&mut self.bytes, VecDeque::new());
        self.sent.retain(|count, sent| {
            let has = report.has(*count);
            if has {
                *bytes -= cost(sent.sdu.len());
            } else {
                missing.push_back(*count);
            }
            !has
        });
        // A newer report replaces retransmissions that an older one requested.
        self.again = missing;
    }

    /// Returns the time at which [`Transmitter::handle_timeout`] is due.
    pub fn next_event(&self) -> Option<Instant> {
        let [waiting, sent] = [self.waiting.front(), self.sent.values().next()].map(|first| first?.discard);
        earliest(waiting, sent)
    }

    /// Drops expired SDUs. Returns the COUNTs that RLC need not send any more.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<u32> {
        let is_over = |waiting: &WaitingSdu| waiting.discard.is_some_and(|discard| discard <= now);
        while let Some(first) = self.waiting.front().filter(|first| is_over(first)) {
            self.bytes -= cost(first.sdu.len());
            self.waiting.pop_front();
        }
        // COUNTs ascend with time, so the expired ones come first.
        let over: Vec<u32> = self.sent.iter().take_while(|(_, sent)| is_over(sent)).map(|(count, _)| *count).collect();
        over.iter().for_each(|count| self.confirm(*count));
        over
    }

    /// Switches to new keys. An acknowledged bearer sends unconfirmed SDUs again under their COUNTs. Other bearers
    /// restart at COUNT 0, and a signalling bearer drops its waiting SDUs.
    ///
    /// # Errors
    /// [`RepeatedKeys`] if the bearer would restart at COUNT 0 under a key that it has already used. It then keeps its
    /// old keys.
    pub fn reestablish(&mut self, security: Security) -> Result<(), RepeatedKeys> {
        let begins_again = self.next > 0 && self.config.kind != BearerKind::Acknowledged;
        if begins_again && self.security.shares_key(&security) {
            return Err(RepeatedKeys);
        }
        self.security = security;
        match self.config.kind {
            BearerKind::Acknowledged => {
                self.again = self.sent.keys().copied().collect();
                return Ok(());
            }
            BearerKind::Signalling => {
                self.bytes = 0;
                self.waiting.clear();
            }
            BearerKind::Unacknowledged => {}
        }
        self.next = 0;
        Ok(())
    }

    /// Tests whether no COUNT was used under the current keys.
    #[cfg(feature = "offload")]
    pub(crate) fn is_unused(&self) -> bool {
        self.next == 0
    }

    fn is_window_full(&self) -> bool {
        let window = u64::from(self.config.sn.window());
        self.sent.keys().next().is_some_and(|oldest| self.next - u64::from(*oldest) >= window)
    }

    fn clear_pdu(&self, count: u32, sdu: Bytes) -> ClearPdu {
        let (mut header, header_bytes) = ([0; 3], header_len(self.config.sn));
        write_header(self.config.sn, count, self.config.kind != BearerKind::Signalling, &mut header);
        ClearPdu { count, header, header_bytes, sdu, mac_bytes: self.security.mac_len() }
    }
}

/// A PDU in clear, split into parts so that the SDU need not be copied.
///
/// ```
/// use offload_base::Instant;
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::{Config, Security, Transmitter};
///
/// let key = Key::new(Algorithm::Zuc128, &[7; 16])?;
/// let security = Security::new(1, Direction::Uplink)?.authenticated(key);
/// let mut transmitter = Transmitter::new(Config::signalling(), security)?;
/// transmitter.send(Instant::ZERO, b"RRC".as_slice().into())?;
/// let pdu = transmitter.take_clear(1)?.remove(0);
/// assert_eq!((pdu.count(), pdu.header(), pdu.mac_bytes()), (0, &[0, 0][..], 4));
/// assert_eq!(pdu.to_bytes()[..], *b"\0\0RRC\0\0\0\0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClearPdu {
    count: u32,
    header: [u8; 3],
    header_bytes: usize,
    sdu: Bytes,
    mac_bytes: usize,
}

impl ClearPdu {
    /// Returns the COUNT.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the header of 2 or 3 bytes.
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_bytes]
    }

    /// Returns the SDU.
    pub fn sdu(&self) -> &Bytes {
        &self.sdu
    }

    /// Returns the length of the MAC-I after the SDU: 4 or 0.
    pub fn mac_bytes(&self) -> usize {
        self.mac_bytes
    }

    /// Returns the length of the PDU.
    pub fn bytes(&self) -> usize {
        self.header_bytes + self.sdu.len() + self.mac_bytes
    }

    /// Serializes the PDU with zeros in place of the MAC-I.
    pub fn to_bytes(&self) -> BytesMut {
        let mut pdu = BytesMut::with_capacity(self.bytes());
        pdu.extend_from_slice(self.header());
        pdu.extend_from_slice(&self.sdu);
        pdu.resize(self.bytes(), 0);
        pdu
    }
}
