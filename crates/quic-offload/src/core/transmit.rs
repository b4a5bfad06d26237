//! Packets on their way out: what the state machine left plain is sealed by a device, or in software, or does not leave.
//!
//! Invariants: a datagram in the queue is sealed, or has an ask; datagrams leave in the order in which the state machine gave them.

use super::Core;
use crate::crypto::keyring::{Plain, UsedUp};
use crate::error::Closed;
use bytes::Bytes;
use core::net::SocketAddr;
use core::num::{NonZeroU16, NonZeroUsize};
use core::task::{Context, Poll};
use noq_proto::Transmit;
use offload_api::{DatagramSocket, EcnCodepoint, QuicAsk, SendRefusal, TxDatagram};
use offload_base::Instant;
use offload_quic::TAG;
use std::collections::VecDeque;

/// Datagrams that wait for the socket.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) batch: VecDeque<TxDatagram>,
    /// Of each that has an ask, what it takes to seal it in software after all.
    pub(super) plain: VecDeque<(usize, Vec<Plain>)>,
    /// Behind those, not yet looked at: whether a device takes them.
    fresh: VecDeque<Fresh>,
}

/// Datagrams, plain ones of a connection if they have plain packets.
#[derive(Debug)]
struct Fresh {
    at: usize,
    datagram: TxDatagram,
    plain: Vec<Plain>,
}

impl Outgoing {
    pub(super) fn has_room(&self) -> bool {
        self.batch.len() + self.fresh.len() < MOST_WAITING
    }

    /// Queues a datagram that has nothing to be sealed.
    pub(super) fn put_plain(&mut self, transmit: &Transmit, mut data: Vec<u8>) {
        data.truncate(transmit.size);
        let datagram = datagram(transmit, data);
        if self.fresh.is_empty() {
            return self.put(NOBODY, datagram, Vec::new());
        }
        // Not ahead of those that wait for a device: to the peer, these would look lost.
        self.fresh.push_back(Fresh { at: NOBODY, datagram, plain: Vec::new() });
    }

    fn put(&mut self, at: usize, datagram: TxDatagram, plain: Vec<Plain>) {
        self.batch.push_back(datagram);
        self.plain.push_back((at, plain));
    }

    /// What a connection left to be looked at is nobody's.
    pub(super) fn forget(&mut self, at: usize) {
        self.fresh.retain(|fresh| fresh.at != at);
    }
}

impl Core {
    /// Takes the packets that a connection has to send, as long as there is room. True: there may be more.
    pub(super) fn take_packets(&mut self, at: usize, now: Instant) -> bool {
        let time = self.noq_time(now);
        let Core { connections, outgoing, counters, config, woken, .. } = self;
        let Some(conn) = connections.get_mut(at) else { return false };
        // Both ends may have given up different ones. The state machine asks for acknowledgements on a path that it counts on then,
        // and ends the program if there is none.
        if config.paths > 1 && conn.noq.paths().is_empty() {
            return false;
        }
        for _ in 0..MOST_AT_ONCE {
            if !outgoing.has_room() {
                return true;
            }
            let mut data = Vec::with_capacity(BUFFER);
            let most = if conn.may_segment() { SEGMENTS } else { NonZeroUsize::MIN };
            let transmit = conn.noq.poll_transmit(time, most, &mut data);
            let mut keys = conn.keyring.lock();
            let (plain, used_up) = (keys.take_plain(), keys.used_up);
            drop(keys);
            if used_up > UsedUp::No && conn.closed.is_none() {
                // RFC 9001 6.6: before no packet may be sealed any more.
                counters.keys_used_up += 1;
                let why = "a key has sealed as many packets as it may: AEAD_LIMIT_REACHED";
                conn.end(Closed::Protocol(why.into()), woken);
                conn.noq.close(time, AEAD_LIMIT_REACHED.into(), "AEAD limit reached".into());
            }
            if used_up == UsedUp::Yes {
                counters.dropped += plain.len() as u64;
                return transmit.is_some();
            }
            let Some(transmit) = transmit else {
                // Without a datagram there is nothing of them that could leave.
                counters.dropped += plain.len() as u64;
                return false;
            };
            data.truncate(transmit.size);
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            if plain.is_empty() {
                outgoing.put_plain(&transmit, data);
                continue;
            }
            plain.iter().for_each(|_| conn.offload.note_sent());
            conn.note_generation(plain.iter().map(|plain| plain.key.number).max());
            let whole = plain.len() == data.len().div_ceil(segment)
                && data
                    .chunks(segment)
                    .zip(&plain)
                    .all(|(part, plain)| plain.bytes == part.len() && is_of(part, plain))
                && plain.windows(2).all(|two| {
                    two[0].path == two[1].path
                        && two[0].key.number <= two[1].key.number
                        && two[0].number < two[1].number
                });
            if whole && conn.offload.may_seal() {
                let parts = by_key(datagram(&transmit, data), plain);
                outgoing.fresh.extend(parts.map(|(datagram, plain)| Fresh { at, datagram, plain }));
                continue;
            }
            match seal_all(&mut data, segment, &plain) {
                true => {
                    counters.sealed_by_software += plain.len() as u64;
                    outgoing.put_plain(&transmit, data);
                }
                // Never as it is.
                false => counters.dropped += plain.len() as u64,
            }
        }
        true
    }

