//! Finds policies and SAs among many, over and over, for a profiler to count what one look-up takes:
//!
//! ```text
//! cargo build --release -p offload-bench --example lookup
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*to_send_by*' target/release/examples/lookup 10000
//! ```
//!
//! and `*received_by*` likewise. The sum, divided by the number that is printed, is what one of them takes. Given `one`, it asks
//! for the same SA each time: what is left of cache misses then is not the table's size.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use core::hint::black_box;
use offload_bench::sa_tables::{FIRST_SPI, STEP, SaTables};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let sas: u32 =
        arguments.next().and_then(|sas| sas.parse().ok()).filter(|sas| (1..=60_000).contains(sas)).unwrap_or(1);
    let step = if arguments.next().as_deref() == Some("one") { 0 } else { STEP };
    let tables = SaTables::of(sas);
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
