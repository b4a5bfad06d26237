//! GHASH over any [`Vector`]: products with descending powers of the hash key, summed and reduced once for as many blocks as
//! there are powers, which covers a packet.
//!
//! # Safety of this module
//!
//! All functions are `unsafe` for two reasons, and their callers vouch for both: the processor has the instructions of
//! `V`, and a pointer is readable for as many bytes as go with it. Powers are read within their table only, by
//! [`GhashState`]'s invariant.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::schedule::{GcmSchedule, POWERS};
use crate::x86::vector::{Vector, load_up_to};

/// GHASH of a known number of blocks, vector after vector, in segments of as many blocks as there are powers.
///
/// Invariant: the segment's next block is multiplied with the power at `power`, the last with the table's last.
pub(super) struct GhashState<V> {
    pub(super) sums: UnreducedSums<V>,
    /// GHASH before the segment, to be added to the segment's first block; zero after that.
    pub(super) first: V,
    pub(super) power: usize,
    /// Blocks not yet absorbed.
    left: usize,
}

impl<V: Vector> GhashState<V> {
    #[inline(always)]
    pub(super) unsafe fn new(accumulator: __m128i, blocks: usize) -> Self {
        debug_assert!(blocks != 0);
        let power = POWERS - blocks.min(POWERS);
        // SAFETY: the caller keeps the module's contract.
        unsafe { GhashState { sums: UnreducedSums::zero(), first: V::first(accumulator), power, left: blocks } }
    }

    /// Absorbs a vector with `blocks` blocks in use. Only the last vector may be partly used: its unused blocks meet powers past the last, which are zero. The
    /// segment has room for the blocks.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, schedule: &GcmSchedule, data: V, blocks: usize) {
        // SAFETY: the caller keeps the module's contract. With room for a block `power` is within the table, and enough
        // zeros follow the powers for a whole vector.
        unsafe {
            self.sums.add(data.reverse().xor(self.first), schedule, self.power);
            self.advance(blocks);
        }
    }

    /// Ends the segment if it is complete.
    #[inline(always)]
    pub(super) unsafe fn make_room(&mut self) {
        if self.power == POWERS {
            // SAFETY: the caller keeps the module's contract.
            unsafe {
                self.first = V::first(self.sums.reduce());
                self.sums = UnreducedSums::zero();
            }
            self.power -= self.left.min(POWERS);
        }
    }

    /// Counts the added blocks.
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, blocks: usize) {
        debug_assert!(blocks <= self.left && self.power + blocks <= POWERS);
        // SAFETY: the caller keeps the module's contract.
        self.first = unsafe { V::zero() };
        self.power += blocks;
        self.left -= blocks;
    }

    /// Returns the GHASH of all blocks. The caller has absorbed all.
    #[inline(always)]
    pub(super) unsafe fn finish(self) -> __m128i {
        debug_assert!(self.left == 0 && self.power == POWERS);
        // SAFETY: the caller keeps the module's contract.
        unsafe { self.sums.reduce() }
    }
}

/// Unreduced sums of products: of low halves, of high halves, of the halves' sums (Karatsuba: three
/// multiplications instead of four, because multiplications cost more than additions on every processor).
pub(super) struct UnreducedSums<V> {
    pub(super) low: V,
    pub(super) crossed: V,
    pub(super) high: V,
}

impl<V: Vector> UnreducedSums<V> {
    #[inline(always)]
    pub(super) unsafe fn zero() -> Self {
        // SAFETY: the caller keeps the module's contract.
        unsafe { UnreducedSums { low: V::zero(), crossed: V::zero(), high: V::zero() } }
    }

