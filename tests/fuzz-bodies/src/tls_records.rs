//! A TLS stream with an arbitrary peer and an arbitrary device: sealed records of any content, raw bytes, all verdicts
//! that a device could give, records that contexts decrypted piecewise with right or outdated keys and with a flipped
//! bit, key changes, and resets. The stream never panics, delivers sealed data in order and nothing from a spoilt
//! record on, and never returns more window than it received.

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use ktls_offload::{KeySchedule, KtlsStream, Offload, ScheduleError, TrafficKeys};
use offload_api::mock::MockDevice;
use offload_api::rx::TlsVerdict;
use offload_api::{
    Contexts, DeviceEvent, Direction, FlowKey, Handle, Layer, NextPiece, RxMeta, RxSegment, Sealer, SegmentStream,
    SendProgress, SentBytes, TlsContext, TlsKey, TlsSuite, TlsVersion, TxTag, Verdict, stream,
};
use offload_base::Seq;
use resumable_aead::{Algorithm, Key};
use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let suite = [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305][input.byte() as usize % 3];
    let mut peer = TlsFuzzPeer { suite, key: 0, number: 0, records: 0 };
    let keys = TrafficKeys { transmit: (0, key(suite, 100)), receive: (0, key(suite, 0)) };
    let schedule = FuzzKeySchedule { suite, transmit: 100, receive: 0 };
    let mut stream = KtlsStream::new(
        RecordTransport { device: crate::device(0), ..RecordTransport::default() },
        keys,
        Box::new(schedule),
    )
    .expect("a known suite");
    let mut cx = Context::from_waker(Waker::noop());
    let mut sealed = Vec::new();
    let mut spoilt = false;
    let mut read = 0;
    for _ in 0..64 {
        let what = input.byte();
        let bytes = match what % 8 {
            0 => input.take_some().to_vec(),
            1..=4 if what & 0x80 != 0 => {
                let content = input.take_some();
                let record = peer.record(23, content, usize::from(input.byte()) % 40);
                spoilt |= stream.get_ref().arrive_in_pieces(&peer, record, &mut input);
                // After a spoilt record the stream has failed, so later data must not be delivered.
                if !spoilt {
                    sealed.extend_from_slice(content);
                }
                Vec::new()
            }
            1..=4 => {
                let kind = [21, 22, 23, 23][input.byte() as usize % 4];
                let content = input.take_some();
                if kind == 23 && !spoilt {
                    sealed.extend_from_slice(content);
                }
                peer.record(kind, content, usize::from(input.byte()) % 40)
            }
            // A key update: the peer's next record uses the next key, from number 0.
            5 => {
                let record = peer.record(22, &[24, 0, 0, 1, input.byte() % 2], 0);
                (peer.key, peer.number) = (peer.key.wrapping_add(1), 0);
                record
            }
            6 => {
                let ask = input.byte();
                if ask & 4 != 0 {
                    stream.get_ref().events.borrow().push(DeviceEvent::Reset);
                }
                let _ = stream.offload(Offload { tx: ask & 1 != 0, rx: ask & 2 != 0 });
                Vec::new()
            }
            _ => {
                let _ = stream.update_keys(input.byte() & 1 != 0);
                SegmentStream::send(&mut stream, Bytes::from_static(b"some data"), TxTag::PLAIN);
                Vec::new()
            }
        };
        stream.get_ref().arrive(&bytes, 1 + usize::from(input.byte()), input.byte());
        while let Poll::Ready(Ok(Some(chunk))) = stream.poll_chunk(&mut cx) {
            assert!(!chunk.is_empty());
            assert!(sealed[read..].starts_with(&chunk), "delivered data that was never sealed");
            read += chunk.len();
        }
        stream.get_ref().note_contexts(peer.records);
        if input.0.is_empty() {
            break;
        }
    }
    let transport = stream.get_ref();
    assert!(transport.consumed.get() <= transport.received.get());
}

/// The peer's state of the keys.
struct TlsFuzzPeer {
    suite: TlsSuite,
    key: u8,
    number: u64,
    /// Number of records made with all keys.
    records: u64,
}

impl TlsFuzzPeer {
    fn record(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut body = content.to_vec();
        body.push(kind);
        body.resize(body.len() + padding, 0);
        let [high, low] = (body.len() as u16 + 16).to_be_bytes();
        let header = [23, 3, 3, high, low];
        let key = key(self.suite, self.key);
        let tag = aead(&key).seal_in_place(&nonce(&key, self.number), &header, &mut body).expect("a short record");
        self.number += 1;
        self.records += 1;
        [&header[..], &body, &tag].concat()
    }
}

