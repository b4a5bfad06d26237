//! The ChaCha20 keystream over vectors that hold the same row of two or four blocks.
//!
//! A block is four rows of four words. A row of several blocks fills a vector, so that a quarter round of all columns is
//! twelve instructions. Then the words of three rows are rotated, so that the diagonals become columns.
//!
//! # Safety of this module
//!
//! All functions are `unsafe` for two reasons, and their callers vouch for both: the processor has the instructions of
//! `V` ([`Rows`] lists them), and a [`KernelSpan`] is good for its length, with source and destination equal or disjoint. Pointers only move
//! forward by bytes that were subtracted from that length. `#[inline(always)]` carries all functions into entry points that enable the
//! instructions.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::NONCE_LEN;
use crate::state_bytes::array;
use crate::x86::KernelSpan;

/// Scalar work between the vector rounds.
///
/// # Safety
/// The callers of all methods keep the contract of the implementation.
pub(super) trait InterleavedWork {
    /// Called when a batch begins that will process `bytes` bytes of the run.
    unsafe fn begin(&mut self, bytes: usize);
    /// Called after each two of the twenty rounds of a batch.
    unsafe fn between(&mut self);
    /// Called after the batch's bytes were written.
    unsafe fn end(&mut self, bytes: usize);
}

/// No scalar work.
impl InterleavedWork for () {
    #[inline(always)]
    unsafe fn begin(&mut self, _bytes: usize) {}

    #[inline(always)]
    unsafe fn between(&mut self) {}

    #[inline(always)]
    unsafe fn end(&mut self, _bytes: usize) {}
}

/// XORs the keystream from byte `skip` (less than 64) of block `counter` on.
#[inline(always)]
pub(super) unsafe fn apply<V: Rows>(
    key: &[u8; 32],
    nonce: &[u8; NONCE_LEN],
    counter: u32,
    skip: usize,
    run: KernelSpan,
    beside: &mut impl InterleavedWork,
) {
    // SAFETY: the caller keeps the module's contract; broadcasts are of 16 bytes.
    unsafe {
        let nonce_word = |index: usize| i32::from_le_bytes(array(nonce, 4 * index));
        let last = _mm_setr_epi32(counter as i32, nonce_word(0), nonce_word(1), nonce_word(2));
        let mut rows = [
            V::broadcast(SIGMA.as_ptr()),
            V::broadcast(key.as_ptr()),
            V::broadcast(key.as_ptr().add(16)),
            V::counters(last),
        ];
        let (masks, mut rest) = (V::masks(), RemainingSpan { skip, run });
        while rest.run.len != 0 {
            let groups = (rest.skip + rest.run.len).div_ceil(64 * V::BLOCKS);
            match groups {
                1 => batch::<V, 1>(&mut rows, &masks, &mut rest, beside),
                2 => batch::<V, 2>(&mut rows, &masks, &mut rest, beside),
                _ if V::GROUPS == 3 => batch::<V, 3>(&mut rows, &masks, &mut rest, beside),
                3 => batch::<V, 3>(&mut rows, &masks, &mut rest, beside),
                4 => batch::<V, 4>(&mut rows, &masks, &mut rest, beside),
                5 => batch::<V, 5>(&mut rows, &masks, &mut rest, beside),
                _ => batch::<V, 6>(&mut rows, &masks, &mut rest, beside),
            }
        }
    }
}

/// The bytes still to be processed, and the bytes of the next block that precede them.
struct RemainingSpan {
    skip: usize,
    run: KernelSpan,
}

