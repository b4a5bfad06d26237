//! AES-CBC with HMAC in either order, padded as in TLS.

use crate::aes_key::{ExpandedAesKey, with_aes};
use crate::constant_time::{self, AAD, HEADER};
use crate::hash::{HmacKey, MacTag};
use crate::pieces::OutputBuffer;
use crate::{Fault, HmacHash, Parameters, SecretBytes, SpecError, TransformDirection};
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit};
use bytes::Bytes;
use subtle::ConstantTimeEq;

/// The order of authentication and encryption.
///
/// The IV is a parameter, and not part of the source or result.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::{HmacHash, MacOrder, Parameters, SecretBytes, Session, Transform, TransformDirection};
///
/// let session = Session::new(&Transform::CbcHmac {
///     order: MacOrder::MacThenEncrypt, // TLS 1.2
///     hash: HmacHash::Sha1,
///     cipher_key: SecretBytes::new(vec![1; 16]),
///     mac_key: SecretBytes::new(vec![2; 20]),
/// })?;
/// let record_0 = Parameters { iv: [9; 16], aad: &[0, 0, 0, 0, 0, 0, 0, 0, 23, 3, 3] };
/// let mut sealed = BytesMut::with_capacity(48);
/// session.run(TransformDirection::Apply, record_0, &[Bytes::from_static(b"twelve bytes")], &mut sealed)?;
/// assert_eq!(sealed.len(), 48, "12, a MAC of 20, padding");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MacOrder {
    /// The MAC covers additional data, IV and ciphertext, and follows the ciphertext. By RFC 7366 the additional data
    /// are number, type, version and length.
    EncryptThenMac,
    /// The MAC covers additional data, the length of the plaintext in two bytes, and the plaintext. The MAC follows the
    /// plaintext, and is encrypted with it. By RFC 5246 6.2.3 the additional data are number, type and version, 11
    /// bytes. The time of opening reveals neither the length of the padding nor that of the plaintext.
    MacThenEncrypt,
}

/// The expanded keys, with the order.
pub(crate) struct CbcHmac {
    order: MacOrder,
    cipher: ExpandedAesKey,
    mac: HmacKey,
}

impl CbcHmac {
    pub(crate) fn new(
        order: MacOrder,
        hash: HmacHash,
        cipher: &SecretBytes,
        mac: &SecretBytes,
    ) -> Result<CbcHmac, SpecError> {
        Ok(CbcHmac { order, cipher: ExpandedAesKey::new("AES-CBC", cipher)?, mac: HmacKey::new(hash, mac)? })
    }

