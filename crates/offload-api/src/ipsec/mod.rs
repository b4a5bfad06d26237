//! IPsec in plain types: security associations (SAs), policies, and the IPsec interface of a device.
//!
//! An IPsec layer uses a NIC through [`IpsecDevice`]. The NIC takes part of the work (`OffloadKind::Crypto`) or all of
//! it (`OffloadKind::Packet`). Keying daemons add SAs and policies through a trait of the crate `ipsec`.
//!
//! Terms: RFC 4301 (architecture), RFC 4303 (ESP).

mod device;
mod policy;
mod sa;

pub use device::{DeviceSaEvent, EspAsk, EspVerdict, IpsecDevice, PolicyChange, SaCommand, SaRefusal};
pub use policy::{Action, Packet, Policy, Prefix, Selector, Template, masked};
pub use sa::{
    DontFragment, EspKey, EspMode, EspSuite, Lifetime, Limit, Limits, OffloadKind, Protection, SaParams,
    UdpEncapsulation,
};
