//! Both directions of a bearer at one end.

use bytes::Bytes;
use offload_base::Instant;
use offload_base::time::earliest;

use crate::{
    BearerKind, ClearPdu, Config, ConfigError, CountExhausted, Incoming, Receiver, RepeatedKeys, Sdu, Security,
    SendError, StatusReport, Transmitter,
};

/// A transmitter and a receiver, and status reports between them and the peer's.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::{BearerKind, Config, Entity, Incoming, Security, SnLen};
///
/// let security = |direction| {
///     let key = |byte| Key::new(Algorithm::Zuc128, &[byte; 16]).expect("16 bytes");
///     Security::new(1, direction).map(|security| security.ciphered(key(1)).authenticated(key(2)))
/// };
/// let config = Config::data(BearerKind::Acknowledged, SnLen::Eighteen);
/// let mut phone = Entity::new(config.clone(), security(Direction::Uplink)?, security(Direction::Downlink)?)?;
/// let mut station = Entity::new(config, security(Direction::Downlink)?, security(Direction::Uplink)?)?;
///
/// phone.send(Instant::ZERO, b"an IP packet".as_slice().into())?;
/// let pdus = phone.take(32)?;
/// station.receive(Instant::ZERO, pdus.into_iter().map(|pdu| Incoming::Pdu(BytesMut::from(pdu))));
/// assert_eq!(station.poll_sdu().map(|sdu| sdu.data), Some(b"an IP packet".as_slice().into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Entity {
    kind: BearerKind,
    transmitter: Transmitter,
    receiver: Receiver,
    /// A status report that is to be sent.
    report: Option<StatusReport>,
    malformed: u64,
}

impl Entity {
    /// With the keys of what it sends and of what it receives.
    ///
    /// # Errors
    /// As of [`Config::check`].
    pub fn new(config: Config, sent: Security, received: Security) -> Result<Entity, ConfigError> {
        let kind = config.kind;
        let transmitter = Transmitter::new(config.clone(), sent)?;
        Ok(Entity { kind, transmitter, receiver: Receiver::new(config, received)?, report: None, malformed: 0 })
    }

    /// As [`Transmitter::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, now: Instant, sdu: Bytes) -> Result<(), SendError> {
        self.transmitter.send(now, sdu)
    }

    /// Up to `max` PDUs for RLC, a status report first.
    ///
    /// # Errors
    /// As of [`Transmitter::take`].
    pub fn take(&mut self, max: usize) -> Result<Vec<Bytes>, CountExhausted> {
        let mut pdus: Vec<Bytes> = Vec::new();
        if max > 0 {
            pdus.extend(self.take_report());
        }
        pdus.extend(self.transmitter.take(max - pdus.len())?);
        Ok(pdus)
    }

    /// Whether [`Entity::take`] would give something.
    pub fn has_pdus(&self) -> bool {
        self.report.is_some() || self.transmitter.has_pdus()
    }

    /// A status report that is to go before all else: it is neither ciphered nor authenticated.
    pub fn take_report(&mut self) -> Option<Bytes> {
        self.report.take().map(|report| Bytes::from(report.to_bytes()))
    }

    /// As [`Transmitter::take_clear`], for a device that protects PDUs. A report is taken by itself ([`Entity::take_report`]).
    ///
    /// # Errors
    /// As there.
    pub fn take_clear(&mut self, max: usize) -> Result<Vec<ClearPdu>, CountExhausted> {
        self.transmitter.take_clear(max)
    }

    /// Takes PDUs from RLC.
    pub fn receive(&mut self, now: Instant, pdus: impl IntoIterator<Item = Incoming>) {
        let data: Vec<Incoming> = pdus.into_iter().filter(|pdu| !self.is_control(pdu)).collect();
        self.receiver.receive(now, data);
    }

    /// The next SDU for above.
    pub fn poll_sdu(&mut self) -> Option<Sdu> {
        self.receiver.poll_sdu()
    }

    /// RLC's word that the peer has this SDU.
    pub fn confirm(&mut self, count: u32) {
        self.transmitter.confirm(count);
    }

    /// When [`Entity::handle_timeout`] is due.
    pub fn next_event(&self) -> Option<Instant> {
        earliest(self.transmitter.next_event(), self.receiver.next_event())
    }

    /// Runs timers; says which COUNTs RLC need not send any more.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<u32> {
        self.receiver.handle_timeout(now);
        self.transmitter.handle_timeout(now)
    }

    /// Goes on with new keys; an acknowledged bearer reports to the peer what it has.
    ///
    /// # Errors
    /// See [`Transmitter::reestablish`]; both directions then keep their keys.
    pub fn reestablish(&mut self, sent: Security, received: Security) -> Result<(), RepeatedKeys> {
        self.transmitter.reestablish(sent)?;
        self.receiver.reestablish(received);
        self.report = (self.kind == BearerKind::Acknowledged).then(|| self.receiver.status_report());
        Ok(())
    }

    /// The sending half.
    pub fn transmitter(&self) -> &Transmitter {
        &self.transmitter
    }

    /// The receiving half.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Control PDUs that were dropped.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Whether it is a control PDU, which is then done with. Signalling bearers have none (TS 38.323 6.2.2.1).
    fn is_control(&mut self, pdu: &Incoming) -> bool {
        let Incoming::Pdu(bytes) = pdu else { return false };
        if self.kind == BearerKind::Signalling || bytes.first().is_none_or(|first| first & 0x80 != 0) {
            return false;
        }
        match StatusReport::parse(bytes) {
            Ok(report) if self.kind == BearerKind::Acknowledged => self.transmitter.handle_status(&report),
            _ => self.malformed += 1,
        }
        true
    }
}
