//! Which of a kernel's devices are the switch's, by their names.
//!
//! A device that is called as rules call it is that one: `p0`, `pf0vf0`, `vxlan0`. So are the tunnel devices that Open vSwitch makes for itself.

use crate::netlink::{Bytes, attributes};
use nic_switch::{Device, TunnelDevice, TunnelKind};
use std::collections::BTreeMap;

/// The switch's devices, by the kernel's numbers.
#[derive(Debug, Default)]
pub(crate) struct Links(BTreeMap<u32, Device>);

impl Links {
    /// Takes what `struct ifinfomsg` and its attributes say of a device that is there. `None`: this is no such message; else whether
    /// something changed.
    pub(crate) fn put(&mut self, payload: &[u8]) -> Option<bool> {
        let number = Bytes(payload).u32(INDEX)?;
        let (_, name) = attributes(payload.get(INFO..)?).find(|(kind, _)| *kind == NAME)?;
        let device = device(name.0);
        let before = match device {
            Some(device) => self.0.insert(number, device),
            None => self.0.remove(&number),
        };
        Some(before != device)
    }

    /// The same of one that is gone.
    pub(crate) fn gone(&mut self, payload: &[u8]) -> Option<bool> {
        Some(self.0.remove(&Bytes(payload).u32(INDEX)?).is_some())
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

/// The device of a name, which ends with a zero.
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

/// `struct ifinfomsg`, its `ifi_index`, and IFLA_IFNAME.
const INFO: usize = 16;
const INDEX: usize = 4;
const NAME: u16 = 3;
