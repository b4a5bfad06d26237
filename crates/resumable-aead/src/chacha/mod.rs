//! ChaCha20-Poly1305 (RFC 8439): the key with its back-end, and the state between two pieces.
//!
//! `poly1305.rs` is the authenticator, `portable.rs` the keystream of RustCrypto.

mod poly1305;
mod portable;

use poly1305::Poly1305;
use zeroize::Zeroizing;

use crate::piece::Piece;
use crate::state::Direction;
use crate::state_bytes::{AUTHENTICATOR_LEN, array};
use crate::{Backend, NONCE_LEN, TAG_LEN};

/// What ChaCha20-Poly1305 remembers between two pieces: the one-time authenticator. (Keystream is made anew from the
/// position.)
#[derive(Clone, Copy)]
pub(crate) struct ChaChaState {
    authenticator: Poly1305,
    /// The bytes of an unfinished block of the authenticator; the rest is zero.
    block: [u8; 16],
}

/// A ChaCha20-Poly1305 key.
pub(crate) struct ChaChaKey {
    key: Box<Zeroizing<[u8; 32]>>,
}

/// Whether ChaCha20-Poly1305 can be done with `backend` on this processor.
pub(crate) fn is_available(backend: Backend) -> bool {
    matches!(backend, Backend::Portable)
}

impl ChaChaKey {
    pub(crate) fn new(key: &[u8; 32], _backend: Backend) -> Self {
        // Written where it stays.
        let mut own = Box::new(Zeroizing::new([0; 32]));
        own.copy_from_slice(key);
        ChaChaKey { key: own }
    }

    /// Tells keys apart. RFC 8439 2.6 discards the second half of block 0: no message uses it.
    pub(crate) fn check(&self) -> u32 {
        let block = Zeroizing::new(portable::keystream_block(&self.key, &[0xff; NONCE_LEN], 0));
        u32::from_le_bytes(array(&*block, 32))
    }

    /// Begins a message.
    pub(crate) fn start(&self, nonce: &[u8; NONCE_LEN], aad: &[u8]) -> ChaChaState {
        // RFC 8439 2.6: the one-time key is the first half of block 0.
        let block = Zeroizing::new(portable::keystream_block(&self.key, nonce, 0));
        let mut state = ChaChaState { authenticator: Poly1305::new(&array(&*block, 0)), block: [0; 16] };
        // RFC 8439 2.8: the AAD is padded with zeros to whole blocks.
        state.absorb(0, aad);
        state.pad(aad.len() as u64);
        state
    }

    /// Moves over a piece at `position`, in place or from source to destination.
    pub(crate) fn crypt(
        &self,
        state: &mut ChaChaState,
        nonce: &[u8; NONCE_LEN],
        mut position: u64,
        direction: Direction,
        piece: Piece<'_>,
    ) {
        // Cipher and authenticator take turns on what stays in the nearest cache.
        for chunk in piece.into_in_place().chunks_mut(4096) {
            if direction == Direction::Decrypt {
                state.absorb(position, chunk);
            }
            portable::apply_keystream(&self.key, nonce, position, chunk);
            if direction == Direction::Encrypt {
                state.absorb(position, chunk);
            }
            position += chunk.len() as u64;
        }
    }

    /// Moves over a piece of ciphertext at `position`.
    pub(crate) fn authenticate(&self, state: &mut ChaChaState, position: u64, data: &[u8]) {
        state.absorb(position, data);
    }

    /// Adds the keystream at `position` to a piece.
    pub(crate) fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], position: u64, data: &mut [u8]) {
        portable::apply_keystream(&self.key, nonce, position, data);
    }

    /// The tag of a message of `len` bytes.
    pub(crate) fn finish(&self, state: &ChaChaState, aad_len: u64, len: u64) -> [u8; TAG_LEN] {
        let mut state = *state;
        state.pad(len);
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&aad_len.to_le_bytes());
        lengths[8..].copy_from_slice(&len.to_le_bytes());
        state.authenticator.absorb(&lengths);
        state.authenticator.tag()
    }
}

impl ChaChaState {
    /// Absorbs `data`, before which `position` bytes of the same part (AAD or message) went.
    fn absorb(&mut self, position: u64, data: &[u8]) {
        let used = (position % 16) as usize;
        let (head, rest) = data.split_at(data.len().min((16 - used) % 16));
        if !head.is_empty() {
            self.block[used..used + head.len()].copy_from_slice(head);
            if used + head.len() < 16 {
                return;
            }
            self.pad(used as u64);
        }
        let (body, tail) = rest.split_at(rest.len() - rest.len() % 16);
        self.authenticator.absorb(body);
        self.block[..tail.len()].copy_from_slice(tail);
    }

    /// Ends a part of `len` bytes with zeros to a whole block.
    fn pad(&mut self, len: u64) {
        if !len.is_multiple_of(16) {
            self.authenticator.absorb(&self.block);
            self.block = [0; 16];
        }
    }

    pub(crate) fn to_bytes(self, _position: u64) -> [u8; AUTHENTICATOR_LEN] {
        let mut bytes = [0; AUTHENTICATOR_LEN];
        bytes[..56].copy_from_slice(&self.authenticator.to_bytes());
        bytes[56..].copy_from_slice(&self.block);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; AUTHENTICATOR_LEN], position: u64) -> Option<Self> {
        let used = (position % 16) as usize;
        let block: [u8; 16] = array(bytes, 56);
        if block[used..].iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(ChaChaState { authenticator: Poly1305::from_bytes(&array(bytes, 0))?, block })
    }
}
