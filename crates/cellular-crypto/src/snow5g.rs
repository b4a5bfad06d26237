//! Snow 5G: SNOW-Vi (Ekdahl, Maximov, Johansson, Yang; eprint 2021/236) with sums of 16 bits in its state machine.

use aes::Block;
use aes::hazmat::cipher_round;
use zeroize::Zeroize;

/// A generator of blocks of 16 bytes, in safe Rust. Its halves are little-endian: cell 0 of eight is the low 16 bits.
#[derive(Clone)]
pub(crate) struct Snow5g {
    a: [u128; 2],
    b: [u128; 2],
    r: [u128; 3],
}

impl Drop for Snow5g {
    fn drop(&mut self) {
        (self.a, self.b, self.r).zeroize();
    }
}

impl Snow5g {
    pub(crate) fn new(key: &[u8; 32], iv: &[u8; 16]) -> Self {
        let half = |bytes: &[u8]| u128::from_le_bytes(*bytes.first_chunk().expect("16 bytes"));
        let key = [half(key), half(&key[16..])];
        let mut state = Snow5g { a: [half(iv), key[0]], b: [0, key[1]], r: [0; 3] };
        for round in 0..16 {
            let z = state.step();
            state.a[1] ^= z;
            match round {
                14 => state.r[0] ^= key[0],
                15 => state.r[0] ^= key[1],
                _ => {}
            }
        }
        state
    }

    /// The next block.
    pub(crate) fn block(&mut self) -> [u8; 16] {
        self.step().to_le_bytes()
    }

    /// XORs the next bytes of keystream into `data`, whose last block may be short.
    pub(crate) fn apply(&mut self, data: &mut [u8]) {
        for data in data.chunks_mut(16) {
            let mut block = self.block();
            for (byte, key) in data.iter_mut().zip(block) {
                *byte ^= key;
            }
            block.zeroize();
        }
    }

    fn step(&mut self) -> u128 {
        let [r1, r2, r3] = self.r;
        let z = add_16(self.b[1], r1) ^ r2;
        let mixed = add_16(self.a[1] ^ r3, r2);
        self.r = [transpose(mixed), aes_round(r1), aes_round(r2)];

        // Eight clocks of both registers at once: of cells 0 to 7 of the other, nothing that they made goes in.
        let [a0, a1] = self.a;
        let [b0, b1] = self.b;
        self.a = [a1, double(a0, 0x4a6d) ^ b0 ^ (a0 >> 112 | a1 << 16)];
        self.b = [b1, double(b0, 0xcc87) ^ a0 ^ b1];
        z
    }
}

const TOPS: u128 = 0x8000_8000_8000_8000_8000_8000_8000_8000;

/// Eight sums modulo 2^16.
fn add_16(a: u128, b: u128) -> u128 {
    // Without their highest bits, numbers of 16 bits carry nothing to their neighbours.
    (a & !TOPS).wrapping_add(b & !TOPS) ^ (a ^ b) & TOPS
}

/// Eight products by x, reduced by `polynomial`.
fn double(cells: u128, polynomial: u128) -> u128 {
    let carries = (cells & TOPS) >> 15;
    ((cells & !TOPS) << 1) ^ (carries * polynomial)
}

/// The 4 by 4 matrix of bytes, turned.
fn transpose(block: u128) -> u128 {
    let bytes = block.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|index| bytes[4 * (index % 4) + index / 4]))
}

/// A round of AES with a key of zeros.
fn aes_round(block: u128) -> u128 {
    let mut block = Block::from(block.to_le_bytes());
    cipher_round(&mut block, &Block::default());
    u128::from_le_bytes(block.into())
}