/// Processes a batch of independent groups of blocks.
#[inline(always)]
unsafe fn batch<V: Rows, const GROUPS: usize>(
    rows: &mut [V; 4],
    masks: &V::Masks,
    rest: &mut RemainingSpan,
    beside: &mut impl InterleavedWork,
) {
    // SAFETY: the caller keeps the module's contract.
    unsafe {
        let start = *rows;
        let mut states = [start; GROUPS];
        for (index, state) in states.iter_mut().enumerate() {
            state[3] = start[3].advance((index * V::BLOCKS) as u32);
        }
        let bytes = rest.run.len.min(64 * V::BLOCKS * GROUPS - rest.skip);
        beside.begin(bytes);
        for _ in 0..10 {
            double_round(&mut states, masks);
            beside.between();
        }
        for (index, [a, b, c, d]) in states.into_iter().enumerate() {
            let last = start[3].advance((index * V::BLOCKS) as u32);
            let blocks = V::blocks([a.add(start[0]), b.add(start[1]), c.add(start[2]), d.add(last)]);
            for keystream in blocks {
                apply_vector(keystream, rest);
            }
        }
        beside.end(bytes);
        rows[3] = start[3].advance((GROUPS * V::BLOCKS) as u32);
    }
}

/// RFC 8439 2.3: a column round and a diagonal round.
#[inline(always)]
unsafe fn double_round<V: Rows, const GROUPS: usize>(states: &mut [[V; 4]; GROUPS], masks: &V::Masks) {
    // SAFETY: the caller keeps the module's contract.
    unsafe {
        quarter_rounds(states, masks);
        for [_, b, c, d] in states.iter_mut() {
            (*b, *c, *d) = (b.turn_1(), c.turn_2(), d.turn_3());
        }
        quarter_rounds(states, masks);
        for [_, b, c, d] in states.iter_mut() {
            (*b, *c, *d) = (b.turn_3(), c.turn_2(), d.turn_1());
        }
    }
}

/// RFC 8439 2.1, step by step for all groups, because the steps of one group depend on each other.
#[inline(always)]
unsafe fn quarter_rounds<V: Rows, const GROUPS: usize>(states: &mut [[V; 4]; GROUPS], masks: &V::Masks) {
    // SAFETY: the caller keeps the module's contract.
    unsafe {
        for [a, b, _, d] in states.iter_mut() {
            *a = a.add(*b);
            *d = d.xor(*a).rotate_16(masks);
        }
        for [_, b, c, d] in states.iter_mut() {
            *c = c.add(*d);
            *b = b.xor(*c).rotate_12();
        }
        for [a, b, _, d] in states.iter_mut() {
            *a = a.add(*b);
            *d = d.xor(*a).rotate_8(masks);
        }
        for [_, b, c, d] in states.iter_mut() {
            *c = c.add(*d);
            *b = b.xor(*c).rotate_7();
        }
    }
}

/// XORs a vector of keystream into its part of the run, which may end within the vector.
#[inline(always)]
unsafe fn apply_vector<V: Rows>(keystream: V, rest: &mut RemainingSpan) {
    // SAFETY: the caller keeps the module's contract; no more of the run is touched than it has.
    unsafe {
        if rest.skip == 0 && rest.run.len >= V::BYTES {
            V::load(rest.run.source).xor(keystream).store(rest.run.destination);
            rest.run = rest.run.skip(V::BYTES);
        } else if rest.skip >= V::BYTES {
            rest.skip -= V::BYTES;
        } else if rest.run.len != 0 {
            let end = V::BYTES.min(rest.skip + rest.run.len);
            keystream.apply_bytes(rest.run, rest.skip, end);
            rest.run = rest.run.skip(end - rest.skip);
            rest.skip = 0;
        }
    }
}

/// A vector that holds a row of as many blocks as it has 128-bit lanes.
///
/// # Safety
/// The caller of any method makes sure that the processor has the instructions: for `__m256i` AVX2, for `__m512i` also
/// AVX-512 F, BW and VL. Pointers need no alignment.
pub(super) trait Rows: Copy {
    /// Blocks per vector.
    const BLOCKS: usize;
    /// Length of a vector in bytes.
    const BYTES: usize;
    /// Largest number of groups that fit the registers: 3 or 6.
    const GROUPS: usize;
    /// Constants for rotations by whole bytes.
    type Masks;

    unsafe fn masks() -> Self::Masks;

