//! AES-GCM over any [`Vector`]: the loops, written once.
//!
//! Counter mode runs ahead in batches of [`BATCH`] vectors with independent rounds. GHASH is computed between the
//! rounds, a vector per round: over the same batch when decrypting, over the previous one when encrypting.
//!
//! # Safety of this module
//!
//! All functions are `unsafe` for two reasons, and their callers vouch for both: the processor has the instructions of
//! `V`, and a source is readable, a destination writable, for as many bytes as go with it; source and destination are
//! equal or do not overlap. Within, pointers only move forward by bytes that were subtracted from a length.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::ghash::{GhashState, UnreducedSums, hash_blocks, multiply_by_hash_key};
use super::schedule::{GcmSchedule, POWERS};
use crate::gcm::{GcmState, block_number, counter_block};
use crate::x86::KernelSpan;
use crate::x86::aes::encipher_vector;
use crate::x86::vector::{BATCH, Vector, load_up_to, store_up_to};
use crate::{NONCE_LEN, TAG_LEN};

/// Prefetch distance in bytes: a little more than a packet of the usual MTU.
const AHEAD: usize = 2048;

/// Processes a piece: head within a block, whole batches, whole blocks, tail within a block.
#[inline(always)]
pub(super) unsafe fn crypt<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &GcmSchedule,
    state: &mut GcmState,
    nonce: &[u8; NONCE_LEN],
    position: u64,
    run: KernelSpan,
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
            let mut hash = GhashState::<V>::new(accumulator, blocks);
            crypt_batches::<V, ROUNDS, ENCRYPT>(schedule, &mut counters, &mut hash, &mut run);
            crypt_blocks::<V, ROUNDS, ENCRYPT>(schedule, &mut counters, &mut hash, &mut run);
            accumulator = hash.finish();
        }
        if run.len != 0 {
            let block = counter_block(nonce, counter.wrapping_add(blocks as u32));
            let keystream = encipher_vector::<__m128i, ROUNDS>(&schedule.round_keys, __m128i::load(block.as_ptr()));
            keystream.store(state.keystream.as_mut_ptr());
            let ciphertext = crypt_bytes::<V, ENCRYPT>(keystream, run, 0, run.len);
            accumulator = accumulator.xor(ciphertext.reverse());
        }
        accumulator.reverse().store(state.accumulator.as_mut_ptr());
    }
}

/// XORs the keystream that begins with the block of `counter`.
#[inline(always)]
pub(super) unsafe fn apply_keystream<V: Vector, const ROUNDS: usize>(
    schedule: &GcmSchedule,
    nonce: &[u8; NONCE_LEN],
    counter: u32,
    run: KernelSpan,
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
            let keystream = encipher_vector::<V, ROUNDS>(&schedule.round_keys, counters.take());
            store_up_to(load_up_to::<V>(run.source, now).xor(keystream), run.destination, now);
            run = run.skip(16 * now);
            left -= now;
        }
        if run.len != 0 {
            let block = counter_block(nonce, counter.wrapping_add(blocks as u32));
            let keystream = encipher_vector::<__m128i, ROUNDS>(&schedule.round_keys, __m128i::load(block.as_ptr()));
            crypt_bytes::<V, true>(keystream, run, 0, run.len);
        }
    }
}

/// Returns the tag of a message of `len` bytes: the end of GHASH as one sum of products, and the mask.
#[inline(always)]
pub(super) unsafe fn finish<const ROUNDS: usize>(
    schedule: &GcmSchedule,
    state: &GcmState,
    nonce: &[u8; NONCE_LEN],
    aad_len: u64,
    len: u64,
) -> [u8; TAG_LEN] {
    let mut tag = [0; TAG_LEN];
    let block = counter_block(nonce, 1);
    // SAFETY: the caller keeps the module's contract; loads and stores are of 16 bytes, powers within the table.
    unsafe {
        let mask = encipher_vector::<__m128i, ROUNDS>(&schedule.round_keys, __m128i::load(block.as_ptr()));
        let accumulator = __m128i::load(state.accumulator.as_ptr()).reverse();
        // SP 800-38D 7.1 step 5: an unfinished block, padded with zeros; both lengths in bits.
        let lengths = _mm_set_epi64x((aad_len << 3) as i64, (len << 3) as i64);
        let mut sums = UnreducedSums::<__m128i>::zero();
        if len.is_multiple_of(16) {
            sums.add(accumulator.xor(lengths), schedule, POWERS - 1);
        } else {
            sums.add(accumulator, schedule, POWERS - 2);
            sums.add(lengths, schedule, POWERS - 1);
        }
        sums.reduce().reverse().xor(mask).store(tag.as_mut_ptr());
    }
    tag
}

