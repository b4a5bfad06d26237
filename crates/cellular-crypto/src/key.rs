//! Keys, and operations on single messages.

use std::fmt;

use resumable_aead::AesKey;
use zeroize::Zeroizing;

use crate::aes_modes::Aes128Key;
use crate::engine::Engine;
use crate::jobs::{CipherJob, MacJob, OpenJob, SealJob};
use crate::{Algorithm, Direction, Iv, KeyLengthError, MessageError, PduNumber, Tag, TagLen, VerifyError};

/// A key for one algorithm.
///
/// It is stored on the heap, wiped there when dropped, and never printed.
///
/// ```
/// use cellular_crypto::{Algorithm, Direction, Iv, Key, PduNumber, TagLen};
///
/// let [ciphering, integrity] = [[7; 16], [8; 16]].map(|key| Key::new(Algorithm::Snow3g, &key).expect("16 bytes"));
/// let number = PduNumber::new(1, 3, Direction::Uplink).expect("a bearer below 32");
/// let mut data = *b"a PDU of PDCP";
///
/// let iv = Iv::mac(Algorithm::Snow3g, number, TagLen::FOUR);
/// let tag = integrity.mac(&iv, &data, TagLen::FOUR)?;
/// ciphering.cipher(&Iv::cipher(Algorithm::Snow3g, number), &mut data)?;
/// assert_ne!(&data, b"a PDU of PDCP");
///
/// ciphering.cipher(&Iv::cipher(Algorithm::Snow3g, number), &mut data)?;
/// integrity.verify(&iv, &data, tag.as_bytes())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Key {
    algorithm: Algorithm,
    pub(crate) secret: ExpandedKey,
}

/// The expanded key of a generator or AES.
pub(crate) enum ExpandedKey {
    /// The first 16 bytes for SNOW 3G and ZUC-128; all for Snow 5G and ZUC-256.
    Bytes(Box<Zeroizing<[u8; 32]>>),
    Aes128(Aes128Key),
    Aes256(AesKey),
}

/// The maximum length of a message in bytes: the length fields of some algorithms cannot hold 2^32 bits.
pub const MESSAGE_MAX: usize = (1 << 29) - 1;

impl Key {
    /// Expands `key`.
    ///
    /// # Errors
    /// [`KeyLengthError`] unless `key` is [`Algorithm::key_len`] bytes long.
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Result<Key, KeyLengthError> {
        let wrong = KeyLengthError { algorithm, found: key.len() };
        let secret = match algorithm {
            Algorithm::Aes128 => ExpandedKey::Aes128(Aes128Key::new(key.try_into().map_err(|_| wrong)?)),
            _ if key.len() != algorithm.key_len() => return Err(wrong),
            Algorithm::Aes256 => ExpandedKey::Aes256(AesKey::new(key).map_err(|_| wrong)?),
            _ => {
                // Keys of 16 bytes are padded with zeros, which are not used.
                let mut bytes = Box::new(Zeroizing::new([0; 32]));
                bytes[..key.len()].copy_from_slice(key);
                ExpandedKey::Bytes(bytes)
            }
        };
        Ok(Key { algorithm, secret })
    }

    /// Returns the key's algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns 16 bytes that differ for different keys. They are keystream of one fixed IV, and so as secret as the
    /// key.
    ///
    /// ```
    /// use cellular_crypto::{Algorithm, Key};
    ///
    /// let fingerprint = |byte| Key::new(Algorithm::Zuc128, &[byte; 16]).expect("16 bytes").fingerprint();
    /// assert_eq!(fingerprint(1), fingerprint(1));
    /// assert_ne!(fingerprint(1), fingerprint(2));
    /// ```
    pub fn fingerprint(&self) -> [u8; 16] {
        let number = PduNumber::new(u32::MAX, 31, Direction::Downlink).expect("BEARER has five bits");
        let mut bytes = [0; 16];
        self.cipher(&Iv::cipher(self.algorithm, number), &mut bytes).expect("16 bytes are a short message");
        bytes
    }

    /// NEA: ciphers or deciphers in place.
    ///
    /// # Errors
    /// [`MessageError::TooLong`].
    pub fn cipher(&self, iv: &Iv, data: &mut [u8]) -> Result<(), MessageError> {
        let mut jobs = [CipherJob::new(self, *iv, data)?];
        Engine::best().cipher(&mut jobs);
        Ok(())
    }

    /// NEA of the first `bits` of `data`, from the highest of each byte. The remaining bits are unchanged.
    ///
    /// # Errors
    /// [`MessageError::NotWholeBytes`] for a 256-bit algorithm, [`MessageError::Short`], [`MessageError::TooLong`].
    pub fn cipher_bits(&self, iv: &Iv, data: &mut [u8], bits: usize) -> Result<(), MessageError> {
        self.check_bits(data.len(), bits)?;
        let data = &mut data[..bits.div_ceil(8)];
        let before = data.last().copied().unwrap_or(0);
        self.cipher(iv, data)?;
        if let (Some(last), past @ 1..) = (data.last_mut(), bits % 8) {
            let past = 0xff >> past;
            *last = *last & !past | before & past;
        }
        Ok(())
    }

