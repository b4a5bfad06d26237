//! Sent packets: a device or software seals the packets that the state machine left plain; a packet that cannot be
//! sealed is dropped.
//!
//! Invariants: a datagram in the queue is sealed or has an ask for a device. Datagrams leave in the order in which the
//! state machine returned them.

use super::EndpointCore;
use crate::crypto::keyring::{KeyUsage, PlainPacket};
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
pub(super) struct OutgoingDatagrams {
    pub(super) batch: VecDeque<TxDatagram>,
    /// Per datagram in the batch: the connection and its plain packets, which are needed if the device refuses.
    pub(super) plain: VecDeque<(usize, Vec<PlainPacket>)>,
    /// Datagrams after the batch that have not been assigned to a device yet.
    fresh: VecDeque<UnassignedDatagram>,
}

/// A datagram of the connection at `at`, with its plain packets, if any.
#[derive(Debug)]
struct UnassignedDatagram {
    at: usize,
    datagram: TxDatagram,
    plain: Vec<PlainPacket>,
}

impl OutgoingDatagrams {
    pub(super) fn has_room(&self) -> bool {
        self.batch.len() + self.fresh.len() < MAX_WAITING
    }

    /// Queues a datagram without plain packets.
    pub(super) fn put_plain(&mut self, transmit: &Transmit, mut data: Vec<u8>) {
        data.truncate(transmit.size);
        let datagram = datagram(transmit, data);
        if self.fresh.is_empty() {
            return self.put(NOBODY, datagram, Vec::new());
        }
        // Overtaking the datagrams that wait for a device would make these look lost to the peer.
        self.fresh.push_back(UnassignedDatagram { at: NOBODY, datagram, plain: Vec::new() });
    }

    fn put(&mut self, at: usize, datagram: TxDatagram, plain: Vec<PlainPacket>) {
        self.batch.push_back(datagram);
        self.plain.push_back((at, plain));
    }

    /// Drops a connection's datagrams that are not assigned to a device yet.
    pub(super) fn forget(&mut self, at: usize) {
        self.fresh.retain(|fresh| fresh.at != at);
    }
}

