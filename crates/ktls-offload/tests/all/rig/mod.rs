//! An in-memory connection with a model of a TLS device at each end. The devices really encrypt and decrypt, with code
//! that shares nothing with the record layer. They can miss packets, hold data back and lose their contexts.

#![allow(dead_code)] // each test file uses a different part

pub(crate) mod device;
pub(crate) mod tasks;

use bytes::Bytes;
use device::MockTlsDevice;
use ktls_offload::{KeySchedule, KtlsStream, ScheduleError, TrafficKeys};
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxMeta, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TlsKey, TlsSuite, TlsVersion, TxTag, Unit, stream,
};
use offload_base::{Rng, Seed, Seq};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// The lengths of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SegmentLengths {
    /// Segments of this length.
    Every(usize),
    /// Random lengths from 1 to this.
    UpTo(u64),
}

/// The connection.
#[derive(Clone)]
pub(crate) struct MockWire {
    halves: Arc<Mutex<[WireHalf; 2]>>,
}

/// State of one end.
pub(crate) struct WireHalf {
    chunks: Vec<(u64, Bytes, TxTag)>,
    sealers: Vec<(u64, Box<dyn Sealer>)>,
    queued: u64,
    /// All bytes sent, as on the wire.
    pub(crate) wire: Vec<u8>,
    first: Seq,
    finished: bool,
    pub(crate) aborted: bool,
    pub(crate) dropped: bool,
    /// Holds back all data.
    pub(crate) hold: bool,
    /// Whether the end knows the next byte's sequence number before that byte arrives.
    pub(crate) tells_next: bool,
    /// Receive window: bytes that may be sent before the peer consumes some.
    pub(crate) window: usize,
    pub(crate) cut: SegmentLengths,
    pub(crate) device: Option<MockTlsDevice>,
    /// Contexts to remove when all data before an offset were sent.
    releases: Vec<(u64, Handle)>,
    pub(crate) released: Vec<Handle>,
    sealed: BTreeMap<u64, Bytes>,
    /// Number of units sealed by the transport's sealers.
    pub(crate) sealed_units: usize,

    arrived: VecDeque<RxSegment>,
    pub(crate) received: u64,
    pub(crate) consumed: u64,
    peer_finished: bool,
    /// Whether the peer aborted. The reader gets an error after the received data.
    lost: bool,
    /// Number of queued bytes at which the end reports no room.
    pub(crate) send_buffer: usize,
    wakers: WaitingWakers,
    rng: Rng,
}

/// The wakers of waiting tasks, by the awaited event.
#[derive(Default)]
struct WaitingWakers {
    readable: Option<Waker>,
    writable: Option<Waker>,
    acknowledged: Option<Waker>,
    event: Option<Waker>,
}

impl WaitingWakers {
    fn wake_reader(&mut self) {
        self.readable.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writers(&mut self) {
        [self.writable.take(), self.acknowledged.take()].into_iter().flatten().for_each(Waker::wake);
    }

    fn wake_listener(&mut self) {
        self.event.take().into_iter().for_each(Waker::wake);
    }

    fn wake_all(&mut self) {
        self.wake_reader();
        self.wake_writers();
        self.wake_listener();
    }
}

impl MockWire {
    pub(crate) fn new(seed: u64) -> MockWire {
        let half = |name, first| WireHalf {
            chunks: Vec::new(),
            sealers: Vec::new(),
            queued: 0,
            wire: Vec::new(),
            first,
            finished: false,
            aborted: false,
            dropped: false,
            hold: false,
            tells_next: true,
            window: usize::MAX,
            cut: SegmentLengths::Every(1448),
            device: None,
            releases: Vec::new(),
            released: Vec::new(),
            sealed: BTreeMap::new(),
            sealed_units: 0,
            arrived: VecDeque::new(),
            received: 0,
            consumed: 0,
            peer_finished: false,
            lost: false,
            send_buffer: usize::MAX,
            wakers: WaitingWakers::default(),
            rng: Seed(seed).stream(name),
        };
        // Both start close to the end of the sequence space, to test wrapping.
        MockWire { halves: Arc::new(Mutex::new([half("a", Seq(u32::MAX - 1000)), half("b", Seq(u32::MAX - 5))])) }
    }

