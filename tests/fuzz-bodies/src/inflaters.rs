//! Arbitrary bytes as compressed data of every format: an error or a result, within the available room, independent of
//! cuts.

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use offload_compression::Compression;
use offload_transforms::{Fault, Parameters, Session, TransformDirection};

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let format = Compression::ALL[usize::from(input.byte()) % Compression::ALL.len()];
    let (cut, room) = (usize::from(input.word()), usize::from(input.word()));
    let session = Session::new(&format.at_level(1)).expect("there is such a level");
    let run = |way, source: &[Bytes], room| {
        let mut target = BytesMut::with_capacity(room);
        let capacity = target.capacity();
        let report = session.run(way, Parameters::default(), source, &mut target);
        assert_eq!(target.capacity(), capacity, "a target does not grow");
        report.map(|report| (report, target.freeze()))
    };
    let whole = Bytes::copy_from_slice(input.0);
    let pieces = [whole.slice(..cut.min(whole.len())), whole.slice(cut.min(whole.len())..)];
    let found = run(TransformDirection::Undo, core::slice::from_ref(&whole), room);
    // Data that is both too long and damaged may fail for either reason, depending on the cut.
    assert_eq!(run(TransformDirection::Undo, &pieces, room).ok(), found.clone().ok(), "pieces make no difference");
    if let Ok((report, plain)) = found {
        assert!(report.consumed <= whole.len() && report.produced == plain.len() && plain.len() <= room);
        if room > 0 && !plain.is_empty() {
            assert!(matches!(run(TransformDirection::Undo, &[whole], plain.len() - 1), Err(Fault::OutOfSpace { .. })));
        }
        // What came out goes in again.
        let (_, packed) = run(TransformDirection::Apply, core::slice::from_ref(&plain), 2 * plain.len() + 1000)
            .expect("there is room");
        assert_eq!(run(TransformDirection::Undo, &[packed], plain.len()).expect("our own").1, plain);
    }
}
