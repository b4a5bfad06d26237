//! AES-XTS over any [`Vector`], and as functions for one width each.
//!
//! A batch is eight vectors, which is a unit of 512 bytes with the widest; their tweaks step on by shifts of whole bytes.
//! The numbers of eight units go through AES together.
//!
//! # Safety of this module
//!
//! An [`X86Xts`] exists only where [`is_available`] found the instructions of its width, because only `new` makes one, and asserts it.
//! Every call into an entry point rests on this. The generic functions are `unsafe` for two reasons,
//! and their callers vouch for both: the processor has the instructions of `V`, and a pointer is good for as many bytes as
//! go with it. Within, pointers only move forward by bytes that were subtracted from a length.
#![allow(unsafe_code)]

use std::arch::x86_64::{__m128i, __m256i, __m512i};

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{DataUnits, times_x};
use crate::Backend;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::x86::aes::{RoundKeys, encipher_vector};
use crate::x86::vector::{BATCH, Vector, load_up_to, store_up_to};
use crate::x86::{KernelSpan, is_available};

/// An expanded key and the entry points for its width and number of rounds.
pub(super) struct X86Xts {
    schedule: Box<XtsSchedule>,
    entries: &'static XtsEntryPoints,
}

#[derive(Zeroize, ZeroizeOnDrop)]
struct XtsSchedule {
    data: RoundKeys,
    inverse: RoundKeys,
    tweak: RoundKeys,
}

impl X86Xts {
    /// Expands two keys of 16 or of 32 bytes.
    pub(super) fn new(data_key: &[u8], tweak_key: &[u8], backend: Backend) -> Self {
        assert!(is_available(backend), "callers ask before");
        assert!(data_key.len() == tweak_key.len() && [16, 32].contains(&data_key.len()), "callers check lengths");
        let (entries, rounds) = match (backend, data_key.len()) {
            (Backend::Avx512, 16) => (&avx512::AES_128, 10),
            (Backend::Avx512, _) => (&avx512::AES_256, 14),
            (Backend::Avx2, 16) => (&avx2::AES_128, 10),
            (Backend::Avx2, _) => (&avx2::AES_256, 14),
            (_, 16) => (&aes_ni::AES_128, 10),
            (_, _) => (&aes_ni::AES_256, 14),
        };
        let empty = RoundKeys::empty;
        let mut schedule = Box::new(XtsSchedule { data: empty(), inverse: empty(), tweak: empty() });
        let XtsSchedule { data, inverse, tweak } = &mut *schedule;
        // SAFETY: every back-end here includes AES-NI, and this one is available.
        unsafe {
            data.expand(data_key);
            inverse.invert(data, rounds);
            tweak.expand(tweak_key);
        }
        X86Xts { schedule, entries }
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
        let mut tweaks = [[0; 16]; TOGETHER];
        for area in data.chunks_mut(TOGETHER * units.len) {
            for tweak in &mut tweaks {
                *tweak = number.to_le_bytes();
                number = number.wrapping_add(units.step.into());
            }
            // SAFETY: the instructions are there (see the module).
            unsafe { (self.entries.tweaks)(&self.schedule, &mut tweaks) };
            for (unit, tweak) in area.chunks_exact_mut(units.len).zip(&mut tweaks) {
                if block != 0 {
                    *tweak = times_x(u128::from_le_bytes(*tweak), block).to_le_bytes();
                }
                let entry = match direction {
                    MessageDirection::Encrypt => self.entries.encrypt,
                    MessageDirection::Decrypt => self.entries.decrypt,
                };
                // SAFETY: the instructions are there; the run is that of a slice that lives through the call.
                unsafe { entry(&self.schedule, tweak, KernelSpan::for_piece(MessagePiece::InPlace(unit))) };
            }
        }
        tweaks.as_flattened_mut().zeroize();
    }
}

