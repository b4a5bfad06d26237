//! Protection information with arbitrary formats over arbitrary bytes: added information verifies, errors are reported
//! at an existing position, and a transform and its inverse change nothing.

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use offload_transforms::protection::{BlockProtection, Check, Format, Guard, ProtectionType};
use offload_transforms::{Fault, Parameters, Session, Transform, TransformDirection};

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let (memory, wire) = (format(&mut input), format(&mut input));
    let flags = input.byte();
    let check =
        Check { guard: flags & 1 != 0, application: input.word(), reference: flags & 2 != 0, storage: flags & 4 != 0 };
    let memory = if flags & 8 != 0 { Some(Format { interval: wire.interval, ..memory }) } else { None };
    let wire = if flags & 16 != 0 { Some(wire) } else { None };
    let with = Parameters { iv: input.array(), aad: &[] };
    // Many combinations are invalid, and refusing them is right.
    let Ok(session) = Session::new(&Transform::Protection(BlockProtection { memory, wire, check })) else { return };
    let run = |way, source: &Bytes| {
        // The source is cut in two, so that a block may span both pieces.
        let mut target = BytesMut::with_capacity(17 * source.len() + 64);
        let cut = source.len() / 3;
        let report = session.run(way, with, &[source.slice(..cut), source.slice(cut..)], &mut target);
        report.map(|_| target.freeze())
    };
    let source = Bytes::copy_from_slice(input.0);
    for (way, back) in
        [(TransformDirection::Apply, TransformDirection::Undo), (TransformDirection::Undo, TransformDirection::Apply)]
    {
        match run(way, &source) {
            Ok(result) => {
                let undone = run(back, &result).expect("valid output verifies");
                // Unchecked tags may differ afterwards, but data must not.
                assert_eq!(undone.len(), source.len());
                assert_eq!(run(way, &undone).expect("once more"), result);
            }
            // Random bytes rarely verify, so most inputs end here.
            Err(Fault::Integrity(mismatch)) => {
                assert!(mismatch.offset < source.len() as u64 && mismatch.expected != mismatch.actual);
            }
            Err(fault) => assert!(matches!(fault, Fault::SourceLength { .. }), "{fault}"),
        }
    }
}

fn format(input: &mut Input<'_>) -> Format {
    let kind = [ProtectionType::Type1, ProtectionType::Type2, ProtectionType::Type3][usize::from(input.byte()) % 3];
    let guard = [Guard::Crc16, Guard::InternetChecksum, Guard::Crc32, Guard::Crc64][usize::from(input.byte()) % 4];
    let storage_bits = input.byte() % 70;
    Format {
        kind,
        guard,
        interval: input.word().into(),
        application: input.word(),
        storage_bits,
        storage: u64::from_le_bytes(input.array()).checked_shr(64 - u32::from(storage_bits.min(64))).unwrap_or(0),
    }
}
