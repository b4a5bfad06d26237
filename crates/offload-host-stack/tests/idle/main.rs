//! Memory of an idle connection that has carried traffic, counted at the allocator. A test program of its own, because
//! the count covers the whole process.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests report skips and measurements")]
// `GlobalAlloc` is an unsafe trait. This implementation only counts, and passes all calls to the system's allocator.
#![allow(unsafe_code)]

#[path = "../all/nic.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod nic;
#[path = "../all/pair.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod pair;
#[path = "../all/wire.rs"]
mod wire;

use core::sync::atomic::{AtomicIsize, Ordering};
use core::time::Duration;
use offload_host_stack::{FlowId, TcpConfig};
use pair::{ADDRESS, HostPair, PORT, PairConfig};
use std::alloc::{GlobalAlloc, Layout, System};

const OVER_SIX: bool = false;
/// Just below a power of two, so that tables are nearly full.
const CONNECTIONS: usize = 500;
/// More than an initial window.
const BYTES: usize = 200_000;
/// Maximum memory of an idle connection in bytes.
const MAX_IDLE_BYTES: isize = 2048;

/// The system's allocator, with a count of allocated bytes.
struct CountingAllocator;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: each call is passed unchanged to `System`, which has the same contract; the counter touches no memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: see above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: see above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Opens a connection, and moves bytes in both directions with losses and late reads.
fn used_connection(pair: &mut HostPair, data: &[u8]) -> [FlowId; 2] {
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(Duration::from_millis(1));
    let ids = [client, pair.stacks[1].accept(PORT).unwrap()];
    for (stack, id) in pair.stacks.iter_mut().zip(ids) {
        stack.send_copy(id, data);
        stack.push(id);
    }
    // Losses and late reads make all parts of a connection allocate memory.
    let mut losses = 5;
    pair.wire.filter = Some(Box::new(move |_, frame| {
        let lost = frame.len() > 1000 && losses > 0;
        losses -= i32::from(lost);
        lost
    }));
    pair.run_for(Duration::from_millis(300));
    let mut got = Vec::new();
    let mut all = [0; 2];
    pair.run_until(|pair| {
        for side in 0..2 {
            got.clear();
            all[side] += pair.read(side, ids[side], &mut got);
        }
        all == [data.len(); 2]
    });
    ids
}

#[test]
fn used_idle_connection_takes_at_most_2_kib() {
    let tcp = TcpConfig::default();
    let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, 16).unwrap();
    let data = vec![7; BYTES];
    let settle = |pair: &mut HostPair| {
        pair.wire.filter = None;
        pair.run_for(Duration::from_secs(10));
        IN_USE.load(Ordering::Relaxed)
    };
    // The first connection pays for one-time allocations, and for the size that the tables have reached.
    used_connection(&mut pair, &data);
    let empty = settle(&mut pair);
    (1..CONNECTIONS).for_each(|_| {
        used_connection(&mut pair, &data);
    });
    let each = (settle(&mut pair) - empty) / (2 * (CONNECTIONS as isize - 1));
    println!("{each} bytes a connection that was used and is idle");
    assert_eq!(pair.stacks.each_ref().map(|stack| stack.tcp_memory()), [0, 0]);
    assert!(each <= MAX_IDLE_BYTES, "{each} bytes");
}
