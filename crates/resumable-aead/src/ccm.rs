//! AES-CCM (RFC 3610, NIST SP 800-38C): the key, and the state between two pieces.
//!
//! The first block of the MAC holds the message's length, so the length must be known at the beginning. The MAC is over the
//! plaintext. This module uses only the operations of [`BlockCipher`].

use zeroize::Zeroize;

use crate::block::BlockCipher;
use crate::gcm::xor;
use crate::piece::MessagePiece;
use crate::state::MessageDirection;
use crate::state_bytes::{AUTHENTICATOR_LEN, array};
use crate::{Backend, TAG_LEN};

/// State of CCM between two pieces of a message.
#[derive(Clone, Copy)]
pub(crate) struct CcmState {
    /// CBC-MAC of the preceding bytes. Within a block, the bytes of the block are added but not yet enciphered.
    mac: [u8; 16],
    /// The keystream of the current block if the position is within one; otherwise unspecified.
    keystream: [u8; 16],
    /// Length of the whole message in bytes; [`NO_LEN`] if it was not given.
    len: u64,
}

/// An expanded AES-CCM key.
pub(crate) struct CcmKey {
    cipher: BlockCipher,
    tag_len: usize,
}

impl CcmKey {
    /// Expands a key of 16 or 32 bytes; tags have `tag_len` bytes.
    pub(crate) fn new(key: &[u8], tag_len: usize, backend: Backend) -> Self {
        CcmKey { cipher: BlockCipher::new(key, backend), tag_len }
    }

    /// Returns the key's fingerprint. By SP 800-38C A.2.1 and A.3, neither a first block nor a counter block begins with all ones.
    pub(crate) fn check(&self) -> u32 {
        u32::from_le_bytes(array(&self.cipher.encrypt_block(&[0xff; 16]), 0))
    }

    /// Begins a message of `len` bytes, which the caller checked against the length field of such a nonce.
    pub(crate) fn start(&self, nonce: &[u8], aad: &[u8], len: Option<u64>) -> CcmState {
        let Some(len) = len else { return CcmState { mac: [0; 16], keystream: [0; 16], len: NO_LEN } };
        // SP 800-38C A.2.1: flags, nonce, length.
        let mut first = counter_block(nonce, len);
        first[0] |= (u8::from(!aad.is_empty()) << 6) | (((self.tag_len - 2) / 2) as u8) << 3;
        let mut mac = self.cipher.encrypt_block(&first);
        self.absorb_aad(&mut mac, aad);
        CcmState { mac, keystream: [0; 16], len }
    }

    /// Absorbs the length of the AAD, the AAD, and zeros to a whole block (SP 800-38C A.2.2).
    fn absorb_aad(&self, mac: &mut [u8; 16], aad: &[u8]) {
        let mut first = [0; 16];
        let prefix = match aad.len() as u64 {
            0 => return,
            len @ 1..0xff00 => {
                first[..2].copy_from_slice(&(len as u16).to_be_bytes());
                2
            }
            len @ 0xff00..=0xffff_ffff => {
                first[..2].copy_from_slice(&[0xff, 0xfe]);
                first[2..6].copy_from_slice(&(len as u32).to_be_bytes());
                6
            }
            len => {
                first[..2].copy_from_slice(&[0xff, 0xff]);
                first[2..10].copy_from_slice(&len.to_be_bytes());
                10
            }
        };
        let (head, rest) = aad.split_at(aad.len().min(16 - prefix));
        first[prefix..prefix + head.len()].copy_from_slice(head);
        self.cipher.cbc_mac(mac, &first);
        let (body, tail) = rest.split_at(rest.len() - rest.len() % 16);
        self.cipher.cbc_mac(mac, body);
        if !tail.is_empty() {
            xor(mac, tail);
            *mac = self.cipher.encrypt_block(mac);
        }
    }

