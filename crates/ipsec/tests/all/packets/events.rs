//! Trace events name the SAs that are added and deleted, and contain no keys.

use ipsec::{KeyFile, KeyedDevice, SecureDevice};
use nic_sim::{NicConfig, nic};
use offload_api::{Direction, EventLog};
use offload_base::Instant;

#[test]
fn events_report_sas_without_keys() {
    let ((), lines) = EventLog::collect(|| {
        let key = "a5".repeat(20);
        let file: KeyFile = format!(
            "state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 reqid 1 mode transport
                aead rfc4106(gcm(aes)) 0x{key} 128 offload packet dir out"
        )
        .parse()
        .unwrap();
        let (_device, driver) = nic(NicConfig::default());
        let mut secure = SecureDevice::new(Box::new(driver));
        let keying = secure.keying().unwrap();
        file.apply(Instant::ZERO, keying, &["10.0.0.1".parse().unwrap()]).unwrap();
        let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let sa = keying.find_sa(Direction::Transmit, 0x1001, source, destination).unwrap();
        keying.delete_sa(sa).unwrap();
    });
    for event in ["SA offloaded", "SA added", "spi=0x1001", "SA deleted"] {
        assert!(lines.iter().any(|line| line.contains(event)), "{event:?} is missing: {lines:#?}");
    }
    for key in ["a5a5", "165, 165"] {
        assert!(!lines.iter().any(|line| line.contains(key)), "{key:?}: {lines:#?}");
    }
}
