//! Scalar Poly1305 between the vector rounds of ChaCha20. Consecutive blocks of Poly1305 depend on each other, and so do the rounds of ChaCha20; each runs during
//! the other's latency.
//!
//! Opening absorbs ciphertext before the plaintext replaces it: while a batch is computed, the blocks that the batch will overwrite. Sealing absorbs
//! the output of earlier batches.
//!
//! # Safety of this module
//!
//! [`ScalarPoly1305`] are made from a [`KernelSpan`], and read it while batches process it. The caller vouches that the batches process that run from its
//! first byte on, each as many bytes as it announces, while the run is good. The unsafe operations are reads at `next`, and advancing `next`:
//! `among` counts only blocks that end within the run, so `next` stays within the run or reaches its end. When opening, the bytes read are not
//! overwritten yet, because a batch writes after its last round; when sealing, they were written.
#![allow(unsafe_code)]

use zeroize::Zeroize;

use super::rows::InterleavedWork;
use crate::chacha::poly1305::{Multiplier, absorb_block};
use crate::x86::KernelSpan;

/// An accumulator that absorbs a run while ChaCha20 processes it.
pub(super) struct ScalarPoly1305 {
    accumulator: [u64; 3],
    multiplier: Multiplier,
    /// Unfinished block before the run, and its length; `None` once it was absorbed.
    begun: Option<([u8; 16], usize)>,
    /// The next bytes to absorb, and the number of absorbed bytes of the run.
    next: *const u8,
    absorbed: usize,
    /// Length of the run, and the bytes of it that batches have processed.
    len: usize,
    done: usize,
    opens: bool,
    /// Blocks to absorb during this batch, and the most after two rounds.
    blocks: usize,
    at_once: usize,
}

impl ScalarPoly1305 {
    /// Makes an accumulator for `run`, which `used` bytes of `block` precede.
    pub(super) fn new(
        run: KernelSpan,
        opens: bool,
        accumulator: [u64; 3],
        multiplier: [u64; 2],
        block: &[u8; 16],
        used: usize,
    ) -> ScalarPoly1305 {
        ScalarPoly1305 {
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

    /// Returns the absorbed bytes of the run, which end a whole block.
    pub(super) fn absorbed(&self) -> usize {
        self.absorbed
    }

    /// Returns the number of whole blocks that are not absorbed and end within the first `bytes` of the run.
    fn among(&self, bytes: usize) -> usize {
        let begun = self.begun.map_or(0, |(_, used)| used);
        (begun + bytes).saturating_sub(self.absorbed) / 16
    }
}

/// Wipes the accumulator and the multiplier, which are secret.
impl Drop for ScalarPoly1305 {
    fn drop(&mut self) {
        self.multiplier.zeroize();
        self.accumulator.zeroize();
    }
}

impl InterleavedWork for ScalarPoly1305 {
    #[inline(always)]
    unsafe fn begin(&mut self, bytes: usize) {
        self.blocks = match self.opens {
            // As far as the batch writes: the last block may extend past it.
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
            // SAFETY: `begin` counted whole blocks of the run, and the first is at `next`.
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
