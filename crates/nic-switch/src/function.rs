//! Function configuration, in the terms of `ip link set ... vf`.

use crate::action::Police;
use crate::matching::Mac;

/// The configuration of a function.
///
/// ```
/// use nic_switch::{FunctionConfig, Mac};
///
/// let tenant = FunctionConfig { vlan: Some(100), ..FunctionConfig::new(Mac([2, 0, 0, 0, 0, 1])) };
/// assert!(tenant.spoof_check && !tenant.trust);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionConfig {
    /// Ethernet address.
    pub mac: Mac,
    /// Transparent VLAN: frames from the function get this tag, and frames to the function lose it. Tagged frames from
    /// the function are dropped.
    pub vlan: Option<u16>,
    /// Whether frames with another source address than [`mac`](Self::mac) are dropped.
    pub spoof_check: bool,
    /// Whether the function, in legacy mode, gets frames to unknown addresses and may send tags.
    pub trust: bool,
    /// Transmit rate limit; frames above it are dropped. `None` means no limit.
    pub rate: Option<Police>,
    /// Longest packet delivered to the function, without the Ethernet header.
    pub mtu: u16,
}

impl FunctionConfig {
    /// Makes a function with this address: spoof check, no trust, MTU of 1500 bytes.
    pub fn new(mac: Mac) -> FunctionConfig {
        FunctionConfig { mac, vlan: None, spoof_check: true, trust: false, rate: None, mtu: 1500 }
    }
}
