//! The reasons for which a device refuses a context.

/// A refusal of a context or a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContextRefusal {
    /// The device does not support the version or suite.
    #[error("the device does not know this version or suite")]
    Unsupported,
    /// A layer between the protocol and the device protects the flow's packets, so the device cannot see the stream.
    #[error("the device does not see the flow's stream: its packets are protected by a layer below")]
    Path,
    /// No context is free, or no key slot in devices with separate key slots. (The emulated NIC has a key slot in each
    /// context.)
    #[error("the device has no free context or key slot")]
    NoSpace,
    /// The control ring is full at the moment.
    #[error("the control ring is full")]
    Busy,
    /// The device is being reset.
    #[error("the device is being reset")]
    Resetting,
}

impl ContextRefusal {
    /// Tests whether the refusal is temporary, so that the device is [asked again](crate::ContextBackoff).
    ///
    /// ```
    /// use offload_api::ContextRefusal;
    ///
    /// assert!(ContextRefusal::NoSpace.passes() && !ContextRefusal::Unsupported.passes());
    /// ```
    pub fn passes(self) -> bool {
        match self {
            ContextRefusal::NoSpace | ContextRefusal::Busy | ContextRefusal::Resetting => true,
            ContextRefusal::Unsupported | ContextRefusal::Path => false,
        }
    }
}
