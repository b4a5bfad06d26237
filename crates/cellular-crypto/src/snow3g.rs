//! SNOW 3G (TS 35.216), many messages at a time.

use crate::words::{Words, sixteen_steps};

/// The state of [`Words::LANES`] generators.
pub(crate) struct Snow3g<W> {
    s: [W; 16],
    r: [W; 3],
}

impl<W: Words> Snow3g<W> {
    /// Starts with the key and IV of each message, first word first.
    #[inline(always)]
    pub(crate) fn new(proof: W::Proof, keys: &[[u32; 16]; 4], ivs: &[[u32; 16]; 4]) -> Self {
        // The standard counts words from the end: K0 is the last.
        let ones = W::splat(proof, u32::MAX);
        let (mut key, mut iv) = ([ones; 4], [ones; 4]);
        for (word, words) in key.iter_mut().zip(keys.iter().rev()) {
            *word = W::load(proof, words);
        }
        for (word, words) in iv.iter_mut().zip(ivs.iter().rev()) {
            *word = W::load(proof, words);
        }
        let mut not = key;
        for word in &mut not {
            *word = word.xor(ones);
        }
        let mut s = [
            not[0], not[1], not[2], not[3], key[0], key[1], key[2], key[3], //
            not[0], not[1], not[2], not[3], key[0], key[1], key[2], key[3],
        ];
        for (cell, word) in [(15, 0), (12, 1), (10, 2), (9, 3)] {
            s[cell] = s[cell].xor(iv[word]);
        }
        let mut state = Snow3g { s, r: [W::splat(proof, 0); 3] };
        for _ in 0..2 {
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
        let f = self.fsm::<FIRST>();
        let word = f.xor(self.s[FIRST]);
        self.s[FIRST] = self.feedback::<FIRST>();
        word
    }

    #[inline(always)]
    fn initialise<const FIRST: usize>(&mut self) {
        let f = self.fsm::<FIRST>();
        self.s[FIRST] = self.feedback::<FIRST>().xor(f);
    }

    #[inline(always)]
    fn fsm<const FIRST: usize>(&mut self) -> W {
        let [r1, r2, r3] = self.r;
        let f = self.s[(FIRST + 15) % 16].add(r1).xor(r2);
        self.r = [r2.add(r3.xor(self.s[(FIRST + 5) % 16])), r1.snow_3g_s1(), r2.snow_3g_s2()];
        f
    }

    #[inline(always)]
    fn feedback<const FIRST: usize>(&self) -> W {
        let (s0, s2, s11) = (self.s[FIRST], self.s[(FIRST + 2) % 16], self.s[(FIRST + 11) % 16]);
        s0.shift_left::<8>().xor(s0.mul_alpha()).xor(s2).xor(s11.shift_right::<8>()).xor(s11.div_alpha())
    }
}
