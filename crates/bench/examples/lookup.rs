//! Looks up policies and SAs among many, repeatedly, for a profiler to count the cost of one lookup:
//!
//! ```text
//! cargo build --release -p offload-bench --example lookup
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*to_send_by*' target/release/examples/lookup 10000
//! ```
//!
//! Use `*received_by*` for the other lookup. The sum divided by the printed number is the cost of one lookup. With the
//! argument `one`, the example looks up the same SA each time, which shows the cost without the cache misses of a large
//! table.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use core::hint::black_box;
use offload_bench::sa_tables::{FIRST_SPI, STEP, SaTables};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let sas: u32 =
        arguments.next().and_then(|sas| sas.parse().ok()).filter(|sas| (1..=60_000).contains(sas)).unwrap_or(1);
    let step = if arguments.next().as_deref() == Some("one") { 0 } else { STEP };
    let tables = SaTables::for_peers(sas);
    let mut found = 0;
    for turn in 0..LOOKUPS {
        let number = turn.wrapping_mul(step) % sas;
        found += u32::from(tables.to_send_by(black_box(number)) == Some(FIRST_SPI + number));
        found += u32::from(tables.received_by(black_box(number)) == Some(FIRST_SPI + number));
    }
    assert_eq!(found, 2 * LOOKUPS, "each finds its own");
    println!("{LOOKUPS} look-ups of each kind");
}

const LOOKUPS: u32 = 20_000;
