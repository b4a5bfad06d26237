//! Generators of SNOW 3G, Snow 5G and ZUC over lanes. They run up to sixteen messages from key and IV to the end of the
//! longest.

use zeroize::Zeroizing;

use crate::lane::Lane;
use crate::snow3g::Snow3g;
use crate::snow5g::Snow5g;
use crate::words::{KeystreamBlocks, Wide, Words};
use crate::zuc::{Zuc, ZucRounds, cells_128, cells_256};

/// A generator, with the size of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeneratorKind {
    Snow3g,
    Snow5g,
    Zuc128,
    Zuc256,
}

/// Runs at most [`Words::LANES`] messages.
#[inline(always)]
pub(crate) fn run<W: Words>(proof: W::Proof, stream: GeneratorKind, lanes: &mut [Lane<'_>]) {
    match stream {
        GeneratorKind::Snow3g => snow_3g::<W>(proof, lanes),
        GeneratorKind::Snow5g => snow_5g::<W>(proof, lanes),
        GeneratorKind::Zuc128 => zuc::<W>(proof, lanes, ZucRounds::Short),
        GeneratorKind::Zuc256 => zuc::<W>(proof, lanes, ZucRounds::Long),
    }
}

#[inline(always)]
fn snow_3g<W: Words>(proof: W::Proof, lanes: &mut [Lane<'_>]) {
    let mut keys = Zeroizing::new([[0; 16]; 4]);
    let mut ivs = [[0; 16]; 4];
    // Transpose: word by word, with a message per lane.
    for (index, lane) in lanes.iter().enumerate() {
        for word in 0..4 {
            keys[word][index] = u32::from_be_bytes(lane.key.as_chunks::<4>().0[word]);
            ivs[word][index] = u32::from_be_bytes(lane.iv.as_chunks::<4>().0[word]);
        }
    }
    let mut generator = Snow3g::<W>::new(proof, &keys, &ivs);
    let mut out = KeystreamBlocks::new();
    // Lanes of shorter messages run on, and their keystream is unused.
    for index in 0..blocks(lanes) {
        W::keystream(&generator.block(), &mut out);
        process_blocks::<W>(proof, lanes, index, &out);
    }
}

#[inline(always)]
fn snow_5g<W: Words>(proof: W::Proof, lanes: &mut [Lane<'_>]) {
    let side_by_side = <W::Wide as Wide>::LANES;
    // The processor works on several registers of messages at once, because they are independent.
    for lanes in lanes.chunks_mut(REGISTERS * side_by_side) {
        let registers = lanes.len().div_ceil(side_by_side);
        let mut generators = [Snow5g::<W::Wide>::empty(proof); REGISTERS];
        for (generator, lanes) in generators.iter_mut().zip(lanes.chunks(side_by_side)) {
            let mut keys = Zeroizing::new([[0; 4]; 2]);
            let mut ivs = [0; 4];
            for (index, lane) in lanes.iter().enumerate() {
                let [low, high, ..] = lane.key.as_chunks::<16>().0 else { unreachable!("keys of 32 bytes") };
                (keys[0][index], keys[1][index]) = (u128::from_le_bytes(*low), u128::from_le_bytes(*high));
                ivs[index] = u128::from_le_bytes(lane.iv);
            }
            *generator = Snow5g::new(proof, &keys, &ivs);
        }
        // All registers advance by one block before the keystream is used.
        let mut out = KeystreamBlocks::new();
        for index in 0..blocks(lanes) {
            for (number, generator) in generators[..registers].iter_mut().enumerate() {
                generator.keystream(&mut out, number * side_by_side);
            }
            process_blocks::<W>(proof, lanes, index, &out);
        }
    }
}

#[inline(always)]
fn zuc<W: Words>(proof: W::Proof, lanes: &mut [Lane<'_>], rounds: ZucRounds) {
    let mut cells = Zeroizing::new([[0; 16]; 16]);
    for (index, lane) in lanes.iter().enumerate() {
        let of_lane = match rounds {
            ZucRounds::Short => cells_128(lane.key, &lane.iv),
            ZucRounds::Long => cells_256(lane.key, &lane.iv),
        };
        // Transpose: cell by cell, with a message per lane.
        for (cell, word) in cells.iter_mut().zip(of_lane) {
            cell[index] = word;
        }
    }
    let mut generator = Zuc::<W>::new(proof, &cells, rounds);
    let mut out = KeystreamBlocks::new();
    for index in 0..blocks(lanes) {
        W::keystream(&generator.block(), &mut out);
        process_blocks::<W>(proof, lanes, index, &out);
    }
}

fn blocks(lanes: &[Lane<'_>]) -> usize {
    lanes.iter().map(|lane| lane.blocks).max().unwrap_or(0)
}

#[inline(always)]
fn process_blocks<W: Words>(proof: W::Proof, lanes: &mut [Lane<'_>], index: usize, out: &KeystreamBlocks) {
    for (number, lane) in lanes.iter_mut().enumerate() {
        if index < lane.blocks {
            lane.work.take::<W>(proof, index, out.lane(number));
        }
    }
}

/// The number of registers of Snow 5G messages at a time.
const REGISTERS: usize = 4;
