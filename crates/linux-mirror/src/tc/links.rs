//! The kernel's network devices that belong to the switch, by name.
//!
//! A device with a name as in rules, such as `p0`, `pf0vf0` or `vxlan0`, is that device of the switch. So are the
//! tunnel devices that Open vSwitch creates for itself.

use crate::netlink::{NetlinkBytes, attributes};
use nic_switch::{Device, TunnelDevice, TunnelKind};
use std::collections::BTreeMap;

/// The switch's devices, by the kernel's interface index.
#[derive(Debug, Default)]
pub(crate) struct Links(BTreeMap<u32, Device>);

impl Links {
    /// Records an existing device from `struct ifinfomsg` and its attributes. Returns whether anything changed, or
    /// `None` if the message is invalid.
    pub(crate) fn put(&mut self, payload: &[u8]) -> Option<bool> {
        let number = NetlinkBytes(payload).u32(INDEX)?;
        let (_, name) = attributes(payload.get(INFO..)?).find(|(kind, _)| *kind == NAME)?;
        let device = device(name.0);
        // A renamed device may enter or leave the switch.
        let before = match device {
            Some(device) => self.0.insert(number, device),
            None => self.0.remove(&number),
        };
        Some(before != device)
    }

    /// Removes a deleted device. Returns whether anything changed, or `None` if the message is invalid.
    pub(crate) fn remove(&mut self, payload: &[u8]) -> Option<bool> {
        Some(self.0.remove(&NetlinkBytes(payload).u32(INDEX)?).is_some())
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn find(&self, number: u32) -> Option<Device> {
        self.0.get(&number).copied()
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }
}

/// Returns the switch's device with a zero-terminated name.
fn device(name: &[u8]) -> Option<Device> {
    let name = core::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
    let tunnel = |kind| Device::Tunnel(TunnelDevice { kind, number: 0 });
    match name {
        "vxlan_sys_4789" => Some(tunnel(TunnelKind::Vxlan)),
        "genev_sys_6081" => Some(tunnel(TunnelKind::Geneve)),
        "gre_sys" => Some(tunnel(TunnelKind::Gretap)),
        name => name.parse().ok(),
    }
}

/// Length of `struct ifinfomsg`.
const INFO: usize = 16;
/// Offset of `ifi_index`.
const INDEX: usize = 4;
/// `IFLA_IFNAME`.
const NAME: u16 = 3;
