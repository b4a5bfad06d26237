//! Helpers for tests: runs in pieces, in both directions.

use bytes::{Bytes, BytesMut};
use offload_transforms::{Fault, Parameters, RunReport, Session, Transform, TransformDirection};
use proptest::prelude::*;

/// Runs a session into a target with ample capacity.
pub(crate) fn run(
    session: &Session,
    way: TransformDirection,
    with: Parameters<'_>,
    source: &[Bytes],
) -> Result<(Vec<u8>, RunReport), Fault> {
    let mut target = BytesMut::with_capacity(1 << 20);
    target.extend_from_slice(b"in front");
    let report = session.run(way, with, source, &mut target);
    assert_eq!(&target[..8], b"in front");
    let report = report.inspect_err(|_| assert_eq!(target.len(), 8, "a fault leaves nothing"))?;
    assert_eq!(report.produced, target.len() - 8);
    Ok((target[8..].to_vec(), report))
}

/// Cuts the bytes at these offsets.
pub(crate) fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = cuts.iter().map(|at| at % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| Bytes::copy_from_slice(&bytes[ends[0]..ends[1]])).collect()
}

pub(crate) fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

pub(crate) fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..6)
}

/// Applies in pieces cut one way, and undoes in pieces cut another way.
pub(crate) fn both_ways(transform: &Transform, with: Parameters<'_>, plain: &[u8], cuts: &[usize]) -> Vec<u8> {
    let session = Session::new(transform).unwrap();
    let (applied, _) = run(&session, TransformDirection::Apply, with, &cut(plain, cuts)).unwrap();
    let (undone, _) = run(&session, TransformDirection::Undo, with, &cut(&applied, cuts)).unwrap();
    assert_eq!(undone, plain, "{}", transform.name());
    applied
}
