//! Copies, and padding to whole units.

use crate::pieces::{self, OutputBuffer, PieceReader};
use crate::{Fault, RunChecksums, SpecError, TransformDirection};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

/// Copies the source, and computes its CRC.
pub(crate) fn copy(source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<RunChecksums, Fault> {
    room.needs(pieces::len(source))?;
    let (mut reader, mut crc) = (PieceReader::new(source), Digest::new(CrcAlgorithm::Crc32IsoHdlc));
    // Small parts, so that the CRC reads the bytes from the first-level cache.
    while let Some(part) = reader.next(IN_CACHE) {
        room.append(part)?;
        crc.update(part);
    }
    let crc = crc.finalize() as u32;
    Ok(RunChecksums { source: crc, target: crc })
}

/// Pads to whole units with a byte 0x80 and zeros (ISO/IEC 7816-4), or removes the padding.
pub(crate) fn pad(
    unit: u32,
    way: TransformDirection,
    source: &[Bytes],
    room: &mut OutputBuffer<'_>,
) -> Result<(), Fault> {
    room.append_all(source)?;
    let (written, unit) = (room.written(), unit as usize);
    match way {
        TransformDirection::Apply => {
            let padding = unit - written % unit;
            room.needs(padding)?;
            room.append(&[0x80])?;
            (1..padding).try_for_each(|_| room.append(&[0]))
        }
        TransformDirection::Undo => {
            let zeros = room.result().iter().rev().take_while(|byte| **byte == 0).count();
            let end = written.checked_sub(zeros + 1).filter(|end| room.result()[*end] == 0x80);
            room.shorten(written - end.ok_or(Fault::Corrupt)?);
            Ok(())
        }
    }
}

/// Refuses units of zero bytes.
pub(crate) fn check_unit(unit: u32) -> Result<u32, SpecError> {
    if unit == 0 { Err(SpecError::Unit { name: "padding", found: 0, takes: "one or more" }) } else { Ok(unit) }
}

/// Size of a part that is still in the first-level cache when it is read again.
const IN_CACHE: usize = 4096;
