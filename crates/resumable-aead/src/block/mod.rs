//! AES as a block cipher, for sequential modes: CCM, header masks, and [`AesKey`](crate::AesKey)'s modes.
//!
//! `portable.rs` uses RustCrypto's AES, `x86/` the instructions of x86-64. CBC-MAC is one long chain of dependent blocks, so wider
//! vectors do not speed up CCM, which has one back-end with instructions. Wider vectors do speed up many chains side by side.

pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use portable::Aes;
#[cfg(target_arch = "x86_64")]
use x86::X86Aes;

use crate::Backend;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;

/// An expanded AES key.
pub(crate) enum BlockCipher {
    Portable(Box<Aes>),
    #[cfg(target_arch = "x86_64")]
    X86(X86Aes),
}

/// Tests whether AES blocks have the back-end `backend`, and this processor has its instructions.
pub(crate) fn is_available(backend: Backend) -> bool {
    #[cfg(target_arch = "x86_64")]
    if backend == Backend::AesNi {
        return crate::x86::is_available(backend);
    }
    backend == Backend::Portable
}

impl BlockCipher {
    /// Expands a key of 16 or 32 bytes for a back-end that is available.
    pub(crate) fn new(key: &[u8], backend: Backend) -> Self {
        #[cfg(target_arch = "x86_64")]
        if backend != Backend::Portable {
            return BlockCipher::X86(X86Aes::new(key, backend));
        }
        debug_assert_eq!(backend, Backend::Portable);
        BlockCipher::Portable(Box::new(Aes::new(key)))
    }

    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        match self {
            BlockCipher::Portable(aes) => aes.encrypt_block(block),
            #[cfg(target_arch = "x86_64")]
            BlockCipher::X86(aes) => aes.encrypt_block(block),
        }
    }

    /// Computes CBC-MAC over whole blocks.
    pub(crate) fn cbc_mac(&self, mac: &mut [u8; 16], blocks: &[u8]) {
        match self {
            BlockCipher::Portable(aes) => aes.cbc_mac(mac, blocks),
            #[cfg(target_arch = "x86_64")]
            BlockCipher::X86(aes) => aes.cbc_mac(mac, blocks),
        }
    }

    /// XORs the counter-mode keystream from the counter block `first` on. All 128 bits are counted.
    pub(crate) fn counter_mode(&self, first: u128, data: &mut [u8]) {
        match self {
            BlockCipher::Portable(aes) => aes.counter_mode(first, data),
            #[cfg(target_arch = "x86_64")]
            BlockCipher::X86(aes) => aes.counter_mode(first, data),
        }
    }

    /// Encrypts whole blocks in counter mode from block `counter` on, with CBC-MAC over the plaintext. The last 32 bits of
    /// `counter` do not wrap.
    pub(crate) fn ccm(
        &self,
        mac: &mut [u8; 16],
        counter: &[u8; 16],
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        debug_assert!(piece.len().is_multiple_of(16));
        match self {
            BlockCipher::Portable(aes) => aes.ccm(mac, counter, direction, piece),
            #[cfg(target_arch = "x86_64")]
            BlockCipher::X86(aes) => aes.ccm(mac, counter, direction, piece),
        }
    }
}
