//! From PDUs, in any order, to SDUs, each once (TS 38.323 5.2.2, 5.1.2).

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use offload_base::Instant;

use crate::config::cost;
use crate::pdu::header_len;
use crate::{BearerKind, Config, ConfigError, Security, StatusReport};

/// Finds each PDU's COUNT, opens it, puts SDUs in order.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{BearerKind, Config, Incoming, Receiver, Security, SnLen};
///
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
/// let mut receiver = Receiver::new(config, Security::new(1, Direction::Uplink)?)?;
/// let late = Incoming::Pdu(BytesMut::from(b"\x80\x01second".as_slice()));
/// let early = Incoming::Pdu(BytesMut::from(b"\x80\x00first".as_slice()));
/// receiver.receive(Instant::ZERO, [late, early]);
/// let sdus: Vec<_> = std::iter::from_fn(|| receiver.poll_sdu()).map(|sdu| sdu.data).collect();
/// assert_eq!(sdus, [b"first".as_slice(), b"second"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    config: Config,
    security: Security,
    /// RX_NEXT: one more than the highest COUNT that came. Above 32 bits when that was the last.
    next: u64,
    /// RX_DELIV: the first COUNT that was not delivered and is waited for.
    deliver: u64,
    /// RX_REORD, and when t-Reordering ends: while it runs.
    reordering: Option<(u64, Instant)>,
    /// Early SDUs, by COUNTs after `deliver`. `None` if the SDU was delivered out of order: the entry detects duplicates.
    stored: BTreeMap<u32, Option<Bytes>>,
    /// Cost of `stored` in bytes, entries included. At most [`Config::buffer`].
    bytes: usize,
    ready: VecDeque<Sdu>,
    counters: ReceiveCounters,
}

/// A PDU from below.
///
/// See [`Receiver`] for an example.
#[derive(Clone, Debug)]
pub enum Incoming {
    /// As it was sent.
    Pdu(BytesMut),
    /// A device deciphered it with this COUNT and compared MAC-I, which fitted. MAC-I is still at its end, in clear.
    Opened {
        /// The COUNT that the device took.
        count: u32,
        /// Header, SDU, MAC-I.
        pdu: BytesMut,
    },
    /// A device deciphered the PDU with this COUNT, and MAC-I did not match. If the window finds another COUNT by now, the receiver
    /// undoes the device's work and opens the PDU with that COUNT.
    Rejected {
        /// The COUNT that the device used.
        count: u32,
        /// Header, SDU, MAC-I, as the device left them.
        pdu: BytesMut,
    },
}

/// An SDU, and the COUNT that it came under.
///
/// See [`Receiver`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdu {
    /// Its COUNT.
    pub count: u32,
    /// Its bytes.
    pub data: Bytes,
}

/// What became of PDUs.
///
/// ```
/// use bytes::BytesMut;
/// use offload_base::Instant;
/// use pdcp::crypto::Direction;
/// use pdcp::{Config, Incoming, Receiver, Security};
///
/// let mut receiver = Receiver::new(Config::signalling(), Security::new(1, Direction::Uplink)?)?;
/// receiver.receive(Instant::ZERO, [Incoming::Pdu(BytesMut::from(b"\x00".as_slice()))]);
/// assert_eq!(receiver.counters().malformed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveCounters {
    /// Delivered.
    pub delivered: u64,
    /// Came twice, or too late.
    pub duplicate: u64,
    /// MAC-I did not fit.
    pub integrity: u64,
    /// Too short.
    pub malformed: u64,
    /// No COUNT could be theirs: before the first or behind the last.
    pub outside: u64,
    /// PDUs that came too early, while early SDUs filled the [`Config::buffer`].
    pub full: u64,
    /// COUNTs given up because t-Reordering ended.
    pub given_up: u64,
    /// Opened by a device.
    pub offloaded: u64,
    /// Opened by a device with a COUNT that was not theirs, and done again here.
    pub redone: u64,
}

impl Receiver {
    /// An entity that has received nothing.
    ///
    /// # Errors
    /// As of [`Config::check`].
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

    /// Takes data PDUs. Those that are not open yet are opened together.
    pub fn receive(&mut self, now: Instant, pdus: impl IntoIterator<Item = Incoming>) {
        let pdus: Vec<Incoming> = pdus.into_iter().filter(|pdu| self.is_whole(pdu)).collect();
        // By the window as it is now. Within the batch it moves, seldom so far that it matters; then a PDU is done again.
        let mut closed: Vec<(u32, BytesMut)> = Vec::new();
        let order: Vec<Result<(u32, BytesMut, bool), Option<usize>>> = pdus
            .into_iter()
            .map(|pdu| match pdu {
                Incoming::Opened { count, pdu } => Ok((count, pdu, true)),
                Incoming::Rejected { count, pdu } => Ok((count, pdu, false)),
                Incoming::Pdu(pdu) => Err(self.config.sn.count_near(self.deliver, &pdu).map(|count| {
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

    /// The next SDU for above.
    pub fn poll_sdu(&mut self) -> Option<Sdu> {
        self.ready.pop_front()
    }

    /// When [`Receiver::handle_timeout`] is due.
    pub fn next_event(&self) -> Option<Instant> {
        self.reordering.map(|(_, end)| end)
    }

    /// Gives up what t-Reordering waited for, once it ends (TS 38.323 5.2.2.2).
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some((reorder, _)) = self.reordering.filter(|(_, end)| *end <= now) else { return };
        self.reordering = None;
        let before = self.deliver;
        let early = self.stored.keys().take_while(|count| u64::from(**count) < reorder).count() as u64;
        self.counters.given_up += reorder - before - early;
        while self.stored.first_key_value().is_some_and(|(count, _)| u64::from(*count) < reorder) {
            self.deliver_first();
        }
        self.deliver = reorder;
        self.deliver_consecutive();
        self.start_reordering(now);
    }

    /// What has come and what is missing, for the peer.
    pub fn status_report(&self) -> StatusReport {
        // Behind the last COUNT nothing is missing, and a report cannot say so; one that says the last is missing is answered by a duplicate.
        StatusReport::new(u32::try_from(self.deliver).unwrap_or(u32::MAX), self.stored.keys().copied())
    }

    /// Goes on with new keys. An acknowledged bearer keeps what it has; an unacknowledged one delivers it, a signalling one drops it, and
    /// both begin at zero.
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

    /// The first COUNT that was not delivered and is waited for: those of PDUs are found from there ([`SnLen::count_near`]).
    ///
    /// [`SnLen::count_near`]: crate::SnLen::count_near
    pub fn expected(&self) -> u64 {
        self.deliver
    }

    /// What became of PDUs.
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }

    fn is_whole(&mut self, pdu: &Incoming) -> bool {
        let (Incoming::Pdu(pdu) | Incoming::Opened { pdu, .. } | Incoming::Rejected { pdu, .. }) = pdu;
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
        // An early SDU of any length costs an entry, and its datagram's receive buffer is longer than the SDU.
        let early = if self.config.out_of_order { REMEMBERED } else { cost(sdu.len()) };
        if !is_next && self.bytes + early > self.config.buffer {
            self.counters.full += 1;
            return;
        }
        if is_next {
            self.hand_up(count, sdu);
            self.deliver += 1;
        } else if self.config.out_of_order {
            self.hand_up(count, sdu);
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
            self.hand_up(count, sdu);
        }
    }

    fn hand_up(&mut self, count: u32, data: Bytes) {
        self.counters.delivered += 1;
        self.ready.push_back(Sdu { count, data });
    }
}

/// Bytes that a COUNT without its SDU costs.
const REMEMBERED: usize = 64;
