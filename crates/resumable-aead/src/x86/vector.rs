//! Vectors of one, two or four AES blocks, behind one trait: kernels are written once.
//!
//! # Safety of this module
//!
//! Every method is an instruction or two. Its contract is the trait's: the processor has the vector's instructions
//! ([`Vector`] lists them), and pointers point to as many bytes as the method says. No method has any other effect.
//! `#[inline(always)]` carries the methods into the back-end's entry points, which enable the instructions.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::ptr;

/// Vectors encrypted together, as [`Vector::pin`] takes.
pub(crate) const BATCH: usize = 8;

/// A register of AES blocks.
///
/// # Safety
/// The caller of any method makes sure that the processor has the instructions: for `__m128i` AES-NI, PCLMULQDQ and
/// SSSE3; for `__m256i` also AVX2, VAES, VPCLMULQDQ; for `__m512i` also AVX-512 F, BW, DQ and VL. Pointers need no alignment.
pub(crate) trait Vector: Copy {
    /// Blocks in a vector.
    const BLOCKS: usize;

    /// Reads `16 * BLOCKS` bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes `16 * BLOCKS` bytes.
    unsafe fn store(self, to: *mut u8);
    /// Reads `16 * blocks` bytes, `blocks < BLOCKS`; the rest is zero.
    unsafe fn load_blocks(from: *const u8, blocks: usize) -> Self;
    /// Writes `16 * blocks` bytes, `blocks < BLOCKS`.
    unsafe fn store_blocks(self, to: *mut u8, blocks: usize);
    /// Reads bytes `start..end` of a block that begins `start` bytes before `from`; the rest is zero.
    unsafe fn load_bytes(from: *const u8, start: usize, end: usize) -> __m128i;
    /// Writes bytes `start..end` of a block to `to`.
    unsafe fn store_bytes(block: __m128i, to: *mut u8, start: usize, end: usize);
    /// Returns bytes `start..end` of `block`; the rest is zero.
    unsafe fn keep_bytes(block: __m128i, start: usize, end: usize) -> __m128i;
    /// Reads a block of 16 bytes at offset `at` of each pointer.
    unsafe fn gather(from: &[*const u8], at: usize) -> Self;
    /// Reads 16 bytes into every block.
    unsafe fn broadcast(from: *const u8) -> Self;
    /// Adds `count << 24` to the last 32 bits of every block: to a big-endian counter of which the last byte does not overflow.
    unsafe fn advance_last_byte(self, count: u32) -> Self;
    /// Returns `block` in every block, with 0, 1, 2, 3 added to the first 32 bits of each.
    unsafe fn counters(block: __m128i) -> Self;
    /// Returns `block` in the first block, zero in the others.
    unsafe fn first(block: __m128i) -> Self;
    /// Adds `count` to the first 32 bits of every block.
    unsafe fn advance(self, count: u32) -> Self;
    unsafe fn zero() -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Returns the sum of three vectors.
    unsafe fn xor3(self, second: Self, third: Self) -> Self;
    /// Reverses the bytes of each block.
    unsafe fn reverse(self) -> Self;
    /// Exchanges the 64-bit halves of each block.
    unsafe fn swap(self) -> Self;
    /// Computes one round of AES on each block.
    unsafe fn round(self, key: Self) -> Self;
    unsafe fn last_round(self, key: Self) -> Self;
    /// Computes one round of the equivalent inverse cipher on each block.
    unsafe fn inverse_round(self, key: Self) -> Self;
    unsafe fn last_inverse_round(self, key: Self) -> Self;
    /// Shifts both 64-bit halves of each block to the left by `count` bits.
    unsafe fn shift_left(self, count: u32) -> Self;
    /// Shifts both 64-bit halves of each block to the right by `count` bits.
    unsafe fn shift_right(self, count: u32) -> Self;
    /// Moves the low half of each block to the high half; the low half becomes zero.
    unsafe fn low_to_high(self) -> Self;
    /// Returns the carry-less product of the low halves.
    unsafe fn multiply_low(self, other: Self) -> Self;
    /// Returns the carry-less product of the high halves.
    unsafe fn multiply_high(self, other: Self) -> Self;
    /// Returns the sum of all blocks.
    unsafe fn sum(self) -> __m128i;
    /// Makes the compiler have all these values at this point. Without it, the compiler puts independent chains
    /// one after the other, farther apart than the processor looks ahead. Emits no instruction.
    unsafe fn pin(states: &mut [Self; BATCH], sums: [&mut Self; 3]);
}

