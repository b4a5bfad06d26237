//! A device's contexts, in the types of the standard engines.

use crate::device::NetDevice;
use crate::nvme::NvmeTcpContexts;
use crate::tls::TlsContexts;

/// Typed access to the contexts of the standard engines.
///
/// ```
/// use nic_sim::{NicConfig, NvmeTcpEngineConfig, nic};
/// use offload_api::{ResyncMode, TypedContexts};
///
/// let engines = NvmeTcpEngineConfig { contexts: 0, ..NvmeTcpEngineConfig::default() }.into();
/// let (_device, mut driver) = nic(NicConfig { engines, ..NicConfig::default() });
/// assert_eq!(driver.tls().unwrap().resync(), ResyncMode::DriverRequest);
/// assert!(driver.nvme().is_none());
/// ```
pub trait TypedContexts {
    /// Returns the TLS contexts, if the device has a TLS engine.
    fn tls(&mut self) -> Option<TlsContexts<'_>>;

    /// Returns the NVMe/TCP contexts, if the device has an NVMe/TCP engine.
    fn nvme(&mut self) -> Option<NvmeTcpContexts<'_>>;
}

impl<D: NetDevice + ?Sized> TypedContexts for D {
    fn tls(&mut self) -> Option<TlsContexts<'_>> {
        TlsContexts::from_contexts(self.contexts()?)
    }

    fn nvme(&mut self) -> Option<NvmeTcpContexts<'_>> {
        NvmeTcpContexts::from_contexts(self.contexts()?)
    }
}
