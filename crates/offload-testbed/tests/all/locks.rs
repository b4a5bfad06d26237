//! The number of times that a write takes the stack's lock. Each call of the transport takes the lock once, so the
//! tests count these calls.

use bytes::Bytes;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use ktls_offload::{FixedKeys, KtlsStream, Offload, TrafficKeys};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::{
    Contexts, DeviceEvent, FlowKey, Handle, Layer, NextPiece, RxSegment, Sealer, SegmentStream, SendProgress,
    SentBytes, TlsKey, TlsSuite, TlsVersion, TxTag,
};
use offload_base::{Seed, Seq};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::Testbed;
use std::cell::Cell;
use std::io;
use tokio::io::AsyncWriteExt;

/// A stream that counts its calls; each call takes the lock of its host.
struct CountingStream {
    stream: TcpStream,
    calls: Cell<u64>,
}

impl CountingStream {
    fn call(&mut self) -> &mut TcpStream {
        *self.calls.get_mut() += 1;
        &mut self.stream
    }

    fn look(&self) -> &TcpStream {
        self.calls.set(self.calls.get() + 1);
        &self.stream
    }
}

impl SegmentStream for CountingStream {
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RxSegment>>> {
        self.call().poll_segment(cx)
    }
    fn next_seq(&self) -> Option<Seq> {
        self.look().next_seq()
    }
    fn seq_after(&self, bytes: u32) -> Option<Seq> {
        self.look().seq_after(bytes)
    }
    fn furthest_seq(&self) -> Option<Seq> {
        self.look().furthest_seq()
    }
    fn consume(&mut self, bytes: usize) {
        self.call().consume(bytes);
    }
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.call().poll_room(cx)
    }
    fn send(&mut self, data: Bytes, tag: TxTag) -> Seq {
        self.call().send(data, tag)
    }
    fn send_pieces(&mut self, pieces: &mut dyn Iterator<Item = (Bytes, TxTag)>) -> Option<Seq> {
        self.call().send_pieces(pieces)
    }
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        listener: &Waker,
        pieces: &mut NextPiece<'_>,
    ) -> Poll<io::Result<SendProgress>> {
        self.call().poll_send(cx, listener, pieces)
    }
    fn flush(&mut self) {
        SegmentStream::flush(self.call());
    }
    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.call().poll_committed(cx)
    }
    fn poll_acked(&mut self, cx: &mut Context<'_>, offset: u64) -> Poll<io::Result<()>> {
        self.call().poll_acked(cx, offset)
    }
    fn sent(&self) -> SentBytes {
        self.look().sent()
    }
    fn finish(&mut self) {
        self.call().finish();
    }
    fn abort(&mut self) {
        self.call().abort();
    }
    fn install(&mut self, layer: Layer, sealer: Box<dyn Sealer>) {
        self.call().install(layer, sealer);
    }
    fn release(&mut self, context: Handle) {
        self.call().release(context);
    }
    fn control(&mut self, f: &mut dyn FnMut(FlowKey, &mut dyn Contexts)) -> bool {
        self.call().control(f)
    }
    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.call().poll_device_event(cx)
    }
}

/// The call that writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteCall {
    Chunk,
    Copied,
    FromAbove,
}

/// Transport calls made by a write, and the number of its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WriteCost {
    calls: u64,
    polls: u64,
}

