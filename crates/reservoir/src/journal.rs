//! The receive journal of a file: the blocks on the medium with their checksums, one per line.
//!
//! Invariant: a line counts only if its own checksum matches, so a torn or foreign line is ignored. A journal with a
//! heading for another file is ignored as a whole. [`LandingFile`](crate::landing::LandingFile) ensures that a line is
//! written only after its block is on the medium.
//!
//! ```text
//! reservoir-journal 1 SIZE BLOCK SOURCE CRC32C
//! NUMBER CRC32C SUBTREE CRC32C-OF-THIS-LINE
//! ```

use crate::blocks::{BlockSum, Blocks};
use crate::digest::{from_hexadecimal, hexadecimal};
use std::collections::BTreeMap;

/// Returns the first line of a journal. `source` identifies the source file.
pub(crate) fn heading(blocks: Blocks, source: &str) -> String {
    let source = hexadecimal(&blake3::hash(source.as_bytes()).as_bytes()[..16]);
    signed(format!("{MAGIC} {} {} {source}", blocks.size(), blocks.block()))
}

/// Returns the line of a block.
pub(crate) fn line(number: u64, sum: &BlockSum) -> String {
    signed(format!("{number} {:08x} {}", sum.crc, hexadecimal(&sum.subtree)))
}

/// Parses a journal into its blocks. Returns `None` if the journal belongs to another file.
pub(crate) fn read(text: &[u8], blocks: Blocks, source: &str) -> Option<BTreeMap<u64, BlockSum>> {
    let mut lines = text.split(|byte| *byte == b'\n');
    if lines.next()? != heading(blocks, source).trim_end().as_bytes() {
        return None;
    }
    Some(blocks_of(lines, blocks))
}

/// Parses the lines after a heading.
pub(crate) fn blocks_of<'a>(lines: impl Iterator<Item = &'a [u8]>, blocks: Blocks) -> BTreeMap<u64, BlockSum> {
    lines.filter_map(read_line).filter(|(number, _)| *number < blocks.count()).collect()
}

fn read_line(line: &[u8]) -> Option<(u64, BlockSum)> {
    let (text, check) = str::from_utf8(line).ok()?.rsplit_once(' ')?;
    if check != format!("{:08x}", crc32c::crc32c(text.as_bytes())) {
        return None;
    }
    let mut words = text.split(' ');
    let number = words.next()?.parse().ok()?;
    let crc = u32::from_str_radix(words.next()?, 16).ok()?;
    let subtree = from_hexadecimal(words.next()?)?.try_into().ok()?;
    Some((number, BlockSum { crc, subtree }))
}

fn signed(text: String) -> String {
    let check = crc32c::crc32c(text.as_bytes());
    format!("{text} {check:08x}\n")
}

/// The checksums of a line that withdraws earlier lines of its block. No block has these checksums.
pub(crate) const WITHDRAWN: BlockSum = BlockSum { crc: 0, subtree: [0; 32] };

/// Maximum length of a journal that is read: two lines for each block.
pub(crate) fn most_bytes(blocks: Blocks) -> u64 {
    const LONGEST_LINE: u64 = 20 + 1 + 8 + 1 + 64 + 1 + 8 + 2;
    200 + 2 * LONGEST_LINE * (blocks.count() + 64)
}

const MAGIC: &str = "reservoir-journal 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_torn_or_changed_do_not_count() {
        let blocks = Blocks::new(4096, 1024).unwrap();
        let sum = |byte| BlockSum { crc: u32::from(byte), subtree: [byte; 32] };
        let mut text = heading(blocks, "source");
        (0..3).for_each(|number| text += &line(number, &sum(number as u8 + 1)));
        let all = read(text.as_bytes(), blocks, "source").unwrap();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..3).map(|n| (n, sum(n as u8 + 1))).collect::<Vec<_>>());
        assert_eq!(read(text.as_bytes(), blocks, "other source"), None);
        assert_eq!(read(text.as_bytes(), Blocks::new(4097, 1024).unwrap(), "source"), None);
        // A journal cut at any point has its complete lines.
        for cut in heading(blocks, "source").len()..text.len() {
            let whole = text[..cut].lines().skip(1).filter(|line| text.lines().any(|one| one == *line)).count();
            assert_eq!(read(&text.as_bytes()[..cut], blocks, "source").unwrap().len(), whole, "{cut}");
        }
        // A changed bit costs that line or, in the heading, the journal.
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let found = read(&changed, blocks, "source").unwrap_or_default();
            assert!(found.len() < 3 && found.iter().all(|(number, of)| *of == sum(*number as u8 + 1)), "{at}");
        }
        let longest = line(u64::MAX, &sum(1));
        assert!(most_bytes(blocks) > 2 * longest.len() as u64 * blocks.count());
        assert!(read_line(longest.trim_end().as_bytes()).is_some_and(|(number, _)| number == u64::MAX));
    }
}
