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
    /// Contexts that there is room for. 0: the device has no NVMe/TCP face.
    pub contexts: u32,
    /// Commands that move fewer bytes are not worth placing.
    pub io_threshold: usize,
    /// How the driver restores a transmit context that does not stand at a packet.
    pub transmit_resync: TransmitResync,
}

impl Default for NvmeTcpEngineConfig {
    fn default() -> NvmeTcpEngineConfig {
        NvmeTcpEngineConfig { contexts: 1 << 12, io_threshold: 32 << 10, transmit_resync: TransmitResync::Dump }
    }
}