/// Encrypts unit numbers into tweaks.
#[inline(always)]
unsafe fn encipher_tweaks<V: Vector, const ROUNDS: usize>(schedule: &XtsSchedule, tweaks: &mut [[u8; 16]; TOGETHER]) {
    for tweaks in tweaks.chunks_exact_mut(V::BLOCKS) {
        let tweaks = tweaks.as_flattened_mut();
        // SAFETY: the caller keeps the module's contract; these are as many blocks as a vector has.
        unsafe { encipher_vector::<V, ROUNDS>(&schedule.tweak, V::load(tweaks.as_ptr())).store(tweaks.as_mut_ptr()) }
    }
}

/// Processes a unit, or blocks of one, of which the first block has the tweak `tweak`.
#[inline(always)]
unsafe fn crypt_unit<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    schedule: &XtsSchedule,
    tweak: &[u8; 16],
    run: KernelSpan,
) {
    let keys = if ENCRYPT { &schedule.data } else { &schedule.inverse };
    // SAFETY: the caller keeps the module's contract; lengths are checked before each step.
    unsafe {
        let mut run = run;
        let mut tweaks = first_tweaks::<V>(tweak);
        while run.len >= 16 * V::BLOCKS * BATCH {
            crypt_batch::<V, ROUNDS, ENCRYPT>(keys, &tweaks, run);
            run = run.skip(16 * V::BLOCKS * BATCH);
            if run.len != 0 {
                for tweak in &mut tweaks {
                    *tweak = times_x_vector(*tweak, (V::BLOCKS * BATCH) as u32);
                }
            }
        }
        for tweak in tweaks {
            let now = (run.len / 16).min(V::BLOCKS);
            if now == 0 {
                break;
            }
            let mut state = load_up_to::<V>(run.source, now).xor3(tweak, V::broadcast(keys.0[0].as_ptr()));
            for key in &keys.0[1..ROUNDS] {
                state = round::<V, ENCRYPT>(state, V::broadcast(key.as_ptr()));
            }
            let last = V::broadcast(keys.0[ROUNDS].as_ptr()).xor(tweak);
            store_up_to(last_round::<V, ENCRYPT>(state, last), run.destination, now);
            run = run.skip(16 * now);
        }
    }
}

/// Processes eight vectors, of which the rounds do not depend on each other.
#[inline(always)]
unsafe fn crypt_batch<V: Vector, const ROUNDS: usize, const ENCRYPT: bool>(
    keys: &RoundKeys,
    tweaks: &[V; BATCH],
    run: KernelSpan,
) {
    // SAFETY: the caller keeps the module's contract and has a batch in the run.
    unsafe {
        let mut states = *tweaks;
        let first = V::broadcast(keys.0[0].as_ptr());
        for (index, state) in states.iter_mut().enumerate() {
            *state = V::load(run.source.add(16 * V::BLOCKS * index)).xor3(*state, first);
        }
        for key in &keys.0[1..ROUNDS] {
            let key = V::broadcast(key.as_ptr());
            for state in &mut states {
                *state = round::<V, ENCRYPT>(*state, key);
            }
        }
        let last = V::broadcast(keys.0[ROUNDS].as_ptr());
        for (index, (state, tweak)) in states.into_iter().zip(tweaks).enumerate() {
            // The last round ends with the addition of its key, so the tweak is added with the key.
            let state = last_round::<V, ENCRYPT>(state, last.xor(*tweak));
            state.store(run.destination.add(16 * V::BLOCKS * index));
        }
    }
}

#[inline(always)]
unsafe fn round<V: Vector, const ENCRYPT: bool>(state: V, key: V) -> V {
    // SAFETY: the caller keeps the module's contract.
    unsafe { if ENCRYPT { state.round(key) } else { state.inverse_round(key) } }
}

#[inline(always)]
unsafe fn last_round<V: Vector, const ENCRYPT: bool>(state: V, key: V) -> V {
    // SAFETY: the caller keeps the module's contract.
    unsafe { if ENCRYPT { state.last_round(key) } else { state.last_inverse_round(key) } }
}