/// Processes all whole batches of a piece with authentication, and a remainder that is most of a batch.
#[inline(always)]
unsafe fn crypt_batches<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &GcmSchedule,
    counters: &mut Counters<V>,
    hash: &mut GhashState<V>,
    run: &mut KernelSpan,
) {
    let blocks = BATCH * V::BLOCKS;
    let batch = batch_len::<V>();
    // SAFETY: the caller keeps the module's contract; lengths are checked before each batch.
    unsafe {
        if ENCRYPT && run.len >= batch {
            encipher_batch::<V, ROUNDS>(schedule, counters, *run);
            while run.len >= 2 * batch {
                prefetch_ahead(run.source, batch);
                let next = run.skip(batch);
                let states = encipher_and_hash::<V, ROUNDS>(schedule, counters, hash, run.destination, blocks);
                last_round::<V, ROUNDS>(schedule, states, next);
                *run = next;
            }
            let last = run.destination;
            prefetch_ahead(run.source, run.len);
            *run = run.skip(batch);
            if run.len > batch / 2 {
                let states = encipher_and_hash::<V, ROUNDS>(schedule, counters, hash, last, blocks);
                last_round_of_some::<V, ROUNDS, true>(schedule, states, hash, run);
            } else {
                hash_blocks::<V>(schedule, hash, last, blocks);
            }
            return;
        }
        while !ENCRYPT && run.len >= batch {
            prefetch_ahead(run.source, batch);
            let states = encipher_and_hash::<V, ROUNDS>(schedule, counters, hash, run.source, blocks);
            last_round::<V, ROUNDS>(schedule, states, *run);
            *run = run.skip(batch);
        }
        if run.len > batch / 2 {
            let states = if ENCRYPT {
                first_rounds::<V, ROUNDS>(schedule, counters)
            } else {
                encipher_and_hash::<V, ROUNDS>(schedule, counters, hash, run.source, run.len / 16)
            };
            last_round_of_some::<V, ROUNDS, ENCRYPT>(schedule, states, hash, run);
        }
    }
}

/// Prefetches the bytes [`AHEAD`] of these. Pieces of a stream usually follow each other in memory, but the processor
/// does not prefetch the next one by itself, because other work comes between two pieces.
#[inline(always)]
fn prefetch_ahead(from: *const u8, len: usize) {
    for at in (0..len).step_by(64) {
        // SAFETY: SSE is part of x86-64; a prefetch is a hint, which may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + at).cast()) };
    }
}

/// Processes the remaining whole blocks, fewer than a batch, with authentication. Vectors depend on each other only
/// through cheap sums, so the processor overlaps them.
#[inline(always)]
unsafe fn crypt_blocks<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &GcmSchedule,
    counters: &mut Counters<V>,
    hash: &mut GhashState<V>,
    run: &mut KernelSpan,
) {
    let mut left = run.len / 16;
    debug_assert!(left < BATCH * V::BLOCKS);
    // SAFETY: the caller keeps the module's contract. `left` blocks are in the run; segments but the last are whole
    // batches, so that these are within one.
    unsafe {
        if left != 0 {
            hash.make_room();
        }
        while left != 0 {
            let now = left.min(V::BLOCKS);
            let keystream = encipher_vector::<V, ROUNDS>(&schedule.round_keys, counters.take());
            let data = load_up_to::<V>(run.source, now);
            let result = data.xor(keystream);
            store_up_to(result, run.destination, now);
            // Bytes past the last block meet powers that are zero.
            hash.add(schedule, if ENCRYPT { result } else { data }, now);
            *run = run.skip(16 * now);
            left -= now;
        }
    }
}