/// Reads `blocks` blocks, at most a vector; the rest is zero.
#[inline(always)]
pub(crate) unsafe fn load_up_to<V: Vector>(from: *const u8, blocks: usize) -> V {
    // SAFETY: the caller keeps the trait's contract and has as many blocks at `from`.
    unsafe { if blocks == V::BLOCKS { V::load(from) } else { V::load_blocks(from, blocks) } }
}

/// Writes the first `blocks` blocks, at most a vector.
#[inline(always)]
pub(crate) unsafe fn store_up_to<V: Vector>(vector: V, to: *mut u8, blocks: usize) {
    // SAFETY: the caller keeps the trait's contract and has room for as many blocks at `to`.
    unsafe { if blocks == V::BLOCKS { vector.store(to) } else { vector.store_blocks(to, blocks) } }
}

/// Wraps the bodies in `unsafe` blocks, all with the same argument.
macro_rules! methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // a few bodies need no instruction
        unsafe fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps the trait's contract: instructions are there, pointers are good for as many
            // bytes as the method's description says, and nothing more is touched.
            unsafe {
                $body
            }
        }
    )*};
}

/// Methods that do not depend on the width. `self` cannot pass through `methods!`, hence the second name.
macro_rules! vector {
    ($vector:ty, $blocks:literal; $($methods:tt)*) => {
        impl Vector for $vector {
            const BLOCKS: usize = $blocks;
            methods! { $($methods)* }
        }
    };
}

/// [`Vector::pin`] for a class of registers, which only code compiled for them may name.
macro_rules! pin {
    ($name:ident, $vector:ty, $class:ident, $feature:literal) => {
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn $name(states: &mut [$vector; BATCH], sums: [&mut $vector; 3]) {
            let [s0, s1, s2, s3, s4, s5, s6, s7] = states;
            let [low, crossed, high] = sums;
            // SAFETY: the assembly text is a comment; every operand is unchanged.
            unsafe {
                asm!(
                    "/* {0} {1} {2} {3} {4} {5} {6} {7} {8} {9} {10} */",
                    inout($class) * s0,
                    inout($class) * s1,
                    inout($class) * s2,
                    inout($class) * s3,
                    inout($class) * s4,
                    inout($class) * s5,
                    inout($class) * s6,
                    inout($class) * s7,
                    inout($class) * low,
                    inout($class) * crossed,
                    inout($class) * high,
                    options(nomem, nostack, preserves_flags)
                )
            }
        }
    };
}

pin!(pin_128, __m128i, xmm_reg, "sse2");
pin!(pin_256, __m256i, ymm_reg, "avx");
pin!(pin_512, __m512i, zmm_reg, "avx512f");