fn aead(key: &TlsKey) -> Key {
    let algorithm = match key.suite() {
        TlsSuite::Aes128Gcm => Algorithm::Aes128Gcm,
        TlsSuite::Aes256Gcm => Algorithm::Aes256Gcm,
        _ => Algorithm::ChaCha20Poly1305,
    };
    Key::new(algorithm, key.key()).expect("the suite's length")
}

fn nonce(key: &TlsKey, number: u64) -> [u8; 12] {
    let mut nonce = *key.iv();
    nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
    nonce
}

struct FuzzKeySchedule {
    suite: TlsSuite,
    transmit: u8,
    receive: u8,
}

impl KeySchedule for FuzzKeySchedule {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        self.transmit = self.transmit.wrapping_add(1);
        Ok(key(self.suite, self.transmit))
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        self.receive = self.receive.wrapping_add(1);
        Ok(key(self.suite, self.receive))
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Ok(())
    }
}

fn key(suite: TlsSuite, number: u8) -> TlsKey {
    TlsKey::new(TlsVersion::Tls13, suite, &vec![number; suite.key_len()], [number; 12]).expect("the suite's length")
}

/// A transport and its device, both controlled by the fuzzer.
#[derive(Default)]
struct RecordTransport {
    arrived: SharedCell<VecDeque<RxSegment>>,
    events: SharedCell<Vec<DeviceEvent>>,
    device: MockDevice,
    /// Number of contexts that the device created; below, the receive contexts with the number of the first record and
    /// the key.
    contexts: SharedCell<u32>,
    receiving: SharedCell<Vec<(Handle, u64, TlsKey)>>,
    /// Number of the peer's records when each receive context was created.
    began: SharedCell<Vec<u64>>,
    received: SharedCell<u64>,
    consumed: SharedCell<u64>,
    sent: u64,
}

/// A cell that may be part of a `Send` type.
#[derive(Default)]
struct SharedCell<T>(std::sync::Mutex<T>);

impl<T> SharedCell<T> {
    fn borrow(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().expect("one thread")
    }
}

impl SharedCell<u64> {
    fn get(&self) -> u64 {
        *self.borrow()
    }
}

impl RecordTransport {
    /// Notes new receive contexts, which begin after all `records` received so far.
    fn note_contexts(&self, records: u64) {
        self.note_made();
        let made = self.receiving.borrow().len();
        self.began.borrow().resize(made, records);
    }

    /// Notes the contexts created since the last call.
    fn note_made(&self) {
        for (handle, new) in self.device.take_created() {
            *self.contexts.borrow() += 1;
            let Ok(made) = new.spec.downcast::<TlsContext>() else { continue };
            if new.direction == Direction::Receive {
                self.receiving.borrow().push((handle, made.number, made.key));
            }
        }
    }

    /// Delivers the peer's last record in up to five pieces, each unchanged or as one of the contexts decrypts it,
    /// maybe with a flipped bit. Returns whether a bit was flipped.
    fn arrive_in_pieces(&self, peer: &TlsFuzzPeer, mut record: Vec<u8>, input: &mut Input<'_>) -> bool {
        let (length, body_end) = (record.len(), record.len() - 16);
        let mut places: Vec<usize> = input.array::<4>().iter().map(|at| usize::from(*at) * length / 256).collect();
        places.extend([0, length]);
        places.sort_unstable();
        let receiving = self.receiving.borrow();
        let contexts = receiving.iter().zip(self.began.borrow().clone());
        // The record number that each context would use for this record.
        let contexts: Vec<(Handle, u64, &TlsKey)> =
            contexts.map(|((handle, first, key), began)| (*handle, first + (peer.records - 1 - began), key)).collect();
        let present = key(peer.suite, peer.key);
        let pieces: Vec<(usize, usize, usize)> = places
            .windows(2)
            .filter(|place| place[0] < place[1])
            .map(|place| (place[0], place[1], usize::from(input.byte()) % (contexts.len() + 2)))
            .collect();
        let flip = input.byte();
        let flipped = flip & 0x80 != 0;
        if flipped {
            let at = 5 + usize::from(input.word()) % (length - 5);
            record[at] ^= 1 << (flip & 7);
        }
        // A device that saw the whole record detects the flipped bit and leaves the record unchanged.
        let by_one = flipped && pieces.iter().all(|(.., by)| *by == pieces[0].2);
        for (from, to, by) in pieces {
            let mut bytes = record[from..to].to_vec();
            let mut meta = RxMeta::default();
            match contexts.get(by) {
                // A context with a wrong count, because of bytes that were no record, would detect that as well.
                Some((_, number, key)) if key.key() == present.key() && *number + 1 != peer.number => {}
                Some((handle, number, key)) if !by_one => {
                    let (start, end) = (from.clamp(5, body_end), to.clamp(5, body_end));
                    if start < end {
                        let body = &mut bytes[start - from..end - from];
                        let at = (start - 5) as u64;
                        aead(key).apply_keystream(&nonce(key, *number), at, body).expect("a short record");
                    }
                    meta = meta.marked(*handle, Verdict::Done);
                }
                Some(_) => {}
                // No context, or a handle of an old generation.
                None if by == contexts.len() => {}
                None => {
                    let stale = contexts.first().map_or(0, |(handle, ..)| handle.index);
                    let handle = Handle { index: stale, generation: 0 };
                    meta = meta.marked(handle, Verdict::Done);
                }
            }
            self.push(&bytes, meta);
        }
        flipped
    }

