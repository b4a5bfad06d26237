//! Arbitrary text as a key file: an error names an existing line; a parsed file is the same after mirroring twice, and
//! a host applies the file or gives an error.

use core::net::IpAddr;
use ipsec::{KeyFile, KeyedDevice, SecureDevice};
use nic_sim::{NicConfig, nic};
use offload_base::Instant;

/// Runs one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let file = match text.parse::<KeyFile>() {
        Ok(file) => file,
        Err(error) => {
            assert!((1..=text.lines().count()).contains(&error.line), "{error}");
            return;
        }
    };
    assert_eq!(format!("{:?}", file.mirrored().mirrored()), format!("{file:?}"));
    let (_device, driver) = nic(NicConfig { receive_ring: 4, ..NicConfig::default() });
    let mut secure = SecureDevice::new(Box::new(driver));
    let keying = secure.keying().expect("an IPsec layer");
    let local: [IpAddr; 2] = [[10, 0, 0, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 1].into()];
    if let Ok(added) = file.apply(Instant::ZERO, keying, &local) {
        assert!(added.iter().map(|sa| sa.spi).eq(file.spis()));
    }
}
