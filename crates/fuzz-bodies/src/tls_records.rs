//! A TLS stream whose peer and whose device do whatever the input says: sealed records of any content, raw bytes, verdicts
//! about them that a device could give, key changes, resets. It never panics, never reads a byte that no key protected,
//! and never gives back more window than it got.

use crate::input::Input;
use crate::nic::Nic;
use bytes::{Bytes, BytesMut};
use ktls_offload::{KeySchedule, KtlsStream, Offload, ScheduleError, TrafficKeys};
use offload_api::rx::TlsVerdict;
use offload_api::{
    DeviceEvent, FlowKey, Handle, Layer, NetDevice, RxMeta, RxSegment, Sealer, SegmentStream, TlsKey, TlsSuite,
    TlsVersion, TxTag,
};
use offload_base::Seq;
use resumable_aead::{Algorithm, Key};
use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

/// One input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let suite = [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305][input.byte() as usize % 3];
    let mut peer = Peer { suite, key: 0, number: 0 };
    let keys = TrafficKeys { transmit: (0, key(suite, 100)), receive: (0, key(suite, 0)) };
    let schedule = Counting { suite, transmit: 100, receive: 0 };
    let mut stream = KtlsStream::new(Transport::default(), keys, Box::new(schedule)).expect("a known suite");
    let mut cx = Context::from_waker(Waker::noop());
    let mut sealed = 0;
    let mut read = 0;
    for _ in 0..64 {
        let bytes = match input.byte() % 8 {
            0 => input.take_some().to_vec(),
            1..=4 => {
                let kind = [21, 22, 23, 23][input.byte() as usize % 4];
                let content = input.take_some();
                sealed += content.len();
                peer.record(kind, content, usize::from(input.byte()) % 40)
            }
            5 => {
                let record = peer.record(22, &[24, 0, 0, 1, input.byte() % 2], 0);
                (peer.key, peer.number) = (peer.key.wrapping_add(1), 0);
                record
            }
            6 => {
                let ask = input.byte();
                if ask & 4 != 0 {
                    stream.transport().events.borrow().push(DeviceEvent::Reset);
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
        stream.transport().arrive(&bytes, 1 + usize::from(input.byte()), input.byte());
        while let Poll::Ready(Ok(Some(chunk))) = stream.poll_chunk(&mut cx) {
            assert!(!chunk.is_empty());
            read += chunk.len();
        }
        if input.0.is_empty() {
            break;
        }
    }
    assert!(read <= sealed, "read what nobody sealed");
    let transport = stream.transport();
    assert!(transport.consumed.get() <= transport.received.get());
}

/// The peer's side of the keys.
struct Peer {
    suite: TlsSuite,
    key: u8,
    number: u64,
}

impl Peer {
    fn record(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut body = content.to_vec();
        body.push(kind);
        body.resize(body.len() + padding, 0);
        let [high, low] = (body.len() as u16 + 16).to_be_bytes();
        let header = [23, 3, 3, high, low];
        let key = key(self.suite, self.key);
        let algorithm = match self.suite {
            TlsSuite::Aes128Gcm => Algorithm::Aes128Gcm,
            TlsSuite::Aes256Gcm => Algorithm::Aes256Gcm,
            _ => Algorithm::ChaCha20Poly1305,
        };
        let mut nonce = *key.iv();
        nonce[4..].iter_mut().zip(self.number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        let aead = Key::new(algorithm, key.key()).expect("the suite's length");
        let tag = aead.seal_in_place(&nonce, &header, &mut body).expect("a short record");
        self.number += 1;
        [&header[..], &body, &tag].concat()
    }
}

struct Counting {
    suite: TlsSuite,
    transmit: u8,
    receive: u8,
}

impl KeySchedule for Counting {
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

/// A transport and its device, both in the fuzzer's hands.
#[derive(Default)]
struct Transport {
    arrived: Shared<VecDeque<RxSegment>>,
    events: Shared<Vec<DeviceEvent>>,
    device: Nic,
    received: Shared<u64>,
    consumed: Shared<u64>,
    sent: u64,
}

/// A cell that may be part of something `Send`.
#[derive(Default)]
struct Shared<T>(std::sync::Mutex<T>);

impl<T> Shared<T> {
    fn borrow(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().expect("one thread")
    }
}

impl Shared<u64> {
    fn get(&self) -> u64 {
        *self.borrow()
    }
}

impl Transport {
    /// Segments of `cut` bytes; `verdicts` says which the device claims to know something about.
    fn arrive(&self, bytes: &[u8], cut: usize, verdicts: u8) {
        for (index, segment) in bytes.chunks(cut).enumerate() {
            let claims = verdicts >> (index % 8) & 1 != 0;
            // A device only ever calls decrypted what it decrypted. Whatever it was, these are the bytes now.
            let handle = Handle { index: u32::from(verdicts & 3), generation: 0 };
            let tls = [TlsVerdict::NotDecrypted, TlsVerdict::Error, TlsVerdict::ResyncRequested, TlsVerdict::Decrypted];
            let tls = if claims { tls[usize::from(verdicts >> 6)] } else { TlsVerdict::NotDecrypted };
            // The word of a context that exists is the device's responsibility: only strangers' may be wrong.
            let known = handle.index < self.device.contexts;
            let tls = if known && tls == TlsVerdict::Decrypted { TlsVerdict::Error } else { tls };
            let meta = RxMeta { tls, context: Some(handle), ..RxMeta::default() };
            let seq = Seq(self.received.get() as u32);
            *self.received.borrow() += segment.len() as u64;
            self.arrived.borrow().push_back(RxSegment { seq, data: BytesMut::from(segment).into(), meta });
        }
    }
}

impl SegmentStream for Transport {
    fn poll_segment(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        match self.arrived.borrow().pop_front() {
            Some(segment) => Poll::Ready(Ok(Some(segment))),
            None => Poll::Pending,
        }
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

    fn flush(&mut self) {}

    fn poll_acked(&mut self, _: &mut Context<'_>, _: u64) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn finish(&mut self) {}

    fn abort(&mut self) {}

    fn install(&mut self, _: Layer, _: Box<dyn Sealer>) {}

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn NetDevice)) -> bool {
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