    fn push(&self, bytes: &[u8], meta: RxMeta) {
        let seq = Seq(self.received.get() as u32);
        *self.received.borrow() += bytes.len() as u64;
        self.arrived.borrow().push_back(RxSegment { seq, data: BytesMut::from(bytes).into(), meta });
    }

    /// Delivers segments of `cut` bytes; `verdicts` selects the segments with a verdict and its kind.
    fn arrive(&self, bytes: &[u8], cut: usize, verdicts: u8) {
        self.note_made();
        for (index, segment) in bytes.chunks(cut).enumerate() {
            let claims = verdicts >> (index % 8) & 1 != 0;
            // A device marks only bytes as decrypted that it decrypted itself, so the delivered bytes count as the
            // plaintext.
            let handle = Handle { index: u32::from(verdicts & 3), generation: MockDevice::GENERATION };
            let tls = [TlsVerdict::NotDecrypted, TlsVerdict::Error, TlsVerdict::ResyncRequested, TlsVerdict::Decrypted];
            let tls = if claims { tls[usize::from(verdicts >> 6)] } else { TlsVerdict::NotDecrypted };
            // An existing context's verdict is the device's responsibility. Only verdicts of unknown contexts may be
            // wrong.
            let known = handle.index < *self.contexts.borrow();
            let tls = if known && tls == TlsVerdict::Decrypted { TlsVerdict::Error } else { tls };
            self.push(segment, RxMeta::default().marked(handle, tls.into()));
        }
    }
}

impl SegmentStream for RecordTransport {
    fn poll_segment(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        match self.arrived.borrow().pop_front() {
            Some(segment) => Poll::Ready(Ok(Some(segment))),
            None => Poll::Pending,
        }
    }

    fn next_seq(&self) -> Option<Seq> {
        None
    }

    fn seq_after(&self, _: u32) -> Option<Seq> {
        None
    }

    fn furthest_seq(&self) -> Option<Seq> {
        None
    }

    fn consume(&mut self, bytes: usize) {
        *self.consumed.borrow() += bytes as u64;
    }

    fn poll_room(&mut self, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(1))
    }

    fn send(&mut self, data: Bytes, _: TxTag) -> Seq {
        let seq = Seq(self.sent as u32);
        self.sent += data.len() as u64;
        seq
    }

    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        stream::send_one_by_one(self, pieces)
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendProgress>> {
        stream::poll_send_in_steps(self, cx, listener, pieces)
    }

    fn flush(&mut self) {}

    fn poll_committed(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn sent(&self) -> SentBytes {
        SentBytes::default()
    }

    fn poll_acked(&mut self, _: &mut Context<'_>, _: u64) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn finish(&mut self) {}

    fn abort(&mut self) {}

    fn install(&mut self, _: Layer, _: Box<dyn Sealer>) {}

    fn release(&mut self, context: Handle) {
        self.device.remove(context);
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        f(FlowKey::tcp(address, address), &mut self.device);
        true
    }

    fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<DeviceEvent> {
        match self.events.borrow().pop() {
            Some(event) => Poll::Ready(event),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Typical inputs of a fuzzer: offloads, then records in pieces and changed keys in any order.
    #[test]
    fn records_in_pieces_are_read_or_refused() {
        let mut rng = offload_base::Seed(5).stream("inputs");
        for _ in 0..3000 {
            let mut input = vec![rng.below(3) as u8];
            for _ in 0..12 {
                let op = match rng.below(8) {
                    0 => vec![6, 2 + 4 * rng.below(2) as u8],
                    1 => vec![5, 0],
                    _ => {
                        let content: Vec<u8> = (0..rng.below(100)).map(|_| rng.below(256) as u8).collect();
                        let mut op = vec![0x81, content.len() as u8];
                        op.extend(content);
                        op.push(rng.below(40) as u8);
                        op.extend((0..9).map(|_| rng.below(256) as u8));
                        op.push(if rng.below(8) == 0 { 0x80 + rng.below(8) as u8 } else { 0 });
                        op.extend([rng.below(256) as u8, rng.below(256) as u8]);
                        op
                    }
                };
                input.extend(op);
                input.extend([rng.below(100) as u8, 0]);
            }
            run(&input);
        }
    }
}
