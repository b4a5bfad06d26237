//! ChaCha20-Poly1305 (RFC 8439): the key with its back-end, and the state between two pieces.
//!
//! `poly1305.rs` is the authenticator, `portable.rs` RustCrypto's keystream; `x86/` has both for vectors of x86-64.

mod poly1305;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use poly1305::Poly1305;
pub(crate) use portable::keystream_block;
use zeroize::Zeroizing;

use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::state_bytes::{AUTHENTICATOR_LEN, array};
use crate::{Backend, NONCE_LEN, TAG_LEN};

/// State of ChaCha20-Poly1305 between two pieces: the one-time authenticator. The keystream is computed again from the
/// position.
#[derive(Clone, Copy)]
pub(crate) struct ChaChaState {
    authenticator: Poly1305,
    /// The bytes of an unfinished block of the authenticator, then zeros.
    block: [u8; 16],
}

/// A ChaCha20-Poly1305 key.
pub(crate) struct ChaChaKey {
    key: Box<Zeroizing<[u8; 32]>>,
    vectors: Option<Vectors>,
}

#[cfg(target_arch = "x86_64")]
use x86::X86ChaCha as Vectors;

/// Stand-in for other processors, which have no back-end here: RustCrypto uses their instructions itself.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
enum Vectors {}

#[cfg(not(target_arch = "x86_64"))]
impl Vectors {
    fn new(_backend: Backend) -> Option<Self> {
        None
    }

    fn apply(self, _key: &[u8; 32], _nonce: &[u8; NONCE_LEN], _counter: u32, _skip: usize, _piece: MessagePiece<'_>) {
        match self {}
    }

    #[allow(clippy::too_many_arguments, reason = "as on x86-64")]
    fn crypt(
        self,
        _key: &[u8; 32],
        _nonce: &[u8; NONCE_LEN],
        _at: (u32, usize),
        _piece: MessagePiece<'_>,
        _opens: bool,
        _authenticator: (&mut [u64; 3], [u64; 2]),
        _block: (&[u8; 16], usize),
    ) -> Option<usize> {
        match self {}
    }

    fn absorb(self, _accumulator: &mut [u64; 3], _multiplier: [u64; 2], _blocks: &[u8]) -> bool {
        match self {}
    }
}

/// Tests whether `backend` supports ChaCha20-Poly1305 on this processor.
pub(crate) fn is_available(backend: Backend) -> bool {
    backend == Backend::Portable || Vectors::new(backend).is_some()
}

impl ChaChaKey {
    pub(crate) fn new(key: &[u8; 32], backend: Backend) -> Self {
        // The key is written in place, so no copy stays on the stack.
        let mut own = Box::new(Zeroizing::new([0; 32]));
        own.copy_from_slice(key);
        ChaChaKey { key: own, vectors: Vectors::new(backend) }
    }

    /// Returns the key's fingerprint. RFC 8439 2.6 discards the second half of block 0, so no message uses it.
    pub(crate) fn check(&self) -> u32 {
        let block = self.first_block(&[0xff; NONCE_LEN]);
        u32::from_le_bytes(array(&*block, 32))
    }

    /// Begins a message.
    pub(crate) fn start(&self, nonce: &[u8; NONCE_LEN], aad: &[u8]) -> ChaChaState {
        // RFC 8439 2.6: the one-time key is the first half of block 0.
        let block = self.first_block(nonce);
        let mut state = ChaChaState { authenticator: Poly1305::new(&array(&*block, 0)), block: [0; 16] };
        // RFC 8439 2.8: the AAD is padded with zeros to whole blocks.
        state.absorb(self.vectors, 0, aad);
        state.pad(aad.len() as u64);
        state
    }