    /// Gives the socket what waits, as much as it takes. True: it took all.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, socket: &mut dyn DatagramSocket) -> bool {
        self.ask_device(socket);
        while !self.outgoing.batch.is_empty() {
            let before = self.outgoing.batch.len();
            let sent = socket.poll_send(cx, &mut self.outgoing.batch);
            for _ in self.outgoing.batch.len()..before {
                if let Some((_, plain)) = self.outgoing.plain.pop_front() {
                    self.counters.sealed_by_device += plain.len() as u64;
                }
            }
            match sent {
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return false,
                Poll::Ready(Err(refused)) => self.note_refused(&refused, socket),
            }
        }
        true
    }

    /// Makes asks of what a device is to seal, in the order of the numbers.
    fn ask_device(&mut self, socket: &mut dyn DatagramSocket) {
        while let Some(Fresh { at, mut datagram, plain }) = self.outgoing.fresh.pop_front() {
            let Some(first) = plain.first() else {
                self.outgoing.put(NOBODY, datagram, plain);
                continue;
            };
            let generation = first.key.number;
            if self.connections.get(at).is_some_and(|conn| conn.offload.sealer_without(generation)) {
                self.renew_sealer(at, generation, socket);
            }
            let context = self.connections.get(at).and_then(|conn| conn.offload.sealer(generation));
            if let Some(context) = context {
                let (path, number, cid_bytes) = (first.path, first.number, first.cid_bytes as u8);
                datagram.ask = Some(QuicAsk { context, path, number, generation, cid_bytes }.into());
                self.outgoing.put(at, datagram, plain);
            } else {
                self.seal_after_all(datagram, &plain, false);
            }
        }
    }

    /// Seals in software what was for a device, and has it sent next, or behind all others.
    fn seal_after_all(&mut self, mut datagram: TxDatagram, plain: &[Plain], next: bool) {
        datagram.ask = None;
        let segment = datagram.segment.map_or(usize::MAX, |bytes| usize::from(bytes.get()));
        let mut data = datagram.pieces.iter().fold(Vec::new(), |mut data, piece| {
            data.extend_from_slice(piece);
            data
        });
        if !seal_all(&mut data, segment, plain) {
            self.counters.dropped += plain.len() as u64;
            return;
        }
        self.counters.sealed_by_software += plain.len() as u64;
        datagram.pieces = [Bytes::from(data)].into_iter().collect();
        match next {
            true => {
                self.outgoing.batch.push_front(datagram);
                self.outgoing.plain.push_front((NOBODY, Vec::new()));
            }
            false => self.outgoing.put(NOBODY, datagram, Vec::new()),
        }
    }

    /// The first of those that wait was refused.
    fn note_refused(&mut self, refused: &SendRefusal, socket: &mut dyn DatagramSocket) {
        let (Some(mut datagram), Some((at, plain))) =
            (self.outgoing.batch.pop_front(), self.outgoing.plain.pop_front())
        else {
            return;
        };
        let limits = socket.limits(datagram.to);
        let most = datagram.segment.map_or(1, |bytes| limits.segments_of(bytes.get()));
        match refused {
            SendRefusal::Ask => {
                self.counters.refused_by_device += plain.len() as u64;
                self.seal_after_all(datagram, &plain, true);
            }
            SendRefusal::TooMany { .. } if most > 0 && datagram.count() > most => {
                let first = datagram.split_to(most);
                let mut plain = plain;
                let rest = plain.split_off(most.min(plain.len()));
                // The number of the rest is told by its first packet.
                if let (Some(ask), Some(next)) = (&mut datagram.ask, rest.first()) {
                    ask.number = next.number;
                }
                for (datagram, plain) in [(datagram, rest), (first, plain)] {
                    self.outgoing.batch.push_front(datagram);
                    self.outgoing.plain.push_front((at, plain));
                }
            }
            // A probe of the path's MTU, or an address that nobody reaches: a loss, to the state machine.
            _ => self.counters.dropped += datagram.count() as u64,
        }
    }
}

