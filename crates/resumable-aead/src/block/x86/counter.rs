//! Counter mode over any [`Vector`]: XORs a keystream into bytes, whole blocks or not.
//!
//! # Safety of this module
//!
//! As in `x86/mod.rs`: the caller of an entry point has made sure of the instructions of its width.
#![allow(unsafe_code)]

use std::arch::x86_64::{__m128i, __m256i, __m512i};

use zeroize::Zeroize;

use crate::Backend;
use crate::x86::KernelSpan;
use crate::x86::aes::RoundKeys;
use crate::x86::vector::{BATCH, Vector};

/// XORs the keystream into the run, from a counter block of which the last 32 bits do not wrap.
pub(super) type Counter = unsafe fn(&RoundKeys, &[u8; 16], KernelSpan);

/// Returns the function of a width and a number of rounds, 10 or 14. The processor has the instructions of `width`.
pub(super) fn entry(width: Backend, rounds: usize) -> Counter {
    match (width, rounds) {
        (Backend::Avx512, 10) => avx512::<10>,
        (Backend::Avx512, _) => avx512::<14>,
        (Backend::Avx2, 10) => avx2::<10>,
        (Backend::Avx2, _) => avx2::<14>,
        (_, 10) => aes_ni::<10>,
        (_, _) => aes_ni::<14>,
    }
}

/// The functions of one width.
macro_rules! width {
    ($name:ident, $vector:ty, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROUNDS: usize>(keys: &RoundKeys, counter: &[u8; 16], run: KernelSpan) {
            // SAFETY: the enabled instructions are the vector's, and the caller keeps the rest.
            unsafe { counter_mode::<$vector, ROUNDS>(keys, counter, run) }
        }
    };
}

width!(aes_ni, __m128i, "aes,pclmulqdq,ssse3");
width!(avx2, __m256i, "aes,pclmulqdq,ssse3,avx2,vaes,vpclmulqdq");
width!(avx512, __m512i, "aes,pclmulqdq,ssse3,avx2,vaes,vpclmulqdq,avx512f,avx512bw,avx512dq,avx512vl");

#[inline(always)]
unsafe fn counter_mode<V: Vector, const ROUNDS: usize>(keys: &RoundKeys, counter: &[u8; 16], run: KernelSpan) {
    // SAFETY: the caller has the instructions, and its run is good for its length, which is checked before each step.
    unsafe {
        let mut run = run;
        let mut counters = V::counters(__m128i::load(counter.as_ptr()).reverse());
        while run.len >= 16 * V::BLOCKS * BATCH {
            let keystream = keystream::<V, ROUNDS, BATCH>(keys, &mut counters);
            for (index, keystream) in keystream.into_iter().enumerate() {
                let at = 16 * V::BLOCKS * index;
                V::load(run.source.add(at)).xor(keystream).store(run.destination.add(at));
            }
            run = run.skip(16 * V::BLOCKS * BATCH);
        }
        match run.len.div_ceil(16 * V::BLOCKS) {
            0 => {}
            1 => rest::<V, ROUNDS, 1>(keys, counters, run),
            2 => rest::<V, ROUNDS, 2>(keys, counters, run),
            3 | 4 => rest::<V, ROUNDS, 4>(keys, counters, run),
            _ => rest::<V, ROUNDS, BATCH>(keys, counters, run),
        }
    }
}

/// Processes the remaining vectors, of which the last may be partial.
#[inline(always)]
unsafe fn rest<V: Vector, const ROUNDS: usize, const VECTORS: usize>(
    keys: &RoundKeys,
    mut counters: V,
    run: KernelSpan,
) {
    // SAFETY: as in `counter_mode`; a partial vector goes through a local buffer.
    unsafe {
        let mut run = run;
        for keystream in keystream::<V, ROUNDS, VECTORS>(keys, &mut counters) {
            if run.len >= 16 * V::BLOCKS {
                V::load(run.source).xor(keystream).store(run.destination);
                run = run.skip(16 * V::BLOCKS);
            } else if run.len > 0 {
                let mut bytes = [0; 64];
                keystream.store(bytes.as_mut_ptr());
                for (index, key) in bytes[..run.len].iter().enumerate() {
                    *run.destination.add(index) = *run.source.add(index) ^ key;
                }
                bytes.zeroize();
                run = run.skip(run.len);
            }
        }
    }
}

/// Returns vectors of keystream, and advances the counters past them.
#[inline(always)]
unsafe fn keystream<V: Vector, const ROUNDS: usize, const VECTORS: usize>(
    keys: &RoundKeys,
    counters: &mut V,
) -> [V; VECTORS] {
    // SAFETY: the caller has the instructions; round keys are 16 bytes each.
    unsafe {
        let first = V::broadcast(keys.0[0].as_ptr());
        let mut states = [V::zero(); VECTORS];
        for state in &mut states {
            *state = counters.reverse().xor(first);
            *counters = counters.advance(V::BLOCKS as u32);
        }
        for key in &keys.0[1..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = state.round(key);
            }
        }
        let last = V::broadcast(keys.0[ROUNDS].as_ptr());
        for state in &mut states {
            *state = state.last_round(last);
        }
        states
    }
}
