//! Counters and refusals of a mirror.
//!
//! Invariant: refusals take bounded memory, because the oldest one is dropped.

use crate::sa::change::{KernelSaId, UnsupportedSa};
use crate::sa::frame::{FrameError, VERSION};
use ipsec::KeyingError;
use offload_api::SaRefusal;
use std::collections::VecDeque;

offload_base::counters! {
    /// Counters of a mirror of SAs.
    ///
    /// ```
    /// let mirror = linux_mirror::sa::SaMirror::new(&[]);
    /// assert_eq!(mirror.counters().sas_added, 0);
    /// ```
    pub struct SaMirrorCounters {
        /// SAs added.
        pub sas_added: "mirror_sas_added",
        /// SAs with a changed lifetime.
        pub sas_updated: "mirror_sas_updated",
        /// SAs deleted.
        pub sas_deleted: "mirror_sas_deleted",
        /// SAs that could not be added.
        pub sas_refused: "mirror_sas_refused",
        /// SAs offered to a device, but left to software.
        pub sas_in_software: "mirror_sas_in_software",
        /// Policies added or changed.
        pub policies_added: "mirror_policies_added",
        /// Policies deleted.
        pub policies_deleted: "mirror_policies_deleted",
        /// Policies that could not be added, or that drop their packets because they are not supported.
        pub policies_refused: "mirror_policies_refused",
        /// Complete snapshots.
        pub snapshots: "mirror_snapshots",
        /// Malformed frames.
        pub bad_frames: "mirror_bad_frames",
        /// Reports to the agent: counters and expiries.
        pub reports: "mirror_reports",
        /// Refusals dropped because nobody read them.
        pub refusals_lost: "mirror_refusals_lost",
    }
}

/// A part of the kernel's state that could not be mirrored unchanged, and the reason. It contains no secrets.
///
/// ```
/// use ipsec::KeyingError;
/// use linux_mirror::sa::{SaMirrorRefusal, KernelSaId};
///
/// let name = KernelSaId { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// let refusal = SaMirrorRefusal::Sa(name, KeyingError::Spi(7));
/// assert_eq!(refusal.to_string(), "SA 0x1001 from 10.0.0.1 to 10.0.0.2 is not installed: the SPI 7 is reserved");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaMirrorRefusal {
    /// The SA cannot be mirrored.
    #[error("{0} is not installed: {1}")]
    Unsupported(KernelSaId, UnsupportedSa),
    /// Neither address of the SA belongs to this host.
    #[error("{0} is not installed: neither address is one of this host")]
    Elsewhere(KernelSaId),
    /// The IPsec layer does not accept the SA.
    #[error("{0} is not installed: {1}")]
    Sa(KernelSaId, KeyingError),
    /// The IPsec layer does not change the SA's lifetime.
    #[error("{0} keeps its lifetime: {1}")]
    Update(KernelSaId, KeyingError),
    /// The device does not accept the SA; software handles it.
    #[error("{0} stays in software: {1}")]
    Software(KernelSaId, SaRefusal),
    /// The policy cannot be mirrored, so its packets are dropped.
    #[error("policy {0} drops its packets: {1}")]
    PolicyUnsupported(u32, UnsupportedSa),
    /// The IPsec layer does not accept the policy.
    #[error("policy {0} is not installed: {1}")]
    Policy(u32, KeyingError),
    /// There are more SAs than the mirror can hold.
    #[error("there are more than {0} SAs, and the mirror holds no more")]
    TooMany(usize),
    /// There are more policies than the mirror can hold. The effect of the missing ones is unknown, so nothing passes.
    #[error("there are more than {0} policies, and the mirror holds no more: nothing passes until there are fewer")]
    TooManyPolicies(usize),
    /// The agent speaks another protocol version.
    #[error("the agent speaks version {0} of the protocol, the mirror version {VERSION}: use those of one release")]
    Version(u16),
    /// The agent's bytes are malformed; the agent has to start again.
    #[error("the agent's bytes are malformed: {0}")]
    Frame(FrameError),
}

/// Counters and unread refusals.
#[derive(Debug, Default)]
pub(super) struct MirrorLog {
    pub(super) counts: SaMirrorCounters,
    refusals: VecDeque<SaMirrorRefusal>,
}

impl MirrorLog {
    pub(super) fn refuse(&mut self, refusal: SaMirrorRefusal) {
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.pop_front();
            self.counts.refusals_lost += 1;
        }
        self.refusals.push_back(refusal);
    }

    /// Takes the oldest refusal.
    pub(super) fn next(&mut self) -> Option<SaMirrorRefusal> {
        self.refusals.pop_front()
    }
}

/// Maximum number of unread refusals.
const MAX_REFUSALS: usize = 1024;
