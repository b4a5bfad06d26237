//! Commands of I/O queues.
//!
//! NVM Command Set Specification 1.0, 3. Commands are checked against the namespace before their data are requested.

use crate::namespace::{DataPieces, Namespace, Operation};
use crate::wire::{Command, IoOpcode, Status, u32_at, u64_at};
use core::ops::Range;

/// Checks `command` and returns the number of data bytes that the host must send.
pub(super) fn check(command: &Command, namespace: &Namespace, max_transfer: u32) -> Result<u32, Status> {
    let opcode = IoOpcode::from_u8(command.opcode()).ok_or(Status::INVALID_OPCODE)?;
    match opcode {
        IoOpcode::Flush => Ok(0),
        IoOpcode::DatasetManagement => {
            let ranges = (command.u32(10) & 0xff) + 1;
            // Linux always sends room for the maximum of 256 ranges.
            let length = command.sgl().length;
            let whole = length.is_multiple_of(RANGE_LEN as u32);
            if !whole || length < ranges * RANGE_LEN as u32 || length > 256 * RANGE_LEN as u32 {
                return Err(Status::INVALID_SGL_LENGTH);
            }
            Ok(length)
        }
        _ => {
            let (first, blocks) = range(command);
            if !namespace.contains(first, u64::from(blocks)) {
                return Err(Status::LBA_OUT_OF_RANGE);
            }
            if !matches!(opcode, IoOpcode::Read | IoOpcode::Write | IoOpcode::Compare) {
                return Ok(0);
            }
            // The transfer limit applies to commands with data only. The others may cover up to 65536 blocks.
            let bytes = u64::from(blocks) * u64::from(namespace.block_size());
            if bytes > u64::from(max_transfer) {
                return Err(Status::INVALID_FIELD);
            }
            if u64::from(command.sgl().length) != bytes {
                return Err(Status::INVALID_SGL_LENGTH);
            }
            Ok(if opcode == IoOpcode::Read { 0 } else { bytes as u32 })
        }
    }
}

/// Returns the operation of a command that passed [`check`].
pub(super) fn operation(
    command: &Command,
    namespace: &Namespace,
    data: DataPieces,
    write_cache: bool,
) -> Result<Operation, Status> {
    let (first, blocks) = range(command);
    // Without the volatile write cache, every write has to be durable when it completes.
    let durable = command.u32(12) & FORCE_UNIT_ACCESS != 0 || !write_cache;
    Ok(match IoOpcode::from_u8(command.opcode()).ok_or(Status::INVALID_OPCODE)? {
        IoOpcode::Flush => Operation::Flush,
        IoOpcode::Write => Operation::Write { first, data, durable },
        IoOpcode::Read => Operation::Read { first, blocks },
        IoOpcode::WriteUncorrectable => Operation::WriteUncorrectable { first, blocks },
        IoOpcode::Compare => Operation::Compare { first, data },
        IoOpcode::WriteZeroes => Operation::WriteZeroes { first, blocks, durable },
        IoOpcode::Verify => Operation::Verify { first, blocks },
        IoOpcode::DatasetManagement => {
            // Only deallocation changes data; the other attributes are hints.
            let deallocate = command.u32(11) & DEALLOCATE != 0;
            let count = if deallocate { (command.u32(10) & 0xff) as usize + 1 } else { 0 };
            let ranges = data
                .concat()
                .chunks_exact(RANGE_LEN)
                .take(count)
                .map(|range| {
                    let (first, blocks) = (u64_at(range, 8), u64::from(u32_at(range, 4)));
                    namespace.contains(first, blocks).then(|| first..first + blocks).ok_or(Status::LBA_OUT_OF_RANGE)
                })
                .collect::<Result<Vec<_>, Status>>()?;
            Operation::Deallocate { ranges: merged(ranges), durable: !write_cache }
        }
    })
}

/// Merges overlapping and adjacent ranges.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
    ranges
}

/// Returns first block and number of blocks.
pub(super) fn range(command: &Command) -> (u64, u32) {
    (command.u64(10), (command.u32(12) & 0xffff) + 1)
}

/// FUA, bit 30 of double word 12.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// AD, bit 2 of double word 11.
const DEALLOCATE: u32 = 1 << 2;
/// Bytes of a Dataset Management range.
const RANGE_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merged_ranges_cover_the_same_blocks_once(ranges in prop::collection::vec((0u64..50, 0u64..10), 0..20)) {
            let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(first, blocks)| first..first + blocks).collect();
            let covered = |ranges: &[Range<u64>]| (0..60).map(|block| ranges.iter().any(|range| range.contains(&block)))
                .collect::<Vec<_>>();
            let merged = merged(ranges.clone());
            prop_assert_eq!(covered(&merged), covered(&ranges));
            prop_assert!(merged.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", merged);
        }
    }
}
