//! From PDUs in any order to SDUs, each delivered once (TS 38.323 5.2.2, 5.1.2).

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use offload_base::Instant;

use crate::config::cost;
use crate::pdu::header_len;
use crate::{BearerKind, Config, ConfigError, Security, StatusReport};

/// Determines each PDU's COUNT, opens the PDU, and delivers SDUs in order.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{BearerKind, Config, IncomingPdu, Receiver, Security, SnLen};
///
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
/// let mut receiver = Receiver::new(config, Security::new(1, Direction::Uplink)?)?;
/// let late = IncomingPdu::Pdu(BytesMut::from(b"\x80\x01second".as_slice()));
/// let early = IncomingPdu::Pdu(BytesMut::from(b"\x80\x00first".as_slice()));
/// receiver.receive(Instant::ZERO, [late, early]);
/// let sdus: Vec<_> = std::iter::from_fn(|| receiver.poll_sdu()).map(|sdu| sdu.data).collect();
/// assert_eq!(sdus, [b"first".as_slice(), b"second"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    config: Config,
    security: Security,
    /// RX_NEXT: the highest received COUNT plus one. Exceeds 32 bits after the last COUNT.
    next: u64,
    /// RX_DELIV: the first COUNT still expected.
    deliver: u64,
    /// RX_REORD and the end of t-Reordering, while the timer runs.
    reordering: Option<(u64, Instant)>,
    /// Early SDUs, by COUNTs after `deliver`. `None` if delivered out of order: the entry detects duplicates.
    stored: BTreeMap<u32, Option<Bytes>>,
    /// Cost of `stored` in bytes, entries included. At most [`Config::buffer`].
    bytes: usize,
    ready: VecDeque<Sdu>,
    counters: ReceiveCounters,
}

/// A received PDU.
///
/// See [`Receiver`] for an example.
#[derive(Clone, Debug)]
pub enum IncomingPdu {
    /// The PDU as it was sent.
    Pdu(BytesMut),
    /// A device deciphered the PDU with this COUNT, and the MAC-I was valid. The MAC-I is still at the end, in clear.
    Opened {
        /// The COUNT that the device used.
        count: u32,
        /// Header, SDU, MAC-I.
        pdu: BytesMut,
    },
    /// A device deciphered the PDU with this COUNT, and the MAC-I was not valid. If the window gives another COUNT now,
    /// the receiver undoes the device's work and opens the PDU with that COUNT.
    Rejected {
        /// The COUNT that the device used.
        count: u32,
        /// Header, SDU and MAC-I, as the device left them.
        pdu: BytesMut,
    },
}

/// An SDU and its COUNT.
///
/// See [`Receiver`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdu {
    /// The COUNT.
    pub count: u32,
    /// The content.
    pub data: Bytes,
}

/// Counters of received PDUs.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{Config, IncomingPdu, Receiver, Security};
///
/// let mut receiver = Receiver::new(Config::signalling(), Security::new(1, Direction::Uplink)?)?;
/// receiver.receive(Instant::ZERO, [IncomingPdu::Pdu(BytesMut::from(b"\x00".as_slice()))]);
/// assert_eq!(receiver.counters().malformed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveCounters {
    /// SDUs delivered.
    pub delivered: u64,
    /// PDUs received twice or too late.
    pub duplicate: u64,
    /// PDUs with an invalid MAC-I.
    pub integrity: u64,
    /// PDUs too short.
    pub malformed: u64,
    /// PDUs without a possible COUNT: before the first or after the last.
    pub outside: u64,
    /// Early PDUs dropped because early SDUs filled the [`Config::buffer`].
    pub full: u64,
    /// COUNTs given up when t-Reordering ended.
    pub given_up: u64,
    /// PDUs opened by a device.
    pub offloaded: u64,
    /// PDUs opened by a device with a wrong COUNT, and opened again here.
    pub redone: u64,
}

impl Receiver {
    /// Creates a receiver that has received nothing.
    ///
    /// # Errors
    /// As for [`Config::check`].
    pub fn new(config: Config, security: Security) -> Result<Receiver, ConfigError> {
        config.check()?;
        Ok(Receiver {
            config,
            security,
            next: 0,
            deliver: 0,
            reordering: None,
            stored: BTreeMap::new(),
            bytes: 0,
            ready: VecDeque::new(),
            counters: ReceiveCounters::default(),
        })
    }

