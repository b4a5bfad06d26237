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
    /// A block of CBC beside AES's own time: when encrypting, each waits for the one before.
    Cbc,
    /// A block of CMAC beside AES's own time: each waits for the one before.
    Cmac,
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
    /// 16 bytes through SHA-1.
    Sha1,
    /// 16 bytes through SHA-256.
    Sha256,
    /// HMAC beside its hash: the padded keys.
    Hmac,
    /// A polynomial over 64 bits, as UIA2 has it, or windows of a keystream, as EIA3 has them: 16 bytes.
    KeystreamMac,
    /// A tag is compared, once a packet.
    Compare,
    /// A mask is laid over a header, once a packet.
    HeaderMask,
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
    /// Nanoseconds until a new instance works: partial reconfiguration.
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
    pub const ALL: [Service; 18] = [
        Service::KeyExpansion,
        Service::Aes128,
        Service::Aes256,
        Service::Counter,
        Service::Ghash,
        Service::Cbc,
        Service::Cmac,
        Service::ChaCha,
        Service::Poly1305,
        Service::Snow3g,
        Service::Snow5g,
        Service::Zuc,
        Service::Sha1,
        Service::Sha256,
        Service::Hmac,
        Service::KeystreamMac,
        Service::Compare,
        Service::HeaderMask,
    ];

    /// What it costs.
    pub fn cost(self) -> Cost {
        let aes = crate::published::fpga_line().per_byte_ns * BLOCK;
        let assumed =
            |share: f64, area: f64| Cost { block_ns: aes * share, area, start_ns: START, origin: Origin::Assumed };
        match self {
            Service::Aes128 => Cost { block_ns: aes, area: 1.0, start_ns: START, origin: Origin::Fitted },
            // Fourteen rounds.
            Service::Aes256 => assumed(1.4, 1.0),
            Service::KeyExpansion => assumed(1.0, 0.5),
            Service::Counter => assumed(0.1, 0.1),
            Service::Ghash => assumed(0.18, 0.6),
            Service::Cbc | Service::Cmac => assumed(0.1, 0.1),
            // Twenty rounds for 64 bytes.
            Service::ChaCha => assumed(0.5, 1.2),
            Service::Poly1305 => assumed(0.2, 0.8),
            Service::Snow3g => assumed(0.4, 0.9),
            Service::Snow5g => assumed(0.1, 1.5),
            Service::Zuc => assumed(0.4, 1.0),
            // 80 steps for 64 bytes, and 64 larger ones.
            Service::Sha1 => assumed(0.5, 0.7),
            Service::Sha256 => assumed(0.4, 1.0),
            Service::Hmac | Service::Compare | Service::HeaderMask => assumed(0.1, 0.1),
            Service::KeystreamMac => assumed(0.2, 0.4),
        }
    }

    /// Its name in descriptions of chains.
    ///
    /// ```
    /// assert_eq!(crypto_services::Service::Aes128.name(), "aes-128");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Service::KeyExpansion => "key-expansion",
            Service::Aes128 => "aes-128",
            Service::Aes256 => "aes-256",
            Service::Counter => "counter",
            Service::Ghash => "ghash",
            Service::Cbc => "cbc",
            Service::Cmac => "cmac",
            Service::ChaCha => "chacha",
            Service::Poly1305 => "poly1305",
            Service::Snow3g => "snow-3g",
            Service::Snow5g => "snow-5g",
            Service::Zuc => "zuc",
            Service::Sha1 => "sha-1",
            Service::Sha256 => "sha-256",
            Service::Hmac => "hmac",
            Service::KeystreamMac => "keystream-mac",
            Service::Compare => "compare",
            Service::HeaderMask => "header-mask",
        }
    }

    /// The service of a name.
    pub fn named(name: &str) -> Option<Service> {
        Service::ALL.into_iter().find(|service| service.name() == name)
    }

    /// Its place in [`Service::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What all services cost, to be changed: whether a conclusion hangs on an assumed figure shows when that is halved and doubled.
///
/// ```
/// use crypto_services::{Costs, Service};
///
/// let costs = Costs::default().scaled(Service::Ghash, 2.0);
/// assert_eq!(costs.of(Service::Ghash).block_ns, 2.0 * Service::Ghash.cost().block_ns);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Costs([Cost; Service::ALL.len()]);

/// As [`Service::cost`] has them.
impl Default for Costs {
    fn default() -> Costs {
        Costs(Service::ALL.map(Service::cost))
    }
}

impl Costs {
    /// What a service costs.
    pub fn of(&self, service: Service) -> Cost {
        self.0[service.index()]
    }

    /// The same, with one service's time for a block so many times as long.
    #[must_use]
    pub fn scaled(mut self, service: Service, times: f64) -> Costs {
        self.0[service.index()].block_ns *= times;
        self
    }

    /// The same, with another time until a new instance of any service works.
    ///
    /// ```
    /// use crypto_services::{Costs, Service};
    ///
    /// assert_eq!(Costs::default().starting_in(5e5).of(Service::Ghash).start_ns, 5e5);
    /// ```
    #[must_use]
    pub fn starting_in(mut self, start_ns: f64) -> Costs {
        self.0.iter_mut().for_each(|cost| cost.start_ns = start_ns);
        self
    }
}

/// Bytes in a block.
pub(crate) const BLOCK: f64 = 16.0;
/// Partial reconfiguration takes milliseconds. Assumed.
const START: f64 = 2e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_place_and_by_name() {
        for (place, service) in Service::ALL.into_iter().enumerate() {
            assert_eq!((service.index(), Service::named(service.name())), (place, Some(service)));
        }
        assert_eq!(Service::named("aes"), None);
    }
}
