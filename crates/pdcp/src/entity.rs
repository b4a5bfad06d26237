//! Both directions of a bearer at one end.

use bytes::Bytes;
use offload_base::Instant;
use offload_base::time::earliest;

use crate::{
    BearerKind, ClearPdu, Config, ConfigError, CountExhausted, IncomingPdu, Receiver, RepeatedKeys, Sdu, SduSendError,
    Security, StatusReport, Transmitter,
};

/// A transmitter and a receiver that exchange status reports with the peer.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::{BearerKind, Config, Entity, IncomingPdu, Security, SnLen};
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
/// station.receive(Instant::ZERO, pdus.into_iter().map(|pdu| IncomingPdu::Pdu(BytesMut::from(pdu))));
/// assert_eq!(station.poll_sdu().map(|sdu| sdu.data), Some(b"an IP packet".as_slice().into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Entity {
    kind: BearerKind,
    transmitter: Transmitter,
    receiver: Receiver,
    /// A status report to be sent.
    report: Option<StatusReport>,
    malformed: u64,
}

impl Entity {
    /// Creates an entity with the keys of both directions.
    ///
    /// # Errors
    /// As for [`Config::check`].
    pub fn new(config: Config, sent: Security, received: Security) -> Result<Entity, ConfigError> {
        let kind = config.kind;
        let transmitter = Transmitter::new(config.clone(), sent)?;
        Ok(Entity { kind, transmitter, receiver: Receiver::new(config, received)?, report: None, malformed: 0 })
    }

    /// Queues an SDU, as [`Transmitter::send`] does.
    ///
    /// # Errors
    /// As for [`Transmitter::send`].
    pub fn send(&mut self, now: Instant, sdu: Bytes) -> Result<(), SduSendError> {
        self.transmitter.send(now, sdu)
    }

    /// Takes up to `max` PDUs for RLC, a status report first.
    ///
    /// # Errors
    /// As for [`Transmitter::take`].
    pub fn take(&mut self, max: usize) -> Result<Vec<Bytes>, CountExhausted> {
        let mut pdus: Vec<Bytes> = Vec::new();
        if max > 0 {
            pdus.extend(self.take_report());
        }
        pdus.extend(self.transmitter.take(max - pdus.len())?);
        Ok(pdus)
    }

    /// Tests whether [`Entity::take`] would return a PDU.
    pub fn has_pdus(&self) -> bool {
        self.report.is_some() || self.transmitter.has_pdus()
    }

    /// Takes a pending status report, which must be sent first and is neither ciphered nor authenticated.
    pub fn take_report(&mut self) -> Option<Bytes> {
        self.report.take().map(|report| Bytes::from(report.to_bytes()))
    }

    /// Takes PDUs in clear for a device that protects them, as [`Transmitter::take_clear`] does. Reports are taken
    /// separately ([`Entity::take_report`]).
    ///
    /// # Errors
    /// As for [`Transmitter::take_clear`].
    pub fn take_clear(&mut self, max: usize) -> Result<Vec<ClearPdu>, CountExhausted> {
        self.transmitter.take_clear(max)
    }

    /// Processes PDUs from RLC.
    pub fn receive(&mut self, now: Instant, pdus: impl IntoIterator<Item = IncomingPdu>) {
        let data: Vec<IncomingPdu> = pdus.into_iter().filter(|pdu| !self.is_control(pdu)).collect();
        self.receiver.receive(now, data);
    }

    /// Returns the next SDU for the upper layer.
    pub fn poll_sdu(&mut self) -> Option<Sdu> {
        self.receiver.poll_sdu()
    }

    /// Processes RLC's confirmation that the peer has received an SDU.
    pub fn confirm(&mut self, count: u32) {
        self.transmitter.confirm(count);
    }

    /// Returns the time at which [`Entity::handle_timeout`] is due.
    pub fn next_event(&self) -> Option<Instant> {
        earliest(self.transmitter.next_event(), self.receiver.next_event())
    }

    /// Runs timers. Returns the COUNTs that RLC need not send any more.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<u32> {
        self.receiver.handle_timeout(now);
        self.transmitter.handle_timeout(now)
    }

    /// Switches to new keys. An acknowledged bearer then sends a status report to the peer.
    ///
    /// # Errors
    /// See [`Transmitter::reestablish`]; both directions then keep their keys.
    pub fn reestablish(&mut self, sent: Security, received: Security) -> Result<(), RepeatedKeys> {
        self.transmitter.reestablish(sent)?;
        self.receiver.reestablish(received);
        self.report = (self.kind == BearerKind::Acknowledged).then(|| self.receiver.status_report());
        Ok(())
    }

    /// Returns the sending half.
    pub fn transmitter(&self) -> &Transmitter {
        &self.transmitter
    }

    /// Returns the receiving half.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns the number of control PDUs that were dropped.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Processes a control PDU. Returns whether the PDU was one. Signalling bearers have no control PDUs (TS 38.323
    /// 6.2.2.1).
    fn is_control(&mut self, pdu: &IncomingPdu) -> bool {
        let IncomingPdu::Pdu(bytes) = pdu else { return false };
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
