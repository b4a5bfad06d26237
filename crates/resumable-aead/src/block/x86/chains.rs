//! CBC-MAC of many messages side by side: each block of a chain waits for the one before, but sixteen chains are independent.
//!
//! # Safety of this module
//!
//! As in `x86/mod.rs`: the caller of an entry point has made sure of the instructions of its width, and that each chain has
//! the requested number of blocks.
#![allow(unsafe_code)]

use std::arch::x86_64::{__m128i, __m256i, __m512i};

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Backend;
use crate::x86::aes::RoundKeys;
use crate::x86::vector::Vector;

/// Number of chains side by side.
pub(crate) const LANES: usize = 16;

/// Round keys and authenticators of all chains: blocks in memory order, in words that are wiped one by one.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(crate) struct MacLanes {
    /// Round keys by round, then by chain.
    keys: [[u128; LANES]; 15],
    macs: [u128; LANES],
}

impl MacLanes {
    /// Returns empty lanes, to be filled in place.
    pub(crate) fn boxed() -> Box<MacLanes> {
        Box::new(MacLanes { keys: [[0; LANES]; 15], macs: [0; LANES] })
    }

    /// Begins a chain with this key.
    pub(super) fn begin(&mut self, lane: usize, keys: &RoundKeys) {
        for (round, key) in self.keys.iter_mut().zip(&keys.0) {
            round[lane] = u128::from_ne_bytes(*key);
        }
        self.macs[lane] = 0;
    }

    /// Returns a round's keys for the lanes of a vector.
    #[inline(always)]
    unsafe fn key<V: Vector>(&self, round: usize, first: usize) -> V {
        // SAFETY: the caller has the instructions, and a vector's lanes from `first` on.
        unsafe { V::load(self.keys[round][first..].as_ptr().cast()) }
    }

    pub(crate) fn mac(&self, lane: usize) -> [u8; 16] {
        self.macs[lane].to_ne_bytes()
    }
}

/// Absorbs `count` blocks in each chain.
pub(super) type Chains = unsafe fn(&mut MacLanes, &[*const u8; LANES], usize);

/// Returns the function of a width and a number of rounds, 10 or 14. The processor has the instructions of `width`.
pub(super) fn entry(width: Backend, rounds: usize) -> Chains {
    match (width, rounds) {
        (Backend::Avx512, 10) => avx512::<10>,
        (Backend::Avx512, _) => avx512::<14>,
        (Backend::Avx2, 10) => avx2::<10>,
        (Backend::Avx2, _) => avx2::<14>,
        (_, 10) => aes_ni::<10>,
        (_, _) => aes_ni::<14>,
    }
}

/// The functions of one width, with as many vectors as hold eight or sixteen chains, so that they fit in registers.
macro_rules! width {
    ($name:ident, $vector:ty, $vectors:literal, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROUNDS: usize>(lanes: &mut MacLanes, from: &[*const u8; LANES], blocks: usize) {
            for first in (0..LANES).step_by($vectors * <$vector as Vector>::BLOCKS) {
                // SAFETY: the enabled instructions are the vector's, and the caller keeps the rest.
                unsafe { chains::<$vector, ROUNDS, $vectors>(lanes, first, from, blocks) }
            }
        }
    };
}

width!(aes_ni, __m128i, 8, "aes,pclmulqdq,ssse3");
width!(avx2, __m256i, 8, "aes,pclmulqdq,ssse3,avx2,vaes,vpclmulqdq");
width!(avx512, __m512i, 4, "aes,pclmulqdq,ssse3,avx2,vaes,vpclmulqdq,avx512f,avx512bw,avx512dq,avx512vl");

/// Absorbs blocks in the chains of several vectors, from lane `first` on.
#[inline(always)]
unsafe fn chains<V: Vector, const ROUNDS: usize, const VECTORS: usize>(
    lanes: &mut MacLanes,
    first: usize,
    from: &[*const u8; LANES],
    blocks: usize,
) {
    // SAFETY: the caller has the instructions and enough blocks in each chain; keys and authenticators of a vector's lanes are
    // adjacent.
    unsafe {
        let mut states = [V::zero(); VECTORS];
        for (index, state) in states.iter_mut().enumerate() {
            *state = V::load(lanes.macs[first + V::BLOCKS * index..].as_ptr().cast());
        }
        for block in 0..blocks {
            for (index, state) in states.iter_mut().enumerate() {
                let data = V::gather(&from[first + V::BLOCKS * index..], 16 * block);
                *state = state.xor3(data, lanes.key(0, first + V::BLOCKS * index));
            }
            for round in 1..ROUNDS {
                for (index, state) in states.iter_mut().enumerate() {
                    *state = state.round(lanes.key(round, first + V::BLOCKS * index));
                }
            }
            for (index, state) in states.iter_mut().enumerate() {
                *state = state.last_round(lanes.key(ROUNDS, first + V::BLOCKS * index));
            }
        }
        for (index, state) in states.into_iter().enumerate() {
            state.store(lanes.macs[first + V::BLOCKS * index..].as_mut_ptr().cast());
        }
    }
}
