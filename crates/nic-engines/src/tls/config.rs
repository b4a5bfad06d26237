//! Configuration of the TLS engine.

use nic_engine::TransmitResync;
use offload_api::ResyncMode;

/// Configuration of the TLS engine.
///
/// ```
/// use nic_engines::TlsEngineConfig;
/// use offload_api::ResyncMode;
///
/// let config = TlsEngineConfig { contexts: 8, ..TlsEngineConfig::default() };
/// assert_eq!(config.resync, ResyncMode::DriverRequest);
/// ```
#[derive(Clone, Debug)]
pub struct TlsEngineConfig {
    /// Maximum number of contexts, each with its key. 0 removes the TLS interface.
    pub contexts: u32,
    /// Maximum number of unused transmit contexts that the driver keeps for reuse. A reused context needs a new key but
    /// no answer from the device. 0 disables reuse.
    pub context_pool: usize,
    /// Method by which the driver restores a transmit context that is not at the start of a packet.
    pub transmit_resync: TransmitResync,
    /// Method by which receive contexts find their position again.
    pub resync: ResyncMode,
}

impl Default for TlsEngineConfig {
    fn default() -> TlsEngineConfig {
        TlsEngineConfig {
            contexts: 1 << 18,
            context_pool: 1024,
            transmit_resync: TransmitResync::Dump,
            resync: ResyncMode::DriverRequest,
        }
    }
}
