//! AES-XTS in safe Rust: AES is RustCrypto's.

use aes::Block;
use zeroize::Zeroize;

use super::{DataUnits, times_x};
use crate::block::portable::Aes;
use crate::gcm::xor;
use crate::state::MessageDirection;

pub(super) struct PortableXts {
    data: Aes,
    tweak: Aes,
}

impl PortableXts {
    pub(super) fn new(data_key: &[u8], tweak_key: &[u8]) -> Self {
        PortableXts { data: Aes::new(data_key), tweak: Aes::new(tweak_key) }
    }

    pub(super) fn apply(
        &self,
        units: DataUnits,
        first: u128,
        block: u32,
        direction: MessageDirection,
        data: &mut [u8],
    ) {
        let mut number = first;
        for unit in data.chunks_exact_mut(units.len) {
            let tweak = u128::from_le_bytes(self.tweak.encrypt_block(&number.to_le_bytes()));
            self.apply_to_unit(times_x(tweak, block), direction, unit);
            number = number.wrapping_add(units.step.into());
        }
    }

    fn apply_to_unit(&self, mut tweak: u128, direction: MessageDirection, unit: &mut [u8]) {
        let mut tweaks = [[0; 16]; PARALLEL];
        let mut blocks = [Block::default(); PARALLEL];
        for chunk in unit.chunks_mut(16 * PARALLEL) {
            let count = chunk.len() / 16;
            for ((block, own), data) in blocks.iter_mut().zip(&mut tweaks).zip(chunk.chunks_exact(16)) {
                *own = tweak.to_le_bytes();
                tweak = times_x(tweak, 1);
                block.copy_from_slice(data);
                xor(block, own);
            }
            match direction {
                MessageDirection::Encrypt => self.data.encrypt_blocks(&mut blocks[..count]),
                MessageDirection::Decrypt => self.data.decrypt_blocks(&mut blocks[..count]),
            }
            for ((block, own), data) in blocks.iter_mut().zip(&tweaks).zip(chunk.chunks_exact_mut(16)) {
                xor(block, own);
                data.copy_from_slice(block);
            }
        }
        tweaks.as_flattened_mut().zeroize();
        for block in &mut blocks {
            block.zeroize();
        }
    }
}

/// Blocks encrypted at a time.
const PARALLEL: usize = 32;
