//! The tag of 256-NIA and 256-NCA: POLYVAL (RFC 8452) with a key per message, as in GCM-SST.

use polyval::universal_hash::UniversalHash;
use polyval::{Block, Polyval};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// H, Q and P: the generator's first three blocks.
pub(crate) struct Subkeys(Zeroizing<[[u8; 16]; 3]>);

impl Subkeys {
    pub(crate) fn new(blocks: &[[u8; 16]; 3]) -> Self {
        Subkeys(Zeroizing::new(*blocks))
    }

    /// Tests whether the full tag begins with `tag`, in constant time.
    pub(crate) fn accepts(&self, aad: &[u8], ciphertext: &[u8], tag: &[u8]) -> bool {
        self.tag(aad, ciphertext)[..tag.len()].ct_eq(tag).into()
    }

    /// Returns the full tag over `aad` and `ciphertext`.
    pub(crate) fn tag(&self, aad: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let block = |index: usize| -> Block { self.0[index].into() };
        let mut hash = Polyval::new(&block(0));
        // Each input is padded by itself. An empty input has no block.
        hash.update_padded(aad);
        hash.update_padded(ciphertext);
        let mut sum = u128::from_le_bytes(hash.finalize().into());
        sum ^= u128::from(8 * ciphertext.len() as u64) | u128::from(8 * aad.len() as u64) << 64;
        // The lengths are multiplied by another key.
        let mut last = Polyval::new(&block(1));
        last.update(&[sum.to_le_bytes().into()]);
        let mask = u128::from_le_bytes(block(2).into());
        (u128::from_le_bytes(last.finalize().into()) ^ mask).to_le_bytes()
    }
}
