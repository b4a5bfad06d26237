//! Nanoseconds per byte of all algorithms, for batches and single messages, compared with intel-ipsec-mb where it is
//! installed.
//!
//! ```sh
//! cargo run --release -p cellular-crypto --example beside_ipsec_mb
//! cargo run --release -p cellular-crypto --example beside_ipsec_mb -- 10 1,2,4
//! ```
//!
//! Options: the number of rounds, and the algorithms. Each round measures everything in turn, and the example prints
//! the fastest result.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

#[path = "../tests/all/ipsec_mb/mod.rs"]
mod ipsec_mb;

use std::collections::BTreeMap;
use std::time::Instant;

use cellular_crypto::{Algorithm, Backend, CipherJob, Engine, Iv, Key, MacJob, SealJob, TagLen};
use ipsec_mb::IpsecMbPeer;

const SIZES: [usize; 2] = [64, 1464];
const JOBS: usize = 32;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(5, |rounds| rounds.parse().expect("a number of rounds"));
    let wanted = arguments.next();
    let wanted = |algorithm: Algorithm| match &wanted {
        Some(numbers) => numbers.split(',').any(|number| number == algorithm.number().to_string()),
        None => true,
    };
    let peer = IpsecMbPeer::build();
    let mut rows: BTreeMap<(Algorithm, OperationKind), IpsecMbRow> = BTreeMap::new();
    // Everything takes turns, so that load from other programs affects all results alike.
    for _ in 0..rounds {
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| wanted(*algorithm)) {
            for kind in [OperationKind::Cipher, OperationKind::Mac, OperationKind::Aead] {
                if kind == OperationKind::Aead && !algorithm.has_aead() {
                    continue;
                }
                let row = rows.entry((algorithm, kind)).or_default();
                for (index, size) in SIZES.into_iter().enumerate() {
                    for backend in Backend::ALL {
                        let Some(engine) = Engine::with_backend(backend) else { continue };
                        row.note(
                            &format!("{backend:?}, {JOBS} jobs"),
                            index,
                            measure(engine, algorithm, kind, size, JOBS),
                        );
                    }
                    row.note("best, 1 job", index, measure(Engine::best(), algorithm, kind, size, 1));
                    // The library has only algorithms 1 to 3.
                    let Some(peer) = peer.as_ref().filter(|_| algorithm.number() <= 3) else { continue };
                    // The program prints one number: ns per byte.
                    for instructions in ["sse", "avx2", "avx512", "single"] {
                        let number = [algorithm.number().to_string(), u8::from(kind == OperationKind::Mac).to_string()];
                        let (size, jobs) = (size.to_string(), JOBS.to_string());
                        let arguments = [instructions, "bench", &number[0], &number[1], &size, &jobs, "20"];
                        let Some(printed) = peer.run(&arguments, Vec::new()) else { continue };
                        let ns: f64 = String::from_utf8_lossy(&printed).trim().parse().expect("a number");
                        row.note(&format!("ipsec-mb {instructions}"), index, ns);
                    }
                }
            }
        }
    }
    for ((algorithm, kind), row) in rows {
        println!(
            "{}{} ({algorithm:?}), ns per byte at {} and {} bytes",
            kind.name(),
            algorithm.number(),
            SIZES[0],
            SIZES[1]
        );
        for (name, [short, long]) in row.0 {
            println!("  {name:<20} {short:>8.3} {long:>8.3}");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OperationKind {
    Cipher,
    Mac,
    Aead,
}

impl OperationKind {
    fn name(self) -> &'static str {
        match self {
            OperationKind::Cipher => "NEA",
            OperationKind::Mac => "NIA",
            OperationKind::Aead => "NCA",
        }
    }
}

/// The fastest result of each configuration, at each size.
#[derive(Default)]
struct IpsecMbRow(BTreeMap<String, [f64; 2]>);

impl IpsecMbRow {
    fn note(&mut self, name: &str, size: usize, ns: f64) {
        let best = &mut self.0.entry(name.to_owned()).or_insert([f64::INFINITY; 2])[size];
        *best = best.min(ns);
    }
}

/// Returns ns per byte: the fastest of many runs in 20 ms.
fn measure(engine: Engine, algorithm: Algorithm, kind: OperationKind, size: usize, jobs: usize) -> f64 {
    let keys: Vec<Key> =
        (0..jobs).map(|job| Key::new(algorithm, &vec![job as u8; algorithm.key_len()]).expect("its length")).collect();
    let mut messages = vec![vec![0x5a; size]; jobs];
    let iv = |job: usize| Iv::from_bytes([job as u8; 16]);
    // Short enough that some runs are not interrupted.
    let runs = 1 + 20_000 / (size * jobs);
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed().as_millis() < 20 {
        let start = Instant::now();
        for _ in 0..runs {
            let each = messages.iter_mut().zip(&keys).enumerate();
            match kind {
                OperationKind::Cipher => {
                    // Jobs borrow the data, so each run creates them anew.
                    let jobs = each.map(|(index, (data, key))| CipherJob::new(key, iv(index), data).expect("short"));
                    engine.cipher(&mut jobs.collect::<Vec<_>>());
                }
                OperationKind::Mac => {
                    let jobs = each
                        .map(|(index, (data, key))| MacJob::new(key, iv(index), data, TagLen::FOUR).expect("short"));
                    let mut jobs: Vec<_> = jobs.collect();
                    engine.mac(&mut jobs);
                    std::hint::black_box(&jobs);
                }
                OperationKind::Aead => {
                    let jobs = each.map(|(index, (data, key))| {
                        SealJob::new(key, iv(index), &[], data, TagLen::FOUR).expect("short")
                    });
                    let mut jobs: Vec<_> = jobs.collect();
                    engine.seal(&mut jobs);
                    std::hint::black_box(&jobs);
                }
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (runs * size * jobs) as f64);
    }
    best
}
