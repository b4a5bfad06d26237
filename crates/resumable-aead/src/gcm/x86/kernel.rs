//! AES-GCM over any [`Vector`]: the loops, written once.
//!
//! Counter mode runs ahead in batches of [`BATCH`] vectors whose rounds are independent, and GHASH is worked in between
//! them, a vector per round: of the same batch when decrypting, of the one before when encrypting. A batch is hashed
//! as one sum of products with descending powers of the hash key, and reduced once.
//!
//! # Safety of this module
//!
//! All functions are `unsafe` for two reasons, and their callers vouch for both: the processor has the instructions of
//! `V`, and a source is readable, a destination writable, for as many bytes as go with it; source and destination are
//! the same or do not overlap. Within, pointers only move forward by what was counted off a length.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::schedule::{POWERS, Schedule};
use super::vector::Vector;
use crate::NONCE_LEN;
use crate::gcm::{GcmState, block_number, counter_block};

/// Vectors enciphered together.
pub(super) const BATCH: usize = 8;

/// Where bytes come from and go to.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) source: *const u8,
    pub(super) destination: *mut u8,
    pub(super) len: usize,
}

impl Run {
    /// What is left after `count` bytes.
    ///
    /// # Safety
    /// There are as many.
    #[inline(always)]
    unsafe fn skip(self, count: usize) -> Run {
        debug_assert!(count <= self.len);
        // SAFETY: both pointers stay within what they are good for, or come to its end.
        unsafe {
            Run { source: self.source.add(count), destination: self.destination.add(count), len: self.len - count }
        }
    }
}

/// Moves over a piece: head within a block, whole batches, whole blocks, tail within a block.
#[inline(always)]
pub(super) unsafe fn crypt<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &Schedule,
    state: &mut GcmState,
    nonce: &[u8; NONCE_LEN],
    position: u64,
    run: Run,
) {
    // SAFETY: the caller keeps the module's contract; every call below gets a part of `run`.
    unsafe {
        let mut run = run;
        let mut accumulator = __m128i::load(state.accumulator.as_ptr()).reverse();
        let mut counter = block_number(position);
        let used = (position % 16) as usize;
        if used != 0 {
            let end = (used + run.len).min(16);
            let keystream = __m128i::load(state.keystream.as_ptr());
            let ciphertext = crypt_bytes::<V, ENCRYPT>(keystream, run, used, end);
            accumulator = accumulator.xor(ciphertext.reverse());
            if end == 16 {
                accumulator = multiply_by_hash_key(schedule, accumulator);
            }
            counter = counter.wrapping_add(1);
            run = run.skip(end - used);
        }

        let blocks = run.len / 16;
        if blocks != 0 {
            let mut counters = Counters::<V>::new(nonce, counter);
            accumulator = crypt_batches::<V, ROUNDS, ENCRYPT>(schedule, &mut counters, accumulator, &mut run);
            accumulator = crypt_blocks::<V, ROUNDS, ENCRYPT>(schedule, &mut counters, accumulator, &mut run);
        }
        if run.len != 0 {
            let block = counter_block(nonce, counter.wrapping_add(blocks as u32));
            let keystream = encipher_vector::<__m128i, ROUNDS>(schedule, __m128i::load(block.as_ptr()));
            keystream.store(state.keystream.as_mut_ptr());
            let ciphertext = crypt_bytes::<V, ENCRYPT>(keystream, run, 0, run.len);
            accumulator = accumulator.xor(ciphertext.reverse());
        }
        accumulator.reverse().store(state.accumulator.as_mut_ptr());
    }
}

/// Adds the keystream that begins with the block of `counter`.
#[inline(always)]
pub(super) unsafe fn apply_keystream<V: Vector, const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    counter: u32,
    run: Run,
) {
    // SAFETY: the caller keeps the module's contract; every call below gets a part of `run`.
    unsafe {
        let mut run = run;
        let blocks = run.len / 16;
        let mut counters = Counters::<V>::new(nonce, counter);
        while run.len >= batch_len::<V>() {
            encipher_batch::<V, ROUNDS>(schedule, &mut counters, run);
            run = run.skip(batch_len::<V>());
        }
        let mut left = run.len / 16;
        while left != 0 {
            let now = left.min(V::BLOCKS);
            let keystream = encipher_vector::<V, ROUNDS>(schedule, counters.take());
            store_up_to(load_up_to::<V>(run.source, now).xor(keystream), run.destination, now);
            run = run.skip(16 * now);
            left -= now;
        }
        if run.len != 0 {
            let block = counter_block(nonce, counter.wrapping_add(blocks as u32));
            let keystream = encipher_vector::<__m128i, ROUNDS>(schedule, __m128i::load(block.as_ptr()));
            crypt_bytes::<V, true>(keystream, run, 0, run.len);
        }
    }
}

