//! What a mirror counts, and what it could not replay.
//!
//! Invariant: who fills it takes bounded memory, for the oldest refusal gives way.

use crate::sa::change::{SaName, Unsupported};
use crate::sa::frame::{FrameError, VERSION};
use ipsec::KeyingError;
use offload_api::SaRefusal;
use std::collections::VecDeque;

offload_base::counters! {
    /// Counters of a mirror of SAs.
    ///
    /// ```
    /// let mirror = linux_mirror::sa::Mirror::new(&[]);
    /// assert_eq!(mirror.counters().sas_added, 0);
    /// ```
    pub struct MirrorCounters {
        /// SAs that came.
        pub sas_added: "mirror_sas_added",
        /// SAs that got another lifetime.
        pub sas_updated: "mirror_sas_updated",
        /// SAs that went.
        pub sas_deleted: "mirror_sas_deleted",
        /// SAs that could not be added at all.
        pub sas_refused: "mirror_sas_refused",
        /// SAs that a device was asked for and that software has to do.
        pub sas_in_software: "mirror_sas_in_software",
        /// Policies that came or changed.
        pub policies_added: "mirror_policies_added",
        /// Policies that went.
        pub policies_deleted: "mirror_policies_deleted",
        /// Policies that could not be added, or that drop their packets because they are not supported.
        pub policies_refused: "mirror_policies_refused",
        /// Snapshots that were whole.
        pub snapshots: "mirror_snapshots",
        /// Frames that made no sense.
        pub bad_frames: "mirror_bad_frames",
        /// Reports to the agent: counters and expiries.
        pub reports: "mirror_reports",
        /// Refusals that were forgotten because nobody asked for them.
        pub refusals_lost: "mirror_refusals_lost",
    }
}

/// What could not be replayed as it is, and why. Nothing of it is secret.
///
/// ```
/// use ipsec::KeyingError;
/// use linux_mirror::sa::{Refusal, SaName};
///
/// let name = SaName { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// let refusal = Refusal::Sa(name, KeyingError::Spi(7));
/// assert_eq!(refusal.to_string(), "SA 0x1001 from 10.0.0.1 to 10.0.0.2 is not there: the SPI 7 is reserved");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The SA has no counterpart here.
    #[error("{0} is not there: {1}")]
    Unsupported(SaName, Unsupported),
    /// Neither of its addresses is one of this host's.
    #[error("{0} is not there: neither address is one of this host")]
    Elsewhere(SaName),
    /// The IPsec layer does not take it.
    #[error("{0} is not there: {1}")]
    Sa(SaName, KeyingError),
    /// The IPsec layer does not give it another lifetime.
    #[error("{0} keeps its lifetime: {1}")]
    Update(SaName, KeyingError),
    /// The device does not take it; software does.
    #[error("{0} stays in software: {1}")]
    Software(SaName, SaRefusal),
    /// The policy has no counterpart here: its packets are dropped.
    #[error("policy {0} drops its packets: {1}")]
    PolicyUnsupported(u32, Unsupported),
    /// The IPsec layer does not take the policy.
    #[error("policy {0} is not there: {1}")]
    Policy(u32, KeyingError),
    /// There is more than a mirror holds.
    #[error("there are more than {0} SAs, and the mirror holds no more")]
    TooMany(usize),
    /// The same of policies: what one does that is missing, nobody knows, so nothing passes.
    #[error("there are more than {0} policies, and the mirror holds no more: nothing passes until there are fewer")]
    TooManyPolicies(usize),
    /// The agent speaks another version.
    #[error("the agent speaks version {0} of the protocol, the mirror version {VERSION}: use those of one release")]
    Version(u16),
    /// The agent's bytes make no sense; it is asked to begin again.
    #[error("the agent's bytes make no sense: {0}")]
    Frame(FrameError),
}

/// Counters, and refusals that nobody has asked for yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) counts: MirrorCounters,
    refusals: VecDeque<Refusal>,
}

impl Log {
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.pop_front();
            self.counts.refusals_lost += 1;
        }
        self.refusals.push_back(refusal);
    }

    /// The oldest refusal.
    pub(super) fn next(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }
}

const MOST_REFUSALS: usize = 1024;