    /// Returns the two ends.
    pub(crate) fn ends(&self) -> (MockTransport, MockTransport) {
        (MockTransport { wire: self.clone(), side: 0 }, MockTransport { wire: self.clone(), side: 1 })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, [WireHalf; 2]> {
        self.halves.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the first sequence number of `side`.
    pub(crate) fn first(&self, side: usize) -> Seq {
        self.lock()[side].first
    }

    /// Adds a device at both ends.
    pub(crate) fn with_devices(self, miss: f64, seed: u64) -> MockWire {
        for (side, half) in self.lock().iter_mut().enumerate() {
            half.device = Some(MockTlsDevice::new(Seed(seed).stream(["device a", "device b"][side]), miss));
        }
        self
    }

    /// Resets the device of `side`, which loses all contexts.
    pub(crate) fn reset(&self, side: usize) {
        let mut halves = self.lock();
        halves[side].device.as_mut().unwrap().reset();
        halves[side].tell_events();
    }

    /// Makes the device of `side` remove one of its contexts.
    pub(crate) fn evict(&self, side: usize) {
        let mut halves = self.lock();
        halves[side].device.as_mut().unwrap().evict();
        halves[side].tell_events();
    }

    /// Sends up to `limit` bytes of `side`. Returns whether this changed anything.
    pub(crate) fn step(&self, side: usize, limit: usize) -> bool {
        let state = || {
            let halves = self.lock();
            (halves[side].wire.len(), halves[1 - side].peer_finished)
        };
        let before = state();
        self.pump(side, limit);
        state() != before
    }

    /// Sends at most `limit` queued bytes of `side`.
    pub(crate) fn pump(&self, side: usize, limit: usize) {
        let mut halves = self.lock();
        let [a, b] = &mut *halves;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        let mut left = limit;
        while left > 0 {
            // A dropped end consumes nothing, but must not block its peer.
            let unconsumed = if to.dropped { 0 } else { (to.received - to.consumed) as usize };
            let cut = match from.cut {
                SegmentLengths::Every(bytes) => bytes,
                SegmentLengths::UpTo(bytes) => 1 + from.rng.below(bytes) as usize,
            };
            let at = from.wire.len() as u64;
            let most = cut.min(left).min((from.queued - at) as usize).min(from.window.saturating_sub(unconsumed));
            if most == 0 {
                break;
            }
            let mut payload = from.segment(at, most);
            left -= payload.len();
            from.wire.extend_from_slice(&payload);
            from.wakers.wake_writers();
            if to.dropped {
                continue; // no receiver
            }
            // The wire bytes are recorded above, before the receiver's device changes the payload.
            let seq = from.first + at as u32;
            let meta = to.device.as_mut().map_or(RxMeta::default(), |device| device.receive(seq, &mut payload));
            to.received += payload.len() as u64;
            to.arrived.push_back(RxSegment { seq, data: bytes::BytesMut::from(&payload[..]).into(), meta });
            to.wakers.wake_reader();
        }
        from.run_releases();
        if from.finished && !from.aborted && from.wire.len() as u64 == from.queued {
            to.peer_finished = true;
            to.wakers.wake_reader();
        }
        [from, to].into_iter().for_each(WireHalf::tell_events);
    }

    /// Adds a received segment at `side`, as if sent by the peer.
    pub(crate) fn inject(&self, side: usize, bytes: &[u8], meta: RxMeta) {
        let mut halves = self.lock();
        let first = halves[1 - side].first;
        let half = &mut halves[side];
        let seq = first + half.received as u32;
        half.received += bytes.len() as u64;
        half.arrived.push_back(RxSegment { seq, data: bytes::BytesMut::from(bytes).into(), meta });
        half.wakers.wake_reader();
    }

    /// Makes `side` fail after its received data.
    pub(crate) fn lose(&self, side: usize) {
        let half = &mut self.lock()[side];
        half.lost = true;
        half.wakers.wake_all();
    }

    /// Ends the direction towards `side`.
    pub(crate) fn end(&self, side: usize) {
        self.lock()[side].peer_finished = true;
    }
}

impl WireHalf {
    /// Forgets all wakers, as if other tasks had registered since.
    pub(crate) fn forget_wakers(&mut self) {
        self.wakers = WaitingWakers::default();
    }

    /// Returns the number of installed sealers.
    pub(crate) fn sealers(&self) -> usize {
        self.sealers.len()
    }

    /// Returns all queued bytes as they are in host memory.
    pub(crate) fn queued_bytes(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|(_, bytes, _)| bytes.iter().copied()).collect()
    }

    /// Returns the number of queued bytes that were not sent.
    pub(crate) fn waiting(&self) -> usize {
        (self.queued - self.wire.len() as u64) as usize
    }

    fn tell_events(&mut self) {
        if self.device.as_ref().is_some_and(MockTlsDevice::has_events) {
            self.wakers.wake_listener();
        }
    }

    /// Returns up to `most` bytes from offset `at`, as they belong on the wire.
    fn segment(&mut self, at: u64, most: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        while payload.len() < most {
            let offset = at + payload.len() as u64;
            // A segment may contain several chunks, with and without a context.
            let index = self.chunks.partition_point(|(start, ..)| *start <= offset) - 1;
            let (start, bytes, tag) = self.chunks[index].clone();
            let skip = (offset - start) as usize;
            let take = (bytes.len() - skip).min(most - payload.len());
            match tag.context(Layer::FIRST) {
                None => payload.extend_from_slice(&bytes[skip..skip + take]),
                Some(handle) => {
                    let unit = tag.unit(Layer::FIRST).expect("data for a device belong to a record");
                    let within = unit.at as usize + skip;
                    let sealed = self.unit(start - u64::from(unit.at), unit.len, unit.number, handle);
                    payload.extend_from_slice(&sealed[within..within + take]);
                }
            }
        }
        payload
    }

    /// Returns the sealed record at `start`: sealed by the device, or by a sealer if the device does not know the
    /// context.
    fn unit(&mut self, start: u64, len: u32, number: u64, handle: Handle) -> Bytes {
        if let Some(bytes) = self.sealed.get(&start) {
            return bytes.clone();
        }
        let before = |offset: u64| self.chunks.partition_point(|(at, ..)| *at < offset);
        let chunks = &self.chunks[before(start)..before(start + u64::from(len))];
        let plain: Vec<Bytes> = chunks.iter().map(|(_, bytes, _)| bytes.clone()).collect();
        let first = self.first + start as u32;
        if let Some(sealed) = self.device.as_mut().and_then(|device| device.transmit(handle, first, number, &plain)) {
            return sealed;
        }
        let index = self.sealers.iter().rposition(|(from, _)| *from <= start).expect("a sealer for the record");
        let unit = Unit { layer: Layer::FIRST, number, offset: start, start: first, len, touched_from: 0 };
        let sealed = self.sealers[index].1.seal(unit, &plain).unwrap();
        assert_eq!(sealed.len(), len as usize);
        self.sealed_units += 1;
        self.sealed.insert(start, sealed.clone());
        // Bytes already sent must equal the sealer's output; a retransmission would otherwise differ.
        let gone = self.wire.get(start as usize..).unwrap_or_default();
        let common = gone.len().min(sealed.len());
        assert_eq!(gone[..common], sealed[..common], "the sealer differs from the device");
        sealed
    }

    fn run_releases(&mut self) {
        let gone = self.wire.len() as u64;
        let due: Vec<Handle> =
            self.releases.iter().filter(|(offset, _)| *offset <= gone).map(|(_, handle)| *handle).collect();
        self.releases.retain(|(offset, _)| *offset > gone);
        for handle in due {
            self.released.push(handle);
            if let Some(device) = &mut self.device {
                device.remove(handle);
            }
        }
    }
}

/// One end of the connection, as a transport.
pub(crate) struct MockTransport {
    wire: MockWire,
    side: usize,
}

impl MockTransport {
    fn half<R>(&self, f: impl FnOnce(&mut WireHalf) -> R) -> R {
        f(&mut self.wire.lock()[self.side])
    }