    /// Processes a piece at `position`, in place or from source to destination.
    pub(crate) fn crypt(
        &self,
        state: &mut ChaChaState,
        nonce: &[u8; NONCE_LEN],
        mut position: u64,
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        let mut rest = piece;
        if let Some(vectors) = self.vectors {
            let used = (position % 16) as usize;
            let opens = direction == MessageDirection::Decrypt;
            // When opening, the rest of a block is not absorbed yet, and the decryption would overwrite it.
            let mut tail = [0; 16];
            let len = rest.len();
            let tail_len = ((used + len) % 16).min(len);
            if opens {
                tail[..tail_len].copy_from_slice(&rest.source()[len - tail_len..]);
            }
            let at = ((position / 64 + 1) as u32, (position % 64) as usize);
            let authenticator = state.authenticator.parts();
            let absorbed =
                vectors.crypt(&self.key, nonce, at, rest.reborrow(), opens, authenticator, (&state.block, used));
            if let Some(absorbed) = absorbed {
                if absorbed != 0 {
                    state.block = [0; 16];
                }
                match opens {
                    true => state.block[..tail_len].copy_from_slice(&tail[..tail_len]),
                    false => state.absorb(self.vectors, position + absorbed as u64, &rest.result()[absorbed..]),
                }
                return;
            }
        }
        // Cipher and authenticator alternate on chunks that stay in the nearest cache.
        while rest.len() != 0 {
            let (mut chunk, next) = rest.split_at(CHUNK);
            let len = chunk.len() as u64;
            if direction == MessageDirection::Decrypt {
                state.absorb(self.vectors, position, chunk.source());
            }
            self.add_keystream(nonce, position, chunk.reborrow());
            if direction == MessageDirection::Encrypt {
                state.absorb(self.vectors, position, chunk.result());
            }
            position += len;
            rest = next;
        }
    }

    /// Authenticates a piece of ciphertext at `position`.
    pub(crate) fn authenticate(&self, state: &mut ChaChaState, position: u64, data: &[u8]) {
        state.absorb(self.vectors, position, data);
    }

    /// XORs the keystream at `position` into a piece.
    pub(crate) fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], position: u64, data: &mut [u8]) {
        self.add_keystream(nonce, position, MessagePiece::InPlace(data));
    }

    fn add_keystream(&self, nonce: &[u8; NONCE_LEN], position: u64, piece: MessagePiece<'_>) {
        match self.vectors {
            // RFC 8439 2.8: the message begins at block 1.
            Some(vectors) => {
                vectors.apply(&self.key, nonce, (position / 64 + 1) as u32, (position % 64) as usize, piece);
            }
            None => portable::apply_keystream(&self.key, nonce, position, piece.into_in_place()),
        }
    }

    /// Returns block 0, which no message uses.
    fn first_block(&self, nonce: &[u8; NONCE_LEN]) -> Zeroizing<[u8; 64]> {
        let mut block = Zeroizing::new([0; 64]);
        match self.vectors {
            Some(vectors) => vectors.apply(&self.key, nonce, 0, 0, MessagePiece::InPlace(&mut *block)),
            None => *block = portable::keystream_block(&self.key, nonce, 0),
        }
        block
    }

    /// Returns the tag of a message of `len` bytes.
    pub(crate) fn finish(&self, state: &ChaChaState, aad_len: u64, len: u64) -> [u8; TAG_LEN] {
        let mut state = *state;
        state.pad(len);
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&aad_len.to_le_bytes());
        lengths[8..].copy_from_slice(&len.to_le_bytes());
        state.authenticator.absorb(None, &lengths);
        state.authenticator.tag()
    }
}

impl ChaChaState {
    /// Absorbs `data`, which follows `position` bytes of the same part (AAD or message).
    fn absorb(&mut self, vectors: Option<Vectors>, position: u64, data: &[u8]) {
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
        self.authenticator.absorb(vectors, body);
        self.block[..tail.len()].copy_from_slice(tail);
    }

    /// Pads a part of `len` bytes with zeros to a whole block.
    fn pad(&mut self, len: u64) {
        if !len.is_multiple_of(16) {
            self.authenticator.absorb(None, &self.block);
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

/// Bytes that are encrypted and then authenticated while they are in the cache.
const CHUNK: usize = 8192;
