//! What each service costs. All figures stand here, each with its origin.

/// A service: one step that a block of 16 bytes takes.
///
/// ```
/// use crypto_services::{Origin, Service};
///
/// let aes = Service::Aes128.cost();
/// assert_eq!(aes.origin, Origin::Fitted);
/// assert!(Service::Ghash.cost().block_ns < aes.block_ns);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Service {
    /// Round keys of AES, once a flow: it may be left out of a packet's way.
    KeyExpansion,
    /// A block through AES-128.
    Aes128,
    /// A block through AES-256: fourteen rounds instead of ten.
    Aes256,
    /// Counter blocks in, keystream XORed into data.
    Counter,
    /// A block of GHASH or POLYVAL.
    Ghash,
    /// A block of CMAC or CBC beside AES's own time: each waits for the one before.
    Chaining,
    /// 16 bytes of ChaCha20's keystream.
    ChaCha,
    /// A block of Poly1305.
    Poly1305,
    /// 16 bytes of SNOW 3G.
    Snow3g,
    /// 16 bytes of Snow 5G.
    Snow5g,
    /// 16 bytes of ZUC.
    Zuc,
    /// A tag is compared, once a packet.
    Compare,
}

/// What a block costs in one instance.
///
/// See [`Service`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds a block, from one to the next.
    pub block_ns: f64,
    /// Area, in units of an AES-128 instance.
    pub area: f64,
    /// Nanoseconds until a new instance works.
    pub start_ns: f64,
    /// Where the figures come from.
    pub origin: Origin,
}

/// Where a figure comes from.
///
/// See [`Service`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Fitted on the published rows for 64 and 1,464 bytes ([`crate::published`]).
    Fitted,
    /// Assumed, by how many rounds or clocks it has beside AES's ten rounds.
    Assumed,
}

impl Service {
    /// All services.
    pub const ALL: [Service; 12] = [
        Service::KeyExpansion,
        Service::Aes128,
        Service::Aes256,
        Service::Counter,
        Service::Ghash,
        Service::Chaining,
        Service::ChaCha,
        Service::Poly1305,
        Service::Snow3g,
        Service::Snow5g,
        Service::Zuc,
        Service::Compare,
    ];

    /// What it costs.
    pub fn cost(self) -> Cost {
        let aes = crate::published::fpga_line().per_byte_ns * BLOCK;
        let assumed =
            |share: f64, area: f64| Cost { block_ns: aes * share, area, start_ns: START, origin: Origin::Assumed };
        match self {
            Service::Aes128 => Cost { block_ns: aes, area: 1.0, start_ns: START, origin: Origin::Fitted },
            Service::Aes256 => assumed(1.4, 1.0),
            Service::KeyExpansion => assumed(1.0, 0.5),
            Service::Counter => assumed(0.1, 0.1),
            Service::Ghash => assumed(0.18, 0.6),
            Service::Chaining => assumed(0.1, 0.1),
            Service::ChaCha => assumed(0.5, 1.2),
            Service::Poly1305 => assumed(0.2, 0.8),
            Service::Snow3g => assumed(0.4, 0.9),
            Service::Snow5g => assumed(0.1, 1.5),
            Service::Zuc => assumed(0.4, 1.0),
            Service::Compare => assumed(0.1, 0.1),
        }
    }
}

/// Bytes in a block.
pub(crate) const BLOCK: f64 = 16.0;
/// Partial reconfiguration takes milliseconds. Assumed.
const START: f64 = 2e6;
