//! The jobs of a batch, with any algorithms, keys and lengths.

use crate::{Iv, Key, MESSAGE_MAX, MessageError, Tag, TagLen, VerifyError};

/// NEA of a message.
///
/// See [`Engine`](crate::Engine) for an example.
#[derive(Debug)]
pub struct CipherJob<'a> {
    pub(crate) key: &'a Key,
    pub(crate) iv: Iv,
    pub(crate) data: &'a mut [u8],
}

impl<'a> CipherJob<'a> {
    /// Creates a job that ciphers or deciphers `data` in place.
    ///
    /// # Errors
    /// [`MessageError::TooLong`].
    pub fn new(key: &'a Key, iv: Iv, data: &'a mut [u8]) -> Result<Self, MessageError> {
        match data.len() <= MESSAGE_MAX {
            true => Ok(CipherJob { key, iv, data }),
            false => Err(MessageError::TooLong),
        }
    }
}

/// NIA of a message.
///
/// See [`Engine`](crate::Engine) for an example.
#[derive(Debug)]
pub struct MacJob<'a> {
    pub(crate) key: &'a Key,
    pub(crate) iv: Iv,
    pub(crate) message: &'a [u8],
    pub(crate) bits: usize,
    pub(crate) len: TagLen,
    pub(crate) tag: [u8; 16],
}

impl<'a> MacJob<'a> {
    /// Creates a job that authenticates `message`.
    ///
    /// # Errors
    /// See [`Key::mac`].
    pub fn new(key: &'a Key, iv: Iv, message: &'a [u8], tag: TagLen) -> Result<Self, MessageError> {
        Self::for_bits(key, iv, message, 8 * message.len(), tag)
    }

    /// Creates a job that authenticates the first `bits` of `message`.
    ///
    /// # Errors
    /// See [`Key::mac_bits`].
    pub fn for_bits(key: &'a Key, iv: Iv, message: &'a [u8], bits: usize, tag: TagLen) -> Result<Self, MessageError> {
        key.check_bits(message.len(), bits)?;
        key.check_tag(tag)?;
        Ok(MacJob { key, iv, message: &message[..bits.div_ceil(8)], bits, len: tag, tag: [0; 16] })
    }

    /// Returns the tag after [`Engine::mac`](crate::Engine::mac) has run, and zeros before.
    pub fn tag(&self) -> Tag {
        Tag::truncate(self.tag, self.len)
    }
}

/// NCA of a message: ciphering and a tag.
///
/// See [`Engine`](crate::Engine) for an example.
#[derive(Debug)]
pub struct SealJob<'a> {
    pub(crate) key: &'a Key,
    pub(crate) iv: Iv,
    pub(crate) aad: &'a [u8],
    pub(crate) data: &'a mut [u8],
    pub(crate) len: TagLen,
    pub(crate) tag: [u8; 16],
}

impl<'a> SealJob<'a> {
    /// Creates a job that ciphers `data` in place and computes a tag over `aad` and the ciphertext.
    ///
    /// # Errors
    /// See [`Key::seal`].
    pub fn new(key: &'a Key, iv: Iv, aad: &'a [u8], data: &'a mut [u8], tag: TagLen) -> Result<Self, MessageError> {
        key.check_aead(aad.len(), data.len())?;
        Ok(SealJob { key, iv, aad, data, len: tag, tag: [0; 16] })
    }

    /// Returns the tag after [`Engine::seal`](crate::Engine::seal) has run, and zeros before.
    pub fn tag(&self) -> Tag {
        Tag::truncate(self.tag, self.len)
    }
}

/// NCA of a received message with its tag.
///
/// See [`Engine`](crate::Engine) for an example.
#[derive(Debug)]
pub struct OpenJob<'a> {
    pub(crate) key: &'a Key,
    pub(crate) iv: Iv,
    pub(crate) aad: &'a [u8],
    pub(crate) data: &'a mut [u8],
    pub(crate) tag: &'a [u8],
    pub(crate) authentic: bool,
}

impl<'a> OpenJob<'a> {
    /// Creates a job that compares `tag`, of 4 to 16 bytes, and deciphers `data` in place.
    ///
    /// # Errors
    /// See [`Key::open`]. Forgeries are no error here.
    pub fn new(key: &'a Key, iv: Iv, aad: &'a [u8], data: &'a mut [u8], tag: &'a [u8]) -> Result<Self, VerifyError> {
        TagLen::new(tag.len()).ok_or(VerifyError::TagBytes(tag.len()))?;
        key.check_aead(aad.len(), data.len())?;
        Ok(OpenJob { key, iv, aad, data, tag, authentic: false })
    }

    /// Tests whether the tag is valid, after [`Engine::open`](crate::Engine::open) has run. The data of a forged
    /// message are zeros.
    pub fn is_authentic(&self) -> bool {
        self.authentic
    }
}
