//! Division of a file into blocks with separate checksums, and the file's hash from the block checksums.
//!
//! Invariant: the block size is a power of two, and blocks begin at multiples of that size, so that each block is a
//! subtree of BLAKE3's tree. Blocks hashed in any order therefore yield the hash that `b3sum` prints for the file.

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use core::ops::Range;
use offload_base::cost::{self, WorkKind};

/// The division of a file into blocks.
///
/// ```
/// use offload_reservoir::blocks::Blocks;
///
/// let blocks = Blocks::new(100 << 20, 16 << 20).unwrap();
/// assert_eq!(blocks.count(), 7);
/// assert_eq!(blocks.range(6), (96 << 20)..(100 << 20));
/// assert!(Blocks::new(100, 1000).is_none()); // not a power of two
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    size: u64,
    block: u64,
}

impl Blocks {
    /// Divides a file of `size` bytes into blocks of `block` bytes. Returns `None` unless `block` is a power of two
    /// from 1 KiB to 1 GiB.
    pub fn new(size: u64, block: u64) -> Option<Blocks> {
        let fits = block.is_power_of_two() && (MIN_BLOCK..=MAX_BLOCK).contains(&block);
        fits.then_some(Blocks { size, block })
    }

    /// Returns the length of the file in bytes.
    pub fn size(self) -> u64 {
        self.size
    }

    /// Returns the block size in bytes. The last block may be shorter.
    pub fn block(self) -> u64 {
        self.block
    }

    /// Returns the number of blocks.
    pub fn count(self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// Returns the byte range of a block, or an empty range after the last block.
    pub fn range(self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.block).min(self.size);
        start..start.saturating_add(self.block).min(self.size)
    }

    /// Returns the blocks that lie entirely within `bytes`.
    pub fn within(self, bytes: &Range<u64>) -> Range<u64> {
        let first = bytes.start.div_ceil(self.block);
        // The last block may be short, and then ends inside a block's length.
        let end = if bytes.end >= self.size { self.count() } else { bytes.end / self.block };
        first..end.max(first)
    }

    /// Returns the blocks that overlap `bytes`.
    pub(crate) fn touched(self, bytes: &Range<u64>) -> Range<u64> {
        let first = bytes.start / self.block;
        first..bytes.end.min(self.size).div_ceil(self.block).max(first)
    }
}

/// The checksums of a block.
///
/// See [`BlockHasher`] for an example.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockSum {
    /// CRC32C of the block's bytes.
    pub crc: u32,
    /// The block's node in the file's BLAKE3 tree, or the file's hash if there is only one block.
    pub subtree: [u8; 32],
}

impl core::fmt::Debug for BlockSum {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:08x} {}", self.crc, crate::digest::hexadecimal(&self.subtree))
    }
}

/// A hasher for one block.
///
/// ```
/// use offload_reservoir::blocks::{BlockHasher, BlockSum, Blocks, root};
///
/// let file = vec![7; 5000];
/// let blocks = Blocks::new(5000, 1024).unwrap();
/// let sums: Vec<BlockSum> = (0..blocks.count())
///     .map(|number| {
///         let range = blocks.range(number);
///         let mut hasher = BlockHasher::new(blocks, number);
///         hasher.update(&file[range.start as usize..range.end as usize]);
///         hasher.finish()
///     })
///     .collect();
/// assert_eq!(root(&sums), *blake3::hash(&file).as_bytes());
/// ```
#[derive(Clone, Debug)]
pub struct BlockHasher {
    crc: u32,
    tree: Hasher,
    is_only: bool,
}

impl BlockHasher {
    /// Creates a hasher for block `number`.
    pub fn new(blocks: Blocks, number: u64) -> BlockHasher {
        let mut tree = Hasher::new();
        let offset = number.saturating_mul(blocks.block);
        // BLAKE3 hashes each chunk with its position in the file.
        if offset > 0 {
            tree.set_input_offset(offset);
        }
        BlockHasher { crc: 0, tree, is_only: blocks.count() <= 1 }
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let _scope = cost::work(WorkKind::Digest);
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.tree.update(bytes);
    }

    /// Returns the checksums of the bytes so far.
    pub fn finish(&self) -> BlockSum {
        let subtree = if self.is_only { *self.tree.finalize().as_bytes() } else { self.tree.finalize_non_root() };
        BlockSum { crc: self.crc, subtree }
    }
}

/// Returns the BLAKE3 hash of a file from the checksums of its blocks in order.
pub fn root(sums: &[BlockSum]) -> [u8; 32] {
    match sums {
        [] => *blake3::hash(b"").as_bytes(),
        [only] => only.subtree,
        _ => {
            let (left, right) = sums.split_at(left_of(sums.len()));
            *merge_subtrees_root(&node(left), &node(right), Mode::Hash).as_bytes()
        }
    }
}

fn node(sums: &[BlockSum]) -> ChainingValue {
    match sums {
        [only] => only.subtree,
        _ => {
            let (left, right) = sums.split_at(left_of(sums.len()));
            merge_subtrees_non_root(&node(left), &node(right), Mode::Hash)
        }
    }
}

/// Returns the number of blocks in the left subtree: the largest power of two that leaves a block for the right
/// subtree.
fn left_of(blocks: usize) -> usize {
    blocks.next_power_of_two() / 2
}

/// Default block size.
pub const DEFAULT_BLOCK: u64 = 16 << 20;
/// BLAKE3's chunk size.
const MIN_BLOCK: u64 = 1024;
const MAX_BLOCK: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_any_number_make_the_files_hash() {
        let file: Vec<u8> = (0..40_000_u32).map(|at| (at * at % 251) as u8).collect();
        for size in [0, 1, 1023, 1024, 1025, 2048, 3000, 4096, 5120, 8192, 9000, 16384, 33_000, 40_000] {
            for block in [1024, 2048, 8192, 65536] {
                let blocks = Blocks::new(size, block).unwrap();
                let sums: Vec<BlockSum> = (0..blocks.count())
                    .map(|number| {
                        let range = blocks.range(number);
                        let mut hasher = BlockHasher::new(blocks, number);
                        file[range.start as usize..range.end as usize].chunks(700).for_each(|part| hasher.update(part));
                        hasher.finish()
                    })
                    .collect();
                assert_eq!(root(&sums), *blake3::hash(&file[..size as usize]).as_bytes(), "{size} by {block}");
            }
        }
    }

    #[test]
    fn blocks_within_a_range_are_whole() {
        let blocks = Blocks::new(10_000, 1024).unwrap();
        assert_eq!((blocks.within(&(0..10_000)), blocks.within(&(1..10_000))), (0..10, 1..10));
        assert_eq!((blocks.within(&(0..9999)), blocks.within(&(1024..2047))), (0..9, 1..1));
        assert_eq!(
            (blocks.touched(&(0..1)), blocks.touched(&(1023..1025)), blocks.touched(&(5..5))),
            (0..1, 0..2, 0..1)
        );
        assert_eq!(Blocks::new(0, 1024).unwrap().within(&(0..0)), 0..0);
        assert_eq!(blocks.range(10), 10_000..10_000);
    }
}
