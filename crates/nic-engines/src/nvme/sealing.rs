//! Division of sent data into blocks for stages, for any split of the stream.
//!
//! If a packet ends inside a block, the engine also gets the bytes after the packet. The next packet starts inside the
//! same block, and the engine processes the block again. So only the queued start of a block is stored, and stages are
//! told whether a block will be processed again.
//!
//! Invariant: no byte leaves without passing the stages.

use offload_api::Piece;

/// The queued start of an incomplete block.
pub(super) type BlockStart = [u8; BLOCK];

/// Passes `data`, which start `at` bytes after the first block, through `stages`. `begun` contains the start of the
/// first block, and afterwards that of the last one. `ahead` are the bytes after the data, or `None` if the data are
/// not sent; the contents of an incomplete block are then undefined. Stages get blocks in order, with a flag for
/// complete blocks, and may change their state only for these. `sum` gets the results of complete blocks. Returns false
/// if a stage refuses, or `ahead` is too short.
pub(super) fn seal(
    begun: &mut BlockStart,
    at: u64,
    data: &mut [u8],
    ahead: Option<&[u8]>,
    mut stages: impl FnMut(u64, &mut [u8], bool) -> bool,
    mut sum: impl FnMut(&[u8]),
) -> bool {
    let before = (at % Piece::BLOCK) as usize;
    let (first, rest) = data.split_at_mut(if before == 0 { 0 } else { data.len().min(BLOCK - before) });
    let (whole, last) = rest.split_at_mut(rest.len() - rest.len() % BLOCK);
    let whole_at = at + first.len() as u64;
    let last_at = whole_at + whole.len() as u64;
    // The first block started in an earlier packet. Its digest is summed once, when the block is complete.
    if !first.is_empty() {
        let Some(block) = cut(begun, before, first, at - before as u64, ahead, &mut stages) else { return false };
        if before + first.len() == BLOCK {
            sum(&block);
        }
    }
    if !whole.is_empty() && !stages(whole_at, whole, true) {
        return false;
    }
    sum(whole);
    last.is_empty() || cut(begun, 0, last, last_at, ahead, &mut stages).is_some()
}

/// Processes part of the block at `at`, from byte `from` on, and returns the resulting block. Returns `None` if a stage
/// refuses or `ahead` is too short.
fn cut(
    begun: &mut BlockStart,
    from: usize,
    part: &mut [u8],
    at: u64,
    ahead: Option<&[u8]>,
    stages: &mut impl FnMut(u64, &mut [u8], bool) -> bool,
) -> Option<BlockStart> {
    let to = from + part.len();
    begun[from..to].copy_from_slice(part);
    let mut block = *begun;
    if to < BLOCK {
        let Some(ahead) = ahead else {
            part.fill(0);
            return Some(block);
        };
        // Without the missing bytes the block cannot be computed, and must not leave.
        block[to..].copy_from_slice(ahead.get(..BLOCK - to)?);
    }
    if !stages(at, &mut block, to == BLOCK) {
        return None;
    }
    part.copy_from_slice(&block[from..to]);
    Some(block)
}

const BLOCK: usize = Piece::BLOCK as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stage(at: u64, blocks: &mut [u8], _: bool) -> bool {
        assert!(at.is_multiple_of(16) && blocks.len().is_multiple_of(16));
        // Each byte of a block depends on all others and on the position.
        for (number, block) in blocks.chunks_mut(16).enumerate() {
            let all =
                block.iter().fold(at as u8 + 16 * number as u8, |sum, byte| sum.wrapping_mul(3).wrapping_add(*byte));
            block.iter_mut().for_each(|byte| *byte = byte.wrapping_add(all));
        }
        true
    }

    proptest! {
        #[test]
        fn data_are_encrypted_the_same_with_any_cuts(
            blocks in 1usize..12,
            cuts in prop::collection::vec((1usize..50, any::<bool>()), 1..20),
        ) {
            let plain: Vec<u8> = (0..blocks * 16).map(|at| (at * 29 + 7) as u8).collect();
            let mut expected = plain.clone();
            stage(0, &mut expected, true);
            let (mut begun, mut at, mut summed) = (BlockStart::default(), 0, Vec::new());
            let mut complete = 0;
            for (length, is_sent) in cuts.into_iter().cycle() {
                let end = plain.len().min(at + length);
                let mut part = plain[at..end].to_vec();
                let ahead = &plain[end..plain.len().min(end + 15)];
                let ahead = is_sent.then_some(ahead);
                let stages = |at: u64, blocks: &mut [u8], is_complete: bool| {
                    if is_complete {
                        assert_eq!(at, complete, "each block is complete once, in order");
                        complete += blocks.len() as u64;
                    }
                    stage(at, blocks, is_complete)
                };
                let sum = |sealed: &[u8]| summed.extend_from_slice(sealed);
                prop_assert!(seal(&mut begun, at as u64, &mut part, ahead, stages, sum));
                // Only sent bytes must be ciphertext; other bytes only advance the state.
                if is_sent {
                    prop_assert_eq!(&part, &expected[at..end]);
                }
                at = end;
                if at == plain.len() {
                    break;
                }
            }
            prop_assert_eq!(summed, expected);
        }
    }

    #[test]
    fn a_cut_block_does_not_leave_without_the_bytes_behind_it() {
        let mut data = [9; 20];
        assert!(!seal(&mut BlockStart::default(), 0, &mut data, Some(&[1; 11]), stage, |_| ()));
        assert!(seal(&mut BlockStart::default(), 0, &mut data, None, stage, |_| ()));
        assert_eq!(data[16..], [0; 4]);
        assert!(!seal(&mut BlockStart::default(), 0, &mut data, Some(&[1; 12]), |_, _, _| false, |_| ()));
    }
}