    fn transmit(&self) {
        if !self.half(|half| half.hold) {
            self.wire.pump(self.side, usize::MAX);
        }
    }
}

impl SegmentStream for MockTransport {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        self.half(|half| match half.arrived.pop_front() {
            Some(segment) => Poll::Ready(Ok(Some(segment))),
            None if half.peer_finished => Poll::Ready(Ok(None)),
            None if half.lost => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                half.arrived = VecDeque::new(); // frees memory, because a test measures idle streams
                half.wakers.readable = Some(cx.waker().clone());
                Poll::Pending
            }
        })
    }

    fn next_seq(&self) -> Option<Seq> {
        let halves = self.wire.lock();
        let half = &halves[self.side];
        let next = halves[1 - self.side].first + half.received as u32;
        half.tells_next.then(|| half.arrived.front().map_or(next, |segment| segment.seq))
    }

    fn furthest_seq(&self) -> Option<Seq> {
        let halves = self.wire.lock();
        let half = &halves[self.side];
        half.tells_next.then(|| halves[1 - self.side].first + half.received as u32)
    }

    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.next_seq().filter(|_| bytes == 0)
    }

    fn consume(&mut self, bytes: usize) {
        self.half(|half| {
            half.consumed += bytes as u64;
            assert!(half.consumed <= half.received, "more consumed than received");
        });
        let peer = 1 - self.side;
        if !self.wire.lock()[peer].hold {
            self.wire.pump(peer, usize::MAX);
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.half(|half| {
            if half.aborted || half.lost {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            match half.send_buffer.saturating_sub(half.waiting()) {
                0 => {
                    half.wakers.writable = Some(cx.waker().clone());
                    Poll::Pending
                }
                room => Poll::Ready(Ok(room)),
            }
        })
    }

    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        self.half(|half| {
            let seq = half.first + half.queued as u32;
            assert!(!half.finished || data.is_empty(), "sent after finish");
            if !data.is_empty() && !half.aborted && !half.lost {
                let length = data.len() as u64;
                // Kept until the end of the test, so that any record can be sealed again.
                half.chunks.push((half.queued, data, tag));
                half.queued += length;
            }
            seq
        })
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

    fn flush(&mut self) {
        self.transmit();
    }

    fn poll_committed(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transmit();
        Poll::Ready(Ok(()))
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        self.half(|half| {
            if half.wire.len() as u64 >= offset {
                return Poll::Ready(Ok(()));
            }
            if half.aborted || half.lost {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            half.wakers.acknowledged = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn sent(&self) -> SentBytes {
        SentBytes::default()
    }

    fn finish(&mut self) {
        self.half(|half| half.finished = true);
        self.transmit();
    }

    fn abort(&mut self) {
        let mut halves = self.wire.lock();
        for (side, half) in halves.iter_mut().enumerate() {
            if side == self.side {
                half.aborted = true;
            } else {
                half.lost = true;
            }
            // The remaining data will never be sent.
            half.queued = half.wire.len() as u64;
            half.releases.iter_mut().for_each(|(offset, _)| *offset = half.queued.min(*offset));
            half.run_releases();
            half.wakers.wake_all();
        }
    }

    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        assert_eq!(layer, Layer::FIRST);
        self.half(|half| half.sealers.push((half.queued, sealer)));
    }

    fn release(&mut self, context: Handle) {
        self.half(|half| {
            half.releases.push((half.queued, context));
            half.run_releases();
            half.tell_events();
        });
    }

    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        self.half(|half| match &mut half.device {
            Some(device) => {
                f(device::FLOW, device);
                half.tell_events();
                true
            }
            None => false,
        })
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.half(|half| match half.device.as_mut().and_then(|device| device.poll_event()) {
            Some(event) => Poll::Ready(event),
            None => {
                half.wakers.event = Some(cx.waker().clone());
                Poll::Pending
            }
        })
    }
}

impl Drop for MockTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.half(|half| {
            half.dropped = true;
            half.finished = true;
        });
        self.transmit();
    }
}

/// A key schedule that needs no handshake: each key is derived from a counter.
#[derive(Clone)]
pub(crate) struct CountingSchedule {
    cipher: TestCipher,
    transmit: u8,
    receive: u8,
}

impl CountingSchedule {
    /// Returns the schedules of the two ends, and the first keys of the first end.
    pub(crate) fn pair(cipher: impl Into<TestCipher>) -> (CountingSchedule, CountingSchedule, TrafficKeys) {
        let cipher = cipher.into();
        let keys = TrafficKeys { transmit: (0, counted(cipher, 1)), receive: (0, counted(cipher, 101)) };
        let one = CountingSchedule { cipher, transmit: 1, receive: 101 };
        let other = CountingSchedule { cipher, transmit: 101, receive: 1 };
        (one, other, keys)
    }
}

impl KeySchedule for CountingSchedule {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        self.transmit = self.transmit.wrapping_add(1);
        Ok(counted(self.cipher, self.transmit))
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        self.receive = self.receive.wrapping_add(1);
        Ok(counted(self.cipher, self.receive))
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Ok(())
    }
}