/// Returns the tweaks of a batch that begins with the given tweak.
#[inline(always)]
unsafe fn first_tweaks<V: Vector>(tweak: &[u8; 16]) -> [V; BATCH] {
    let mut lanes = [[0; 16]; 4];
    let mut next = u128::from_le_bytes(*tweak);
    for lane in &mut lanes[..V::BLOCKS] {
        *lane = next.to_le_bytes();
        next = times_x(next, 1);
    }
    // SAFETY: the caller keeps the module's contract; a vector has at most four blocks.
    unsafe {
        let first = V::load(lanes.as_flattened().as_ptr());
        let mut tweaks = [first; BATCH];
        for (index, tweak) in tweaks.iter_mut().enumerate().skip(1) {
            *tweak = times_x_vector(first, (V::BLOCKS * index) as u32);
        }
        tweaks
    }
}

/// Multiplies every block by x, `1..=32` times.
#[inline(always)]
unsafe fn times_x_vector<V: Vector>(tweaks: V, times: u32) -> V {
    // SAFETY: the caller keeps the module's contract; the constant is 16 bytes.
    unsafe {
        // Bits that leave the low half continue in the high half; bits that leave the high half come back times the polynomial.
        let out = tweaks.shift_right(64 - times);
        let back = out.multiply_high(V::broadcast(POLYNOMIAL.as_ptr().cast()));
        tweaks.shift_left(times).xor3(out.low_to_high(), back)
    }
}

/// Units for which tweaks are encrypted together.
const TOGETHER: usize = 8;

/// x^7 + x^2 + x + 1, in the high half.
static POLYNOMIAL: [u64; 2] = [0, 0x87];

/// The functions of one width and number of rounds. All are unsafe for the reasons in the module's documentation.
struct XtsEntryPoints {
    tweaks: unsafe fn(&XtsSchedule, &mut [[u8; 16]; TOGETHER]),
    encrypt: unsafe fn(&XtsSchedule, &[u8; 16], KernelSpan),
    decrypt: unsafe fn(&XtsSchedule, &[u8; 16], KernelSpan),
}

/// The functions for one vector, compiled with its instructions.
macro_rules! entries {
    ($name:ident, $vector:ty, $features:literal) => {
        mod $name {
            use super::*;

            pub(super) static AES_128: XtsEntryPoints =
                XtsEntryPoints { tweaks: tweaks::<10>, encrypt: crypt::<10, true>, decrypt: crypt::<10, false> };

            pub(super) static AES_256: XtsEntryPoints =
                XtsEntryPoints { tweaks: tweaks::<14>, encrypt: crypt::<14, true>, decrypt: crypt::<14, false> };

            #[target_feature(enable = $features)]
            unsafe fn tweaks<const ROUNDS: usize>(schedule: &XtsSchedule, tweaks: &mut [[u8; 16]; TOGETHER]) {
                // SAFETY: the enabled instructions are the vector's.
                unsafe { encipher_tweaks::<$vector, ROUNDS>(schedule, tweaks) }
            }

            #[target_feature(enable = $features)]
            unsafe fn crypt<const ROUNDS: usize, const ENCRYPT: bool>(
                schedule: &XtsSchedule,
                tweak: &[u8; 16],
                run: KernelSpan,
            ) {
                // SAFETY: the enabled instructions are the vector's; the caller vouches for the run.
                unsafe { crypt_unit::<$vector, ROUNDS, ENCRYPT>(schedule, tweak, run) }
            }
        }
    };
}

entries!(aes_ni, __m128i, "aes,pclmulqdq,ssse3");
entries!(avx2, __m256i, "aes,pclmulqdq,avx2,vaes,vpclmulqdq");
entries!(avx512, __m512i, "aes,pclmulqdq,avx2,vaes,vpclmulqdq,avx512f,avx512bw,avx512dq,avx512vl");