/// Whether a datagram ends with that plain packet.
fn is_of(datagram: &[u8], plain: &Plain) -> bool {
    datagram.len() >= plain.bytes && datagram.last_chunk::<TAG>() == Some(&plain.room())
}

/// Cuts a burst where the keys change: a device seals what it is asked to at once under one key.
fn by_key(datagram: TxDatagram, plain: Vec<Plain>) -> impl Iterator<Item = (TxDatagram, Vec<Plain>)> {
    let mut left = Some((datagram, plain));
    core::iter::from_fn(move || {
        let (mut datagram, mut plain) = left.take()?;
        let generation = plain.first()?.key.number;
        let same = plain.iter().take_while(|plain| plain.key.number == generation).count();
        let rest = plain.split_off(same);
        if rest.is_empty() {
            return Some((datagram, plain));
        }
        let first = datagram.split_to(same);
        left = Some((datagram, rest));
        Some((first, plain))
    })
}

/// Seals each plain packet in datagrams of `segment` bytes; all of them, or the datagrams are of no use.
fn seal_all(data: &mut [u8], segment: usize, plain: &[Plain]) -> bool {
    let mut left = plain.iter().peekable();
    for datagram in data.chunks_mut(segment.min(data.len().max(1))) {
        // RFC 9000 12.2: a packet with a short header is the last in its datagram.
        if let Some(plain) = left.next_if(|plain| is_of(datagram, plain)) {
            let at = datagram.len() - plain.bytes;
            if !plain.seal(&mut datagram[at..]) {
                return false;
            }
        }
    }
    left.next().is_none()
}

fn datagram(transmit: &Transmit, data: Vec<u8>) -> TxDatagram {
    let to: SocketAddr = transmit.destination;
    let segment = transmit.segment_size.filter(|bytes| *bytes < transmit.size);
    TxDatagram {
        source: transmit.src_ip,
        ecn: transmit.ecn.map_or(EcnCodepoint::NotCapable, |ecn| EcnCodepoint::from_bits(ecn as u8)),
        segment: segment.and_then(|bytes| NonZeroU16::new(bytes as u16)),
        // RFC 9000 14: the path's MTU is found out, not worked around.
        dont_fragment: true,
        ..TxDatagram::new(to, data.into())
    }
}