    /// Processes data PDUs. PDUs that no device has opened are opened as one batch.
    pub fn receive(&mut self, now: Instant, pdus: impl IntoIterator<Item = IncomingPdu>) {
        let pdus: Vec<IncomingPdu> = pdus.into_iter().filter(|pdu| self.is_whole(pdu)).collect();
        // The COUNTs are determined by the current window. The window moves within the batch, but rarely far enough to
        // matter; then the PDU is opened again.
        let mut closed: Vec<(u32, BytesMut)> = Vec::new();
        // PDUs keep their order of arrival, whether a device or the batch below opens them.
        let order: Vec<Result<(u32, BytesMut, bool), Option<usize>>> = pdus
            .into_iter()
            .map(|pdu| match pdu {
                IncomingPdu::Opened { count, pdu } => Ok((count, pdu, true)),
                IncomingPdu::Rejected { count, pdu } => Ok((count, pdu, false)),
                IncomingPdu::Pdu(pdu) => Err(self.config.sn.count_near(self.deliver, &pdu).map(|count| {
                    closed.push((count, pdu));
                    closed.len() - 1
                })),
            })
            .collect();
        let clear = self.config.clear_bytes();
        let authentic = self.security.open(clear, &mut closed);
        let mut closed: Vec<Option<((u32, BytesMut), bool)>> = closed.into_iter().zip(authentic).map(Some).collect();
        for one in order {
            let (opened, authentic, by_device) = match one {
                Ok((count, pdu, authentic)) => ((count, pdu), authentic, true),
                Err(index) => match index.and_then(|index| closed[index].take()) {
                    Some((opened, authentic)) => (opened, authentic, false),
                    None => {
                        self.counters.outside += 1;
                        continue;
                    }
                },
            };
            self.take_opened(now, opened, authentic, by_device);
        }
    }

    /// Returns the next SDU for the upper layer.
    pub fn poll_sdu(&mut self) -> Option<Sdu> {
        self.ready.pop_front()
    }

    /// Returns the time at which [`Receiver::handle_timeout`] is due.
    pub fn next_event(&self) -> Option<Instant> {
        self.reordering.map(|(_, end)| end)
    }

