//! The contexts of a device, in the types of the engines that every NIC has.

use crate::device::NetDevice;
use crate::nvme::NvmeTcpContexts;
use crate::tls::TlsContexts;

/// The face of a device's contexts in the words of those engines that every NIC has.
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
    /// TLS contexts, if the device has any.
    fn tls(&mut self) -> Option<TlsContexts<'_>>;

    /// NVMe/TCP contexts, if the device has any.
    fn nvme(&mut self) -> Option<NvmeTcpContexts<'_>>;
}

impl<D: NetDevice + ?Sized> TypedContexts for D {
    fn tls(&mut self) -> Option<TlsContexts<'_>> {
        TlsContexts::of(self.contexts()?)
    }

    fn nvme(&mut self) -> Option<NvmeTcpContexts<'_>> {
        NvmeTcpContexts::of(self.contexts()?)
    }
}
