//! Machines and networks as command-line arguments.

use core::str::FromStr;
use nic_sim::Vport;
use nic_sim::switch::{Device, Mac, TunnelDevice};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A virtual machine at a virtual function: `0=vm0.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineAt {
    /// The number of the function.
    pub number: u16,
    /// The socket of this end.
    pub socket: PathBuf,
}

impl FromStr for MachineAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MachineAt, &'static str> {
        let (number, socket) = text.split_once('=').unwrap_or_default();
        let number = number.parse().ok().filter(|number| *number < Vport::FUNCTIONS && !socket.is_empty());
        let number = number.ok_or("a machine is N=SOCKET, N from 0 to 255, for example 0=vm0.sock")?;
        Ok(MachineAt { number, socket: socket.into() })
    }
}

impl MachineAt {
    /// Returns the machine's port of the switch.
    pub fn port(&self) -> Vport {
        Vport::Virtual(self.number)
    }

    /// Returns the default Ethernet address.
    pub fn usual_mac(&self) -> Mac {
        // The parser limits numbers to 255.
        Mac([2, 0, 0, 0, 1, self.number as u8])
    }

    /// Returns the socket of the machine's end.
    pub fn theirs(&self) -> PathBuf {
        other_end(&self.socket)
    }

    /// Returns the QEMU arguments that attach a network card to the function.
    pub fn qemu(&self, mac: Mac, mtu: u16) -> String {
        let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
        format!(
            "-netdev dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={} \
             -device virtio-net-pci,netdev=n0,mac={mac},host_mtu={mtu}",
            quoted(&self.theirs()),
            quoted(&self.socket)
        )
    }
}

/// Returns the path of the guest's socket for the socket `ours`.
pub(super) fn other_end(ours: &Path) -> PathBuf {
    let mut name = OsString::from(ours);
    name.push(".guest");
    name.into()
}

/// A tunnel network and the reqids of the SAs that protect it: `vxlan0:100=16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedNetwork {
    /// The tunnel.
    pub device: TunnelDevice,
    /// The network's identifier, or the GRE key.
    pub key: Option<u32>,
    /// The reqids.
    pub reqids: Vec<u32>,
}

impl FromStr for ProtectedNetwork {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ProtectedNetwork, &'static str> {
        Self::read(text).ok_or(
            "a protected network is TUNNEL:KEY=REQID, for example vxlan0:100=16; with several SAs 16,17; without a key gretap0=16",
        )
    }
}

impl ProtectedNetwork {
    fn read(text: &str) -> Option<ProtectedNetwork> {
        let (network, reqids) = text.split_once('=')?;
        let (device, key) = match network.split_once(':') {
            Some((device, key)) => (device, Some(key.parse().ok()?)),
            None => (network, None),
        };
        let Ok(Device::Tunnel(device)) = device.parse() else { return None };
        let reqids: Vec<u32> = reqids.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(ProtectedNetwork { device, key, reqids }).filter(|one| one.reqids.iter().all(|reqid| *reqid != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::switch::TunnelKind;

    #[test]
    fn machines_and_networks_are_read_or_refused() {
        let machine = MachineAt { number: 255, socket: "a=b".into() };
        assert_eq!("255=a=b".parse(), Ok(machine));
        for text in ["", "0", "0=", "=a", "256=a", "-1=a"] {
            assert!(text.parse::<MachineAt>().is_err(), "{text}");
        }
        let device = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
        let network = ProtectedNetwork { device, key: Some(100), reqids: vec![16, 17] };
        assert_eq!("vxlan0:100=16,17".parse(), Ok(network));
        assert_eq!("gretap1=3".parse::<ProtectedNetwork>().map(|one| one.key), Ok(None));
        for text in ["", "vxlan0", "vxlan0:100", "vxlan0:100=", "p0:100=1", "vxlan0:x=1", "vxlan0:1=0", "vxlan0:1=2,"] {
            assert!(text.parse::<ProtectedNetwork>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_it_for_qemu() {
        let machine = MachineAt { number: 1, socket: "a,b".into() };
        let line = machine.qemu(machine.usual_mac(), 1416);
        assert!(
            line.contains("local.path=a,,b.guest,") && line.ends_with("mac=02:00:00:00:01:01,host_mtu=1416"),
            "{line}"
        );
    }
}