    /// Processes a piece at `position`, in place or from source to destination.
    pub(crate) fn crypt(
        &self,
        state: &mut CcmState,
        nonce: &[u8],
        position: u64,
        direction: MessageDirection,
        piece: MessagePiece<'_>,
    ) {
        let used = (position % 16) as usize;
        let (head, rest) = piece.split_at((16 - used) % 16);
        let head = head.into_in_place();
        if !head.is_empty() {
            crypt_within_block(state, used, direction, head);
            if used + head.len() == 16 {
                state.mac = self.cipher.encrypt_block(&state.mac);
            }
        }
        let mut block = block_number(position + head.len() as u64);
        let whole = rest.len() - rest.len() % 16;
        let (body, tail) = rest.split_at(whole);
        if whole != 0 {
            self.cipher.ccm(&mut state.mac, &counter_block(nonce, block), direction, body);
            block += (whole / 16) as u64;
        }
        let tail = tail.into_in_place();
        if !tail.is_empty() {
            state.keystream = self.cipher.encrypt_block(&counter_block(nonce, block));
            crypt_within_block(state, 0, direction, tail);
        }
    }

    /// Authenticates a piece of ciphertext at `position`. The MAC is over plaintext, which passes through a buffer here and
    /// is wiped.
    pub(crate) fn authenticate(&self, state: &mut CcmState, nonce: &[u8], mut position: u64, data: &[u8]) {
        let mut plaintext = [0; 1024];
        for piece in data.chunks(plaintext.len()) {
            let copy = MessagePiece::Copy(piece, &mut plaintext[..piece.len()]);
            self.crypt(state, nonce, position, MessageDirection::Decrypt, copy);
            position += piece.len() as u64;
        }
        plaintext.zeroize();
    }

    /// XORs the keystream at `position` into a piece.
    pub(crate) fn apply_keystream(&self, nonce: &[u8], position: u64, data: &mut [u8]) {
        // Only counter mode is needed, so the MAC is discarded.
        let used = (position % 16) as usize;
        let keystream = self.cipher.encrypt_block(&counter_block(nonce, block_number(position)));
        let mut state = CcmState { mac: [0; 16], keystream: if used == 0 { [0; 16] } else { keystream }, len: NO_LEN };
        self.crypt(&mut state, nonce, position, MessageDirection::Encrypt, MessagePiece::InPlace(data));
    }

    /// Returns the tag of a complete message of `position` bytes; zeros follow a short tag.
    pub(crate) fn finish(&self, state: &CcmState, nonce: &[u8], position: u64) -> [u8; TAG_LEN] {
        let mut tag = state.mac;
        if !position.is_multiple_of(16) {
            tag = self.cipher.encrypt_block(&tag);
        }
        // SP 800-38C 6.1 step 8: counter 0 masks the tag.
        xor(&mut tag, &self.cipher.encrypt_block(&counter_block(nonce, 0)));
        tag[self.tag_len..].fill(0);
        tag
    }
}

impl CcmState {
    /// Returns the length of the whole message in bytes, or `None` if it was not given.
    pub(crate) fn len(&self) -> Option<u64> {
        (self.len != NO_LEN).then_some(self.len)
    }