    /// NIA: computes the tag of a message.
    ///
    /// # Errors
    /// [`MessageError::TagLength`] for a 128-bit algorithm unless the tag has 4 bytes, [`MessageError::TooLong`].
    pub fn mac(&self, iv: &Iv, message: &[u8], tag: TagLen) -> Result<Tag, MessageError> {
        self.mac_bits(iv, message, 8 * message.len(), tag)
    }

    /// NIA of the first `bits` of `message`, from the highest of each byte.
    ///
    /// # Errors
    /// As for [`Key::mac`]; [`MessageError::NotWholeBytes`] for a 256-bit algorithm, [`MessageError::Short`].
    pub fn mac_bits(&self, iv: &Iv, message: &[u8], bits: usize, tag: TagLen) -> Result<Tag, MessageError> {
        let mut jobs = [MacJob::for_bits(self, *iv, message, bits, tag)?];
        Engine::best().mac(&mut jobs);
        Ok(jobs[0].tag())
    }

    /// NIA: verifies a message. The length of `tag` selects the tag length.
    ///
    /// # Errors
    /// [`VerifyError::TagMismatch`] if the message is not authentic.
    pub fn verify(&self, iv: &Iv, message: &[u8], tag: &[u8]) -> Result<(), VerifyError> {
        let len = TagLen::new(tag.len()).ok_or(VerifyError::TagBytes(tag.len()))?;
        match self.mac(iv, message, len)?.fits(tag) {
            true => Ok(()),
            false => Err(VerifyError::TagMismatch),
        }
    }

    /// NCA: ciphers `data` in place and returns the tag over `aad` and the ciphertext.
    ///
    /// ```
    /// use cellular_crypto::{Algorithm, Direction, Iv, Key, PduNumber, TagLen};
    ///
    /// let key = Key::new(Algorithm::Snow5g, &[7; 32])?;
    /// let number = PduNumber::new(1, 3, Direction::Downlink).expect("a bearer below 32");
    /// let iv = Iv::aead(Algorithm::Snow5g, number, TagLen::FOUR);
    /// let mut data = *b"a PDU";
    /// let tag = key.seal(&iv, b"its header", &mut data, TagLen::FOUR)?;
    /// key.open(&iv, b"its header", &mut data, tag.as_bytes())?;
    /// assert_eq!(&data, b"a PDU");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MessageError::NoAead`] for a 128-bit algorithm, [`MessageError::TooLong`].
    pub fn seal(&self, iv: &Iv, aad: &[u8], data: &mut [u8], tag: TagLen) -> Result<Tag, MessageError> {
        let mut jobs = [SealJob::new(self, *iv, aad, data, tag)?];
        Engine::best().seal(&mut jobs);
        Ok(jobs[0].tag())
    }

    /// NCA: compares the tag, then deciphers `data` in place. The length of `tag` selects the tag length.
    ///
    /// # Errors
    /// [`VerifyError::TagMismatch`] if the message is not authentic. `data` is then filled with zeros.
    pub fn open(&self, iv: &Iv, aad: &[u8], data: &mut [u8], tag: &[u8]) -> Result<(), VerifyError> {
        let mut jobs = [OpenJob::new(self, *iv, aad, data, tag)?];
        Engine::best().open(&mut jobs);
        match jobs[0].is_authentic() {
            true => Ok(()),
            false => Err(VerifyError::TagMismatch),
        }
    }

    pub(crate) fn check_bits(&self, bytes: usize, bits: usize) -> Result<(), MessageError> {
        // Only the 256-bit algorithms have an AEAD.
        if self.algorithm.has_aead() && !bits.is_multiple_of(8) {
            return Err(MessageError::NotWholeBytes(self.algorithm));
        }
        if bits > 8 * MESSAGE_MAX {
            return Err(MessageError::TooLong);
        }
        if bits.div_ceil(8) > bytes {
            return Err(MessageError::Short);
        }
        Ok(())
    }

    pub(crate) fn check_tag(&self, tag: TagLen) -> Result<(), MessageError> {
        match self.algorithm.has_aead() || tag == TagLen::FOUR {
            true => Ok(()),
            false => Err(MessageError::TagLength(self.algorithm)),
        }
    }

    pub(crate) fn check_aead(&self, aad: usize, data: usize) -> Result<(), MessageError> {
        if !self.algorithm.has_aead() {
            return Err(MessageError::NoAead(self.algorithm));
        }
        if aad.max(data) > MESSAGE_MAX {
            return Err(MessageError::TooLong);
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}
