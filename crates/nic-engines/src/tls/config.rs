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
    /// Contexts that there is room for, each with its key. 0: the device has no TLS face.
    pub contexts: u32,
    /// Transmit contexts given up that the driver keeps for others, at most: these need a key only, and no answer from the device. 0: each
    /// is created and destroyed.
    pub context_pool: usize,
    /// How the driver restores a transmit context that does not stand at a packet.
    pub transmit_resync: TransmitResync,
    /// How receive contexts that lost their place find it again.
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
