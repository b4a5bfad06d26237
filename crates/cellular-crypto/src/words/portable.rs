//! Sixteen words, and one block, in safe Rust.

use super::{Block, KeystreamBlocks, Wide, Words};
use crate::sbox::{self, Sbox, multiply, power};
use crate::{eia3, gf64};
use aes::hazmat::cipher_round;

/// Sixteen words.
#[derive(Clone, Copy)]
pub(crate) struct Portable([u32; 16]);

impl Portable {
    #[inline(always)]
    fn map(self, each: impl Fn(u32) -> u32) -> Self {
        Portable(self.0.map(each))
    }

    #[inline(always)]
    fn zip(mut self, other: Self, each: impl Fn(u32, u32) -> u32) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = each(*word, other);
        }
        self
    }

    fn substitute(self, sbox: &Sbox) -> Self {
        let mut words: [u64; 8] =
            std::array::from_fn(|index| u64::from(self.0[2 * index]) | u64::from(self.0[2 * index + 1]) << 32);
        sbox.substitute(&mut words);
        Portable(std::array::from_fn(|index| (words[index / 2] >> (32 * (index % 2))) as u32))
    }

    /// MixColumns over the field modulo 0x100 + `POLYNOMIAL`. The first byte is the highest.
    #[inline(always)]
    fn mix<const POLYNOMIAL: u32>(self) -> Self {
        self.map(|word| {
            let after = word.rotate_right(8); // b[r - 1] at the place of b[r]
            let both = word ^ after;
            let carries = both >> 7 & 0x0101_0101;
            let doubled = ((both & 0x7f7f_7f7f) << 1) ^ (carries * POLYNOMIAL);
            doubled ^ after ^ word.rotate_right(16) ^ word.rotate_right(24)
        })
    }
}

impl Words for Portable {
    const LANES: usize = 16;
    type Proof = ();
    type Wide = PortableBlock;

    fn splat((): (), word: u32) -> Self {
        Portable([word; 16])
    }
    fn load((): (), words: &[u32; 16]) -> Self {
        Portable(*words)
    }
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    fn add(self, other: Self) -> Self {
        self.zip(other, u32::wrapping_add)
    }
    fn shift_left<const BITS: u32>(self) -> Self {
        self.map(|word| word << BITS)
    }
    fn shift_right<const BITS: u32>(self) -> Self {
        self.map(|word| word >> BITS)
    }
    fn rotate<const BITS: u32>(self) -> Self {
        self.map(|word| word.rotate_left(BITS))
    }

    fn snow_3g_s1(self) -> Self {
        self.substitute(&S1).mix::<0x1b>()
    }
    fn snow_3g_s2(self) -> Self {
        self.substitute(&S2).mix::<0x69>()
    }
    fn mul_alpha(self) -> Self {
        self.map(|word| linear(word >> 24, &MUL))
    }
    fn div_alpha(self) -> Self {
        self.map(|word| linear(word & 0xff, &DIV))
    }

    fn zuc_substitute(self, other: Self) -> (Self, Self) {
        // Bytes 3 and 1 take S0, bytes 2 and 0 take S1. Each S-box takes its bytes of both words together.
        let first = self.zip(other, |a, b| a & 0xff00_ff00 | b >> 8 & 0x00ff_00ff).substitute(&ZUC_0);
        let second = self.zip(other, |a, b| a << 8 & 0xff00_ff00 | b & 0x00ff_00ff).substitute(&ZUC_1);
        (
            first.zip(second, |a, b| a & 0xff00_ff00 | b >> 8 & 0x00ff_00ff),
            first.zip(second, |a, b| a << 8 & 0xff00_ff00 | b & 0x00ff_00ff),
        )
    }
    fn high_low(self, other: Self) -> Self {
        self.zip(other, |a, b| a & 0xffff_0000 | b & 0xffff)
    }
    fn low_high(self, other: Self) -> Self {
        self.zip(other, |a, b| a << 16 | b >> 16)
    }
    fn rotate_31<const BITS: u32>(self) -> Self {
        self.map(|word| (word << BITS | word >> (31 - BITS)) & 0x7fff_ffff)
    }
    fn add_31(self, other: Self) -> Self {
        self.add_31_cell(other)
    }
    fn add_31_cell(self, other: Self) -> Self {
        self.zip(other, |a, b| {
            let sum = a + b;
            (sum & 0x7fff_ffff) + (sum >> 31)
        })
    }