vector! { __m128i, 1;
    // The vector is a single block, so there is nothing to broadcast, and no partial vector.
    fn load_blocks(_from: *const u8, _blocks: usize) -> Self { _mm_setzero_si128() }
    fn gather(from: &[*const u8], at: usize) -> Self { block_at(from, 0, at) }
    fn store_blocks(self: Self, _to: *mut u8, _blocks: usize) { () }
    fn counters(block: __m128i) -> Self { block }
    fn first(block: __m128i) -> Self { block }
    fn sum(self: Self) -> __m128i { self }
    fn load(from: *const u8) -> Self { _mm_loadu_si128(from.cast()) }
    fn store(self: Self, to: *mut u8) { _mm_storeu_si128(to.cast(), self) }
    fn load_bytes(from: *const u8, start: usize, end: usize) -> __m128i { load_bytes(from, start, end) }
    fn store_bytes(block: __m128i, to: *mut u8, start: usize, end: usize) { store_bytes(block, to, start, end) }
    fn keep_bytes(block: __m128i, start: usize, end: usize) -> __m128i { keep_bytes(block, start, end) }
    fn broadcast(from: *const u8) -> Self { _mm_loadu_si128(from.cast()) }
    fn advance(self: Self, count: u32) -> Self { _mm_add_epi32(self, _mm_cvtsi32_si128(count as i32)) }
    fn advance_last_byte(self: Self, count: u32) -> Self {
        _mm_add_epi32(self, _mm_setr_epi32(0, 0, 0, (count << 24) as i32))
    }
    fn zero() -> Self { _mm_setzero_si128() }
    fn xor(self: Self, other: Self) -> Self { _mm_xor_si128(self, other) }
    fn xor3(self: Self, second: Self, third: Self) -> Self { _mm_xor_si128(_mm_xor_si128(self, second), third) }
    fn reverse(self: Self) -> Self { _mm_shuffle_epi8(self, reversal()) }
    fn swap(self: Self) -> Self { _mm_shuffle_epi32::<0x4e>(self) }
    fn round(self: Self, key: Self) -> Self { _mm_aesenc_si128(self, key) }
    fn last_round(self: Self, key: Self) -> Self { _mm_aesenclast_si128(self, key) }
    fn inverse_round(self: Self, key: Self) -> Self { _mm_aesdec_si128(self, key) }
    fn last_inverse_round(self: Self, key: Self) -> Self { _mm_aesdeclast_si128(self, key) }
    fn shift_left(self: Self, count: u32) -> Self { _mm_sll_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn shift_right(self: Self, count: u32) -> Self { _mm_srl_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn low_to_high(self: Self) -> Self { _mm_slli_si128::<8>(self) }
    fn multiply_low(self: Self, other: Self) -> Self { _mm_clmulepi64_si128::<0x00>(self, other) }
    fn multiply_high(self: Self, other: Self) -> Self { _mm_clmulepi64_si128::<0x11>(self, other) }
    fn pin(states: &mut [Self; BATCH], sums: [&mut Self; 3]) { pin_128(states, sums) }
}

vector! { __m256i, 2;
    fn load(from: *const u8) -> Self { _mm256_loadu_si256(from.cast()) }
    fn store(self: Self, to: *mut u8) { _mm256_storeu_si256(to.cast(), self) }
    fn gather(from: &[*const u8], at: usize) -> Self {
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(block_at(from, 0, at)), block_at(from, 1, at))
    }
    fn load_blocks(from: *const u8, blocks: usize) -> Self {
        if blocks == 0 { _mm256_setzero_si256() } else { _mm256_zextsi128_si256(_mm_loadu_si128(from.cast())) }
    }
    fn store_blocks(self: Self, to: *mut u8, blocks: usize) {
        if blocks != 0 { _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(self)) }
    }
    fn load_bytes(from: *const u8, start: usize, end: usize) -> __m128i { load_bytes(from, start, end) }
    fn store_bytes(block: __m128i, to: *mut u8, start: usize, end: usize) { store_bytes(block, to, start, end) }
    fn keep_bytes(block: __m128i, start: usize, end: usize) -> __m128i { keep_bytes(block, start, end) }
    fn broadcast(from: *const u8) -> Self { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast())) }
    fn counters(block: __m128i) -> Self {
        _mm256_add_epi32(_mm256_broadcastsi128_si256(block), _mm256_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0))
    }
    fn first(block: __m128i) -> Self { _mm256_zextsi128_si256(block) }
    fn advance(self: Self, count: u32) -> Self {
        _mm256_add_epi32(self, _mm256_setr_epi32(count as i32, 0, 0, 0, count as i32, 0, 0, 0))
    }
    fn advance_last_byte(self: Self, count: u32) -> Self {
        _mm256_add_epi32(self, _mm256_setr_epi32(0, 0, 0, (count << 24) as i32, 0, 0, 0, (count << 24) as i32))
    }
    fn zero() -> Self { _mm256_setzero_si256() }
    fn xor(self: Self, other: Self) -> Self { _mm256_xor_si256(self, other) }
    fn xor3(self: Self, second: Self, third: Self) -> Self { _mm256_xor_si256(_mm256_xor_si256(self, second), third) }
    fn reverse(self: Self) -> Self { _mm256_shuffle_epi8(self, _mm256_broadcastsi128_si256(reversal())) }
    fn swap(self: Self) -> Self { _mm256_shuffle_epi32::<0x4e>(self) }
    fn round(self: Self, key: Self) -> Self { _mm256_aesenc_epi128(self, key) }
    fn last_round(self: Self, key: Self) -> Self { _mm256_aesenclast_epi128(self, key) }
    fn inverse_round(self: Self, key: Self) -> Self { _mm256_aesdec_epi128(self, key) }
    fn last_inverse_round(self: Self, key: Self) -> Self { _mm256_aesdeclast_epi128(self, key) }
    fn shift_left(self: Self, count: u32) -> Self { _mm256_sll_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn shift_right(self: Self, count: u32) -> Self { _mm256_srl_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn low_to_high(self: Self) -> Self { _mm256_bslli_epi128::<8>(self) }
    fn multiply_low(self: Self, other: Self) -> Self { _mm256_clmulepi64_epi128::<0x00>(self, other) }
    fn multiply_high(self: Self, other: Self) -> Self { _mm256_clmulepi64_epi128::<0x11>(self, other) }
    fn sum(self: Self) -> __m128i {
        _mm_xor_si128(_mm256_castsi256_si128(self), _mm256_extracti128_si256::<1>(self))
    }
    fn pin(states: &mut [Self; BATCH], sums: [&mut Self; 3]) { pin_256(states, sums) }
}

vector! { __m512i, 4;
    fn load(from: *const u8) -> Self { _mm512_loadu_si512(from.cast()) }
    fn store(self: Self, to: *mut u8) { _mm512_storeu_si512(to.cast(), self) }
    fn gather(from: &[*const u8], at: usize) -> Self {
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(__m256i::gather(from, at)), __m256i::gather(&from[2..], at))
    }
    // A masked access neither reads nor writes excluded lanes, so they may lie outside the memory.
    fn load_blocks(from: *const u8, blocks: usize) -> Self {
        _mm512_maskz_loadu_epi64(((1u32 << (2 * blocks)) - 1) as u8, from.cast())
    }
    fn store_blocks(self: Self, to: *mut u8, blocks: usize) {
        _mm512_mask_storeu_epi64(to.cast(), ((1u32 << (2 * blocks)) - 1) as u8, self)
    }
    fn load_bytes(from: *const u8, start: usize, end: usize) -> __m128i {
        _mm_maskz_loadu_epi8(byte_mask(start, end), from.wrapping_sub(start).cast())
    }
    fn store_bytes(block: __m128i, to: *mut u8, start: usize, end: usize) {
        _mm_mask_storeu_epi8(to.wrapping_sub(start).cast(), byte_mask(start, end), block)
    }
    fn keep_bytes(block: __m128i, start: usize, end: usize) -> __m128i {
        _mm_maskz_mov_epi8(byte_mask(start, end), block)
    }
    fn broadcast(from: *const u8) -> Self { _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast())) }
    fn counters(block: __m128i) -> Self {
        _mm512_add_epi32(_mm512_broadcast_i32x4(block), _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0))
    }
    fn first(block: __m128i) -> Self { _mm512_zextsi128_si512(block) }
    fn advance(self: Self, count: u32) -> Self {
        _mm512_add_epi32(self, _mm512_maskz_set1_epi32(0b0001_0001_0001_0001, count as i32))
    }
    fn advance_last_byte(self: Self, count: u32) -> Self {
        _mm512_add_epi32(self, _mm512_maskz_set1_epi32(0b1000_1000_1000_1000, (count << 24) as i32))
    }
    fn zero() -> Self { _mm512_setzero_si512() }
    fn xor(self: Self, other: Self) -> Self { _mm512_xor_si512(self, other) }
    fn xor3(self: Self, second: Self, third: Self) -> Self { _mm512_ternarylogic_epi64::<0x96>(self, second, third) }
    fn reverse(self: Self) -> Self { _mm512_shuffle_epi8(self, _mm512_broadcast_i32x4(reversal())) }
    fn swap(self: Self) -> Self { _mm512_shuffle_epi32::<0x4e>(self) }
    fn round(self: Self, key: Self) -> Self { _mm512_aesenc_epi128(self, key) }
    fn last_round(self: Self, key: Self) -> Self { _mm512_aesenclast_epi128(self, key) }
    fn inverse_round(self: Self, key: Self) -> Self { _mm512_aesdec_epi128(self, key) }
    fn last_inverse_round(self: Self, key: Self) -> Self { _mm512_aesdeclast_epi128(self, key) }
    fn shift_left(self: Self, count: u32) -> Self { _mm512_sll_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn shift_right(self: Self, count: u32) -> Self { _mm512_srl_epi64(self, _mm_cvtsi32_si128(count as i32)) }
    fn low_to_high(self: Self) -> Self { _mm512_bslli_epi128::<8>(self) }
    fn multiply_low(self: Self, other: Self) -> Self { _mm512_clmulepi64_epi128::<0x00>(self, other) }
    fn multiply_high(self: Self, other: Self) -> Self { _mm512_clmulepi64_epi128::<0x11>(self, other) }
    fn sum(self: Self) -> __m128i {
        _mm256_xor_si256(_mm512_castsi512_si256(self), _mm512_extracti64x4_epi64::<1>(self)).sum()
    }
    fn pin(states: &mut [Self; BATCH], sums: [&mut Self; 3]) { pin_512(states, sums) }
}

