//! Virtual ports of the switch, and the devices that represent them in rules.
//!
//! Each function (the physical one, a virtual one, or the card's) is a port, and so is the uplink. The host sees each
//! port as a *representor*: a network device that names the port in rules and receives the frames that no rule takes.
//! Linux's `Documentation/networking/representors.rst` describes the model.

use core::fmt;
use core::str::FromStr;

/// A port of the switch.
///
/// ```
/// use nic_switch::Vport;
///
/// assert_eq!(Vport::Virtual(3).to_string(), "pf0vf3");
/// assert_eq!("p0".parse(), Ok(Vport::Uplink));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vport {
    /// The wire; `p0` in rules.
    Uplink,
    /// The physical function of the host; `pf0hpf` in rules.
    Physical,
    /// A virtual function with a number below [`Vport::FUNCTIONS`]; `pf0vf0` and so on in rules.
    Virtual(u16),
    /// The function of the card's own cores; `card0` in rules.
    Card,
}

impl Vport {
    /// Maximum number of virtual functions.
    pub const FUNCTIONS: u16 = 256;
}

/// The destination of a frame.
///
/// See [`Switch`](crate::Switch) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Egress {
    /// A port: the wire or a function.
    Port(Vport),
    /// The representor of a port on the host: the slow path.
    Representor(Vport),
}

/// The encapsulation of a tunnel.
///
/// ```
/// assert_eq!(nic_switch::TunnelKind::Geneve.port(), Some(6081));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    /// VXLAN (RFC 7348); `vxlan0` and so on in rules.
    Vxlan,
    /// Ethernet in GRE (RFC 2784, RFC 2890); `gretap0` and so on in rules.
    Gretap,
    /// Geneve (RFC 8926); `geneve0` and so on in rules.
    Geneve,
}

impl TunnelKind {
    /// Returns the default UDP port; `None` for GRE.
    pub const fn port(self) -> Option<u16> {
        match self {
            TunnelKind::Vxlan => Some(4789),
            TunnelKind::Gretap => None,
            TunnelKind::Geneve => Some(6081),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            TunnelKind::Vxlan => "vxlan",
            TunnelKind::Gretap => "gretap",
            TunnelKind::Geneve => "geneve",
        }
    }

    pub(crate) const ALL: [TunnelKind; 3] = [TunnelKind::Vxlan, TunnelKind::Gretap, TunnelKind::Geneve];
}

/// A tunnel device: input of decapsulated frames, and output for frames to be encapsulated.
///
/// ```
/// use nic_switch::{Device, TunnelDevice, TunnelKind};
///
/// let device = Device::Tunnel(TunnelDevice { kind: TunnelKind::Vxlan, number: 0 });
/// assert_eq!("vxlan0".parse(), Ok(device));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelDevice {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Number of the device within its kind.
    pub number: u8,
}

/// A device named by `dev` in a rule.
///
/// See [`TunnelDevice`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// A port, through its representor.
    Port(Vport),
    /// A tunnel over the uplink.
    Tunnel(TunnelDevice),
}

/// The error for a name that is not a device of the switch.
///
/// ```
/// let error = "eth0".parse::<nic_switch::Device>().unwrap_err();
/// assert!(error.to_string().starts_with("not a device of the switch: name p0"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a device of the switch: name p0, pf0hpf, pf0vfN, card0, vxlanN, gretapN or geneveN")]
pub struct UnknownDevice;

impl fmt::Display for Vport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vport::Uplink => f.write_str("p0"),
            Vport::Physical => f.write_str("pf0hpf"),
            Vport::Virtual(number) => write!(f, "pf0vf{number}"),
            Vport::Card => f.write_str("card0"),
        }
    }
}

impl fmt::Display for TunnelDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.name(), self.number)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Port(port) => port.fmt(f),
            Device::Tunnel(tunnel) => tunnel.fmt(f),
        }
    }
}

impl FromStr for Vport {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Vport, UnknownDevice> {
        match name {
            "p0" => Ok(Vport::Uplink),
            "pf0hpf" => Ok(Vport::Physical),
            "card0" => Ok(Vport::Card),
            _ => {
                let number = name.strip_prefix("pf0vf").and_then(decimal::<u16>);
                let number = number.filter(|number| *number < Vport::FUNCTIONS);
                number.map(Vport::Virtual).ok_or(UnknownDevice)
            }
        }
    }
}

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Device, UnknownDevice> {
        for kind in TunnelKind::ALL {
            if let Some(number) = name.strip_prefix(kind.name()).and_then(decimal::<u8>) {
                return Ok(Device::Tunnel(TunnelDevice { kind, number }));
            }
        }
        name.parse().map(Device::Port)
    }
}

/// Parses a number in the form in which it is printed: no sign and no leading zero.
fn decimal<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    // Only the canonical form is accepted, so that every device has one name.
    let number = text.parse::<T>().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printed_names_are_parsed() {
        let ports = [Vport::Uplink, Vport::Physical, Vport::Virtual(0), Vport::Virtual(255), Vport::Card];
        let tunnels = TunnelKind::ALL.map(|kind| Device::Tunnel(TunnelDevice { kind, number: 7 }));
        for device in ports.map(Device::Port).into_iter().chain(tunnels) {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for name in ["", "p1", "pf0vf", "pf0vf256", "pf0vf01", "pf0vf+1", "vxlan", "vxlan256", "eth0"] {
            assert_eq!(name.parse::<Device>(), Err(UnknownDevice), "{name}");
        }
    }
}
