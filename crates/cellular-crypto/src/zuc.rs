//! ZUC (TS 35.222) with keys of 128 and 256 bits, many messages at a time.

use crate::words::{Words, sixteen_steps};

/// The state of [`Words::LANES`] generators.
pub(crate) struct Zuc<W> {
    s: [W; 16],
    r: [W; 2],
}

/// The initialisation's length in units of sixteen steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZucRounds {
    Short = 2,
    Long = 3,
}

impl<W: Words> Zuc<W> {
    /// Starts with the cells of each message: [`cells_128`] with [`ZucRounds::Short`], [`cells_256`] with
    /// [`ZucRounds::Long`].
    #[inline(always)]
    pub(crate) fn new(proof: W::Proof, cells: &[[u32; 16]; 16], rounds: ZucRounds) -> Self {
        let zero = W::splat(proof, 0);
        let mut s = [zero; 16];
        for (cell, words) in s.iter_mut().zip(cells) {
            *cell = W::load(proof, words);
        }
        let mut state = Zuc { s, r: [zero; 2] };
        for _ in 0..rounds as usize {
            sixteen_steps!(state.initialise);
        }
        // The standard discards the first word. The rotation makes `s[0]` the first cell again.
        state.word::<0>();
        state.s.rotate_left(1);
        state
    }

    /// Returns the next sixteen words.
    #[inline(always)]
    pub(crate) fn block(&mut self) -> [W; 16] {
        sixteen_steps!(self.word)
    }

    /// A step with `s[FIRST]` as the first cell. Cells keep their places, and the index of the first advances.
    #[inline(always)]
    fn word<const FIRST: usize>(&mut self) -> W {
        let x3 = self.s[(FIRST + 2) % 16].low_high(self.s[FIRST].shift_left::<1>());
        let word = self.nonlinear::<FIRST>().xor(x3);
        self.s[FIRST] = self.feedback::<FIRST>();
        word
    }

    #[inline(always)]
    fn initialise<const FIRST: usize>(&mut self) {
        let w = self.nonlinear::<FIRST>();
        self.s[FIRST] = self.feedback::<FIRST>().add_31_cell(w.shift_right::<1>());
    }

    /// Bit reorganisation and F.
    #[inline(always)]
    fn nonlinear<const FIRST: usize>(&mut self) -> W {
        let s = |index: usize| self.s[(FIRST + index) % 16];
        // A cell has 31 bits. Shifted left by one, its high 16 bits are the high half of a word.
        let x0 = s(15).shift_left::<1>().high_low(s(14));
        let x1 = s(11).low_high(s(9).shift_left::<1>());
        let x2 = s(7).low_high(s(5).shift_left::<1>());
        let [r1, r2] = self.r;
        let w = x0.xor(r1).add(r2);
        let (w1, w2) = (r1.add(x1), r2.xor(x2));
        let (u, v) = (w1.low_high(w2), w2.low_high(w1));
        let l1 = u.xor(u.rotate::<2>()).xor(u.rotate::<10>()).xor(u.rotate::<18>()).xor(u.rotate::<24>());
        let l2 = v.xor(v.rotate::<8>()).xor(v.rotate::<14>()).xor(v.rotate::<22>()).xor(v.rotate::<30>());
        let (r1, r2) = l1.zuc_substitute(l2);
        self.r = [r1, r2];
        w
    }

    #[inline(always)]
    fn feedback<const FIRST: usize>(&self) -> W {
        let s = |index: usize| self.s[(FIRST + index) % 16];
        let near = s(0).rotate_31::<8>().add_31(s(4).rotate_31::<20>());
        let middle = s(10).rotate_31::<21>().add_31(s(13).rotate_31::<17>());
        // A cell is never zero, and so the sum is not either: zero is written as 2^31 - 1.
        near.add_31(middle).add_31(s(15).rotate_31::<15>()).add_31_cell(s(0))
    }
}

/// Returns the cells of ZUC-128: key byte, 15 bits of a constant, IV byte.
pub(crate) fn cells_128(key: &[u8], iv: &[u8; 16]) -> [u32; 16] {
    std::array::from_fn(|i| u32::from(key[i]) << 23 | u32::from(D_128[i]) << 8 | u32::from(iv[i]))
}

/// Returns the cells of ZUC-256 in the layout of 256-NEA6: key byte, 7 bits of a constant, two more bytes of key or IV.
pub(crate) fn cells_256(key: &[u8], iv: &[u8; 16]) -> [u32; 16] {
    std::array::from_fn(|i| {
        let (high, low) = match i {
            0..7 => (key[16 + i], key[24 + i]),
            7..15 => (iv[i - 7], iv[i + 1]),
            _ => (key[23], key[31]),
        };
        u32::from(key[i]) << 23 | u32::from(D_256[i]) << 16 | u32::from(high) << 8 | u32::from(low)
    })
}

/// The constants of ZUC-128 (TS 35.222 3.5).
const D_128: [u16; 16] = [
    0x44d7, 0x26bc, 0x626b, 0x135e, 0x5789, 0x35e2, 0x7135, 0x09af, //
    0x4d78, 0x2f13, 0x6bc4, 0x1af1, 0x5e26, 0x3c4d, 0x789a, 0x47ac,
];
/// The constants of 256-NEA6. ZUC-256's first proposal and shorter tags use other constants.
const D_256: [u8; 16] =
    [0x64, 0x43, 0x7b, 0x2a, 0x11, 0x05, 0x51, 0x42, 0x1a, 0x31, 0x18, 0x66, 0x14, 0x2e, 0x01, 0x5c];
