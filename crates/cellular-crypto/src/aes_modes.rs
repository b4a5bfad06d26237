//! What 5G makes of AES: counter mode and, with keys of 128 bits, CMAC.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use zeroize::{Zeroize, Zeroizing};

/// An expanded key.
pub(crate) enum AesKey {
    Aes128 {
        cipher: Box<Aes128>,
        /// CMAC's K1 (SP 800-38B 6.1), big-endian.
        subkey: Box<Zeroizing<u128>>,
    },
    Aes256(Box<Aes256>),
}

impl AesKey {
    pub(crate) fn new_128(key: &[u8; 16]) -> AesKey {
        let cipher = Box::new(Aes128::new(key.into()));
        let mut block = Block::default();
        cipher.encrypt_block(&mut block);
        let subkey = Box::new(Zeroizing::new(double(u128::from_be_bytes(block.into()))));
        block.as_mut_slice().zeroize();
        AesKey::Aes128 { cipher, subkey }
    }

    pub(crate) fn new_256(key: &[u8; 32]) -> AesKey {
        AesKey::Aes256(Box::new(Aes256::new(key.into())))
    }

    fn encrypt_blocks(&self, blocks: &mut [Block]) {
        match self {
            AesKey::Aes128 { cipher, .. } => cipher.encrypt_blocks(blocks),
            AesKey::Aes256(cipher) => cipher.encrypt_blocks(blocks),
        }
    }

    /// Keystream blocks 0 to N - 1 of the counter block `first`.
    pub(crate) fn keystream<const N: usize>(&self, first: u128) -> [[u8; 16]; N] {
        let mut blocks: [Block; N] =
            std::array::from_fn(|index| first.wrapping_add(index as u128).to_be_bytes().into());
        self.encrypt_blocks(&mut blocks);
        blocks.map(Into::into)
    }

    /// Counter mode from the counter block `first` on.
    pub(crate) fn counter_mode(&self, first: u128, data: &mut [u8]) {
        let mut counter = first;
        let mut keystream = [Block::default(); PARALLEL];
        for chunk in data.chunks_mut(16 * PARALLEL) {
            let blocks = &mut keystream[..chunk.len().div_ceil(16)];
            for block in &mut *blocks {
                *block = counter.to_be_bytes().into();
                counter = counter.wrapping_add(1);
            }
            self.encrypt_blocks(blocks);
            for (data, keystream) in chunk.chunks_mut(16).zip(blocks) {
                for (byte, key) in data.iter_mut().zip(keystream.iter()) {
                    *byte ^= key;
                }
            }
        }
        keystream.iter_mut().take(data.len().div_ceil(16)).for_each(|block| block.as_mut_slice().zeroize());
    }

    /// The CMAC of eight bytes and the first `bits` of `message`.
    pub(crate) fn cmac(&self, prefix: [u8; 8], message: &[u8], bits: usize) -> [u8; 16] {
        let AesKey::Aes128 { cipher, subkey } = self else { unreachable!("CMAC is 128-NIA2's") };
        let message = &message[..bits.div_ceil(8)];
        let (start, rest) = message.split_at(message.len().min(8));
        let mut first = u128::from(u64::from_be_bytes(prefix)) << 64;
        first |= padded(start) >> 64;
        // The last block is not yet enciphered when the loop ends.
        let mut sum = first;
        for block in rest.chunks(16) {
            sum = encrypt(cipher, sum) ^ padded(block);
        }
        let used = match (64 + bits) % 128 {
            0 => 128,
            used => used,
        };
        if used == 128 {
            sum ^= ***subkey;
        } else {
            // What the last byte holds past the message counts as nothing, and then comes a one.
            let past = u128::MAX >> used;
            let loose = match rest.chunks(16).last() {
                Some(block) => padded(block),
                None => padded(start) >> 64,
            };
            sum ^= loose & past ^ (past & !(past >> 1)) ^ double(***subkey);
        }
        encrypt(cipher, sum).to_be_bytes()
    }
}

/// Blocks enciphered at a time.
const PARALLEL: usize = 32;

fn encrypt(cipher: &Aes128, block: u128) -> u128 {
    let mut block = Block::from(block.to_be_bytes());
    cipher.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// Up to 16 bytes as the high bytes of a block.
fn padded(bytes: &[u8]) -> u128 {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    u128::from_be_bytes(block)
}

/// Multiplies by x modulo x^128 + x^7 + x^2 + x + 1.
fn double(element: u128) -> u128 {
    element << 1 ^ (element >> 127).wrapping_neg() & 0x87
}
