//! IPsec in plain types: security associations (SAs), policies, and the IPsec face of a device.
//!
//! [`IpsecDevice`] is the trait by which an IPsec layer uses a NIC that takes part of the work (`OffloadKind::Crypto`) or
//! all of it (`OffloadKind::Packet`). The crate `ipsec` has the trait by which a keying daemon adds SAs and policies.
//!
//! Terms: RFC 4301 (architecture), RFC 4303 (ESP).

mod device;
mod policy;
mod sa;

pub use device::{DeviceSaEvent, EspAsk, EspVerdict, IpsecDevice, PolicyChange, SaCommand, SaRefused};
pub use policy::{Action, Packet, Policy, Prefix, Selector, Template, masked};
pub use sa::{
    DontFragment, EspKey, EspMode, EspSuite, Lifetime, Limit, Limits, OffloadKind, Protection, SaParams,
    UdpEncapsulation,
};