/// Absorbs `len` bytes, padded with zeros to whole blocks.
#[inline(always)]
pub(super) unsafe fn ghash<V: Vector>(schedule: &Schedule, accumulator: &mut [u8; 16], from: *const u8, len: usize) {
    // SAFETY: the caller keeps the module's contract; `from` moves forward within `len` bytes.
    unsafe {
        let (mut from, mut left) = (from, len / 16);
        let mut sum = __m128i::load(accumulator.as_ptr()).reverse();
        while left != 0 {
            let now = left.min(POWERS);
            sum = hash_blocks::<V>(schedule, sum, from, now);
            from = from.add(16 * now);
            left -= now;
        }
        if !len.is_multiple_of(16) {
            let last = V::load_bytes(from, 0, len % 16).reverse();
            sum = multiply_by_hash_key(schedule, sum.xor(last));
        }
        sum.reverse().store(accumulator.as_mut_ptr());
    }
}

/// One block through AES.
#[inline(always)]
pub(super) unsafe fn encrypt_block<const ROUNDS: usize>(schedule: &Schedule, block: &[u8; 16]) -> [u8; 16] {
    let mut result = [0; 16];
    // SAFETY: the caller keeps the module's contract; loads and stores are of 16 bytes.
    unsafe {
        let block = __m128i::load(block.as_ptr());
        encipher_vector::<__m128i, ROUNDS>(schedule, block).store(result.as_mut_ptr());
    }
    result
}

/// The product of a reversed number and the hash key's first power.
#[inline(always)]
pub(super) unsafe fn next_power(schedule: &Schedule, power: &[u8; 16]) -> [u8; 16] {
    let mut result = [0; 16];
    // SAFETY: the caller keeps the module's contract; loads and stores are of 16 bytes.
    unsafe { multiply_by_hash_key(schedule, __m128i::load(power.as_ptr())).store(result.as_mut_ptr()) };
    result
}

/// All whole batches of a piece, with authentication, and what comes after them if it is most of another.
#[inline(always)]
unsafe fn crypt_batches<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &Schedule,
    counters: &mut Counters<V>,
    mut accumulator: __m128i,
    run: &mut Run,
) -> __m128i {
    let batch = batch_len::<V>();
    // SAFETY: the caller keeps the module's contract; lengths are checked before each batch.
    unsafe {
        if ENCRYPT && run.len >= batch {
            encipher_batch::<V, ROUNDS>(schedule, counters, *run);
            while run.len >= 2 * batch {
                let next = run.skip(batch);
                accumulator = encipher_and_hash::<V, ROUNDS>(schedule, counters, next, accumulator, run.destination);
                *run = next;
            }
            let last = run.destination;
            *run = run.skip(batch);
            if run.len > batch / 2 {
                return crypt_most_of_batch::<V, ROUNDS, true, true>(schedule, counters, accumulator, run, last);
            }
            return hash_blocks::<V>(schedule, accumulator, last, BATCH * V::BLOCKS);
        }
        while !ENCRYPT && run.len >= batch {
            accumulator = encipher_and_hash::<V, ROUNDS>(schedule, counters, *run, accumulator, run.source);
            *run = run.skip(batch);
        }
        if run.len > batch / 2 {
            let none = run.source;
            accumulator = crypt_most_of_batch::<V, ROUNDS, ENCRYPT, false>(schedule, counters, accumulator, run, none);
        }
    }
    accumulator
}