impl EndpointCore {
    /// Takes packets from a connection while there is room. Returns whether there may be more.
    pub(super) fn take_packets(&mut self, at: usize, now: Instant) -> bool {
        let time = self.noq_time(now);
        let EndpointCore { connections, outgoing, counters, config, woken, .. } = self;
        let Some(conn) = connections.get_mut(at) else { return false };
        // If both ends abandon different paths at the same time, no path is left. The state machine would then send an
        // acknowledgment on a path that no longer exists, and panic.
        if config.paths > 1 && conn.noq.paths().is_empty() {
            return false;
        }
        for _ in 0..MAX_BURSTS {
            if !outgoing.has_room() {
                return true;
            }
            let mut data = Vec::with_capacity(BUFFER);
            let most = if conn.may_segment() { SEGMENTS } else { NonZeroUsize::MIN };
            let transmit = conn.noq.poll_transmit(time, most, &mut data);
            let mut keys = conn.keyring.lock();
            let (plain, used_up) = (keys.take_plain(), keys.used_up);
            drop(keys);
            if used_up > KeyUsage::No && conn.closed.is_none() {
                // RFC 9001 6.6: the connection is closed while the key may still seal the close.
                counters.keys_used_up += 1;
                let why = "a key has sealed as many packets as it may: AEAD_LIMIT_REACHED";
                conn.end(Closed::Protocol(why.into()), woken);
                conn.noq.close(time, AEAD_LIMIT_REACHED.into(), "AEAD limit reached".into());
            }
            if used_up == KeyUsage::Yes {
                counters.dropped += plain.len() as u64;
                return transmit.is_some();
            }
            let Some(transmit) = transmit else {
                // The plain packets without a datagram cannot leave.
                counters.dropped += plain.len() as u64;
                return false;
            };
            data.truncate(transmit.size);
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            if plain.is_empty() {
                outgoing.put_plain(&transmit, data);
                continue;
            }
            // The packets count towards asking a full device again, whoever seals them.
            plain.iter().for_each(|_| conn.offload.note_sent());
            conn.note_generation(plain.iter().map(|plain| plain.key.number).max());
            // A device may seal the datagrams only if each has exactly one plain packet at its end, in ascending order
            // on one path.
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
                outgoing.fresh.extend(parts.map(|(datagram, plain)| UnassignedDatagram { at, datagram, plain }));
                continue;
            }
            match seal_all(&mut data, segment, &plain) {
                true => {
                    counters.sealed_by_software += plain.len() as u64;
                    outgoing.put_plain(&transmit, data);
                }
                // Never sent as it is, because the datagram contains plain text.
                false => counters.dropped += plain.len() as u64,
            }
        }
        true
    }

    /// Gives the waiting datagrams to the socket. Returns whether all were taken.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, socket: &mut dyn DatagramSocket) -> bool {
        // Contexts may have been installed since the packets were taken.
        self.assign_to_contexts(socket);
        while !self.outgoing.batch.is_empty() {
            let before = self.outgoing.batch.len();
            let sent = socket.poll_send(cx, &mut self.outgoing.batch);
            // The socket removes the datagrams that it takes, so the difference is the number sent.
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

    /// Assigns datagrams to the device's contexts, in the order of packet numbers.
    fn assign_to_contexts(&mut self, socket: &mut dyn DatagramSocket) {
        while let Some(UnassignedDatagram { at, mut datagram, plain }) = self.outgoing.fresh.pop_front() {
            let Some(first) = plain.first() else {
                self.outgoing.put(NOBODY, datagram, plain);
                continue;
            };
            let generation = first.key.number;
            if self.connections.get(at).is_some_and(|conn| conn.offload.sealer_without(generation)) {
                // A key update reaches the device with the first packet under the new key.
                self.renew_sealer(at, generation, socket);
            }
            let context = self.connections.get(at).and_then(|conn| conn.offload.sealer(generation));
            if let Some(context) = context {
                let (path, number, cid_bytes) = (first.path, first.number, first.cid_bytes as u8);
                datagram.ask = Some(QuicAsk { context, path, number, generation, cid_bytes }.into());
                self.outgoing.put(at, datagram, plain);
            } else {
                self.seal_in_software(datagram, &plain, false);
            }
        }
    }

    /// Seals a device's datagram in software and queues it first or last.
    fn seal_in_software(&mut self, mut datagram: TxDatagram, plain: &[PlainPacket], next: bool) {
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
        // A refused datagram goes first, because the datagrams after it have higher numbers.
        match next {
            true => {
                self.outgoing.batch.push_front(datagram);
                self.outgoing.plain.push_front((NOBODY, Vec::new()));
            }
            false => self.outgoing.put(NOBODY, datagram, Vec::new()),
        }
    }

    /// Handles the refusal of the first waiting datagram.
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
                self.seal_in_software(datagram, &plain, true);
            }
            SendRefusal::TooMany { .. } if most > 0 && datagram.count() > most => {
                let first = datagram.split_to(most);
                let mut plain = plain;
                let rest = plain.split_off(most.min(plain.len()));
                // The ask of the rest starts at its own first packet number.
                if let (Some(ask), Some(next)) = (&mut datagram.ask, rest.first()) {
                    ask.number = next.number;
                }
                for (datagram, plain) in [(datagram, rest), (first, plain)] {
                    self.outgoing.batch.push_front(datagram);
                    self.outgoing.plain.push_front((at, plain));
                }
            }
            // The datagram was an MTU probe, or its address is unreachable. The state machine treats it as lost.
            _ => self.counters.dropped += datagram.count() as u64,
        }
    }
}

/// Tests whether a datagram ends with this plain packet.
fn is_of(datagram: &[u8], plain: &PlainPacket) -> bool {
    datagram.len() >= plain.bytes && datagram.last_chunk::<TAG>() == Some(&plain.room())
}

