//! IPsec in plain types: security associations, policies, who keys them, and the IPsec face of a device.
//!
//! Two traits meet here. [`Keying`] is what a keying daemon, or a file of keys, sees: it adds and deletes security
//! associations (SAs) and policies and hears when one is used up. [`IpsecDevice`] is what an IPsec layer sees of a NIC
//! that takes part of the work (`OffloadKind::Crypto`) or all of it (`OffloadKind::Packet`).
//!
//! Terms: RFC 4301 (architecture), RFC 4303 (ESP).

mod device;
mod keying;
mod policy;
mod sa;

pub use device::{DeviceSaEvent, EspAsk, EspVerdict, IpsecDevice, PolicyChange, SaCommand, SaRefused};
pub use keying::{Keying, KeyingError, SaAdded, SaEvent, SaId, SaUse};
pub use policy::{Action, Packet, Policy, Prefix, Selector, Template, masked};
pub use sa::{
    DontFragment, EspKey, EspMode, EspSuite, Lifetime, Limit, Limits, OffloadKind, Protection, SaParams,
    UdpEncapsulation,
};
