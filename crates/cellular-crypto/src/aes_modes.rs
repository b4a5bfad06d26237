//! The AES modes of 5G: counter mode and, with keys of 128 bits, CMAC.

use resumable_aead::{AesKey, CbcMac};
use zeroize::Zeroizing;

/// An AES-128 key with its CMAC subkey.
pub(crate) struct Aes128Key {
    pub(crate) cipher: AesKey,
    /// CMAC's K1 (SP 800-38B 6.1), big-endian.
    subkey: Box<Zeroizing<u128>>,
}

impl Aes128Key {
    pub(crate) fn new(key: &[u8; 16]) -> Aes128Key {
        let cipher = AesKey::new(key).expect("of 16 bytes");
        let zero = Zeroizing::new(cipher.encrypt_block(&[0; 16]));
        let subkey = Box::new(Zeroizing::new(double(u128::from_be_bytes(*zero))));
        Aes128Key { cipher, subkey }
    }
}

/// The CMAC of eight bytes and a message. Several are computed side by side.
pub(crate) struct Cmac<'a> {
    key: &'a AesKey,
    /// The first block of a message of two or more blocks.
    first: Option<[u8; 16]>,
    middle: &'a [u8],
    /// The last block, XORed with a subkey.
    last: Zeroizing<[u8; 16]>,
    tag: &'a mut [u8; 16],
}

impl<'a> Cmac<'a> {
    /// Prepares the CMAC of the first `bits` of `message`.
    pub(crate) fn new(
        key: &'a Aes128Key,
        prefix: [u8; 8],
        message: &'a [u8],
        bits: usize,
        tag: &'a mut [u8; 16],
    ) -> Cmac<'a> {
        let message = &message[..bits.div_ceil(8)];
        let (start, rest) = message.split_at(message.len().min(8));
        // The first block is the prefix and eight bytes of the message.
        let first = u128::from(u64::from_be_bytes(prefix)) << 64 | padded(start) >> 64;
        // The last block has 1 to 16 bytes, unless the message ends in the first block.
        let (middle, last) = rest.split_at(rest.len().saturating_sub(1) / 16 * 16);
        let is_alone = rest.is_empty();
        let last = if is_alone { first } else { padded(last) };
        let last = match (64 + bits) % 128 {
            0 => last ^ **key.subkey,
            used => {
                // The last byte's bits after the message are replaced by a one and zeros.
                let past = u128::MAX >> used;
                last & !past ^ (past & !(past >> 1)) ^ double(**key.subkey)
            }
        };
        let first = (!is_alone).then(|| first.to_be_bytes());
        Cmac { key: &key.cipher, first, middle, last: Zeroizing::new(last.to_be_bytes()), tag }
    }

    fn chain(&self) -> CbcMac<'_> {
        let first = self.first.as_ref().map_or(&[][..], |first| first);
        CbcMac::new(self.key, [first, self.middle, &*self.last])
    }

    /// Computes the tags of all.
    pub(crate) fn run(all: &mut [Cmac<'_>]) {
        let mut chains: Vec<CbcMac<'_>> = all.iter().map(Cmac::chain).collect();
        CbcMac::run(&mut chains);
        let macs: Vec<[u8; 16]> = chains.iter().map(CbcMac::mac).collect();
        all.iter_mut().zip(macs).for_each(|(cmac, mac)| *cmac.tag = mac);
    }
}

/// Returns keystream blocks 0 to N - 1, from the counter block `first`.
pub(crate) fn keystream<const N: usize>(key: &AesKey, first: u128) -> [[u8; 16]; N] {
    let mut blocks = [[0; 16]; N];
    key.counter_mode(first, blocks.as_flattened_mut());
    blocks
}

/// Returns up to 16 bytes as the high bytes of a block.
fn padded(bytes: &[u8]) -> u128 {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    u128::from_be_bytes(block)
}

/// Multiplies by x modulo x^128 + x^7 + x^2 + x + 1.
fn double(element: u128) -> u128 {
    element << 1 ^ (element >> 127).wrapping_neg() & 0x87
}
