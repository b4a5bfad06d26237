//! A volume that the disk under it holds as ciphertext only: AES-XTS, as dm-crypt's `aes-xts-plain64` with `iv_large_sectors` has it.

use nvme_tcp::resumable_aead::{DataUnits, Volume, XtsKey};
use offload_transforms::Secret;
use std::fs;
use std::path::Path;

/// One with the key in a file, 32 or 64 bytes of it, for blocks of one size.
///
/// # Errors
/// What is wrong with the file, or with what is in it.
pub fn read(key: &Path, block: u32) -> Result<Volume, String> {
    let about = |error: &dyn core::fmt::Display| format!("{}: {error}", key.display());
    let bytes = Secret::new(fs::read(key).map_err(|error| about(&error))?);
    let units = DataUnits::new(block as usize).map_err(|error| about(&error))?;
    let key = XtsKey::new(bytes.bytes()).map_err(|error| about(&error))?;
    Ok(Volume::new(key, units))
}