    /// Reads [`BYTES`](Rows::BYTES) bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes [`BYTES`](Rows::BYTES) bytes.
    unsafe fn store(self, to: *mut u8);
    /// Adds bytes `start..end` of the vector to the first `end - start` of a run.
    unsafe fn apply_bytes(self, run: KernelSpan, start: usize, end: usize);
    /// Reads 16 bytes into every lane.
    unsafe fn broadcast(from: *const u8) -> Self;
    /// Returns `row` in every lane, with 0, 1, 2, 3 added to its first word.
    unsafe fn counters(row: __m128i) -> Self;
    /// Adds `count` to the first word of every lane.
    unsafe fn advance(self, count: u32) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn rotate_16(self, masks: &Self::Masks) -> Self;
    unsafe fn rotate_12(self) -> Self;
    unsafe fn rotate_8(self, masks: &Self::Masks) -> Self;
    unsafe fn rotate_7(self) -> Self;
    /// Rotates the words of each lane.
    unsafe fn turn_1(self) -> Self;
    unsafe fn turn_2(self) -> Self;
    unsafe fn turn_3(self) -> Self;
    /// Transposes the rows into consecutive blocks.
    unsafe fn blocks(rows: [Self; 4]) -> [Self; 4];
}

/// Wraps the bodies in `unsafe` blocks, all with the same argument.
macro_rules! methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        unsafe fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps the trait's contract: instructions are there, pointers are good for as many
            // bytes as the method's description says, and nothing more is touched.
            #[allow(unused_unsafe, reason = "a few bodies need no instruction")]
            unsafe { $body }
        }
    )*};
}

/// Hides a mask from the compiler, which would make two or three shuffles of one. Emits no instruction.
#[inline]
#[target_feature(enable = "avx2")]
fn opaque(mut mask: __m256i) -> __m256i {
    // SAFETY: the assembly text is a comment; the operand is unchanged.
    unsafe { asm!("/* {0} */", inout(ymm_reg) mask, options(nomem, nostack, preserves_flags)) };
    mask
}

impl Rows for __m256i {
    const BLOCKS: usize = 2;
    const BYTES: usize = 32;
    const GROUPS: usize = 3;
    type Masks = [__m256i; 2];

    methods! {
        fn masks() -> Self::Masks {
            [
                opaque(_mm256_broadcastsi128_si256(
                    _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13))),
                opaque(_mm256_broadcastsi128_si256(
                    _mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14))),
            ]
        }
        fn load(from: *const u8) -> Self { _mm256_loadu_si256(from.cast()) }
        fn store(self: Self, to: *mut u8) { _mm256_storeu_si256(to.cast(), self) }
        fn apply_bytes(self: Self, run: KernelSpan, start: usize, end: usize) {{
            let mut keystream = zeroize::Zeroizing::new([0u8; 32]);
            self.store(keystream.as_mut_ptr());
            for (index, byte) in keystream[start..end].iter().enumerate() {
                *run.destination.add(index) = *run.source.add(index) ^ byte;
            }
        }}
        fn broadcast(from: *const u8) -> Self { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast())) }
        fn counters(row: __m128i) -> Self {
            _mm256_add_epi32(_mm256_broadcastsi128_si256(row), _mm256_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0))
        }
        fn advance(self: Self, count: u32) -> Self {
            _mm256_add_epi32(self, _mm256_setr_epi32(count as i32, 0, 0, 0, count as i32, 0, 0, 0))
        }
        fn add(self: Self, other: Self) -> Self { _mm256_add_epi32(self, other) }
        fn xor(self: Self, other: Self) -> Self { _mm256_xor_si256(self, other) }
        fn rotate_16(self: Self, masks: &Self::Masks) -> Self { _mm256_shuffle_epi8(self, masks[0]) }
        fn rotate_12(self: Self) -> Self {
            _mm256_or_si256(_mm256_slli_epi32::<12>(self), _mm256_srli_epi32::<20>(self))
        }
        fn rotate_8(self: Self, masks: &Self::Masks) -> Self { _mm256_shuffle_epi8(self, masks[1]) }
        fn rotate_7(self: Self) -> Self {
            _mm256_or_si256(_mm256_slli_epi32::<7>(self), _mm256_srli_epi32::<25>(self))
        }
        fn turn_1(self: Self) -> Self { _mm256_shuffle_epi32::<0b00_11_10_01>(self) }
        fn turn_2(self: Self) -> Self { _mm256_shuffle_epi32::<0b01_00_11_10>(self) }
        fn turn_3(self: Self) -> Self { _mm256_shuffle_epi32::<0b10_01_00_11>(self) }
        fn blocks(rows: [Self; 4]) -> [Self; 4] {{
            let [a, b, c, d] = rows;
            [
                _mm256_permute2x128_si256::<0x20>(a, b),
                _mm256_permute2x128_si256::<0x20>(c, d),
                _mm256_permute2x128_si256::<0x31>(a, b),
                _mm256_permute2x128_si256::<0x31>(c, d),
            ]
        }}
    }
}

