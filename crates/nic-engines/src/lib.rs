//! The built-in engines of the software offload NIC. Each engine has its own file or folder, with its configuration and
//! counters.
//!
//! - `tls`: TLS records; `nvme`: NVMe/TCP PDUs, with `xts` and `protection` as stages for their data;
//! - `esp`: IPsec; `quic`: QUIC packets;
//! - [`Transforms`], [`DataKeys`]: jobs from memory to memory.
//!
//! The engines use only `nic-engine`, as external engines do. [`EngineConfigs::engines`] builds the standard engines.

#![forbid(unsafe_code)]

mod data_keys;
mod esp;
mod nvme;
mod protection;
mod quic;
mod tls;
mod transform;
mod xts;

pub use data_keys::DataKeys;
pub use esp::{EspCounters, EspEngineConfig};
use nic_engine::{Engines, TransmitResync};
pub use nvme::{NvmeTcpCounters, NvmeTcpEngineConfig};
use offload_api::Handle;
pub use quic::{QuicCounters, QuicEngineConfig};
pub use tls::{TlsEngineConfig, TlsEngineCounters};
pub use transform::{TransformCounters, Transforms};

/// Configuration of the standard engines.
///
/// ```
/// use nic_engines::{EngineConfigs, TlsEngineConfig};
///
/// let configs = EngineConfigs::from(TlsEngineConfig { contexts: 8, ..TlsEngineConfig::default() });
/// let names: Vec<_> = configs.engines().infos().iter().map(|info| (info.name, info.contexts)).collect();
/// assert_eq!(names[0], ("tls", 8));
/// ```
#[derive(Clone, Debug, Default)]
pub struct EngineConfigs {
    /// TLS engine.
    pub tls: TlsEngineConfig,
    /// ESP engine.
    pub esp: EspEngineConfig,
    /// NVMe/TCP engine.
    pub nvme_tcp: NvmeTcpEngineConfig,
    /// QUIC engine.
    pub quic: QuicEngineConfig,
}

impl EngineConfigs {
    /// Builds the standard engines, in the order of [`engines`](offload_api::engines).
    pub fn engines(&self) -> Engines {
        let mut engines = Engines::none();
        engines.add_stream(tls::TlsEngine::new(&self.tls), self.tls.contexts);
        engines.add_packet(esp::EspEngine::default(), self.esp.sas);
        engines.add_stream(nvme::NvmeTcpEngine::new(&self.nvme_tcp), self.nvme_tcp.contexts);
        engines.add_packet(quic::QuicEngine::default(), self.quic.contexts);
        engines.add_job(DataKeys::default(), Handle::PLACES);
        engines.add_stage::<xts::XtsEngine>();
        engines.add_stage::<protection::ProtectedBlocks>();
        engines
    }

    /// Sets one method to restore transmit contexts, for TLS and NVMe/TCP.
    #[must_use]
    pub fn with_transmit_resync(mut self, resync: TransmitResync) -> EngineConfigs {
        self.tls.transmit_resync = resync;
        self.nvme_tcp.transmit_resync = resync;
        self
    }

    /// Returns the configuration of one of `queues` queues, which share the space for contexts.
    #[must_use]
    pub fn for_each_queue(mut self, queues: u16) -> EngineConfigs {
        let share = u32::from(queues.max(1));
        self.tls.contexts /= share;
        self.nvme_tcp.contexts /= share;
        self.quic.contexts /= share;
        // Rounded up, so that every queue keeps its IPsec interface.
        self.esp.sas = self.esp.sas.div_ceil(share);
        self
    }
}

impl From<TlsEngineConfig> for EngineConfigs {
    fn from(tls: TlsEngineConfig) -> EngineConfigs {
        EngineConfigs { tls, ..EngineConfigs::default() }
    }
}

impl From<EspEngineConfig> for EngineConfigs {
    fn from(esp: EspEngineConfig) -> EngineConfigs {
        EngineConfigs { esp, ..EngineConfigs::default() }
    }
}

impl From<NvmeTcpEngineConfig> for EngineConfigs {
    fn from(nvme_tcp: NvmeTcpEngineConfig) -> EngineConfigs {
        EngineConfigs { nvme_tcp, ..EngineConfigs::default() }
    }
}

impl From<QuicEngineConfig> for EngineConfigs {
    fn from(quic: QuicEngineConfig) -> EngineConfigs {
        EngineConfigs { quic, ..EngineConfigs::default() }
    }
}

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