/// The whole blocks that are left when they are more than half a batch, with authentication. In between the rounds
/// GHASH of the batch at `before` if it is `PENDING`, and of these blocks themselves when decrypting.
#[inline(always)]
unsafe fn crypt_most_of_batch<V: Vector, const ROUNDS: usize, const ENCRYPT: bool, const PENDING: bool>(
    schedule: &Schedule,
    counters: &mut Counters<V>,
    mut accumulator: __m128i,
    run: &mut Run,
    before: *const u8,
) -> __m128i {
    let blocks = run.len / 16;
    debug_assert!(blocks < BATCH * V::BLOCKS && blocks <= POWERS);
    // How many of the run's blocks are in vector `index`.
    let within = |index: usize| blocks.saturating_sub(index * V::BLOCKS).min(V::BLOCKS);
    let highest = POWERS - BATCH * V::BLOCKS;
    // SAFETY: the caller keeps the module's contract, and has a batch at `before` if it is pending. Of the run and of
    // the powers no more is touched than `blocks` and the zeros behind.
    unsafe {
        let mut states = first_round(schedule, counters);
        let mut sums = Sums::<V>::zero();
        for step in 0..BATCH {
            let key = V::broadcast(schedule.round_keys[1 + step].as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
            let at = 16 * V::BLOCKS * step;
            let first = if step == 0 { V::first(accumulator) } else { V::zero() };
            if PENDING {
                let data = V::load(before.add(at)).reverse();
                sums.add(data.xor(first), schedule, highest + V::BLOCKS * step);
            } else if !ENCRYPT && within(step) != 0 {
                let data = load_up_to::<V>(run.source.add(at), within(step)).reverse();
                sums.add(data.xor(first), schedule, POWERS - blocks + V::BLOCKS * step);
            }
            V::pin(&mut states, [&mut sums.low, &mut sums.crossed, &mut sums.high]);
        }
        for key in &schedule.round_keys[1 + BATCH..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        if PENDING || !ENCRYPT {
            accumulator = sums.reduce();
        }

        let mut sums = Sums::<V>::zero();
        let key = V::broadcast(schedule.round_keys[ROUNDS].as_ptr());
        for (index, state) in states.into_iter().enumerate() {
            let now = within(index);
            if now == 0 {
                break;
            }
            let at = 16 * V::BLOCKS * index;
            let result = load_up_to::<V>(run.source.add(at), now).xor(state.last_round(key));
            store_up_to(result, run.destination.add(at), now);
            if ENCRYPT {
                let first = if index == 0 { V::first(accumulator) } else { V::zero() };
                sums.add(result.reverse().xor(first), schedule, POWERS - blocks + V::BLOCKS * index);
            }
        }
        if ENCRYPT {
            accumulator = sums.reduce();
        }
        *run = run.skip(16 * blocks);
    }
    accumulator
}

/// The whole blocks that are left, fewer than a batch, with authentication. Vectors do not depend on each other but
/// for cheap sums: the processor overlaps them.
#[inline(always)]
unsafe fn crypt_blocks<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &Schedule,
    counters: &mut Counters<V>,
    accumulator: __m128i,
    run: &mut Run,
) -> __m128i {
    let mut left = run.len / 16;
    if left == 0 {
        return accumulator;
    }
    debug_assert!(left < BATCH * V::BLOCKS && left <= POWERS);
    // SAFETY: the caller keeps the module's contract. `left` blocks are in the run; as many powers end the table, and
    // enough zeros follow them for the last vector.
    unsafe {
        let mut sums = Sums::<V>::zero();
        let mut first = V::first(accumulator);
        let mut power = POWERS - left;
        while left != 0 {
            let now = left.min(V::BLOCKS);
            let keystream = encipher_vector::<V, ROUNDS>(schedule, counters.take());
            let data = load_up_to::<V>(run.source, now);
            let result = data.xor(keystream);
            store_up_to(result, run.destination, now);
            // What stands past the last block meets powers that are zero.
            let ciphertext = if ENCRYPT { result } else { data };
            sums.add(ciphertext.reverse().xor(first), schedule, power);
            first = V::zero();
            power += now;
            *run = run.skip(16 * now);
            left -= now;
        }
        sums.reduce()
    }
}

/// Bytes `start..end` of a block; gives its ciphertext, zero elsewhere.
#[inline(always)]
unsafe fn crypt_bytes<V: Vector, const ENCRYPT: bool>(
    keystream: __m128i,
    run: Run,
    start: usize,
    end: usize,
) -> __m128i {
    // SAFETY: the caller keeps the module's contract and has `end - start` bytes in the run.
    unsafe {
        let data = V::load_bytes(run.source, start, end);
        let result = data.xor(keystream);
        V::store_bytes(result, run.destination, start, end);
        if ENCRYPT { V::keep_bytes(result, start, end) } else { data }
    }
}

/// A batch of counter mode.
#[inline(always)]
unsafe fn encipher_batch<V: Vector, const ROUNDS: usize>(schedule: &Schedule, counters: &mut Counters<V>, run: Run) {
    // SAFETY: the caller keeps the module's contract and has a batch in the run.
    unsafe {
        let mut states = first_round(schedule, counters);
        for key in &schedule.round_keys[1..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        last_round::<V, ROUNDS>(schedule, states, run);
    }
}

/// A batch of counter mode, and in between its rounds GHASH of the batch at `hashed`, which may be the source.
#[inline(always)]
unsafe fn encipher_and_hash<V: Vector, const ROUNDS: usize>(
    schedule: &Schedule,
    counters: &mut Counters<V>,
    run: Run,
    accumulator: __m128i,
    hashed: *const u8,
) -> __m128i {
    // SAFETY: the caller keeps the module's contract, and has a batch in the run and another at `hashed`. The table
    // has as many powers as a batch has blocks.
    unsafe {
        let highest = POWERS - BATCH * V::BLOCKS;
        let mut states = first_round(schedule, counters);
        let mut sums = Sums::<V>::zero();
        for step in 0..BATCH {
            let key = V::broadcast(schedule.round_keys[1 + step].as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
            let mut data = V::load(hashed.add(16 * V::BLOCKS * step)).reverse();
            if step == 0 {
                data = data.xor(V::first(accumulator));
            }
            sums.add(data, schedule, highest + V::BLOCKS * step);
            V::pin(&mut states, [&mut sums.low, &mut sums.crossed, &mut sums.high]);
        }
        for key in &schedule.round_keys[1 + BATCH..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        let accumulator = sums.reduce();
        last_round::<V, ROUNDS>(schedule, states, run);
        accumulator
    }
}

/// A batch of counter blocks after the first addition of a key.
#[inline(always)]
unsafe fn first_round<V: Vector>(schedule: &Schedule, counters: &mut Counters<V>) -> [V; BATCH] {
    // SAFETY: the caller keeps the module's contract; a round key is 16 bytes.
    unsafe {
        let key = V::broadcast(schedule.round_keys[0].as_ptr());
        let mut states = [key; BATCH];
        // Mostly the last byte of the counter takes the whole batch, and one turning around of bytes will do.
        if (counters.next as u8) as usize + BATCH * V::BLOCKS <= 256 {
            let first = counters.reversed.reverse();
            for (index, state) in states.iter_mut().enumerate() {
                *state = first.advance_last_byte((index * V::BLOCKS) as u32).xor(key);
            }
            counters.skip(BATCH * V::BLOCKS);
        } else {
            for state in &mut states {
                *state = counters.take().xor(key);
            }
        }
        states
    }
}

/// The last round of a batch, and its sum with the data.
#[inline(always)]
unsafe fn last_round<V: Vector, const ROUNDS: usize>(schedule: &Schedule, states: [V; BATCH], run: Run) {
    // SAFETY: the caller keeps the module's contract and has a batch in the run.
    unsafe {
        let key = V::broadcast(schedule.round_keys[ROUNDS].as_ptr());
        for (index, state) in states.into_iter().enumerate() {
            let at = 16 * V::BLOCKS * index;
            let data = V::load(run.source.add(at));
            data.xor(state.last_round(key)).store(run.destination.add(at));
        }
    }
}

/// A vector of blocks through AES.
#[inline(always)]
unsafe fn encipher_vector<V: Vector, const ROUNDS: usize>(schedule: &Schedule, blocks: V) -> V {
    // SAFETY: the caller keeps the module's contract; round keys are 16 bytes.
    unsafe {
        let mut blocks = blocks.xor(V::broadcast(schedule.round_keys[0].as_ptr()));
        for key in &schedule.round_keys[1..ROUNDS] {
            blocks = blocks.round(V::broadcast(key.as_ptr()));
        }
        blocks.last_round(V::broadcast(schedule.round_keys[ROUNDS].as_ptr()))
    }
}

/// Absorbs whole blocks, at most [`POWERS`].
#[inline(always)]
unsafe fn hash_blocks<V: Vector>(schedule: &Schedule, accumulator: __m128i, from: *const u8, blocks: usize) -> __m128i {
    debug_assert!(blocks != 0 && blocks <= POWERS);
    // SAFETY: the caller keeps the module's contract. As many powers end the table, and enough zeros follow them for
    // the last vector.
    unsafe {
        let mut sums = Sums::<V>::zero();
        let mut first = V::first(accumulator);
        let mut power = POWERS - blocks;
        let (mut from, mut left) = (from, blocks);
        while left != 0 {
            let now = left.min(V::BLOCKS);
            sums.add(load_up_to::<V>(from, now).reverse().xor(first), schedule, power);
            first = V::zero();
            power += now;
            from = from.add(16 * now);
            left -= now;
        }
        sums.reduce()
    }
}

/// One product, reduced.
#[inline(always)]
unsafe fn multiply_by_hash_key(schedule: &Schedule, left: __m128i) -> __m128i {
    // SAFETY: the caller keeps the module's contract; the last power is the first.
    unsafe {
        let mut sums = Sums::<__m128i>::zero();
        sums.add(left, schedule, POWERS - 1);
        sums.reduce()
    }
}

/// Counter blocks, one vector after the other.
struct Counters<V> {
    /// The next blocks, their bytes turned around: the counter is the first 32 bits.
    reversed: V,
    /// The first of their counters.
    next: u32,
}

impl<V: Vector> Counters<V> {
    #[inline(always)]
    unsafe fn new(nonce: &[u8; NONCE_LEN], counter: u32) -> Self {
        let block = counter_block(nonce, counter);
        // SAFETY: the caller keeps the module's contract; a block is 16 bytes.
        unsafe { Counters { reversed: V::counters(__m128i::load(block.as_ptr()).reverse()), next: counter } }
    }

    /// The next vector.
    #[inline(always)]
    unsafe fn take(&mut self) -> V {
        // SAFETY: the caller keeps the module's contract.
        unsafe {
            let blocks = self.reversed.reverse();
            self.skip(V::BLOCKS);
            blocks
        }
    }

    #[inline(always)]
    unsafe fn skip(&mut self, blocks: usize) {
        // SAFETY: the caller keeps the module's contract.
        self.reversed = unsafe { self.reversed.advance(blocks as u32) };
        self.next = self.next.wrapping_add(blocks as u32);
    }
}

/// Sums of products not yet reduced: of low halves, of high halves, of the halves' sums (Karatsuba's way: three
/// multiplications for four, which are dearer than additions on every processor).
struct Sums<V> {
    low: V,
    crossed: V,
    high: V,
}

impl<V: Vector> Sums<V> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller keeps the module's contract.
        unsafe { Sums { low: V::zero(), crossed: V::zero(), high: V::zero() } }
    }

    /// Adds the products of `left` with the powers at `index` of the table and on.
    #[inline(always)]
    unsafe fn add(&mut self, left: V, schedule: &Schedule, index: usize) {
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

    /// The sum over all blocks, modulo the field's polynomial.
    ///
    /// Adding a multiple of the polynomial that clears the lowest 64 bits moves them up: once from low to middle, once
    /// from middle to high.
    #[inline(always)]
    unsafe fn reduce(self) -> __m128i {
        // SAFETY: the caller keeps the module's contract; the constant is 16 bytes.
        unsafe {
            let polynomial = V::broadcast(POLYNOMIAL_HIGH.as_ptr().cast());
            let middle = self.crossed.xor3(self.low, self.high);
            let middle = middle.xor3(self.low.swap(), self.low.multiply_low(polynomial));
            self.high.xor3(middle.swap(), middle.multiply_low(polynomial)).sum()
        }
    }
}

/// `blocks` blocks, as many as fit or fewer.
#[inline(always)]
unsafe fn load_up_to<V: Vector>(from: *const u8, blocks: usize) -> V {
    // SAFETY: the caller keeps the module's contract and has as many blocks at `from`.
    unsafe { if blocks == V::BLOCKS { V::load(from) } else { V::load_blocks(from, blocks) } }
}

#[inline(always)]
unsafe fn store_up_to<V: Vector>(vector: V, to: *mut u8, blocks: usize) {
    // SAFETY: the caller keeps the module's contract and has room for as many blocks at `to`.
    unsafe { if blocks == V::BLOCKS { vector.store(to) } else { vector.store_blocks(to, blocks) } }
}

/// Length of a batch in bytes.
const fn batch_len<V: Vector>() -> usize {
    16 * V::BLOCKS * BATCH
}

/// x^127 + x^126 + x^121 of the field's polynomial, 64 lower.
static POLYNOMIAL_HIGH: [u64; 2] = [0xc200_0000_0000_0000, 0];
