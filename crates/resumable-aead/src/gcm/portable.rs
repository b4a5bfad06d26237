//! AES-GCM in safe Rust, with RustCrypto's AES and GHASH.

use aes::Block;
use bytes::BytesMut;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use zeroize::Zeroize;

use super::{GcmState, block_number, counter_block, xor};
use crate::block::portable::Aes;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::{NONCE_LEN, TAG_LEN};

pub(crate) struct PortableGcm {
    aes: Aes,
    /// The keyed hash, before any block.
    ghash: GHash,
}

impl PortableGcm {
    /// Expands a key of 16 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        let aes = Aes::new(key);
        let mut hash_key = Block::default();
        aes.encrypt_blocks(std::slice::from_mut(&mut hash_key));
        let ghash = GHash::new(&hash_key);
        hash_key.zeroize();
        PortableGcm { aes, ghash }
    }

    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        self.aes.encrypt_block(block)
    }

    /// Absorbs `data`, padded with zeros to whole blocks.
    pub(crate) fn ghash(&self, accumulator: &mut [u8; 16], data: &[u8]) {
        // RustCrypto's hash begins at zero; adding the accumulator to the first block is equivalent.
        let (first, rest) = data.split_at(data.len().min(16));
        let mut first_block = Block::from(*accumulator);
        xor(&mut first_block, first);
        let mut ghash = self.ghash.clone();
        ghash.update(&[first_block]);
        ghash.update_padded(rest);
        *accumulator = ghash.finalize().into();
    }

    /// Returns the tag of a message of `len` bytes.
    pub(crate) fn finish(&self, state: &GcmState, nonce: &[u8; NONCE_LEN], aad_len: u64, len: u64) -> [u8; TAG_LEN] {
        let mut tag = state.accumulator;
        // SP 800-38D 7.1 step 5: the last block padded with zeros, then both lengths in bits.
        if !len.is_multiple_of(16) {
            self.ghash(&mut tag, &[0; 16]);
        }
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(aad_len << 3).to_be_bytes());
        lengths[8..].copy_from_slice(&(len << 3).to_be_bytes());
        self.ghash(&mut tag, &lengths);
        xor(&mut tag, &self.encrypt_block(&counter_block(nonce, 1)));
        tag
    }

    pub(crate) fn crypt(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        let used = (position % 16) as usize;
        let data = piece.into_in_place();
        let (head, rest) = data.split_at_mut(data.len().min((16 - used) % 16));
        if !head.is_empty() {
            crypt_within_block(state, used, direction, head);
            if used + head.len() == 16 {
                self.ghash(&mut state.accumulator, &[0; 16]);
            }
        }

        let mut counter = block_number(position + head.len() as u64);
        let body_len = rest.len() - rest.len() % 16;
        let (body, tail) = rest.split_at_mut(body_len);
        for chunk in body.chunks_mut(16 * PARALLEL) {
            if direction == MessageDirection::Decrypt {
                self.ghash(&mut state.accumulator, chunk);
            }
            self.apply_keystream(nonce, counter, chunk);
            counter = counter.wrapping_add((chunk.len() / 16) as u32);
            if direction == MessageDirection::Encrypt {
                self.ghash(&mut state.accumulator, chunk);
            }
        }
        if !tail.is_empty() {
            state.keystream = self.encrypt_block(&counter_block(nonce, counter));
            crypt_within_block(state, 0, direction, tail);
        }
    }

    pub(crate) fn append(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        source: &[u8],
        destination: &mut BytesMut,
    ) {
        let at = destination.len();
        destination.extend_from_slice(source);
        self.crypt(state, nonce, position, direction, MessagePiece::InPlace(&mut destination[at..]));
    }

    /// XORs the keystream that begins with the block of `counter`.
    pub(crate) fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], mut counter: u32, data: &mut [u8]) {
        let mut keystream = [Block::default(); PARALLEL];
        for chunk in data.chunks_mut(16 * PARALLEL) {
            let blocks = chunk.len().div_ceil(16);
            for block in &mut keystream[..blocks] {
                *block = counter_block(nonce, counter).into();
                counter = counter.wrapping_add(1);
            }
            self.aes.encrypt_blocks(&mut keystream[..blocks]);
            for (data, keystream) in chunk.chunks_mut(16).zip(&keystream) {
                xor(data, keystream);
            }
        }
        for block in &mut keystream {
            block.zeroize();
        }
    }
}

/// Processes `data`, which lies within one block after its first `used` bytes.
fn crypt_within_block(state: &mut GcmState, used: usize, direction: MessageDirection, data: &mut [u8]) {
    if direction == MessageDirection::Decrypt {
        xor(&mut state.accumulator[used..], data);
    }
    xor(data, &state.keystream[used..]);
    if direction == MessageDirection::Encrypt {
        xor(&mut state.accumulator[used..], data);
    }
}

/// Blocks encrypted at a time.
const PARALLEL: usize = 32;
