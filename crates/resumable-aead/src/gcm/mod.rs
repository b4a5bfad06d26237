//! AES-GCM (NIST SP 800-38D): the key with its back-end, and the state between two pieces.
//!
//! `portable.rs` is safe Rust over RustCrypto, `x86/` has the instructions of x86-64. A back-end offers seven operations:
//! one AES block, GHASH over padded data, a piece encrypted or decrypted with authentication, the same appended to a
//! buffer, keystream alone, the tag.
//! This module composes all other operations on pieces from these.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use portable::PortableGcm;
#[cfg(target_arch = "x86_64")]
use x86::X86Gcm;

use bytes::BytesMut;

use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::state_bytes::{AUTHENTICATOR_LEN, array};
use crate::{Backend, NONCE_LEN, TAG_LEN};

/// State of GCM between two pieces of a message.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct GcmState {
    /// GHASH of the preceding bytes. Within a block, the bytes of the block are added but not yet multiplied.
    pub(crate) accumulator: [u8; 16],
    /// The keystream of the current block if the position is within one; otherwise unspecified.
    pub(crate) keystream: [u8; 16],
}

/// An expanded AES-GCM key.
pub(crate) enum GcmKey {
    Portable(Box<PortableGcm>),
    #[cfg(target_arch = "x86_64")]
    X86(X86Gcm),
}

/// Tests whether `backend` supports AES-GCM on this processor.
pub(crate) fn is_available(backend: Backend) -> bool {
    #[cfg(target_arch = "x86_64")]
    if crate::x86::is_available(backend) {
        return true;
    }
    backend == Backend::Portable
}

/// Calls a method of the back-end's own key.
macro_rules! dispatch {
    ($self:expr, $key:ident => $call:expr) => {
        match $self {
            GcmKey::Portable($key) => $call,
            #[cfg(target_arch = "x86_64")]
            GcmKey::X86($key) => $call,
        }
    };
}

impl GcmKey {
    /// Expands a key of 16 or 32 bytes.
    pub(crate) fn new(key: &[u8], backend: Backend) -> Self {
        #[cfg(target_arch = "x86_64")]
        if backend != Backend::Portable {
            return GcmKey::X86(X86Gcm::new(key, backend));
        }
        debug_assert_eq!(backend, Backend::Portable);
        GcmKey::Portable(Box::new(PortableGcm::new(key)))
    }

    /// Returns the key's fingerprint. No message uses counter 0, because with a 12-byte nonce the first counter is 1.
    pub(crate) fn check(&self) -> u32 {
        let block = self.encrypt_block(&counter_block(&[0xff; NONCE_LEN], 0));
        u32::from_le_bytes(array(&block, 0))
    }

    /// Begins a message.
    pub(crate) fn start(&self, aad: &[u8]) -> GcmState {
        let mut state = GcmState { accumulator: [0; 16], keystream: [0; 16] };
        if !aad.is_empty() {
            dispatch!(self, key => key.ghash(&mut state.accumulator, aad));
        }
        state
    }

    /// Processes a piece at `position`, in place or from source to destination.
    #[inline]
    pub(crate) fn crypt(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        dispatch!(self, key => key.crypt(state, nonce, position, direction, piece));
    }

    /// Processes a piece at `position` from `source`, and appends it to `destination`.
    #[inline]
    pub(crate) fn append(
        &self,
        state: &mut GcmState,
        nonce: &[u8; NONCE_LEN],
        position: u64,
        direction: MessageDirection,
        source: &[u8],
        destination: &mut BytesMut,
    ) {
        dispatch!(self, key => key.append(state, nonce, position, direction, source, destination));
    }

    /// Authenticates a piece of ciphertext at `position`.
    pub(crate) fn authenticate(&self, state: &mut GcmState, nonce: &[u8; NONCE_LEN], position: u64, data: &[u8]) {
        let used = (position % 16) as usize;
        let (head, rest) = data.split_at(data.len().min((16 - used) % 16));
        if !head.is_empty() {
            xor(&mut state.accumulator[used..], head);
            if used + head.len() < 16 {
                return; // still the same block: its keystream is there
            }
            dispatch!(self, key => key.ghash(&mut state.accumulator, &[0; 16]));
        }
        let (body, tail) = rest.split_at(rest.len() - rest.len() % 16);
        if !body.is_empty() {
            dispatch!(self, key => key.ghash(&mut state.accumulator, body));
        }
        if !tail.is_empty() {
            xor(&mut state.accumulator, tail);
            let block = block_number(position + (head.len() + body.len()) as u64);
            state.keystream = self.encrypt_block(&counter_block(nonce, block));
        }
    }

    /// XORs the keystream at `position` into a piece.
    pub(crate) fn apply_keystream(&self, nonce: &[u8; NONCE_LEN], position: u64, data: &mut [u8]) {
        let used = (position % 16) as usize;
        let (head, rest) = data.split_at_mut(data.len().min((16 - used) % 16));
        if !head.is_empty() {
            let keystream = self.encrypt_block(&counter_block(nonce, block_number(position)));
            xor(head, &keystream[used..]);
        }
        if !rest.is_empty() {
            let counter = block_number(position + head.len() as u64);
            dispatch!(self, key => key.apply_keystream(nonce, counter, rest));
        }
    }

    /// Returns the tag of a message of `len` bytes.
    pub(crate) fn finish(&self, state: &GcmState, nonce: &[u8; NONCE_LEN], aad_len: u64, len: u64) -> [u8; TAG_LEN] {
        dispatch!(self, key => key.finish(state, nonce, aad_len, len))
    }

    fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        dispatch!(self, key => key.encrypt_block(block))
    }
}

impl GcmState {
    pub(crate) fn to_bytes(self, position: u64) -> [u8; AUTHENTICATOR_LEN] {
        let mut bytes = [0; AUTHENTICATOR_LEN];
        bytes[..16].copy_from_slice(&self.accumulator);
        if !position.is_multiple_of(16) {
            bytes[16..32].copy_from_slice(&self.keystream);
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; AUTHENTICATOR_LEN], position: u64) -> Option<Self> {
        let unused = if position.is_multiple_of(16) { 16 } else { 32 };
        if bytes[unused..].iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(GcmState { accumulator: array(bytes, 0), keystream: array(bytes, 16) })
    }
}

/// Returns the counter block of a nonce (SP 800-38D 7.1: 12 bytes of nonce, 4 of counter).
pub(crate) fn counter_block(nonce: &[u8; NONCE_LEN], counter: u32) -> [u8; 16] {
    let mut block = [0; 16];
    block[..NONCE_LEN].copy_from_slice(nonce);
    block[NONCE_LEN..].copy_from_slice(&counter.to_be_bytes());
    block
}

/// Returns the counter of the block at a message position. The message begins at counter 2. Positions are within
/// [`Algorithm::message_len_max`](crate::Algorithm::message_len_max), so the counter does not wrap; the block
/// after the last one would have counter 0, and is never requested.
pub(crate) fn block_number(position: u64) -> u32 {
    (position / 16 + 2) as u32
}

/// XORs `source` into the first bytes of `target`.
pub(crate) fn xor(target: &mut [u8], source: &[u8]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target ^= source;
    }
}
