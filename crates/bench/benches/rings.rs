//! The cost of our descriptor rings over rtrb, on which they are built: staging and publishing in batches.
//!
//! `push-pop` moves entries of the size of a send descriptor through the ring in batches, as a doorbell announces them,
//! on one thread, so that only instructions are measured. `across` moves entries from one thread to another spinning
//! thread and counts entries per second with both cores busy (or taking turns, on a machine with one core).

use core::hint::{black_box, spin_loop};
use core::time::Duration;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::ring::ring;

/// An entry as large as a send descriptor with its header inline.
type Entry = [u64; 32];

fn push_pop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rings/push-pop");
    for batch in [1usize, 32, 256] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(BenchmarkId::new("own", batch), |bencher| {
            let (mut producer, mut consumer) = ring::<Entry>(RING);
            bencher.iter(|| {
                for number in 0..batch {
                    producer.stage(black_box([number as u64; 32])).unwrap();
                }
                producer.publish();
                while let Some(entry) = consumer.pop() {
                    black_box(&entry);
                }
            });
        });
        group.bench_function(BenchmarkId::new("rtrb", batch), |bencher| {
            let (mut producer, mut consumer) = rtrb::RingBuffer::<Entry>::new(RING);
            bencher.iter(|| {
                for number in 0..batch {
                    producer.push(black_box([number as u64; 32])).unwrap();
                }
                while let Ok(entry) = consumer.pop() {
                    black_box(&entry);
                }
            });
        });
    }
}

fn across(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rings/across");
    // Few samples: each moves 200,000 entries between two threads.
    group.sample_size(10).throughput(Throughput::Elements(ENTRIES));
    group.bench_function("own", |bencher| {
        // A fresh ring for each iteration: both ends move to their threads.
        bencher.iter_batched(
            || ring::<Entry>(RING),
            |(mut producer, mut consumer)| {
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let mut left = ENTRIES;
                        while left > 0 {
                            let batch = (producer.room() as u64).min(left).min(32);
                            for number in 0..batch {
                                producer.stage([number; 32]).unwrap();
                            }
                            producer.publish();
                            left -= batch;
                            if batch == 0 {
                                yield_or_spin();
                            }
                        }
                    });
                    let mut left = ENTRIES;
                    while left > 0 {
                        match consumer.pop() {
                            Some(entry) => {
                                black_box(&entry);
                                left -= 1;
                            }
                            None => yield_or_spin(),
                        }
                    }
                });
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("rtrb", |bencher| {
        bencher.iter_batched(
            || rtrb::RingBuffer::<Entry>::new(RING),
            |(mut producer, mut consumer)| {
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let mut left = ENTRIES;
                        while left > 0 {
                            match producer.push([left; 32]) {
                                Ok(()) => left -= 1,
                                Err(_) => yield_or_spin(),
                            }
                        }
                    });
                    let mut left = ENTRIES;
                    while left > 0 {
                        match consumer.pop() {
                            Ok(entry) => {
                                black_box(&entry);
                                left -= 1;
                            }
                            Err(_) => yield_or_spin(),
                        }
                    }
                });
            },
            BatchSize::PerIteration,
        );
    });
}

/// Spins, or yields on a single core, because the other thread needs that core.
fn yield_or_spin() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        spin_loop();
    } else {
        std::thread::yield_now();
    }
}

const RING: usize = 1024;
const ENTRIES: u64 = 200_000;

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(20).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400));
    targets = push_pop, across
}
criterion_main!(benches);
