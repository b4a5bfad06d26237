//! AES block by block with AES-NI (CCM, single blocks), in counter mode (`counter.rs`), and many chains side by side (`chains.rs`)
//! with vectors of any width.
//!
//! # Safety of this module
//!
//! An [`X86Aes`] exists only where the instructions of its width were found, which for all widths include AES-NI, PCLMULQDQ and
//! SSSE3, because only `new` makes one, and asserts it. Every call into an entry point rests on this. Pointers come from slices that live through the call, and move
//! forward only by bytes that were subtracted from a length. The kernels are `unsafe` for the reason in `x86::aes`.
#![allow(unsafe_code)]

mod chains;
mod counter;

use std::arch::x86_64::__m128i;

pub(crate) use chains::{LANES, MacLanes};

use crate::Backend;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::x86::aes::{self, RoundKeys, encipher_vector};
use crate::x86::vector::Vector;
use crate::x86::{KernelSpan, is_available};

/// An expanded key and the entry points for its number of rounds.
pub(crate) struct X86Aes {
    keys: Box<RoundKeys>,
    rounds: usize,
    entries: &'static AesEntryPoints,
    counter: counter::Counter,
    chains: chains::Chains,
}

impl X86Aes {
    /// Expands a key of 16 or 32 bytes.
    pub(super) fn new(key: &[u8], width: Backend) -> Self {
        assert!(is_available(width), "callers ask before");
        assert!(key.len() == 16 || key.len() == 32, "callers check the length");
        let mut keys = Box::new(RoundKeys::empty());
        // SAFETY: AES-NI is there.
        unsafe { keys.expand(key) };
        let (rounds, entries) = if key.len() == 16 { (10, &AES_128) } else { (14, &AES_256) };
        X86Aes { keys, rounds, entries, counter: counter::entry(width, rounds), chains: chains::entry(width, rounds) }
    }

    pub(super) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        // SAFETY: the instructions are there (see the module).
        unsafe { (self.entries.encrypt_block)(&self.keys, block) }
    }

    pub(super) fn cbc_mac(&self, mac: &mut [u8; 16], blocks: &[u8]) {
        // SAFETY: the instructions are there; the slice lives through the call.
        unsafe { (self.entries.cbc_mac)(&self.keys, mac, blocks) }
    }

    pub(super) fn ccm(
        &self,
        mac: &mut [u8; 16],
        counter: &[u8; 16],
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        let entry = match direction {
            MessageDirection::Encrypt => self.entries.ccm_encrypt,
            MessageDirection::Decrypt => self.entries.ccm_decrypt,
        };
        // SAFETY: the instructions are there; the run is that of a piece that lives through the call.
        unsafe { entry(&self.keys, mac, counter, KernelSpan::for_piece(piece)) }
    }

    /// XORs the counter-mode keystream from the counter block `first` on. All 128 bits are counted.
    pub(super) fn counter_mode(&self, first: u128, data: &mut [u8]) {
        let (mut counter, mut left) = (first, data);
        while !left.is_empty() {
            // The kernel counts 32 bits, so the run is split where these wrap.
            let until_wrap = (1 << 32) - (counter & 0xffff_ffff);
            let now = (16 * until_wrap).min(left.len() as u128) as usize;
            let (part, rest) = left.split_at_mut(now);
            // SAFETY: the instructions are there; the run is that of a slice that lives through the call.
            unsafe {
                (self.counter)(&self.keys, &counter.to_be_bytes(), KernelSpan::for_piece(MessagePiece::InPlace(part)))
            };
            counter = counter.wrapping_add(now.div_ceil(16) as u128);
            left = rest;
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// Begins a chain with this key in a lane.
    pub(crate) fn begin(&self, lanes: &mut MacLanes, lane: usize) {
        lanes.begin(lane, &self.keys);
    }

    /// Absorbs `count` blocks in each chain; all keys have this one's number of rounds.
    ///
    /// # Panics
    /// If a chain has fewer blocks.
    pub(crate) fn advance_chains(&self, lanes: &mut MacLanes, data: &[&[u8]; LANES], blocks: usize) {
        assert!(data.iter().all(|data| data.len() / 16 >= blocks), "each chain has them");
        // SAFETY: the instructions are there; the blocks as well, in slices that live through the call.
        unsafe { (self.chains)(lanes, &data.map(<[u8]>::as_ptr), blocks) }
    }
}

/// The functions of one number of rounds.
struct AesEntryPoints {
    encrypt_block: unsafe fn(&RoundKeys, &[u8; 16]) -> [u8; 16],
    cbc_mac: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8]),
    ccm_encrypt: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8; 16], KernelSpan),
    ccm_decrypt: unsafe fn(&RoundKeys, &mut [u8; 16], &[u8; 16], KernelSpan),
}

static AES_128: AesEntryPoints = AesEntryPoints {
    encrypt_block: encrypt_block::<10>,
    cbc_mac: cbc_mac::<10>,
    ccm_encrypt: ccm::<10, true>,
    ccm_decrypt: ccm::<10, false>,
};

static AES_256: AesEntryPoints = AesEntryPoints {
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

/// The counter's block does not depend on the chain's, so the processor overlaps them, and the chain alone determines the time.
#[target_feature(enable = "aes,pclmulqdq,ssse3")]
unsafe fn ccm<const ROUNDS: usize, const ENCRYPT: bool>(
    keys: &RoundKeys,
    mac: &mut [u8; 16],
    counter: &[u8; 16],
    run: KernelSpan,
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
