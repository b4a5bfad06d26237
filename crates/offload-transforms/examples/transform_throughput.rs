//! Measures the throughput of protection information and AES-XTS, next to a plain copy: `cargo run --release -p
//! offload-transforms --example transform_throughput`.
//!
//! Prints GB/s (1e9 bytes) of the fastest of many short runs, in blocks of 512 and 4096 bytes, over 64 KiB, which fit
//! into the processor's caches, and over 64 MiB, which do not. The columns of a row are measured in turns, so that
//! other load on the machine affects all of them alike.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use offload_transforms::protection::{BlockProtection, Check, Format, Guard};
use offload_transforms::{Fault, Parameters, SecretBytes, Session, SpecError, Transform, TransformDirection, Tweak};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names = ["CRC-16", "checksum", "CRC-32C", "CRC-64", "AES-256-XTS"];
    println!("GB/s; in brackets: time beside the copy's\n\n| bytes | in a block | copy | {} |", names.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(names.len()));
    for area in [64 << 10, 64 << 20] {
        for block in [512, 4096] {
            row(area, block)?;
        }
    }
    Ok(())
}

fn row(area: usize, block: u32) -> Result<(), Box<dyn std::error::Error>> {
    let guards = [Guard::Crc16, Guard::InternetChecksum, Guard::Crc32, Guard::Crc64];
    let sessions = guards.map(|guard| added(guard, block)).into_iter().chain([encrypted(block)]);
    let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let source = [Bytes::from((0..area).map(|at| at as u8).collect::<Vec<_>>())];
    let mut target = BytesMut::with_capacity(2 * area);
    let mut fastest = vec![Duration::MAX; sessions.len() + 1];
    let begin = Instant::now();
    // The fastest run counts, because interference from other programs only ever slows a run down.
    while begin.elapsed() < Duration::from_millis(150) * fastest.len() as u32 {
        for (index, fastest) in fastest.iter_mut().enumerate() {
            target.clear();
            let start = Instant::now();
            match index.checked_sub(1).map(|index| &sessions[index]) {
                // The first column is the plain copy, with which the other columns are compared.
                None => target.extend_from_slice(black_box(&source[0])),
                Some(session) => run(session, black_box(&source), &mut target)?,
            }
            // Without this, the compiler could drop the copy, whose result is never used.
            black_box(&mut target);
            *fastest = start.elapsed().min(*fastest);
        }
    }
    let cell = |time: &Duration| {
        let rate = area as f64 / time.as_nanos() as f64;
        format!("{rate:.1} ({:.2})", time.as_secs_f64() / fastest[0].as_secs_f64())
    };
    println!("| {area} | {block} | {} |", fastest.iter().map(cell).collect::<Vec<_>>().join(" | "));
    Ok(())
}

fn run(session: &Session, source: &[Bytes], target: &mut BytesMut) -> Result<(), Fault> {
    session.run(TransformDirection::Apply, Parameters::default(), source, target).map(drop)
}

fn added(guard: Guard, interval: u32) -> Result<Session, SpecError> {
    let wire = Some(Format { guard, interval, ..Format::default() });
    Session::new(&Transform::Protection(BlockProtection { memory: None, wire, check: Check::ALL }))
}

fn encrypted(unit: u32) -> Result<Session, SpecError> {
    Session::new(&Transform::Xts { key: SecretBytes::new((0..64).collect()), unit, tweak: Tweak::Unit })
}
