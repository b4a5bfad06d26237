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

#[cfg(test)]
mod tests {
    use super::*;

    /// A key in a file of its own.
    fn read_key(name: &str, key: &[u8], block: u32) -> Result<Volume, String> {
        let file = std::env::temp_dir().join(format!("volume-{}-{name}.key", std::process::id()));
        fs::write(&file, key).unwrap();
        let volume = read(&file, block);
        fs::remove_file(&file).unwrap();
        volume
    }

    #[test]
    fn a_key_in_a_file_makes_a_volume_of_blocks() {
        let key: Vec<u8> = (0..64).collect();
        let (mut made, mut expected) = ([7; 8192], [7; 8192]);
        read_key("whole", &key, 4096).unwrap().encrypt(3, 0, &mut made).unwrap();
        XtsKey::new(&key).unwrap().encrypt(DataUnits::new(4096).unwrap(), 3, &mut expected).unwrap();
        assert_eq!(made, expected);
    }

    #[test]
    fn what_is_no_key_is_told_with_the_name_of_its_file() {
        for (name, key, block) in
            [("short", vec![1; 48], 512), ("equal", vec![1; 64], 512), ("block", (0..64).collect(), 520)]
        {
            let error = read_key(name, &key, block).unwrap_err();
            assert!(error.contains(name) && !error.contains("[1"), "{error}");
        }
        assert!(read(Path::new("/nowhere/volume.key"), 512).unwrap_err().contains("/nowhere/volume.key"));
    }
}
