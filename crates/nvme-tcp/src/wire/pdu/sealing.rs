//! Encryption of data on the way to the wire, by a device or by the CPU when the PDU is queued.

use crate::volume::KeyedVolume;
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use offload_base::cost::{self, WorkKind};
use smallvec::SmallVec;

/// Parameters to encrypt the data of a PDU.
#[derive(Clone, Debug)]
pub(crate) struct DataEncryption {
    /// The volume of the data.
    pub(crate) volume: KeyedVolume,
    /// The first block of the command.
    pub(crate) first: u64,
    /// Offset of the data in the command's data. Offset and length are multiples of the cipher block.
    pub(crate) at: u32,
}

impl DataEncryption {
    /// Returns the encrypted data.
    pub(super) fn encrypt(&self, data: &[Bytes]) -> Bytes {
        let mut sealed = BytesMut::with_capacity(data.iter().map(Bytes::len).sum());
        {
            let _scope = cost::work(WorkKind::Copy);
            data.iter().for_each(|piece| sealed.extend_from_slice(piece));
        }
        self.encrypt_in_place(&mut sealed);
        sealed.freeze()
    }

    /// Encrypts `data` in place.
    pub(crate) fn encrypt_in_place(&self, data: &mut [u8]) {
        let _scope = cost::work(WorkKind::Crypto);
        if self.volume.encrypt(self.first, self.at.into(), data).is_err() {
            // The data are outside the volume, or the volume was erased. Send zeros rather than plaintext.
            data.fill(0);
        }
    }

    /// Encrypts any byte range of a command's data.
    pub(crate) fn part(volume: &KeyedVolume, first: u64, data: &[Bytes], range: Range<u32>) -> Bytes {
        // XTS encrypts whole cipher blocks, so the range is extended to block boundaries and cut afterwards.
        let start = range.start - range.start % CIPHER_BLOCK;
        let end = range.end.next_multiple_of(CIPHER_BLOCK);
        let whole = slice(data, start as usize, (end - start) as usize);
        let sealing = DataEncryption { volume: volume.clone(), first, at: start };
        let (from, to) = ((range.start - start) as usize, (range.end - start) as usize);
        let sealed = sealing.encrypt(&whole);
        sealed.slice(from..to.min(sealed.len()))
    }
}

/// Returns `length` bytes of `pieces` from `offset` on, without a copy.
pub(crate) fn slice(pieces: &[Bytes], offset: usize, length: usize) -> SmallVec<[Bytes; 4]> {
    let (mut skip, mut left) = (offset, length);
    let mut taken = SmallVec::new();
    for piece in pieces {
        if left == 0 {
            break;
        }
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let part = piece.slice(skip..piece.len().min(skip + left));
        (skip, left) = (0, left - part.len());
        taken.push(part);
    }
    taken
}

/// Bytes of an AES block.
pub(crate) const CIPHER_BLOCK: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use resumable_aead::{DataUnits, Volume, XtsKey};

    #[test]
    fn encrypted_part_matches_the_whole() {
        let key: Vec<u8> = (0..64).collect();
        let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap()));
        let plain: Vec<u8> = (0..1536).map(|at| (at * 7) as u8).collect();
        let pieces = [Bytes::copy_from_slice(&plain[..700]), Bytes::copy_from_slice(&plain[700..])];
        let mut whole = plain;
        volume.encrypt(4, 0, &mut whole).unwrap();
        for (start, end) in [(0, 1536), (4, 8), (12, 20), (4, 1532), (700, 1200), (1532, 1536)] {
            let part = DataEncryption::part(&volume, 4, &pieces, start..end);
            assert_eq!(part[..], whole[start as usize..end as usize], "{start}..{end}");
        }
        // Data without a block number in the volume are sent as zeros.
        let sealing = DataEncryption { volume, first: u64::MAX, at: 0 };
        assert_eq!(sealing.encrypt(&[Bytes::from_static(&[9; 1024])]), [0; 1024][..]);
    }
}