/// No connection has to be told.
const NOBODY: usize = usize::MAX;
/// Datagrams, or several of one size, that wait for the socket.
pub(super) const MOST_WAITING: usize = 32;
/// Of one connection before others have their turn.
const MOST_AT_ONCE: usize = 8;
/// Packets of 1,472 bytes in an IP packet of 64 KiB.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(44).unwrap();
const BUFFER: usize = 44 * 1472;
/// RFC 9000 20.1. The state machine lets nobody else close with a code of QUIC's own: it is told as an application's.
const AEAD_LIMIT_REACHED: u32 = 0x0f;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AeadLimits;
    use crate::core::tests::{Socket, address, client};
    use crate::crypto::keyring::Keyring;
    use core::task::Waker;
    use offload_api::QuicCipher;
    use std::sync::Arc;

    /// Bytes of a packet here.
    const BYTES: usize = 100;

    /// A burst of so many packets under keys of a generation, and then under those of the next.
    fn burst(counts: [usize; 2]) -> (Transmit, Vec<u8>, Vec<Plain>) {
        let keyring = Arc::new(Keyring::new(8, false, AeadLimits::default()));
        let secrets = [1, 2].map(|byte| crate::crypto::session::Secret::from(vec![byte; 32]));
        keyring.begin(QuicCipher::Aes128Gcm, true, &secrets).unwrap();
        let _next = keyring.next().unwrap();
        let keys = keyring.lock();
        let generations = [0, 1].map(|generation| keys.generation(true, generation).unwrap());
        let mut plain = Vec::new();
        for (key, count) in generations.iter().zip(counts) {
            for _ in 0..count {
                let (key, number) = (key.clone(), plain.len() as u64);
                plain.push(Plain { key, path: 0, number, bytes: BYTES, cid_bytes: 8 });
            }
        }
        let data: Vec<u8> = plain.iter().flat_map(|plain| [&[0x40; BYTES - TAG][..], &plain.room()].concat()).collect();
        let segment_size = Some(BYTES);
        let transmit = Transmit { destination: address(443), ecn: None, size: data.len(), segment_size, src_ip: None };
        (transmit, data, plain)
    }

    /// A device seals under one key at a time, and each packet of a burst under its own.
    #[test]
    fn a_burst_is_cut_where_the_keys_change() {
        for counts in [[3, 2], [1, 1], [4, 0], [0, 4], [1, 43]] {
            let (transmit, data, plain) = burst(counts);
            let parts: Vec<_> = by_key(datagram(&transmit, data.clone()), plain).collect();
            let cut: Vec<_> = parts.iter().map(|(datagram, plain)| (datagram.count(), plain.len())).collect();
            let expected: Vec<_> = counts.into_iter().filter(|count| *count > 0).map(|count| (count, count)).collect();
            assert_eq!(cut, expected);
            let bytes: Vec<u8> =
                parts.iter().flat_map(|(datagram, _)| datagram.pieces.iter().flatten().copied()).collect();
            assert_eq!(bytes, data);
            for (_, plain) in parts {
                assert!(plain.iter().all(|of| of.key.number == plain[0].key.number));
            }
        }
    }

    /// A datagram that has nothing to be sealed does not pass those that wait for a device.
    #[test]
    fn what_is_sealed_already_waits_for_its_turn() {
        let mut core = client();
        let (transmit, data, plain) = burst([2, 0]);
        let waiting = Fresh { at: 0, datagram: datagram(&transmit, data), plain };
        core.outgoing.fresh.push_back(waiting);
        core.outgoing.put_plain(&transmit, vec![0; 77]);
        let (sealed_later, sealed) = (2 * BYTES, 77);
        let lengths = |core: &Core| core.outgoing.batch.iter().map(TxDatagram::payload_len).collect::<Vec<_>>();
        assert!(!core.poll_send(&mut Context::from_waker(Waker::noop()), &mut Socket::default()));
        assert_eq!(lengths(&core), [sealed_later, sealed]);
        core.outgoing.put_plain(&transmit, vec![0; 55]);
        assert_eq!(lengths(&core), [sealed_later, sealed, 55]);
        assert_eq!(core.outgoing.plain.len(), 3);
    }
}
