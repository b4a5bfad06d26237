//! Configuration of the NVMe/TCP engine.

use nic_engine::TransmitResync;

/// Configuration of the NVMe/TCP engine.
///
/// ```
/// use nic_engines::NvmeTcpEngineConfig;
///
/// let config = NvmeTcpEngineConfig { io_threshold: 4096, ..NvmeTcpEngineConfig::default() };
/// assert_eq!(config.contexts, 4096);
/// ```
#[derive(Clone, Debug)]
pub struct NvmeTcpEngineConfig {
    /// Maximum number of contexts. 0 removes the NVMe/TCP interface.
    pub contexts: u32,
    /// Minimum data length of a command for placement.
    pub io_threshold: usize,
    /// Method by which the driver restores a transmit context that is not at the start of a packet.
    pub transmit_resync: TransmitResync,
}

impl Default for NvmeTcpEngineConfig {
    fn default() -> NvmeTcpEngineConfig {
        NvmeTcpEngineConfig { contexts: 1 << 12, io_threshold: 32 << 10, transmit_resync: TransmitResync::Dump }
    }
}