    fn keystream(words: &[Self; 16], out: &mut KeystreamBlocks) {
        for (index, pair) in words.as_chunks::<2>().0.iter().enumerate() {
            for (out, (first, second)) in out.0.iter_mut().zip(pair[0].0.into_iter().zip(pair[1].0)) {
                out[index] = u64::from(first.swap_bytes()) | u64::from(second.swap_bytes()) << 32;
            }
        }
    }

    fn windows((): (), previous: u32, block: &Block, message: &[u8; 64]) -> u32 {
        eia3::windows(previous, block, message)
    }
    fn absorb((): (), p: u64, blocks: &[u8]) -> u64 {
        gf64::absorb(p, blocks)
    }
    fn multiply((): (), a: u64, b: u64) -> u64 {
        gf64::multiply(a, b)
    }
}

/// A single block. Several blocks at a time would not be faster.
#[derive(Clone, Copy)]
pub(crate) struct PortableBlock(u128);

impl Wide for PortableBlock {
    const LANES: usize = 1;
    type Proof = ();

    fn load((): (), blocks: &[u128; 4]) -> Self {
        PortableBlock(blocks[0])
    }
    fn xor(self, other: Self) -> Self {
        PortableBlock(self.0 ^ other.0)
    }
    fn add_16(self, other: Self) -> Self {
        // Without their highest bits, 16-bit numbers carry nothing into their neighbours.
        let (a, b) = (self.0, other.0);
        PortableBlock((a & !TOPS).wrapping_add(b & !TOPS) ^ (a ^ b) & TOPS)
    }
    fn double_16<const POLYNOMIAL: u16>(self) -> Self {
        let carries = (self.0 & TOPS) >> 15;
        PortableBlock(((self.0 & !TOPS) << 1) ^ (carries * u128::from(POLYNOMIAL)))
    }
    fn cells_from_7(self, next: Self) -> Self {
        PortableBlock(self.0 >> 112 | next.0 << 16)
    }
    fn transpose(self) -> Self {
        let bytes = self.0.to_le_bytes();
        PortableBlock(u128::from_le_bytes(std::array::from_fn(|index| bytes[usize::from(TURNED[index])])))
    }
    fn aes_round(self) -> Self {
        let mut block = aes::Block::from(self.0.to_le_bytes());
        cipher_round(&mut block, &aes::Block::default());
        PortableBlock(u128::from_le_bytes(block.into()))
    }
    fn keystream(blocks: &[Self; 4], out: &mut KeystreamBlocks, first: usize) {
        for (words, block) in out.0[first].as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
            *words = [block.0 as u64, (block.0 >> 64) as u64];
        }
    }
}

/// The highest bit of each cell.
const TOPS: u128 = 0x8000_8000_8000_8000_8000_8000_8000_8000;

/// The source index of each byte when a matrix of four by four is transposed.
pub(crate) static TURNED: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Sums the images of the set bits. It reads all images.
#[inline(always)]
fn linear(byte: u32, images: &[u32; 8]) -> u32 {
    images.iter().enumerate().fold(0, |sum, (bit, image)| sum ^ image & (byte >> bit & 1).wrapping_neg())
}

static S1: Sbox = Sbox::new(&sbox::AES);
static S2: Sbox = Sbox::new(&sbox::SNOW_3G);
static ZUC_0: Sbox = Sbox::new(&sbox::ZUC_0);
static ZUC_1: Sbox = Sbox::new(&sbox::ZUC_1);

/// TS 35.216 3.4.2 and 3.4.3: each byte of the result is the input byte times a power of 2 in the field modulo 0x1a9.
pub(crate) const MUL: [u32; 8] = images([23, 245, 48, 239]);
pub(crate) const DIV: [u32; 8] = images([16, 39, 6, 64]);

const fn images(exponents: [u32; 4]) -> [u32; 8] {
    let mut images = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        let mut byte = 0;
        while byte < 4 {
            images[bit] = images[bit] << 8 | multiply(1 << bit, power(2, exponents[byte], 0x1a9), 0x1a9) as u32;
            byte += 1;
        }
        bit += 1;
    }
    images
}
