//! AES-XTS (IEEE 1619, NIST SP 800-38E): data at rest in units, each under a tweak of its own.

use crate::aes_key::{AesKey, with_aes};
use crate::pieces::Room;
use crate::{Fault, Parameters, Secret, SpecError, Way};
use aes::Block;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt};
use bytes::Bytes;

/// How the tweak counts from one unit to the next. The IV is the tweak of the first, a little-endian number.
///
/// ```
/// use offload_transforms::Tweak;
///
/// assert_eq!(Tweak::Unit.step(4096), 1);
/// assert_eq!(Tweak::Sectors512.step(4096), 8);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tweak {
    /// By one a unit: the LBA; dm-crypt's `plain64` with sectors of 512 bytes, or with `--iv-large-sectors`.
    #[default]
    Unit,
    /// By the 512-byte sectors in a unit: dm-crypt's `plain64` with larger sectors.
    Sectors512,
}

impl Tweak {
    /// What is added from one unit of so many bytes to the next.
    pub const fn step(self, unit: u32) -> u128 {
        match self {
            Tweak::Unit => 1,
            Tweak::Sectors512 => (unit / 512) as u128,
        }
    }
}

/// The two keys, expanded.
pub(crate) struct Xts {
    data: AesKey,
    tweak: AesKey,
    unit: u32,
    step: u128,
}

impl Xts {
    pub(crate) fn new(key: &Secret, unit: u32, tweak: Tweak) -> Result<Xts, SpecError> {
        let found = key.bytes().len();
        let wrong = SpecError::KeyLength { name: "AES-XTS", found, takes: "32 or 64" };
        if !(16..=MOST).contains(&unit) {
            return Err(SpecError::Unit { name: "AES-XTS", found: unit, takes: "16 to 1,048,576" });
        }
        if tweak == Tweak::Sectors512 && !unit.is_multiple_of(512) {
            return Err(SpecError::Unit { name: "AES-XTS", found: unit, takes: "a multiple of 512" });
        }
        let (data, second) = key.bytes().split_at(found / 2);
        let expand = |key| AesKey::of(key).ok_or(wrong);
        if !found.is_multiple_of(2) {
            return Err(wrong);
        }
        Ok(Xts { data: expand(data)?, tweak: expand(second)?, unit, step: tweak.step(unit) })
    }

    pub(crate) fn run(
        &self,
        way: Way,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut Room<'_>,
    ) -> Result<(), Fault> {
        room.append_all(source)?;
        let (found, unit) = (room.written(), self.unit as usize);
        if found % unit != 0 {
            return Err(Fault::SourceLength { name: "AES-XTS", found, takes: "whole units" });
        }
        let mut number = u128::from_le_bytes(with.iv);
        for unit in room.result().chunks_exact_mut(unit) {
            let mut tweak = Block::from(number.to_le_bytes());
            with_aes!(&self.tweak, aes => aes.encrypt_block(&mut tweak));
            let tweak = u128::from_le_bytes(tweak.into());
            match way {
                Way::Apply => with_aes!(&self.data, aes => encrypt(&**aes, tweak, unit)),
                Way::Undo => with_aes!(&self.data, aes => decrypt(&**aes, tweak, unit)),
            }
            number = number.wrapping_add(self.step);
        }
        Ok(())
    }
}

fn encrypt(aes: &impl BlockCipherEncrypt<BlockSize = BlockSize>, tweak: u128, unit: &mut [u8]) {
    let rest = unit.len() % 16;
    let (blocks, _) = Block::slice_as_chunks_mut(unit);
    let tweak = xor_blocks(tweak, blocks, |blocks| aes.encrypt_blocks(blocks));
    if rest > 0 {
        // Ciphertext stealing: the last part takes the place of the last block's first bytes, and is padded with its last.
        let at = unit.len() - rest - 16;
        steal(&mut unit[at..], |block| xor_block(tweak, block, |block| aes.encrypt_block(block)));
    }
}

fn decrypt(aes: &impl BlockCipherDecrypt<BlockSize = BlockSize>, tweak: u128, unit: &mut [u8]) {
    let rest = unit.len() % 16;
    let whole = if rest > 0 { unit.len() - rest - 16 } else { unit.len() };
    let (blocks, _) = Block::slice_as_chunks_mut(&mut unit[..whole]);
    let tweak = xor_blocks(tweak, blocks, |blocks| aes.decrypt_blocks(blocks));
    if rest > 0 {
        // The block before the last part was encrypted last.
        let unit = &mut unit[whole..];
        if let Some(block) = unit.first_chunk_mut::<16>() {
            xor_block(next(tweak), block, |block| aes.decrypt_block(block));
        }
        steal(unit, |block| xor_block(tweak, block, |block| aes.decrypt_block(block)));
    }
}

/// Exchanges the last part with the first bytes of the block before it, and works on that block.
fn steal(block_and_part: &mut [u8], work: impl FnOnce(&mut [u8; 16])) {
    if let Some((block, part)) = block_and_part.split_first_chunk_mut::<16>() {
        block[..part.len()].swap_with_slice(part);
        work(block);
    }
}

fn xor_block(tweak: u128, block: &mut [u8; 16], work: impl FnOnce(&mut Block)) {
    let mut masked = Block::from((u128::from_le_bytes(*block) ^ tweak).to_le_bytes());
    work(&mut masked);
    *block = (u128::from_le_bytes(masked.into()) ^ tweak).to_le_bytes();
}

/// Works on blocks masked by their tweaks, which go on from `tweak`; many at once, for the processor's sake. Gives the tweak that
/// comes next.
fn xor_blocks(mut tweak: u128, blocks: &mut [Block], work: impl Fn(&mut [Block])) -> u128 {
    for blocks in blocks.chunks_mut(AT_ONCE) {
        let mut tweaks = [0; AT_ONCE];
        for (kept, block) in tweaks.iter_mut().zip(blocks.iter_mut()) {
            *kept = tweak;
            xor(tweak, block);
            tweak = next(tweak);
        }
        work(blocks);
        tweaks.iter().zip(blocks).for_each(|(tweak, block)| xor(*tweak, block));
    }
    tweak
}

fn xor(tweak: u128, block: &mut Block) {
    *block = (u128::from_le_bytes((*block).into()) ^ tweak).to_le_bytes().into();
}

/// The tweak of the next block: multiplied by x modulo x^128 + x^7 + x^2 + x + 1, without a branch.
fn next(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

type BlockSize = aes::cipher::consts::U16;

/// Blocks that the cipher is given at once.
const AT_ONCE: usize = 32;

/// Bytes of the largest unit (SP 800-38E: 2^20 blocks).
const MOST: u32 = 1 << 20;
