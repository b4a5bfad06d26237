//! SIMD abstraction. [`Words`] are 32-bit words side by side: word `n` belongs to message `n`. SNOW 3G and ZUC are
//! written once over it. [`Wide`] are 128-bit blocks of a few messages side by side, for Snow 5G.
//!
//! `portable.rs` is safe Rust. `avx2.rs` and `avx512.rs` are x86-64 instructions, and `x86.rs` is their common part.

use zeroize::{Zeroize, ZeroizeOnDrop};

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod clmul;
pub(crate) mod portable;

/// Runs a generator of sixteen cells for sixteen steps, each with the index of its first cell as a constant. Returns
/// the results as an array.
macro_rules! sixteen_steps {
    ($state:ident.$step:ident) => {
        sixteen_steps!($state.$step: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($state:ident.$step:ident: $($first:literal)*) => {
        [$($state.$step::<$first>()),*]
    };
}
pub(crate) use sixteen_steps;

/// The number of words that a back-end processes at once.
///
/// A value can be made only with a [`Words::Proof`] that the processor has the back-end's instructions.
pub(crate) trait Words: Copy {
    /// Words side by side: at most 16.
    const LANES: usize;
    /// Proof that the processor has the instructions.
    type Proof: Copy;
    /// Blocks of 128 bits with the same instructions.
    type Wide: Wide<Proof = Self::Proof>;

    fn splat(proof: Self::Proof, word: u32) -> Self;
    /// Loads the first [`Words::LANES`] words.
    fn load(proof: Self::Proof, words: &[u32; 16]) -> Self;
    fn xor(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn shift_left<const BITS: u32>(self) -> Self;
    fn shift_right<const BITS: u32>(self) -> Self;
    fn rotate<const BITS: u32>(self) -> Self;

    /// SNOW 3G's S1: AES's S-box on each byte, then AES's MixColumns.
    fn snow_3g_s1(self) -> Self;
    /// SNOW 3G's S2.
    fn snow_3g_s2(self) -> Self;
    /// SNOW 3G's MUL of the highest byte.
    fn mul_alpha(self) -> Self;
    /// SNOW 3G's DIV of the lowest byte.
    fn div_alpha(self) -> Self;

    /// ZUC's S-boxes on two words.
    fn zuc_substitute(self, other: Self) -> (Self, Self);
    /// The high half of `self`, and the low half of `other` below it.
    fn high_low(self, other: Self) -> Self;
    /// The low half of `self`, and the high half of `other` below it.
    fn low_high(self, other: Self) -> Self;
    /// `self * 2^BITS` modulo 2^31 - 1.
    fn rotate_31<const BITS: u32>(self) -> Self;
    /// The sum modulo 2^31 - 1. Inputs and result are at most 2^31 - 1.
    fn add_31(self, other: Self) -> Self;
    /// [`Words::add_31`] with zero written as 2^31 - 1. One of the two inputs must not be zero.
    fn add_31_cell(self, other: Self) -> Self;

    /// Writes sixteen words of each message in the order of `words`, each with its high byte first.
    fn keystream(words: &[Self; 16], out: &mut KeystreamBlocks);

    /// See [`eia3::windows`](crate::eia3::windows).
    fn windows(proof: Self::Proof, previous: u32, block: &Block, message: &[u8; 64]) -> u32;
    /// See [`gf64::absorb`](crate::gf64::absorb).
    fn absorb(proof: Self::Proof, p: u64, blocks: &[u8]) -> u64;
    /// See [`gf64::multiply`](crate::gf64::multiply).
    fn multiply(proof: Self::Proof, a: u64, b: u64) -> u64;
}

/// 128-bit blocks that fill a register of the back-end. Each has eight 16-bit cells, cell 0 lowest.
///
/// A value can be made only with a [`Wide::Proof`] that the processor has the back-end's instructions.
pub(crate) trait Wide: Copy {
    /// Blocks side by side: at most 4.
    const LANES: usize;
    /// Proof that the processor has the instructions.
    type Proof: Copy;

    /// Loads the first [`Wide::LANES`] blocks.
    fn load(proof: Self::Proof, blocks: &[u128; 4]) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Adds cells modulo 2^16.
    fn add_16(self, other: Self) -> Self;
    /// Multiplies each cell by x. `POLYNOMIAL` has the lower bits of the modulus.
    fn double_16<const POLYNOMIAL: u16>(self) -> Self;
    /// Returns cell 7, and cells 0 to 6 of `next`.
    fn cells_from_7(self, next: Self) -> Self;
    /// Transposes the matrix of four by four bytes.
    fn transpose(self) -> Self;
    /// Applies an AES round with a zero key.
    fn aes_round(self) -> Self;
    /// Writes four blocks of each message in the order of `blocks`. The first message's blocks go to lane `first`.
    fn keystream(blocks: &[Self; 4], out: &mut KeystreamBlocks, first: usize);
}

/// 64 bytes of keystream per lane, wiped when dropped. They are stored as 64-bit words, which are wiped one by one.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(align(64))]
pub(crate) struct KeystreamBlocks([Block; 16]);

impl KeystreamBlocks {
    pub(crate) fn new() -> Self {
        KeystreamBlocks([[0; 8]; 16])
    }

    /// Returns the words of a lane. The first byte is the lowest of the first word.
    #[inline(always)]
    pub(crate) fn lane(&self, lane: usize) -> &Block {
        &self.0[lane]
    }
}

/// 64 bytes of keystream as little-endian words, so that XOR with data needs no copy.
pub(crate) type Block = [u64; 8];

/// Returns a block as bytes.
#[inline(always)]
pub(crate) fn bytes(block: &Block) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(block) {
        *bytes = word.to_le_bytes();
    }
    bytes
}