/// Processes bytes `start..end` of a block. Returns its ciphertext, zero elsewhere.
#[inline(always)]
unsafe fn crypt_bytes<V: Vector, const ENCRYPT: bool>(
    keystream: __m128i,
    run: KernelSpan,
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

/// Encrypts a batch of counter mode.
#[inline(always)]
unsafe fn encipher_batch<V: Vector, const ROUNDS: usize>(
    schedule: &GcmSchedule,
    counters: &mut Counters<V>,
    run: KernelSpan,
) {
    // SAFETY: the caller keeps the module's contract and has a batch in the run.
    unsafe { last_round::<V, ROUNDS>(schedule, first_rounds::<V, ROUNDS>(schedule, counters), run) }
}

/// Runs a batch of counter blocks through all rounds but the last.
#[inline(always)]
unsafe fn first_rounds<V: Vector, const ROUNDS: usize>(
    schedule: &GcmSchedule,
    counters: &mut Counters<V>,
) -> [V; BATCH] {
    // SAFETY: the caller keeps the module's contract; round keys are 16 bytes.
    unsafe {
        let mut states = first_round(schedule, counters);
        for key in &schedule.round_keys.0[1..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        states
    }
}

/// Runs a batch of counter blocks through all rounds but the last, and hashes `blocks` blocks at `hashed` between the rounds.
#[inline(always)]
unsafe fn encipher_and_hash<V: Vector, const ROUNDS: usize>(
    schedule: &GcmSchedule,
    counters: &mut Counters<V>,
    hash: &mut GhashState<V>,
    hashed: *const u8,
    blocks: usize,
) -> [V; BATCH] {
    debug_assert!(blocks != 0 && blocks <= BATCH * V::BLOCKS);
    // SAFETY: the caller keeps the module's contract, and has as many blocks at `hashed`. Segments but the last are
    // whole batches, so that these are within one.
    unsafe {
        hash.make_room();
        let mut states = first_round(schedule, counters);
        for step in 0..BATCH {
            let key = V::broadcast(schedule.round_keys.0[1 + step].as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
            let now = blocks.saturating_sub(V::BLOCKS * step).min(V::BLOCKS);
            if now != 0 {
                let mut data = load_up_to::<V>(hashed.add(16 * V::BLOCKS * step), now).reverse();
                if step == 0 {
                    data = data.xor(hash.first);
                }
                hash.sums.add(data, schedule, hash.power + V::BLOCKS * step);
            }
            V::pin(&mut states, [&mut hash.sums.low, &mut hash.sums.crossed, &mut hash.sums.high]);
        }
        hash.advance(blocks);
        for key in &schedule.round_keys.0[1 + BATCH..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        states
    }
}

/// Returns a batch of counter blocks after the addition of the first round key.
#[inline(always)]
unsafe fn first_round<V: Vector>(schedule: &GcmSchedule, counters: &mut Counters<V>) -> [V; BATCH] {
    // SAFETY: the caller keeps the module's contract; a round key is 16 bytes.
    unsafe {
        let key = V::broadcast(schedule.round_keys.0[0].as_ptr());
        let mut states = [key; BATCH];
        // Usually the last byte of the counter does not overflow within the batch, so one byte reversal is enough.
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

/// Computes the last round of a batch, and XORs the result into the data.
#[inline(always)]
unsafe fn last_round<V: Vector, const ROUNDS: usize>(schedule: &GcmSchedule, states: [V; BATCH], run: KernelSpan) {
    // SAFETY: the caller keeps the module's contract and has a batch in the run.
    unsafe {
        let key = V::broadcast(schedule.round_keys.0[ROUNDS].as_ptr());
        for (index, state) in states.into_iter().enumerate() {
            let at = 16 * V::BLOCKS * index;
            let data = V::load(run.source.add(at));
            data.xor(state.last_round(key)).store(run.destination.add(at));
        }
    }
}

/// Computes the last round for the remaining whole blocks, fewer than a batch, and authenticates them when encrypting.
#[inline(always)]
unsafe fn last_round_of_some<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &GcmSchedule,
    states: [V; BATCH],
    hash: &mut GhashState<V>,
    run: &mut KernelSpan,
) {
    debug_assert!(run.len < batch_len::<V>());
    // SAFETY: the caller keeps the module's contract. No more of the run is touched than its whole blocks, which are
    // within one segment, because segments but the last are whole batches.
    unsafe {
        if ENCRYPT && run.len >= 16 {
            hash.make_room();
        }
        let key = V::broadcast(schedule.round_keys.0[ROUNDS].as_ptr());
        // The vectors are unrolled in the source, because a loop would keep the states in memory.
        macro_rules! vectors {
            ($($index:literal)*) => { 'all: { $(
                if run.len < 16 {
                    break 'all;
                }
                let now = (run.len / 16).min(V::BLOCKS);
                let data = load_up_to::<V>(run.source, now);
                let result = data.xor(states[$index].last_round(key));
                store_up_to(result, run.destination, now);
                if ENCRYPT {
                    hash.add(schedule, result, now);
                }
                *run = run.skip(16 * now);
            )* } };
        }
        vectors!(0 1 2 3 4 5 6 7);
    }
}

/// Consecutive counter blocks, a vector at a time.
struct Counters<V> {
    /// The next blocks with reversed bytes: the counter is the first 32 bits.
    reversed: V,
    /// The counter of the first block.
    next: u32,
}

impl<V: Vector> Counters<V> {
    #[inline(always)]
    unsafe fn new(nonce: &[u8; NONCE_LEN], counter: u32) -> Self {
        let block = counter_block(nonce, counter);
        // SAFETY: the caller keeps the module's contract; a block is 16 bytes.
        unsafe { Counters { reversed: V::counters(__m128i::load(block.as_ptr()).reverse()), next: counter } }
    }

    /// Returns the next vector.
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

/// Length of a batch in bytes.
const fn batch_len<V: Vector>() -> usize {
    16 * V::BLOCKS * BATCH
}