    pub(crate) fn run(
        &self,
        way: TransformDirection,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<(), Fault> {
        room.append_all(source)?;
        match (way, self.order) {
            (TransformDirection::Apply, MacOrder::EncryptThenMac) => {
                self.pad_and_encrypt(&with.iv, room)?;
                let tag = self.mac_of_ciphertext(with, room.result());
                room.append(&tag[..self.mac.hash.len()])
            }
            (TransformDirection::Apply, MacOrder::MacThenEncrypt) => {
                let header = self.header(with, room.written())?;
                let tag = self.mac.mac(&[&header, room.result()]);
                room.append(&tag[..self.mac.hash.len()])?;
                self.pad_and_encrypt(&with.iv, room)
            }
            (TransformDirection::Undo, MacOrder::EncryptThenMac) => {
                let mac_len = self.mac.hash.len();
                // Only whole blocks can be decrypted, and padding needs at least one.
                let data = room.written().checked_sub(mac_len).filter(|data| *data >= BLOCK && data % BLOCK == 0);
                let data = data.ok_or(self.wrong_length(room.written()))?;
                let (data, tag) = room.result().split_at(data);
                let expected = self.mac_of_ciphertext(with, data);
                // Constant time: the position of the first difference would help to forge a tag.
                if !bool::from(expected[..mac_len].ct_eq(tag)) {
                    return Err(Fault::NotAuthentic);
                }
                room.shorten(mac_len);
                self.decrypt(&with.iv, room.result());
                // The MAC covers the padding, so wrong padding comes from the key's owner, and reveals nothing to an
                // attacker.
                let padding = usize::from(*room.result().last().unwrap_or(&0)) + 1;
                let is_padding = |byte: &u8| usize::from(*byte) + 1 == padding;
                if padding > room.written() || !room.result().iter().rev().take(padding).all(is_padding) {
                    return Err(Fault::NotAuthentic);
                }
                room.shorten(padding);
                Ok(())
            }
            (TransformDirection::Undo, MacOrder::MacThenEncrypt) => {
                let found = room.written();
                // The length of the ciphertext is public, so refusing it early reveals nothing.
                if !found.is_multiple_of(BLOCK) || found <= self.mac.hash.len() || found > LONGEST_RECORD {
                    return Err(self.wrong_length(found));
                }
                // The padding is not authenticated yet, so the check must not branch on it: see `constant_time`.
                let aad = with.aad.try_into().map_err(|_| self.wrong_aad(with.aad.len()))?;
                self.decrypt(&with.iv, room.result());
                let plain = constant_time::check(&self.mac, aad, room.result()).ok_or(Fault::NotAuthentic)?;
                room.shorten(found - plain);
                Ok(())
            }
        }
    }

    fn header(&self, with: Parameters<'_>, plain: usize) -> Result<[u8; HEADER], Fault> {
        let too_long = Fault::SourceLength { name: "AES-CBC with HMAC", found: plain, takes: "up to 16,640 bytes" };
        let aad: &[u8; AAD] = with.aad.try_into().map_err(|_| self.wrong_aad(with.aad.len()))?;
        // The largest padding is 256 bytes, and the opener refuses longer records.
        if plain + self.mac.hash.len() + 256 > LONGEST_RECORD {
            return Err(too_long);
        }
        let mut header = [0; HEADER];
        header[..AAD].copy_from_slice(aad);
        header[AAD..].copy_from_slice(&(plain as u16).to_be_bytes());
        Ok(header)
    }

    fn mac_of_ciphertext(&self, with: Parameters<'_>, data: &[u8]) -> MacTag {
        self.mac.mac(&[with.aad, &with.iv, data])
    }

    fn pad_and_encrypt(&self, iv: &[u8; BLOCK], room: &mut OutputBuffer<'_>) -> Result<(), Fault> {
        // RFC 5246 6.2.3.2: at least one byte of padding, and each byte holds the number of the other padding bytes.
        let padding = BLOCK - room.written() % BLOCK;
        room.append(&[padding as u8 - 1; BLOCK][..padding])?;
        let (blocks, _) = aes::Block::slice_as_chunks_mut(room.result());
        with_aes!(&self.cipher, aes => cbc::Encryptor::inner_iv_init((**aes).clone(), iv.into()).encrypt_blocks(blocks));
        Ok(())
    }

    fn decrypt(&self, iv: &[u8; BLOCK], data: &mut [u8]) {
        let (blocks, _) = aes::Block::slice_as_chunks_mut(data);
        with_aes!(&self.cipher, aes => cbc::Decryptor::inner_iv_init((**aes).clone(), iv.into()).decrypt_blocks(blocks));
    }

    fn wrong_length(&self, found: usize) -> Fault {
        Fault::SourceLength { name: "AES-CBC with HMAC", found, takes: "whole blocks, with a MAC, of a record" }
    }

    fn wrong_aad(&self, found: usize) -> Fault {
        Fault::SourceLength { name: "AES-CBC with HMAC", found, takes: "11 bytes of additional data" }
    }
}

/// Size of a block and of the IV in bytes.
const BLOCK: usize = 16;

/// Maximum size of an encrypted record in bytes (RFC 5246 6.2.3: 2^14 + 2048).
const LONGEST_RECORD: usize = (1 << 14) + 2048;
