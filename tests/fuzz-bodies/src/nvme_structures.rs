//! Arbitrary bytes as data of NVMe controllers: identify structures, the discovery log, Connect's data. Parsed data is
//! the same after writing and parsing again.
use nvme_tcp::wire::{ConnectData, ControllerData, DiscoveryLog, NamespaceData, parse_namespace_list};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 5 {
        0 => {
            let _parsed = ControllerData::parse(bytes);
        }
        1 => {
            if let Some(data) = NamespaceData::parse(bytes) {
                assert_eq!(NamespaceData::parse(&data.to_bytes()), Some(data));
            }
        }
        2 => assert!(parse_namespace_list(bytes).len() <= 1024),
        3 => {
            if let Some(log) = DiscoveryLog::parse(bytes) {
                assert!(log.entries.len() <= bytes.len() / 1024);
                for entry in &log.entries {
                    let _address = entry.socket_address();
                }
            }
        }
        _ => {
            let _parsed = ConnectData::parse(bytes);
        }
    }
}