async fn write(stream: &mut KtlsStream<CountingStream>, how: WriteCall, data: Bytes) -> WriteCost {
    let before = stream.get_ref().calls.get();
    let mut polls = 0;
    {
        let mut write = pin!(async {
            match how {
                WriteCall::Chunk => stream.send_chunk(data).await.unwrap(),
                WriteCall::Copied => stream.write_all(&data).await.unwrap(),
                WriteCall::FromAbove => {
                    // A layer above TLS passes pieces, which must not be copied together first.
                    let send = |cx: &mut Context<'_>| {
                        let (listener, half) = (cx.waker().clone(), data.len() / 2);
                        let mut halves = [data.slice(..half), data.slice(half..)].into_iter();
                        let pieces = &mut |_| halves.next().map(|half| (half, TxTag::PLAIN));
                        SegmentStream::poll_send(stream, cx, &listener, pieces)
                    };
                    let turn = poll_fn(send).await.unwrap();
                    assert!(matches!(turn, SendProgress::Queued(Some(_))), "{turn:?}");
                }
            }
        });
        // Each poll of the write must cost one call at most.
        poll_fn(|cx| {
            polls += 1;
            write.as_mut().poll(cx)
        })
        .await;
    }
    WriteCost { calls: stream.get_ref().calls.get() - before, polls }
}

/// Returns the cost of each write in the steady state, on a NIC or on the CPU.
fn costs(on_nic: bool, how: WriteCall, bytes: usize, writes: usize) -> Vec<WriteCost> {
    let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
    let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
    let mut bed = Testbed::builder(Seed(3))
        .host("a", NicConfig::default(), TcpConfig::default())
        .host("b", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let (a, b) = (bed.host(0).clone(), bed.host(1).clone());
    let (host, theirs, data) = (b.clone(), keys.clone().swapped(), Bytes::from(vec![7; bytes]));
    let sent = data.clone();
    let reading = b.spawn("read", async move {
        let stream = host.stack().listen(443, 4).unwrap().accept().await.unwrap();
        let mut stream = KtlsStream::new(stream, theirs, Box::new(FixedKeys)).unwrap();
        let mut read = 0;
        while let Some(chunk) = stream.next_chunk().await.unwrap() {
            assert!(sent.starts_with(&chunk) || !chunk.is_empty());
            read += chunk.len();
        }
        read
    });
    let (host, address) = (a.clone(), b.address());
    let writing = a.spawn("write", async move {
        let stream = host.stack().connect(None, (address, 443).into()).await.unwrap();
        let counted = CountingStream { stream, calls: Cell::new(0) };
        let mut stream = KtlsStream::new(counted, keys, Box::new(FixedKeys)).unwrap();
        if on_nic {
            // A refused offload would measure the wrong path.
            assert!(stream.offload(Offload { tx: true, rx: false }).tx.handle().is_some());
        }
        let mut costs = Vec::new();
        for _ in 0..writes {
            costs.push(write(&mut stream, how, data.clone()).await);
        }
        let counters = *stream.counters();
        let (device, software) = (counters.tx_records_device, counters.tx_records_sw);
        assert_eq!(if on_nic { software } else { device }, 0);
        // Each write makes its own records, so the count is exact.
        assert_eq!(device + software, (writes * bytes.div_ceil(16_384)) as u64);
        stream.close().await.unwrap();
        costs
    });
    let (read, costs) = bed.run(async move { (reading.await, writing.await) });
    assert_eq!(read, bytes * writes);
    costs
}

#[test]
fn a_write_to_a_nic_takes_the_lock_once() {
    for how in [WriteCall::Chunk, WriteCall::Copied, WriteCall::FromAbove] {
        // One record and many, over a stream long enough for several decisions of the retransmission policy.
        for (bytes, writes) in [(1, 200), (16_384, 1_000), (150_000, 100)] {
            let costs = costs(true, how, bytes, writes);
            assert!(costs.iter().all(|cost| cost.calls == cost.polls), "{how:?}, {bytes} bytes: {costs:?}");
            assert!(costs.iter().any(|cost| cost.polls == 1), "{how:?}, {bytes} bytes: some had room at once");
        }
    }
}

/// Sealing 16 KiB takes longer than all calls together, and the lock is free meanwhile.
#[test]
fn write_sealed_on_the_cpu_holds_no_lock() {
    let costs = costs(false, WriteCall::Chunk, 16_384, 100);
    assert!(costs.iter().all(|cost| cost.calls == cost.polls + 2), "room, record, flush: {costs:?}");
}
