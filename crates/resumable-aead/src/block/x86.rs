//! AES block after block with AES-NI.
//!
//! # Safety of this module
//!
//! An [`X86Aes`] exists only where AES-NI, PCLMULQDQ and SSSE3 were found: `new` asserts it, nothing else makes one. That
//! is what every call into an entry point rests on. Pointers come from slices that live through the call, and move
//! forward only by what was counted off a length. The kernels are `unsafe` as `x86::aes` says.
#![allow(unsafe_code)]

use std::arch::x86_64::__m128i;

use crate::Backend;
use crate::piece::Piece;
use crate::state::Direction;
use crate::x86::aes::{self, RoundKeys, encipher_vector};
use crate::x86::vector::Vector;
use crate::x86::{Run, is_available};

/// An expanded key and the entry points for its number of rounds.
pub(crate) struct X86Aes {
    keys: Box<RoundKeys>,
    entries: &'static Entries,
}

impl X86Aes {
    /// Expands a key of 16 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        assert!(is_available(Backend::AesNi), "callers ask before");
        assert!(key.len() == 16 || key.len() == 32, "callers check the length");
        let mut keys = Box::new(RoundKeys::empty());
        // SAFETY: AES-NI is there.
        unsafe { keys.expand(key) };
        X86Aes { keys, entries: if key.len() == 16 { &AES_128 } else { &AES_256 } }
    }

    pub(super) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        // SAFETY: the instructions are there (see the module).
        unsafe { (self.entries.encrypt_block)(&self.keys, block) }
    }

    pub(super) fn cbc_mac(&self, mac: &mut [u8; 16], blocks: &[u8]) {
        // SAFETY: the instructions are there; the slice lives through the call.
        unsafe { (self.entries.cbc_mac)(&self.keys, mac, blocks) }
    }

    pub(super) fn ccm(&self, mac: &mut [u8; 16], counter: &[u8; 16], direction: Direction, piece: Piece<'_>) {
        let entry = match direction {
            Direction::Encrypt => self.entries.ccm_encrypt,
            Direction::Decrypt => self.entries.ccm_decrypt,
        };
        // SAFETY: the instructions are there; the run is that of a piece that lives through the call.
        unsafe { entry(&self.keys, mac, counter, Run::of(piece)) }
    }
}

/// The functions of one number of rounds.
struct Entries {
    encrypt_block: unsafe fn(&RoundKeys, &[u8; 16]) -> [u8; 16],
    cbc_mac: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8]),
    ccm_encrypt: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8; 16], Run),
    ccm_decrypt: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8; 16], Run),
}

static AES_128: Entries = Entries {
    encrypt_block: encrypt_block::<10>,
    cbc_mac: cbc_mac::<10>,
    ccm_encrypt: ccm::<10, true>,
    ccm_decrypt: ccm::<10, false>,
};

static AES_256: Entries = Entries {
    encrypt_block: encrypt_block::<14>,
    cbc_mac: cbc_mac::<14>,
    ccm_encrypt: ccm::<14, true>,
    ccm_decrypt: ccm::<14, false>,
};

#[target_feature(enable = "aes,pclmulqdq,ssse3")]
unsafe fn encrypt_block<const ROUNDS: usize>(keys: &RoundKeys, block: &[u8; 16]) -> [u8; 16] {
    // SAFETY: the enabled instructions are the vector's.
    unsafe { aes::encrypt_block::<ROUNDS>(keys, block) }
}

#[target_feature(enable = "aes,pclmulqdq,ssse3")]
unsafe fn cbc_mac<const ROUNDS: usize>(keys: &RoundKeys, mac: &mut [u8; 16], blocks: &[u8]) {
    // SAFETY: the enabled instructions are the vector's; loads and stores are of 16 bytes.
    unsafe {
        let mut chain = __m128i::load(mac.as_ptr());
        for block in blocks.chunks_exact(16) {
            chain = encipher_vector::<__m128i, ROUNDS>(keys, chain.xor(__m128i::load(block.as_ptr())));
        }
        chain.store(mac.as_mut_ptr());
    }
}

/// The counter's block does not wait for the chain's: the processor overlaps them, and the chain alone takes time.
#[target_feature(enable = "aes,pclmulqdq,ssse3")]
unsafe fn ccm<const ROUNDS: usize, const ENCRYPT: bool>(
    keys: &RoundKeys,
    mac: &mut [u8; 16],
    counter: &[u8; 16],
    run: Run,
) {
    // SAFETY: the enabled instructions are the vector's; the run has 16 bytes or more at each turn.
    unsafe {
        let mut run = run;
        let mut counters = __m128i::load(counter.as_ptr()).reverse();
        let mut chain = __m128i::load(mac.as_ptr());
        while run.len >= 16 {
            let keystream = encipher_vector::<__m128i, ROUNDS>(keys, counters.reverse());
            counters = counters.advance(1);
            let data = __m128i::load(run.source);
            let result = data.xor(keystream);
            result.store(run.destination);
            let plaintext = if ENCRYPT { data } else { result };
            chain = encipher_vector::<__m128i, ROUNDS>(keys, chain.xor(plaintext));
            run = run.skip(16);
        }
        chain.store(mac.as_mut_ptr());
    }
}