impl Rows for __m512i {
    const BLOCKS: usize = 4;
    const BYTES: usize = 64;
    const GROUPS: usize = 6;
    type Masks = ();

    methods! {
        fn masks() -> Self::Masks { () }
        fn load(from: *const u8) -> Self { _mm512_loadu_si512(from.cast()) }
        fn store(self: Self, to: *mut u8) { _mm512_storeu_si512(to.cast(), self) }
        // A masked access neither reads nor writes excluded lanes, so they may lie outside the memory.
        fn apply_bytes(self: Self, run: KernelSpan, start: usize, end: usize) {{
            let mask = (u64::MAX >> (64 - (end - start))) << start;
            let data = _mm512_maskz_loadu_epi8(mask, run.source.wrapping_sub(start).cast());
            _mm512_mask_storeu_epi8(run.destination.wrapping_sub(start).cast(), mask, data.xor(self));
        }}
        fn broadcast(from: *const u8) -> Self { _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast())) }
        fn counters(row: __m128i) -> Self {
            _mm512_add_epi32(_mm512_broadcast_i32x4(row), _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0))
        }
        fn advance(self: Self, count: u32) -> Self {
            _mm512_add_epi32(self, _mm512_maskz_set1_epi32(0b0001_0001_0001_0001, count as i32))
        }
        fn add(self: Self, other: Self) -> Self { _mm512_add_epi32(self, other) }
        fn xor(self: Self, other: Self) -> Self { _mm512_xor_si512(self, other) }
        fn rotate_16(self: Self, _masks: &Self::Masks) -> Self { _mm512_rol_epi32::<16>(self) }
        fn rotate_12(self: Self) -> Self { _mm512_rol_epi32::<12>(self) }
        fn rotate_8(self: Self, _masks: &Self::Masks) -> Self { _mm512_rol_epi32::<8>(self) }
        fn rotate_7(self: Self) -> Self { _mm512_rol_epi32::<7>(self) }
        fn turn_1(self: Self) -> Self { _mm512_shuffle_epi32::<0b00_11_10_01>(self) }
        fn turn_2(self: Self) -> Self { _mm512_shuffle_epi32::<0b01_00_11_10>(self) }
        fn turn_3(self: Self) -> Self { _mm512_shuffle_epi32::<0b10_01_00_11>(self) }
        fn blocks(rows: [Self; 4]) -> [Self; 4] {{
            let [a, b, c, d] = rows;
            let (low, low_2) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
            let (high, high_2) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
            [
                _mm512_shuffle_i32x4::<0x88>(low, low_2),
                _mm512_shuffle_i32x4::<0xdd>(low, low_2),
                _mm512_shuffle_i32x4::<0x88>(high, high_2),
                _mm512_shuffle_i32x4::<0xdd>(high, high_2),
            ]
        }}
    }
}

/// The first row (RFC 8439 2.3).
static SIGMA: [u8; 16] = *b"expand 32-byte k";
