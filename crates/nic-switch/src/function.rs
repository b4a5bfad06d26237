//! Functions: what hangs on a port of the switch, in the words of `ip link set ... vf`.

use crate::action::Police;
use crate::matching::Mac;

/// How a function is set up.
///
/// ```
/// use nic_switch::{FunctionConfig, Mac};
///
/// let tenant = FunctionConfig { vlan: Some(100), ..FunctionConfig::new(Mac([2, 0, 0, 0, 0, 1])) };
/// assert!(tenant.spoof_check && !tenant.trust);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionConfig {
    /// Its Ethernet address.
    pub mac: Mac,
    /// The VLAN that it is in without knowing: its frames get the tag, and lose it on their way back. Frames of its own with a
    /// tag are dropped.
    pub vlan: Option<u16>,
    /// Whether frames from another address than [`mac`](Self::mac) are dropped.
    pub spoof_check: bool,
    /// Whether, in legacy mode, it gets frames to unknown addresses, and may send tags.
    pub trust: bool,
    /// What it may send; the rest is dropped. `None`: anything.
    pub rate: Option<Police>,
    /// The longest packet that is delivered to it, Ethernet's header not counted.
    pub mtu: u16,
}

impl FunctionConfig {
    /// A function with this address, checked and not trusted, for packets of 1500 bytes.
    pub fn new(mac: Mac) -> FunctionConfig {
        FunctionConfig { mac, vlan: None, spoof_check: true, trust: false, rate: None, mtu: 1500 }
    }
}
