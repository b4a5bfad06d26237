//! A volume that the disk under it holds as ciphertext only: AES-XTS, as dm-crypt's `aes-xts-plain64` with `iv_large_sectors` has it.

use bytes::{Bytes, BytesMut};
use nvme_tcp::exercise::BlockCipher;
use offload_transforms::{Parameters, Secret, Session, SpecError, Transform, Tweak, Way};
use std::fs;
use std::path::Path;

/// A volume's key, for blocks of one size.
#[derive(Debug)]
pub struct Volume(Session);

impl Volume {
    /// By the key in a file, 32 or 64 bytes of it.
    ///
    /// # Errors
    /// What is wrong with the file, or with what is in it.
    pub fn read(key: &Path, block: u32) -> Result<Volume, String> {
        let about = |error: &dyn core::fmt::Display| format!("{}: {error}", key.display());
        let bytes = fs::read(key).map_err(|error| about(&error))?;
        Volume::new(Secret::new(bytes), block).map_err(|error| about(&error))
    }

    /// By a key.
    ///
    /// # Errors
    /// If it is no key of AES-XTS.
    pub fn new(key: Secret, block: u32) -> Result<Volume, SpecError> {
        Session::new(&Transform::Xts { key, unit: block, tweak: Tweak::Unit }).map(Volume)
    }

    fn run(&self, way: Way, first: u64, bytes: &mut [u8]) {
        let with = Parameters { iv: u128::from(first).to_le_bytes(), aad: &[] };
        let source = Bytes::copy_from_slice(bytes);
        let mut target = BytesMut::with_capacity(bytes.len());
        self.0.run(way, with, &[source], &mut target).expect("whole blocks, and as much room");
        bytes.copy_from_slice(&target);
    }
}

impl BlockCipher for Volume {
    fn encrypt(&self, first: u64, bytes: &mut [u8]) {
        self.run(Way::Apply, first, bytes);
    }

    fn decrypt(&self, first: u64, bytes: &mut [u8]) {
        self.run(Way::Undo, first, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_its_own_tweak() {
        let volume = Volume::new(Secret::new((0..64).collect()), 512).unwrap();
        let mut blocks = [5; 1024];
        volume.encrypt(7, &mut blocks);
        assert_ne!(blocks[..512], blocks[512..]);
        let mut second = [5; 512];
        volume.encrypt(8, &mut second);
        assert_eq!(blocks[512..], second);
        volume.decrypt(7, &mut blocks);
        assert_eq!(blocks, [5; 1024]);
    }
}
