//! The costs of the services. All figures are here, each with its origin.

/// A service: one step of processing for a block of 16 bytes.
///
/// ```
/// use crypto_services::{CostOrigin, Service};
///
/// let aes = Service::Aes128.cost();
/// assert_eq!(aes.origin, CostOrigin::Fitted);
/// assert!(Service::Ghash.cost().block_ns < aes.block_ns);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Service {
    /// Expansion of AES round keys, once for each flow.
    KeyExpansion,
    /// AES-128 of a block.
    Aes128,
    /// AES-256 of a block: fourteen rounds instead of ten.
    Aes256,
    /// Counter blocks, and XOR of the keystream into data.
    Counter,
    /// GHASH or POLYVAL of a block.
    Ghash,
    /// CBC chaining of a block, without AES itself. When encrypting, each block needs the one before.
    Cbc,
    /// CMAC chaining of a block, without AES itself. Each block needs the one before.
    Cmac,
    /// 16 bytes of ChaCha20 keystream.
    ChaCha,
    /// Poly1305 of a block.
    Poly1305,
    /// 16 bytes of SNOW 3G keystream.
    Snow3g,
    /// 16 bytes of Snow 5G keystream.
    Snow5g,
    /// 16 bytes of ZUC keystream.
    Zuc,
    /// SHA-1 of 16 bytes.
    Sha1,
    /// SHA-256 of 16 bytes.
    Sha256,
    /// The padded keys of HMAC, without the hash of the data.
    Hmac,
    /// A 64-bit polynomial, as in UIA2, or keystream windows, as in EIA3, for 16 bytes.
    KeystreamMac,
    /// Comparison of a tag, once for each packet.
    Compare,
    /// Masking of a header, once for each packet.
    HeaderMask,
}

/// The costs of a block in one instance.
///
/// See [`Service`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceCost {
    /// Nanoseconds from one block to the next.
    pub block_ns: f64,
    /// Area, in units of an AES-128 instance.
    pub area: f64,
    /// Nanoseconds until a new instance works: partial reconfiguration.
    pub start_ns: f64,
    /// The origin of the figures.
    pub origin: CostOrigin,
}

/// The origin of a figure.
///
/// See [`Service`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostOrigin {
    /// Fitted to the published rows for 64 and 1,464 bytes ([`crate::published`]).
    Fitted,
    /// Assumed, from the number of rounds or clocks compared with AES's ten rounds.
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

    /// Returns the service's costs.
    pub fn cost(self) -> ServiceCost {
        let aes = crate::published::fpga_line().per_byte_ns * BLOCK;
        let assumed = |share: f64, area: f64| ServiceCost {
            block_ns: aes * share,
            area,
            start_ns: START,
            origin: CostOrigin::Assumed,
        };
        match self {
            Service::Aes128 => ServiceCost { block_ns: aes, area: 1.0, start_ns: START, origin: CostOrigin::Fitted },
            // Fourteen rounds instead of ten.
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

    /// Returns the name used in descriptions of graphs.
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

    /// Returns the service with this name.
    pub fn from_name(name: &str) -> Option<Service> {
        Service::ALL.into_iter().find(|service| service.name() == name)
    }

    /// Returns the index in [`Service::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// The costs of all services, for sensitivity studies: halve or double an assumed figure to see whether a conclusion
/// depends on it.
///
/// ```
/// use crypto_services::{ServiceCosts, Service};
///
/// let costs = ServiceCosts::default().scaled(Service::Ghash, 2.0);
/// assert_eq!(costs.get(Service::Ghash).block_ns, 2.0 * Service::Ghash.cost().block_ns);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceCosts([ServiceCost; Service::ALL.len()]);

/// The costs of [`Service::cost`].
impl Default for ServiceCosts {
    fn default() -> ServiceCosts {
        ServiceCosts(Service::ALL.map(Service::cost))
    }
}

impl ServiceCosts {
    /// Returns the costs of a service.
    pub fn get(&self, service: Service) -> ServiceCost {
        self.0[service.index()]
    }

    /// Multiplies one service's time for a block by `times`.
    #[must_use]
    pub fn scaled(mut self, service: Service, times: f64) -> ServiceCosts {
        self.0[service.index()].block_ns *= times;
        self
    }

    /// Sets the configuration time of new instances of all services.
    ///
    /// ```
    /// use crypto_services::{ServiceCosts, Service};
    ///
    /// assert_eq!(ServiceCosts::default().starting_in(5e5).get(Service::Ghash).start_ns, 5e5);
    /// ```
    #[must_use]
    pub fn starting_in(mut self, start_ns: f64) -> ServiceCosts {
        self.0.iter_mut().for_each(|cost| cost.start_ns = start_ns);
        self
    }
}

/// Bytes of a block.
pub(crate) const BLOCK: f64 = 16.0;
/// Partial reconfiguration takes milliseconds. Assumed.
const START: f64 = 2e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_index_and_name() {
        for (place, service) in Service::ALL.into_iter().enumerate() {
            assert_eq!((service.index(), Service::from_name(service.name())), (place, Some(service)));
        }
        assert_eq!(Service::from_name("aes"), None);
    }
}