    /// Adds the products of `left` with the powers at `index` of the table and on.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, left: V, schedule: &GcmSchedule, index: usize) {
        debug_assert!(index + V::BLOCKS <= schedule.powers.len());
        // SAFETY: the caller keeps the module's contract, and `index` within the table.
        unsafe {
            let power = V::load(schedule.powers.as_ptr().add(index).cast());
            let folded_power = V::load(schedule.folded_powers.as_ptr().add(index).cast());
            self.low = self.low.xor(left.multiply_low(power));
            self.high = self.high.xor(left.multiply_high(power));
            self.crossed = self.crossed.xor(left.xor(left.swap()).multiply_low(folded_power));
        }
    }

    /// Returns the sum over all blocks, modulo the field's polynomial.
    ///
    /// Adding a multiple of the polynomial that clears the lowest 64 bits moves them up: once from low to middle, once
    /// from middle to high.
    #[inline(always)]
    pub(super) unsafe fn reduce(&self) -> __m128i {
        // SAFETY: the caller keeps the module's contract; the constant is 16 bytes.
        unsafe {
            let polynomial = V::broadcast(POLYNOMIAL_HIGH.as_ptr().cast());
            let middle = self.crossed.xor3(self.low, self.high);
            let middle = middle.xor3(self.low.swap(), self.low.multiply_low(polynomial));
            self.high.xor3(middle.swap(), middle.multiply_low(polynomial)).sum()
        }
    }
}

/// Absorbs `len` bytes, padded with zeros to whole blocks.
#[inline(always)]
pub(super) unsafe fn absorb<V: Vector>(
    schedule: &GcmSchedule,
    accumulator: &mut [u8; 16],
    from: *const u8,
    len: usize,
) {
    // SAFETY: the caller keeps the module's contract; `from` moves forward within `len` bytes.
    unsafe {
        let whole = len / 16;
        let mut sum = __m128i::load(accumulator.as_ptr()).reverse();
        if whole != 0 {
            let mut hash = GhashState::<V>::new(sum, whole);
            hash_blocks::<V>(schedule, &mut hash, from, whole);
            sum = hash.finish();
        }
        if !len.is_multiple_of(16) {
            let last = V::load_bytes(from.add(16 * whole), 0, len % 16).reverse();
            sum = multiply_by_hash_key(schedule, sum.xor(last));
        }
        sum.reverse().store(accumulator.as_mut_ptr());
    }
}

/// Multiplies a reversed number by the hash key's first power.
#[inline(always)]
pub(super) unsafe fn next_power(schedule: &GcmSchedule, power: &[u8; 16]) -> [u8; 16] {
    let mut result = [0; 16];
    // SAFETY: the caller keeps the module's contract; loads and stores are of 16 bytes.
    unsafe { multiply_by_hash_key(schedule, __m128i::load(power.as_ptr())).store(result.as_mut_ptr()) };
    result
}

/// Absorbs whole blocks.
#[inline(always)]
pub(super) unsafe fn hash_blocks<V: Vector>(
    schedule: &GcmSchedule,
    hash: &mut GhashState<V>,
    from: *const u8,
    blocks: usize,
) {
    // SAFETY: the caller keeps the module's contract and has as many blocks at `from`.
    unsafe {
        let (mut from, mut left) = (from, blocks);
        while left != 0 {
            let now = left.min(V::BLOCKS);
            hash.make_room();
            hash.add(schedule, load_up_to::<V>(from, now), now);
            from = from.add(16 * now);
            left -= now;
        }
    }
}

/// Returns one reduced product.
#[inline(always)]
pub(super) unsafe fn multiply_by_hash_key(schedule: &GcmSchedule, left: __m128i) -> __m128i {
    // SAFETY: the caller keeps the module's contract; the last power is the first.
    unsafe {
        let mut sums = UnreducedSums::<__m128i>::zero();
        sums.add(left, schedule, POWERS - 1);
        sums.reduce()
    }
}

/// x^127 + x^126 + x^121 of the field's polynomial, shifted down by 64.
static POLYNOMIAL_HIGH: [u64; 2] = [0xc200_0000_0000_0000, 0];
