//! Configuration of the QUIC engine.

/// Configuration of the QUIC engine.
///
/// ```
/// use nic_engines::QuicEngineConfig;
///
/// let config = QuicEngineConfig { contexts: 2 };
/// assert!(config.contexts < QuicEngineConfig::default().contexts);
/// ```
#[derive(Clone, Debug)]
pub struct QuicEngineConfig {
    /// Maximum number of contexts, one per direction of a connection. 0 removes the QUIC interface.
    pub contexts: u32,
}

impl Default for QuicEngineConfig {
    fn default() -> QuicEngineConfig {
        QuicEngineConfig { contexts: 1 << 14 }
    }
}