/// Returns the key with the given number.
pub(crate) fn counted(cipher: impl Into<TestCipher>, number: u8) -> TlsKey {
    let TestCipher { version, suite } = cipher.into();
    TlsKey::new(version, suite, &vec![number; suite.key_len()], [number; 12]).unwrap()
}

/// Creates two connected streams over `wire`.
pub(crate) fn streams(
    wire: &MockWire,
    cipher: impl Into<TestCipher>,
) -> (KtlsStream<MockTransport>, KtlsStream<MockTransport>) {
    let (one, other, keys) = CountingSchedule::pair(cipher);
    let (a, b) = wire.ends();
    let near = KtlsStream::new(a, keys.clone(), Box::new(one)).unwrap();
    let far = KtlsStream::new(b, keys.swapped(), Box::new(other)).unwrap();
    (near, far)
}

/// Builds a protected record with any content and padding. (TLS 1.2 has no padding.)
pub(crate) fn record(key: &TlsKey, number: u64, content_type: u8, content: &[u8], padding: usize) -> Vec<u8> {
    let mut body = content.to_vec();
    let mut prefix = vec![content_type, 3, 3, 0, 0];
    if device::is_12(key) {
        // Any explicit nonce is valid; a peer may choose differently from this crate.
        prefix.extend(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        prefix.truncate(device::prefix_len(key));
    } else {
        prefix[0] = 23;
        body.push(content_type);
        body.resize(body.len() + padding, 0);
    }
    let length = (prefix.len() - 5 + body.len() + 16) as u16;
    prefix[3..5].copy_from_slice(&length.to_be_bytes());
    let (nonce, aad) = device::protection(key, number, &prefix);
    let tag = device::aead(key).seal_in_place(&nonce, &aad, &mut body).unwrap();
    [&prefix[..], &body, &tag].concat()
}

/// Returns pseudorandom bytes.
pub(crate) fn data(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Seed(seed).stream("data").fill(&mut bytes);
    bytes
}

pub(crate) const SUITES: [TlsSuite; 3] = [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305];

/// A protocol version with a cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestCipher {
    pub(crate) version: TlsVersion,
    pub(crate) suite: TlsSuite,
}

impl From<TlsSuite> for TestCipher {
    fn from(suite: TlsSuite) -> TestCipher {
        TestCipher { version: TlsVersion::Tls13, suite }
    }
}

impl TestCipher {
    /// Returns the record length minus the content length, without padding.
    pub(crate) fn overhead(self) -> usize {
        match (self.version, self.suite) {
            (TlsVersion::Tls12, TlsSuite::ChaCha20Poly1305) => 21,
            (TlsVersion::Tls12, _) => 29,
            _ => 22,
        }
    }
}

pub(crate) const CIPHERS: [TestCipher; 6] = {
    let [a, b, c] = SUITES;
    let (v2, v3) = (TlsVersion::Tls12, TlsVersion::Tls13);
    [
        TestCipher { version: v2, suite: a },
        TestCipher { version: v2, suite: b },
        TestCipher { version: v2, suite: c },
        TestCipher { version: v3, suite: a },
        TestCipher { version: v3, suite: b },
        TestCipher { version: v3, suite: c },
    ]
};
