//! Poly1305 in words, beside the rounds of ChaCha20: two blocks of it wait for each other, and so do the rounds; each has time in the
//! other's waits.
//!
//! What opens absorbs ciphertext before it is replaced: as far as a batch will write, while that batch is made. What seals absorbs
//! what batches before have written.
//!
//! # Safety of this module
//!
//! [`Words`] are made of a [`Run`], and read it as batches go over it. Who has batches call them vouches that they go over that run, from its
//! first byte on, each over as many bytes as it says, while the run is good. What is unsafe is reads, at `next`, and moving that on:
//! `among` counts no block that does not end within the run, so `next` stays within it or comes to its end. Opening, what is read was not
//! written yet, for a batch writes after its last round; sealing, it was.
#![allow(unsafe_code)]

use zeroize::Zeroize;

use super::rows::Beside;
use crate::chacha::poly1305::{Multiplier, absorb_block};
use crate::x86::Run;

/// An accumulator that absorbs a run while something else goes over it.
pub(super) struct Words {
    accumulator: [u64; 3],
    multiplier: Multiplier,
    /// What goes before the first bytes; none when they are absorbed.
    begun: Option<([u8; 16], usize)>,
    /// What is absorbed next, and how many bytes of the run were.
    next: *const u8,
    absorbed: usize,
    /// Bytes of the run, and of those, how many batches went over.
    len: usize,
    done: usize,
    opens: bool,
    /// Blocks to be absorbed beside this batch, and at most after two rounds.
    blocks: usize,
    at_once: usize,
}

impl Words {
    /// `used` bytes of `block` go before.
    pub(super) fn new(
        run: Run,
        opens: bool,
        accumulator: [u64; 3],
        multiplier: [u64; 2],
        block: &[u8; 16],
        used: usize,
    ) -> Words {
        Words {
            accumulator,
            multiplier: Multiplier::new(multiplier),
            begun: (used != 0).then_some((*block, used)),
            next: if opens { run.source } else { run.destination },
            absorbed: 0,
            len: run.len,
            done: 0,
            opens,
            blocks: 0,
            at_once: 0,
        }
    }

    pub(super) fn accumulator(&self) -> [u64; 3] {
        self.accumulator
    }

    /// Bytes of the run: whole blocks, with what went before.
    pub(super) fn absorbed(&self) -> usize {
        self.absorbed
    }

    /// Whole blocks among the first bytes of the run that were not absorbed.
    fn among(&self, bytes: usize) -> usize {
        let begun = self.begun.map_or(0, |(_, used)| used);
        (begun + bytes).saturating_sub(self.absorbed) / 16
    }
}

/// The multiplier is secret, and what was absorbed depends on it.
impl Drop for Words {
    fn drop(&mut self) {
        self.multiplier.zeroize();
        self.accumulator.zeroize();
    }
}

impl Beside for Words {
    #[inline(always)]
    unsafe fn begin(&mut self, bytes: usize) {
        self.blocks = match self.opens {
            // As far as the batch writes: the last block may reach beyond.
            true => self.among((self.done + bytes + 15).min(self.len)),
            false => self.among(self.done),
        };
        if let (1.., Some((mut block, used))) = (self.blocks, self.begun) {
            self.begun = None;
            // SAFETY: `among` counted a block that is whole with these bytes.
            unsafe { self.next.copy_to_nonoverlapping(block.as_mut_ptr().add(used), 16 - used) };
            absorb_block(&mut self.accumulator, &self.multiplier, &block);
            // SAFETY: as many bytes were read.
            self.next = unsafe { self.next.add(16 - used) };
            self.absorbed += 16 - used;
            self.blocks -= 1;
        }
        self.absorbed += 16 * self.blocks;
        self.at_once = self.blocks.div_ceil(10);
    }

    #[inline(always)]
    unsafe fn between(&mut self) {
        for _ in 0..self.at_once.min(self.blocks) {
            // SAFETY: `begin` counted whole blocks of the run, whose first is at `next`.
            unsafe {
                let block = self.next.cast::<[u8; 16]>().read_unaligned();
                self.next = self.next.add(16);
                absorb_block(&mut self.accumulator, &self.multiplier, &block);
            }
            self.blocks -= 1;
        }
    }

    #[inline(always)]
    unsafe fn end(&mut self, bytes: usize) {
        self.done += bytes;
    }
}
