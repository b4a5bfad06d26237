//! A message in a lane of SNOW 3G, Snow 5G or ZUC: its generator's key and IV, and its use of the keystream.

use crate::eia3::Eia3;
use crate::sst::Subkeys;
use crate::uia2;
use crate::words::{Block, Words, bytes};

/// One message.
pub(crate) struct Lane<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) iv: [u8; 16],
    /// The number of 64-byte blocks that the work takes.
    pub(crate) blocks: usize,
    pub(crate) work: LaneWork<'a>,
}

/// A message's use of its generator's 64-byte blocks.
pub(crate) enum LaneWork<'a> {
    /// XORs keystream into data.
    Cipher(&'a mut [u8]),
    /// 128-NIA1 from the first five words.
    Uia2 { message: &'a [u8], bits: usize, tag: &'a mut [u8; 16] },
    /// 128-NIA3.
    Eia3(Eia3<'a>, &'a mut [u8; 16]),
    /// 256-NIA4 and 256-NIA6 from H, Q and P.
    Sst { message: &'a [u8], tag: &'a mut [u8; 16] },
    /// Ciphers with the keystream after H, Q and P, then computes the tag.
    Seal { aad: &'a [u8], data: &'a mut [u8], subkeys: Option<Subkeys>, tag: &'a mut [u8; 16] },
    /// Compares the tag, then deciphers the data or wipes them.
    Open { aad: &'a [u8], data: &'a mut [u8], tag: &'a [u8], authentic: &'a mut bool },
}

impl LaneWork<'_> {
    /// Returns the number of blocks that the message takes.
    pub(crate) fn blocks(&self) -> usize {
        match self {
            LaneWork::Cipher(data) => data.len().div_ceil(64),
            LaneWork::Uia2 { .. } | LaneWork::Sst { .. } => 1,
            LaneWork::Eia3(mac, _) => mac.words().div_ceil(16),
            LaneWork::Seal { data, .. } | LaneWork::Open { data, .. } => (data.len() + SUBKEYS).div_ceil(64),
        }
    }

    /// Processes block `index`. Blocks come in order.
    #[inline(always)]
    pub(crate) fn take<W: Words>(&mut self, proof: W::Proof, index: usize, block: &Block) {
        match self {
            LaneWork::Cipher(data) => xor_block(&mut data[64 * index..], block),
            LaneWork::Uia2 { message, bits, tag } => {
                tag[..4].copy_from_slice(&uia2::mac::<W>(proof, &bytes(block), message, *bits));
            }
            LaneWork::Eia3(mac, tag) => {
                mac.take::<W>(proof, index, block);
                tag[..4].copy_from_slice(&mac.tag());
            }
            LaneWork::Sst { message, tag } => **tag = subkeys(block).tag(message, &[]),
            LaneWork::Seal { aad, data, subkeys: kept, tag } => {
                if index == 0 {
                    *kept = Some(subkeys(block));
                }
                xor_behind_subkeys(data, index, block);
                // The tag covers the whole ciphertext, and so follows the last block.
                if 64 * (index + 1) >= data.len() + SUBKEYS {
                    **tag = kept.take().expect("the first block came first").tag(aad, data);
                }
            }
            LaneWork::Open { aad, data, tag, authentic } => {
                if index == 0 {
                    // The first block has the subkeys, so the tag is known before any data are deciphered.
                    **authentic = subkeys(block).accepts(aad, data, tag);
                    if !**authentic {
                        data.fill(0);
                    }
                }
                if **authentic {
                    xor_behind_subkeys(data, index, block);
                }
            }
        }
    }
}

/// Bytes of H, Q and P.
const SUBKEYS: usize = 48;

fn subkeys(block: &Block) -> Subkeys {
    let [h, q, p, _] = *bytes(block).as_chunks::<16>().0 else { unreachable!("64 bytes") };
    Subkeys::new(&[h, q, p])
}

#[inline(always)]
fn xor_behind_subkeys(data: &mut [u8], index: usize, block: &Block) {
    match index {
        0 => xor_end(data, &bytes(block)[SUBKEYS..]),
        _ => xor_block(&mut data[64 * index - SUBKEYS..], block),
    }
}

/// XORs keystream into the first 64 bytes, or into all if there are fewer.
#[inline(always)]
fn xor_block(data: &mut [u8], block: &Block) {
    // Whole blocks are XORed word by word.
    let Some(data) = data.first_chunk_mut::<64>() else { return xor_end(data, &bytes(block)) };
    for (data, key) in data.as_chunks_mut::<8>().0.iter_mut().zip(block) {
        *data = (u64::from_le_bytes(*data) ^ key).to_le_bytes();
    }
}

#[cold]
fn xor_end(data: &mut [u8], keystream: &[u8]) {
    for (byte, key) in data.iter_mut().zip(keystream) {
        *byte ^= key;
    }
}
