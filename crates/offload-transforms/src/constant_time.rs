//! Verification of MAC-then-encrypt records (TLS 1.2) in a time that does not depend on the padding.
//!
//! After decryption, the last byte states the length of the padding, and thereby the position of the MAC and the length
//! of the plaintext. Before the MAC is verified, this byte may be forged, so the running time must not depend on it
//! (Lucky Thirteen, AlFardan and Paterson 2013). The number of iterations of all loops follows from the length of the
//! ciphertext alone, each byte and each block of the hash is touched for any padding, and values are selected by masks.

use crate::hash::{BLOCK, HmacKey, LONGEST, MacTag};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq, ConstantTimeGreater};

/// Size in bytes of the header in front of the authenticated data: the record's number, type and version, and the
/// length.
pub(crate) const HEADER: usize = 13;

/// Size of the header without the length, in bytes.
pub(crate) const AAD: usize = HEADER - 2;

/// Checks decrypted bytes: plaintext, MAC and padding. Returns the length of the plaintext if all are valid. Returns
/// `None` at once if `data` is too short, because the length is public.
pub(crate) fn check(key: &HmacKey, aad: &[u8; AAD], data: &[u8]) -> Option<usize> {
    let mac_len = key.hash.len();
    // The longest possible plaintext has one byte of padding.
    let most = data.len().checked_sub(mac_len + 1)?;
    let last = *data.last()?;
    let padding = u32::from(last);
    // An impossible padding is replaced by none, and the check goes on as if nothing had happened.
    let fits = !padding.ct_gt(&(most as u32));
    let padding = u32::conditional_select(&0, &padding, fits);
    let plain = most as u32 - padding;

    let mut good = fits;
    // RFC 5246 6.2.3.2: each byte of the padding holds its length. Only the last 256 bytes can be padding.
    for (from_end, byte) in (0u32..).zip(data.iter().rev().take(256)) {
        let is_padding = !from_end.ct_gt(&padding);
        good &= !is_padding | byte.ct_eq(&last);
    }
    let expected = mac(key, aad, &data[..most], plain);
    let found = slice_at(data, plain, mac_len, most);
    good &= found[..mac_len].ct_eq(&expected[..mac_len]);
    // From here on the result is public, because the sender sees whether the record was accepted.
    bool::from(good).then_some(plain as usize)
}

/// Computes the MAC of the header and of the first `plain` bytes of `data`. Later bytes have no effect, and
/// `plain` has no effect on the time.
fn mac(key: &HmacKey, aad: &[u8; AAD], data: &[u8], plain: u32) -> MacTag {
    let mut header = [0; HEADER];
    header[..AAD].copy_from_slice(aad);
    header[AAD..].copy_from_slice(&(plain as u16).to_be_bytes());
    let message = HEADER as u32 + plain;
    let bits = (8 * (BLOCK as u64 + u64::from(message))).to_be_bytes();
    // The hash appends a byte 0x80 to the message, and its length at the end of the last block.
    let last_block = (message + 8) / BLOCK as u32;
    let blocks = (HEADER + data.len() + 8) / BLOCK + 1;
    // Blocks that belong to the message for any padding, because at most 255 bytes vary.
    let certain = (HEADER + data.len()).saturating_sub(255) / BLOCK;

    let mut chain = key.begin_inner();
    let mut digest = MacTag::default();
    for number in 0..blocks {
        let start = number * BLOCK;
        let mut block = [0; BLOCK];
        for (at, byte) in (start..).zip(&mut block) {
            *byte = match at.checked_sub(HEADER) {
                None => header[at],
                Some(at) => data.get(at).copied().unwrap_or(0),
            };
        }
        // The message may end in any of these blocks. Each is prepared as if it might be the last one, and the digest
        // is selected by a mask.
        if number >= certain {
            let is_last = (number as u32).ct_eq(&last_block);
            for (at, byte) in (start as u32..).zip(&mut block) {
                let end = u8::conditional_select(&0, &0x80, at.ct_eq(&message));
                *byte = u8::conditional_select(&end, byte, message.ct_gt(&at));
            }
            for (byte, bits) in block[BLOCK - 8..].iter_mut().zip(bits) {
                *byte = u8::conditional_select(byte, &bits, is_last);
            }
            chain.compress(&block);
            let value = chain.value();
            digest.iter_mut().zip(value).for_each(|(digest, byte)| digest.conditional_assign(&byte, is_last));
        } else {
            chain.compress(&block);
        }
    }
    key.finish(&digest)
}

/// Copies the `len` bytes at `at` in `data`, where `at` lies between `most - 255` and `most`.
fn slice_at(data: &[u8], at: u32, len: usize, most: usize) -> MacTag {
    let mut slice = [0u8; LONGEST];
    let first = most.saturating_sub(255);
    // Every byte of the possible range is read for every byte of the result, so that memory accesses do not reveal
    // `at`.
    for (place, byte) in (first as u32..).zip(&data[first..most + len]) {
        for (offset, found) in (0u32..).zip(&mut slice[..len]) {
            *found |= u8::conditional_select(&0, byte, Choice::from(place.ct_eq(&(at + offset)).unwrap_u8()));
        }
    }
    slice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HmacHash, SecretBytes};

    const RECORD: [u8; AAD] = *b"number and.";

    /// Builds a plaintext, its MAC, and `padding` bytes of padding.
    fn decrypted(key: &HmacKey, plain: &[u8], padding: usize) -> Vec<u8> {
        let length = (plain.len() as u16).to_be_bytes();
        let tag = key.mac(&[&RECORD, &length, plain]);
        [plain, &tag[..key.hash.len()], &vec![(padding - 1) as u8; padding]].concat()
    }

    /// RFC 5246 6.2.3.2: the receiver must check each byte of the padding. An attacker who can forge padding bytes
    /// learns the last byte of blocks (POODLE).
    #[test]
    fn each_byte_of_the_padding_is_verified() {
        for hash in [HmacHash::Sha1, HmacHash::Sha256] {
            let key = HmacKey::new(hash, &SecretBytes::new(vec![7; 20])).unwrap();
            for (plain, padding) in [(100, 256), (0, 256), (1000, 16), (1000, 2), (5, 1)] {
                let plain: Vec<u8> = (0..plain).map(|at| at as u8).collect();
                let data = decrypted(&key, &plain, padding);
                assert_eq!(check(&key, &RECORD, &data), Some(plain.len()));
                for from_end in 0..padding {
                    for bit in 0..8 {
                        let mut wrong = data.clone();
                        let at = data.len() - 1 - from_end;
                        wrong[at] ^= 1 << bit;
                        assert_eq!(check(&key, &RECORD, &wrong), None, "{padding} bytes, {from_end} from the end");
                    }
                }
            }
        }
    }

    #[test]
    fn mac_and_plaintext_are_checked() {
        let key = HmacKey::new(HmacHash::Sha256, &SecretBytes::new(vec![7; 32])).unwrap();
        let data = decrypted(&key, b"plaintext", 23);
        for at in 0..data.len() - 23 {
            let mut wrong = data.clone();
            wrong[at] ^= 0x10;
            assert_eq!(check(&key, &RECORD, &wrong), None, "byte {at}");
        }
        assert_eq!(check(&key, &[0; AAD], &data), None);
        // If the padding is longer than the record, there is no place for the MAC.
        assert_eq!(check(&key, &RECORD, &[255; 64]), None);
        assert_eq!(check(&key, &RECORD, &[0; 32]), None);
    }
}
