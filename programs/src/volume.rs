//! A volume that is stored as ciphertext: AES-XTS, compatible with dm-crypt's `aes-xts-plain64` with
//! `iv_large_sectors`.

use nvme_tcp::host::KeyedVolume;
use nvme_tcp::resumable_aead::{DataUnits, Volume, XtsKey};
use offload_api::{Contexts, XtsStage};
use offload_base::RandomSource;
use offload_jobs::{ImportError, WrappingKey};
use offload_transforms::{SecretBytes, Tweak};
use std::fs;
use std::path::Path;

/// Opens a volume with the key in a file, of 32 or 64 bytes, for blocks of one size. If `device` supports
/// data-encryption keys, it also gets the key, wrapped under a fresh random key.
///
/// # Errors The fault of the file or of the key, as text.
pub fn read(key: &Path, block: u32, device: Option<&mut dyn Contexts>) -> Result<KeyedVolume, String> {
    let about = |error: &dyn core::fmt::Display| format!("{}: {error}", key.display());
    let bytes = SecretBytes::new(fs::read(key).map_err(|error| about(&error))?);
    let units = DataUnits::new(block as usize).map_err(|error| about(&error))?;
    let volume = KeyedVolume::from(Volume::new(XtsKey::new(bytes.bytes()).map_err(|error| about(&error))?, units));
    if let Some(device) = device {
        volume.set_device_key(import(&bytes, block, device).map_err(|error| about(&error))?);
    }
    Ok(volume)
}

/// `None`: the device takes none.
fn import(
    key: &SecretBytes,
    block: u32,
    device: &mut dyn Contexts,
) -> Result<Option<XtsStage>, Box<dyn std::error::Error>> {
    let mut wrapping = vec![0; 32];
    // The key crosses to the device only in wrapped form, so the wrapping key must be unpredictable.
    RandomSource::from_system()?.stream("wrapping key").fill(&mut wrapping);
    let wrapping = WrappingKey { tenant: 1, key: SecretBytes::new(wrapping) };
    match wrapping.import(device, 1, key, block, Tweak::Unit) {
        Err(ImportError::Refused(_)) => Ok(None),
        imported => Ok(Some(imported?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::wire::Port;
    use offload_api::NetDevice;
    use offload_base::Instant;

    /// Reads a key from a file of its own.
    fn read_key(name: &str, key: &[u8], block: u32) -> Result<KeyedVolume, String> {
        let file = std::env::temp_dir().join(format!("volume-{}-{name}.key", std::process::id()));
        fs::write(&file, key).unwrap();
        let volume = read(&file, block, None);
        fs::remove_file(&file).unwrap();
        volume
    }

    #[test]
    fn a_key_in_a_file_makes_a_volume_of_blocks() {
        let key: Vec<u8> = (0..64).collect();
        let (mut made, mut expected) = ([7; 8192], [7; 8192]);
        read_key("whole", &key, 4096).unwrap().volume().encrypt(3, 0, &mut made).unwrap();
        XtsKey::new(&key).unwrap().encrypt(DataUnits::new(4096).unwrap(), 3, &mut expected).unwrap();
        assert_eq!(made, expected);
    }

    #[test]
    fn a_nic_has_the_key_too() {
        let file = std::env::temp_dir().join(format!("volume-{}-nic.key", std::process::id()));
        fs::write(&file, (0..64).collect::<Vec<u8>>()).unwrap();
        let (mut device, mut driver) = nic_sim::nic(nic_sim::NicConfig::default());
        let volume = read(&file, 4096, driver.contexts()).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(volume.device_key().is_some());
        driver.flush(Instant::ZERO);
        for micros in 0..100 {
            device.process(Instant::from_nanos(1000 * micros));
        }
        assert_eq!(device.contexts(), 1, "the wrapping key is no context");
    }

    #[test]
    fn invalid_key_error_names_the_file() {
        for (name, key, block) in
            [("short", vec![1; 48], 512), ("equal", vec![1; 64], 512), ("block", (0..64).collect(), 520)]
        {
            let error = read_key(name, &key, block).unwrap_err();
            assert!(error.contains(name) && !error.contains("[1"), "{error}");
        }
        assert!(read(Path::new("/nowhere/volume.key"), 512, None).unwrap_err().contains("/nowhere/volume.key"));
    }
}
