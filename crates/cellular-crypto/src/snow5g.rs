//! Snow 5G: SNOW-Vi (Ekdahl, Maximov, Johansson, Yang; eprint 2021/236) with 16-bit sums in its state machine, for a
//! few messages at a time.

use crate::words::{KeystreamBlocks, Wide};

/// The state of [`Wide::LANES`] generators.
#[derive(Clone, Copy)]
pub(crate) struct Snow5g<W> {
    a: [W; 2],
    b: [W; 2],
    r: [W; 3],
}

impl<W: Wide> Snow5g<W> {
    /// Creates a zero state, for registers without messages.
    #[inline(always)]
    pub(crate) fn empty(proof: W::Proof) -> Self {
        let zero = W::load(proof, &[0; 4]);
        Snow5g { a: [zero; 2], b: [zero; 2], r: [zero; 3] }
    }

    /// Starts with both halves of each message's key, and its IV.
    #[inline(always)]
    pub(crate) fn new(proof: W::Proof, [low, high]: &[[u128; 4]; 2], iv: &[u128; 4]) -> Self {
        let (low, high) = (W::load(proof, low), W::load(proof, high));
        let mut state = Snow5g::empty(proof);
        (state.a, state.b[1]) = ([W::load(proof, iv), low], high);
        for _ in 0..14 {
            state.initialise();
        }
        for key in [low, high] {
            state.initialise();
            state.r[0] = state.r[0].xor(key);
        }
        state
    }

    /// Writes the next 64 bytes of each message. The first message's bytes go to lane `first`.
    #[inline(always)]
    pub(crate) fn keystream(&mut self, out: &mut KeystreamBlocks, first: usize) {
        let blocks = [self.step(), self.step(), self.step(), self.step()];
        W::keystream(&blocks, out, first);
    }

    #[inline(always)]
    fn initialise(&mut self) {
        let z = self.step();
        self.a[1] = self.a[1].xor(z);
    }

    #[inline(always)]
    fn step(&mut self) -> W {
        let [r1, r2, r3] = self.r;
        let z = self.b[1].add_16(r1).xor(r2);
        let mixed = self.a[1].xor(r3).add_16(r2);
        self.r = [mixed.transpose(), r1.aes_round(), r2.aes_round()];

        // Eight clocks of both registers at once. Cells 0 to 7 of one register depend only on old cells of the other.
        let [a0, a1] = self.a;
        let [b0, b1] = self.b;
        self.a = [a1, a0.double_16::<0x4a6d>().xor(b0).xor(a0.cells_from_7(a1))];
        self.b = [b1, b0.double_16::<0xcc87>().xor(a0).xor(b1)];
        z
    }
}
