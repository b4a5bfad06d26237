//! The cost of records that a peer may send in any number: bounded per poll and in memory.

use crate::rig::{CountingSchedule, MockTransport, MockWire, counted, record};
use ktls_offload::KtlsStream;
use offload_api::{RxMeta, TlsSuite};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// An allocator that counts the allocations of a thread.
struct FloodAllocator;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The counter of an ending thread no longer exists.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: the system allocator does all work; counting allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for FloodAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller guarantees that `memory` was allocated here with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: FloodAllocator = FloodAllocator;

fn live() -> isize {
    LIVE.with(Cell::get)
}

const SUITE: TlsSuite = TlsSuite::Aes128Gcm;

/// Creates a stream, and the end of its peer.
fn victim() -> (MockWire, KtlsStream<MockTransport>, MockTransport) {
    let wire = MockWire::new(0);
    let (_, schedule, keys) = CountingSchedule::pair(SUITE);
    let (a, b) = wire.ends();
    let victim = KtlsStream::new(b, keys.swapped(), Box::new(schedule)).unwrap();
    (wire, victim, a)
}

fn chunks(victim: &mut KtlsStream<MockTransport>) -> usize {
    let mut bytes = 0;
    while let Poll::Ready(chunk) = victim.poll_chunk(&mut Context::from_waker(Waker::noop())) {
        bytes += chunk.unwrap().unwrap().len();
    }
    bytes
}

#[test]
fn record_in_tiny_segments_takes_and_frees_little_memory() {
    let full = record(&counted(SUITE, 1), 0, 23, &[0; 16_384], 0);
    for size in [1, 2, 16, 100] {
        let (wire, mut victim, _peer) = victim();
        let before = live();
        for segment in full[..full.len() - 1].chunks(size) {
            wire.inject(1, segment, RxMeta::default());
            // The record is incomplete, so nothing may be released.
            assert_eq!(chunks(&mut victim), 0);
        }
        let held = live() - before;
        assert!(held < 3 * full.len() as isize, "{held} bytes for a record in segments of {size}");
        wire.inject(1, &full[full.len() - 1..], RxMeta::default());
        assert_eq!(chunks(&mut victim), 16_384);
        // Ordinary records, then idle.
        for number in 1..100 {
            wire.inject(1, &record(&counted(SUITE, 1), number, 23, b"x", 0), RxMeta::default());
            assert_eq!(chunks(&mut victim), 1);
        }
        let held = live() - before;
        assert!(held < 2048, "an idle stream keeps {held} bytes");
    }
}

/// A waker that counts wakes.
#[derive(Default)]
struct FloodWakeCounter(AtomicUsize);

impl Wake for FloodWakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn any_number_of_cover_records_leaves_turns_to_other_tasks() {
    const RECORDS: u64 = 1000;
    let (wire, mut victim, _peer) = victim();
    let key = counted(SUITE, 1);
    for number in 0..RECORDS {
        wire.inject(1, &record(&key, number, 23, b"", 100), RxMeta::default());
    }
    wire.inject(1, &record(&key, RECORDS, 23, b"something", 0), RxMeta::default());
    let woken = Arc::new(FloodWakeCounter::default());
    let waker = Waker::from(woken.clone());
    let mut polls = 0;
    let chunk = loop {
        if let Poll::Ready(chunk) = victim.poll_chunk(&mut Context::from_waker(&waker)) {
            break chunk.unwrap().unwrap();
        }
        polls += 1;
        assert_eq!(woken.0.load(Ordering::Relaxed), polls, "records remain, so the task must be woken");
    };
    assert_eq!((&chunk[..], polls), (&b"something"[..], RECORDS as usize / 32));
}

#[test]
fn a_stream_that_had_traffic_and_is_idle_takes_little() {
    // A third of this are two expanded keys.
    const MAX_ALLOCATED: isize = 3200;
    for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
        let wire = MockWire::new(0);
        let (_, schedule, keys) = CountingSchedule::pair(suite);
        let (_peer, end) = wire.ends();
        let (transport, before) = (size_of::<MockTransport>() as isize, live());
        let mut stream = Box::new(KtlsStream::new(end, keys.swapped(), Box::new(schedule)).unwrap());
        let key = counted(suite, 1);
        for number in 0..20 {
            for piece in record(&key, number, 23, &[0; 5000], 0).chunks(1000) {
                wire.inject(1, piece, RxMeta::default());
                chunks(&mut stream);
            }
        }
        let held = live() - before - transport;
        println!("{suite:?}: {held} bytes, {} of them in place", size_of::<KtlsStream<MockTransport>>());
        assert!(held < MAX_ALLOCATED, "{held} bytes");
    }
}
