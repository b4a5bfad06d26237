//! 128-NIA3 (TS 35.221 4). The MAC is a sum of 32-bit windows of the keystream: one for each one bit of the message, at
//! the same position.

use crate::words::{Block, Words, bytes};

/// A MAC in computation. It takes its generator's blocks in order.
pub(crate) struct Eia3<'a> {
    message: &'a [u8],
    bits: usize,
    /// The last word of the previous block.
    previous: u32,
    sum: u32,
}

impl<'a> Eia3<'a> {
    /// Starts the MAC of the first `bits` of `message`, which must be that long.
    pub(crate) fn new(message: &'a [u8], bits: usize) -> Self {
        Eia3 { message, bits, previous: 0, sum: 0 }
    }

    /// Returns the number of keystream words needed.
    pub(crate) fn words(&self) -> usize {
        self.bits.div_ceil(32) + 2
    }

    /// Processes block `index` of the keystream.
    #[inline(always)]
    pub(crate) fn take<W: Words>(&mut self, proof: W::Proof, index: usize, block: &Block) {
        // The window of message word `m` ends in keystream word `m + 1`.
        let end = 16 * (index + 1) - 1;
        let whole = match index > 0 && 32 * end <= self.bits {
            true => self.message[64 * index - 4..].first_chunk(),
            false => None,
        };
        self.sum ^= match whole {
            Some(message) => W::windows(proof, self.previous, block, message),
            None => W::windows(proof, self.previous, block, &self.padded(index)) ^ self.ends(index, block),
        };
        self.previous = word(block, 15);
    }

    /// Returns the message words of a block, with zeros before and after the message.
    fn padded(&self, index: usize) -> [u8; 64] {
        let mut padded = [0; 64];
        // The first block has no message word at its start: its windows are one word late.
        let before = if index == 0 { 4 } else { 0 };
        let (start, bytes) = (64 * index + before - 4, self.bits.div_ceil(8));
        if let Some(rest @ 1..) = bytes.checked_sub(start) {
            let len = rest.min(64 - before);
            padded[before..before + len].copy_from_slice(&self.message[start..start + len]);
            // Bits after the message in its last byte are cleared.
            if start + len == bytes && !self.bits.is_multiple_of(8) {
                padded[before + len - 1] &= !(0xff >> (self.bits % 8));
            }
        }
        padded
    }

    /// Returns the part of the MAC besides the message's windows: the window after the message, and the last word.
    fn ends(&self, index: usize, block: &Block) -> u32 {
        let in_block = |number: usize| match number.checked_sub(16 * index) {
            Some(at @ 0..16) => Some(word(block, at)),
            _ => None,
        };
        let (first, shift) = (self.bits / 32, self.bits % 32);
        let window = in_block(first + 1).map_or(0, |second| {
            // The window may begin in the previous block's last word.
            let first = in_block(first).unwrap_or(self.previous);
            ((u64::from(first) << 32 | u64::from(second)) << shift >> 32) as u32
        });
        window ^ in_block(self.words() - 1).unwrap_or(0)
    }

    /// Returns the tag after all blocks.
    pub(crate) fn tag(&self) -> [u8; 4] {
        self.sum.to_be_bytes()
    }
}

/// Returns a word of keystream.
fn word(block: &Block, at: usize) -> u32 {
    ((block[at / 2] >> (32 * (at % 2))) as u32).swap_bytes()
}

/// Sums the windows of sixteen message words. The first window begins with `previous`.
pub(crate) fn windows(previous: u32, block: &Block, message: &[u8; 64]) -> u32 {
    let mut previous = previous;
    let mut sum = 0;
    for (block, message) in bytes(block).as_chunks::<4>().0.iter().zip(message.as_chunks::<4>().0) {
        let word = u32::from_be_bytes(*block);
        sum ^= window(u64::from(previous) << 32 | u64::from(word), u32::from_be_bytes(*message));
        previous = word;
    }
    sum
}

#[inline(always)]
fn window(keystream: u64, message: u32) -> u32 {
    (0..32).fold(0, |sum, bit| {
        let mask = (message << bit >> 31).wrapping_neg();
        sum ^ (keystream << bit >> 32) as u32 & mask
    })
}