/// Returns the block at offset `at` of a pointer.
#[inline(always)]
unsafe fn block_at(from: &[*const u8], index: usize, at: usize) -> __m128i {
    // SAFETY: the caller vouches for 16 bytes there.
    unsafe { _mm_loadu_si128(from[index].add(at).cast()) }
}

/// The shuffle that reverses 16 bytes.
#[inline(always)]
unsafe fn reversal() -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0) }
}

/// Returns the mask of bits `start..end`, `start <= end <= 16`.
#[inline(always)]
fn byte_mask(start: usize, end: usize) -> u16 {
    ((1u32 << end) - (1u32 << start)) as u16
}

/// [`Vector::load_bytes`] without masks.
#[inline(always)]
unsafe fn load_bytes(from: *const u8, start: usize, end: usize) -> __m128i {
    let mut block = [0u8; 16];
    debug_assert!(start <= end && end <= 16);
    // SAFETY: `start <= end <= 16`, so the copy stays within `block`; the caller vouches for `end - start` bytes at
    // `from`. The load is of 16 bytes of `block`.
    unsafe {
        ptr::copy_nonoverlapping(from, block.as_mut_ptr().add(start), end - start);
        _mm_loadu_si128(block.as_ptr().cast())
    }
}

/// [`Vector::store_bytes`] without masks.
#[inline(always)]
unsafe fn store_bytes(block: __m128i, to: *mut u8, start: usize, end: usize) {
    let mut bytes = [0u8; 16];
    debug_assert!(start <= end && end <= 16);
    // SAFETY: as in `load_bytes`, with the roles of source and destination exchanged.
    unsafe {
        _mm_storeu_si128(bytes.as_mut_ptr().cast(), block);
        ptr::copy_nonoverlapping(bytes.as_ptr().add(start), to, end - start);
    }
}

/// [`Vector::keep_bytes`] without masks.
#[inline(always)]
unsafe fn keep_bytes(block: __m128i, start: usize, end: usize) -> __m128i {
    debug_assert!(start <= end && end <= 16);
    // Sixteen zeros, sixteen times all bits, sixteen zeros: read from `16 - start` on, ones begin at `start`; from
    // `32 - end` on, they end at `end`.
    static MASKS: [u128; 3] = [0, u128::MAX, 0];
    let masks = MASKS.as_ptr().cast::<u8>();
    // SAFETY: `start <= 16` and `end <= 16`, so both loads are within the 48 bytes.
    unsafe {
        let from_start = _mm_loadu_si128(masks.add(16 - start).cast());
        let to_end = _mm_loadu_si128(masks.add(32 - end).cast());
        _mm_and_si128(block, _mm_and_si128(from_start, to_end))
    }
}