    pub(crate) fn to_bytes(self, position: u64) -> [u8; AUTHENTICATOR_LEN] {
        let mut bytes = [0; AUTHENTICATOR_LEN];
        bytes[..16].copy_from_slice(&self.mac);
        if !position.is_multiple_of(16) {
            bytes[16..32].copy_from_slice(&self.keystream);
        }
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses the bytes that `to_bytes` wrote; lengths are at most `len_max`.
    pub(crate) fn from_bytes(bytes: &[u8; AUTHENTICATOR_LEN], position: u64, len_max: u64) -> Option<Self> {
        let no_keystream = position.is_multiple_of(16) && bytes[16..32].iter().any(|&byte| byte != 0);
        let len = u64::from_le_bytes(array(bytes, 32));
        let has_room = if len == NO_LEN { position == 0 } else { position <= len && len <= len_max };
        if no_keystream || !has_room || bytes[40..].iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(CcmState { mac: array(bytes, 0), keystream: array(bytes, 16), len })
    }
}

/// Processes `data`, which lies within one block after its first `used` bytes.
fn crypt_within_block(state: &mut CcmState, used: usize, direction: MessageDirection, data: &mut [u8]) {
    if direction == MessageDirection::Encrypt {
        xor(&mut state.mac[used..], data);
    }
    xor(data, &state.keystream[used..]);
    if direction == MessageDirection::Decrypt {
        xor(&mut state.mac[used..], data);
    }
}

/// Returns a counter block (SP 800-38C A.3): a byte with the counter's length, the nonce, and the counter in the rest of 16 bytes.
fn counter_block(nonce: &[u8], counter: u64) -> [u8; 16] {
    debug_assert!((7..=13).contains(&nonce.len()));
    let mut block = (u128::from(counter)).to_be_bytes();
    block[0] = (14 - nonce.len()) as u8;
    block[1..=nonce.len()].copy_from_slice(nonce);
    block
}

/// Returns the counter of the block at a message position. The message begins at counter 1.
fn block_number(position: u64) -> u64 {
    position / 16 + 1
}

/// Marks an unknown length. No message is as long.
const NO_LEN: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    /// The standards' examples have nonces and tags of lengths that the crate does not offer. Key, nonce, AAD,
    /// plaintext, ciphertext, tag.
    #[test]
    fn standard_examples_match() {
        let counting = |from: u8, count: usize| (from..).take(count).collect::<Vec<u8>>();
        let long_aad: Vec<u8> = (0..=255).cycle().take(65536).collect();
        let examples = [
            // SP 800-38C example 1.
            (counting(0x40, 16), counting(0x10, 7), counting(0, 8), counting(0x20, 4), "7162015b", "4dac255d"),
            // Example 2.
            (
                counting(0x40, 16),
                counting(0x10, 8),
                counting(0, 16),
                counting(0x20, 16),
                "d2a1f0e051ea5f62081a7792073d593d",
                "1fc64fbfaccd",
            ),
            // Example 4: the AAD has the longer encoding of its length.
            (
                counting(0x40, 16),
                counting(0x10, 13),
                long_aad,
                counting(0x20, 32),
                "69915dad1e84c6376a68c2967e4dab615ae0fd1faec44cc484828529463ccf72",
                "b4ac6bec93e8598e7f0dadbcea5b",
            ),
            // RFC 3610 8, packet vector 1.
            (
                counting(0xc0, 16),
                unhex("00000003020100a0a1a2a3a4a5"),
                counting(0, 8),
                counting(8, 23),
                "588c979a61c663d2f066d0c2c0f989806d5f6b61dac384",
                "17e8d12cfdf926e0",
            ),
        ];
        for (key, nonce, aad, plaintext, ciphertext, tag) in examples {
            let (ciphertext, tag) = (unhex(ciphertext), unhex(tag));
            for backend in Backend::ALL.into_iter().filter(|&backend| crate::block::is_available(backend)) {
                let key = CcmKey::new(&key, tag.len(), backend);
                for split in 0..=plaintext.len() {
                    let mut data = plaintext.clone();
                    let mut state = key.start(&nonce, &aad, Some(data.len() as u64));
                    let (first, second) = data.split_at_mut(split);
                    key.crypt(&mut state, &nonce, 0, MessageDirection::Encrypt, MessagePiece::InPlace(first));
                    key.crypt(
                        &mut state,
                        &nonce,
                        split as u64,
                        MessageDirection::Encrypt,
                        MessagePiece::InPlace(second),
                    );
                    assert_eq!(data, ciphertext, "{backend:?} split at {split}");
                    assert_eq!(key.finish(&state, &nonce, data.len() as u64)[..tag.len()], tag, "{backend:?} {split}");
                }
            }
        }
    }
}