    /// Gives up missing COUNTs when t-Reordering ends (TS 38.323 5.2.2.2).
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some((reorder, _)) = self.reordering.filter(|(_, end)| *end <= now) else { return };
        self.reordering = None;
        let before = self.deliver;
        // Stored SDUs below the limit arrived in time; the other COUNTs are lost.
        let early = self.stored.keys().take_while(|count| u64::from(**count) < reorder).count() as u64;
        self.counters.given_up += reorder - before - early;
        while self.stored.first_key_value().is_some_and(|(count, _)| u64::from(*count) < reorder) {
            self.deliver_first();
        }
        self.deliver = reorder;
        self.deliver_consecutive();
        self.start_reordering(now);
    }

    /// Returns a status report for the peer.
    pub fn status_report(&self) -> StatusReport {
        // After the last COUNT nothing is missing, but a report cannot express that. A report that the last COUNT is
        // missing only causes a duplicate.
        StatusReport::new(u32::try_from(self.deliver).unwrap_or(u32::MAX), self.stored.keys().copied())
    }

    /// Switches to new keys. An acknowledged bearer keeps its state. An unacknowledged bearer delivers its early SDUs,
    /// a signalling bearer drops them, and both restart at COUNT 0.
    pub fn reestablish(&mut self, security: Security) {
        self.security = security;
        if self.config.kind == BearerKind::Acknowledged {
            return;
        }
        if self.config.kind == BearerKind::Unacknowledged {
            while !self.stored.is_empty() {
                self.deliver_first();
            }
        }
        self.stored.clear();
        (self.next, self.deliver, self.reordering, self.bytes) = (0, 0, None, 0);
    }

    /// Returns the first COUNT still expected, from which the COUNTs of PDUs are determined ([`SnLen::count_near`]).
    ///
    /// [`SnLen::count_near`]: crate::SnLen::count_near
    pub fn expected(&self) -> u64 {
        self.deliver
    }

    /// Returns the receiver's counters.
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }

    fn is_whole(&mut self, pdu: &IncomingPdu) -> bool {
        let (IncomingPdu::Pdu(pdu) | IncomingPdu::Opened { pdu, .. } | IncomingPdu::Rejected { pdu, .. }) = pdu;
        let is_whole = pdu.len() >= self.config.clear_bytes() + self.security.mac_len();
        self.counters.malformed += u64::from(!is_whole);
        is_whole
    }

    fn take_opened(&mut self, now: Instant, opened: (u32, BytesMut), authentic: bool, by_device: bool) {
        let (taken, mut pdu) = opened;
        let Some(count) = self.config.sn.count_near(self.deliver, &pdu) else {
            self.counters.outside += 1;
            return;
        };
        let mut authentic = authentic;
        // The device deciphered with a wrong COUNT. Ciphering again with that COUNT restores the original.
        if count != taken {
            let clear = self.config.clear_bytes();
            self.security.cipher(clear, [(taken, &mut pdu[..])].into_iter());
            let mut again = [(count, pdu)];
            authentic = self.security.open(clear, &mut again)[0];
            [(_, pdu)] = again;
        }
        self.counters.redone += u64::from(by_device && count != taken);
        if !authentic {
            self.counters.integrity += 1;
            return;
        }
        self.counters.offloaded += u64::from(by_device && count == taken);
        // Checked after authentication, because a forged PDU must not count as a duplicate.
        if u64::from(count) < self.deliver || self.stored.contains_key(&count) {
            self.counters.duplicate += 1;
            return;
        }
        pdu.truncate(pdu.len() - self.security.mac_len());
        pdu.advance(header_len(self.config.sn));
        self.store(now, count, pdu.freeze());
    }

    fn store(&mut self, now: Instant, count: u32, sdu: Bytes) {
        let is_next = u64::from(count) == self.deliver;
        // An early SDU costs an entry even if empty. A copy is kept, because the datagram's receive buffer is longer
        // than the SDU.
        let early = if self.config.out_of_order { REMEMBERED } else { cost(sdu.len()) };
        if !is_next && self.bytes + early > self.config.buffer {
            self.counters.full += 1;
            return;
        }
        if is_next {
            self.deliver_sdu(count, sdu);
            self.deliver += 1;
        } else if self.config.out_of_order {
            self.deliver_sdu(count, sdu);
            self.stored.insert(count, None);
            self.bytes += early;
        } else {
            self.stored.insert(count, Some(Bytes::copy_from_slice(&sdu)));
            self.bytes += early;
        }
        self.next = self.next.max(u64::from(count) + 1);
        if is_next {
            self.deliver_consecutive();
        }
        // The timer's gap is closed. Another gap may need a new timer.
        if self.reordering.is_some_and(|(reorder, _)| self.deliver >= reorder) {
            self.reordering = None;
        }
        self.start_reordering(now);
    }

    fn start_reordering(&mut self, now: Instant) {
        if let (None, Some(after)) = (self.reordering, self.config.reordering)
            && self.deliver < self.next
        {
            self.reordering = Some((self.next, now + after));
        }
    }

    fn deliver_consecutive(&mut self) {
        while self.stored.first_key_value().is_some_and(|(count, _)| u64::from(*count) == self.deliver) {
            self.deliver_first();
            self.deliver += 1;
        }
    }

    fn deliver_first(&mut self) {
        let Some((count, sdu)) = self.stored.pop_first() else { return };
        self.bytes -= sdu.as_ref().map_or(REMEMBERED, |sdu| cost(sdu.len()));
        if let Some(sdu) = sdu {
            self.deliver_sdu(count, sdu);
        }
    }

    fn deliver_sdu(&mut self, count: u32, data: Bytes) {
        self.counters.delivered += 1;
        self.ready.push_back(Sdu { count, data });
    }
}

/// The cost of a COUNT without its SDU, in bytes.
const REMEMBERED: usize = 64;
