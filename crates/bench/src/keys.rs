//! IPsec for the emulated hosts of our programs, with SAs and policies from a file.
//!
//! ```
//! use ipsec::KeyFile;
//! use nic_sim::{NicConfig, nic};
//! use offload_bench::keys;
//!
//! let (_device, driver) = nic(NicConfig::default());
//! let keys: KeyFile = "policy setdefault in accept out accept".parse()?;
//! let mut device = keys::tried(&keys, Box::new(driver), &["10.0.0.1".parse()?]);
//! assert!(device.keying().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::net::IpAddr;
use ipsec::{KeyFile, SecureDevice};
use nic_sim::{NicConfig, nic};
use offload_api::NetDevice;
use offload_base::Instant;
use std::path::Path;

/// Reads a file of SAs and policies, and sees whether a host of these addresses can use it.
///
/// # Errors
/// In words, with the name of the file.
pub fn read(path: &Path, addresses: &[IpAddr]) -> Result<KeyFile, String> {
    let about = |error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let keys: KeyFile = text.parse().map_err(|error| about(&error))?;
    let (_device, driver) = nic(NicConfig::default());
    secured(&keys, Box::new(driver), addresses).map_err(|error| about(&error))?;
    Ok(keys)
}

/// A driver with IPsec around it, and `keys` in that, for a host of these addresses.
///
/// # Errors
/// In words, if some of the SAs are not this host's.
pub fn secured(keys: &KeyFile, driver: Box<dyn NetDevice>, addresses: &[IpAddr]) -> Result<Box<dyn NetDevice>, String> {
    let mut device = SecureDevice::new(driver);
    if let Some(keying) = device.keying() {
        keys.apply(Instant::ZERO, keying, addresses).map_err(|error| error.to_string())?;
    }
    Ok(Box::new(device))
}

/// The same for keys that were found to be good before.
///
/// # Panics
/// If they are not.
pub fn tried(keys: &KeyFile, driver: Box<dyn NetDevice>, addresses: &[IpAddr]) -> Box<dyn NetDevice> {
    match secured(keys, driver, addresses) {
        Ok(device) => device,
        Err(error) => panic!("keys that were tried before: {error}"),
    }
}
