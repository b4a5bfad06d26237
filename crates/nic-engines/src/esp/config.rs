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
    /// Security associations that there is room for, and as many policies. 0: the device has no IPsec face. Of several queues,
    /// each has room for its share, rounded up: a NIC that has IPsec at all has it at each of them.
    pub sas: u32,
}

impl Default for EspEngineConfig {
    fn default() -> EspEngineConfig {
        EspEngineConfig { sas: 1 << 14 }
    }
}
