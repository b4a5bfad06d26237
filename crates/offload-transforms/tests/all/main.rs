//! Published vectors, and every transform beside another implementation on random bytes in random pieces.

mod faults;
mod random;
mod vectors;

use bytes::{Bytes, BytesMut};
use offload_transforms::{Fault, Parameters, Report, Session, Way};

/// Bytes of a hexadecimal text.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Runs a session into a target with much room.
fn run(session: &Session, way: Way, with: Parameters<'_>, source: &[Bytes]) -> Result<(Vec<u8>, Report), Fault> {
    let mut target = BytesMut::with_capacity(1 << 20);
    target.extend_from_slice(b"in front");
    let report = session.run(way, with, source, &mut target);
    assert_eq!(&target[..8], b"in front");
    let report = report.inspect_err(|_| assert_eq!(target.len(), 8, "a fault leaves nothing"))?;
    assert_eq!(report.produced, target.len() - 8);
    Ok((target[8..].to_vec(), report))
}

/// The same bytes, cut at these places.
fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = cuts.iter().map(|at| at % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| Bytes::copy_from_slice(&bytes[ends[0]..ends[1]])).collect()
}
