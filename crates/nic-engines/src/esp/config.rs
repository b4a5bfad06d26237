//! Configuration of the ESP engine.

/// Configuration of the ESP engine.
///
/// ```
/// use nic_engines::EspEngineConfig;
///
/// let config = EspEngineConfig { sas: 8 };
/// assert!(config.sas < EspEngineConfig::default().sas);
/// ```
#[derive(Clone, Debug)]
pub struct EspEngineConfig {
    /// Maximum number of security associations, and of policies. 0 removes the IPsec interface. Several queues share
    /// the space; each share is rounded up, so that every queue has an IPsec interface.
    pub sas: u32,
}

impl Default for EspEngineConfig {
    fn default() -> EspEngineConfig {
        EspEngineConfig { sas: 1 << 14 }
    }
}