/// Splits a burst where the key changes, because an ask covers one key.
fn by_key(datagram: TxDatagram, plain: Vec<PlainPacket>) -> impl Iterator<Item = (TxDatagram, Vec<PlainPacket>)> {
    let mut left = Some((datagram, plain));
    core::iter::from_fn(move || {
        let (mut datagram, mut plain) = left.take()?;
        let generation = plain.first()?.key.number;
        // The list is sorted by generation, so the packets of one key are adjacent.
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

/// Seals each plain packet in datagrams of `segment` bytes. Returns false if one cannot be sealed; the data is then
/// unusable.
fn seal_all(data: &mut [u8], segment: usize, plain: &[PlainPacket]) -> bool {
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
        // RFC 9000 14: packets must not be fragmented, so that path MTU discovery works.
        dont_fragment: true,
        ..TxDatagram::new(to, data.into())
    }
}

/// Marks datagrams without plain packets, which belong to no connection.
const NOBODY: usize = usize::MAX;
/// Limit of waiting entries, each a datagram or a burst.
pub(super) const MAX_WAITING: usize = 32;
/// Bursts of one connection before others get their turn.
const MAX_BURSTS: usize = 8;
/// Packets of 1,472 bytes that fit into an IP packet of 64 KiB.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(44).unwrap();
const BUFFER: usize = 44 * 1472;
/// The transport error of RFC 9000 20.1, sent as an application's code, because the state machine offers no other way.
const AEAD_LIMIT_REACHED: u32 = 0x0f;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AeadLimits;
    use crate::core::tests::{CountingSocket, address, client};
    use crate::crypto::keyring::Keyring;
    use core::task::Waker;
    use offload_api::QuicCipher;
    use std::sync::Arc;

    /// Length of a packet in these tests.
    const BYTES: usize = 100;

    /// Returns a burst of packets under one generation, followed by packets under the next.
    fn burst(counts: [usize; 2]) -> (Transmit, Vec<u8>, Vec<PlainPacket>) {
        let keyring = Arc::new(Keyring::new(8, false, AeadLimits::default()));
        let secrets = [1, 2].map(|byte| crate::crypto::session::Secret::from(vec![byte; 32]));
        keyring.begin(QuicCipher::Aes128Gcm, true, &secrets).unwrap();
        let _ = keyring.next().unwrap();
        let keys = keyring.lock();
        let generations = [0, 1].map(|generation| keys.generation(true, generation).unwrap());
        let mut plain = Vec::new();
        for (key, count) in generations.iter().zip(counts) {
            for _ in 0..count {
                let (key, number) = (key.clone(), plain.len() as u64);
                plain.push(PlainPacket { key, path: 0, number, bytes: BYTES, cid_bytes: 8 });
            }
        }
        let data: Vec<u8> = plain.iter().flat_map(|plain| [&[0x40; BYTES - TAG][..], &plain.room()].concat()).collect();
        let segment_size = Some(BYTES);
        let transmit = Transmit { destination: address(443), ecn: None, size: data.len(), segment_size, src_ip: None };
        (transmit, data, plain)
    }

    /// A device seals under one key at a time.
    #[test]
    fn burst_is_split_at_a_key_change() {
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

    /// A sealed datagram must not overtake datagrams that wait for a device.
    #[test]
    fn sealed_datagram_keeps_its_place_in_the_queue() {
        let mut core = client();
        let (transmit, data, plain) = burst([2, 0]);
        let waiting = UnassignedDatagram { at: 0, datagram: datagram(&transmit, data), plain };
        core.outgoing.fresh.push_back(waiting);
        core.outgoing.put_plain(&transmit, vec![0; 77]);
        let (sealed_later, sealed) = (2 * BYTES, 77);
        let lengths = |core: &EndpointCore| core.outgoing.batch.iter().map(TxDatagram::payload_len).collect::<Vec<_>>();
        assert!(!core.poll_send(&mut Context::from_waker(Waker::noop()), &mut CountingSocket::default()));
        assert_eq!(lengths(&core), [sealed_later, sealed]);
        core.outgoing.put_plain(&transmit, vec![0; 55]);
        assert_eq!(lengths(&core), [sealed_later, sealed, 55]);
        assert_eq!(core.outgoing.plain.len(), 3);
    }
}
