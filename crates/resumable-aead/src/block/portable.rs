//! AES in safe Rust, from RustCrypto.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use zeroize::Zeroize;

use crate::gcm::xor;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;

/// An expanded key, wiped when dropped.
pub(crate) enum Aes {
    Aes128(Aes128),
    Aes256(Aes256),
}

impl Aes {
    /// Expands a key of 16 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Aes {
        match key.len() {
            16 => Aes::Aes128(Aes128::new_from_slice(key).expect("of 16 bytes")),
            _ => Aes::Aes256(Aes256::new_from_slice(key).expect("callers checked the length")),
        }
    }

    pub(crate) fn encrypt_blocks(&self, blocks: &mut [Block]) {
        match self {
            Aes::Aes128(aes) => aes.encrypt_blocks(blocks),
            Aes::Aes256(aes) => aes.encrypt_blocks(blocks),
        }
    }

    pub(crate) fn decrypt_blocks(&self, blocks: &mut [Block]) {
        match self {
            Aes::Aes128(aes) => aes.decrypt_blocks(blocks),
            Aes::Aes256(aes) => aes.decrypt_blocks(blocks),
        }
    }

    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        let mut blocks = [Block::from(*block)];
        self.encrypt_blocks(&mut blocks);
        let [block] = blocks;
        block.into()
    }

    pub(super) fn cbc_mac(&self, mac: &mut [u8; 16], blocks: &[u8]) {
        for block in blocks.chunks_exact(16) {
            xor(mac, block);
            *mac = self.encrypt_block(mac);
        }
    }

    pub(super) fn ccm(
        &self,
        mac: &mut [u8; 16],
        counter: &[u8; 16],
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        let mut counter = u128::from_be_bytes(*counter);
        for chunk in piece.into_in_place().chunks_mut(16 * PARALLEL) {
            if direction == MessageDirection::Encrypt {
                self.cbc_mac(mac, chunk);
            }
            self.counter_mode(counter, chunk);
            counter = counter.wrapping_add(PARALLEL as u128);
            if direction == MessageDirection::Decrypt {
                self.cbc_mac(mac, chunk);
            }
        }
    }

    pub(super) fn counter_mode(&self, first: u128, data: &mut [u8]) {
        let mut counter = first;
        let mut keystream = [Block::default(); PARALLEL];
        for chunk in data.chunks_mut(16 * PARALLEL) {
            let blocks = &mut keystream[..chunk.len().div_ceil(16)];
            for block in &mut *blocks {
                *block = counter.to_be_bytes().into();
                counter = counter.wrapping_add(1);
            }
            self.encrypt_blocks(blocks);
            for (data, keystream) in chunk.chunks_mut(16).zip(&*blocks) {
                xor(data, keystream);
            }
        }
        for block in &mut keystream {
            block.zeroize();
        }
    }
}

/// Blocks encrypted at a time.
const PARALLEL: usize = 32;
