//! Changes of a kernel's SAs and policies, in the types of [`Keying`](ipsec::Keying).

use core::fmt;
use core::net::IpAddr;
use offload_api::{Action, Direction, Policy, SaParams, Selector};

/// Identifier of an SA in a kernel.
///
/// ```
/// use linux_mirror::sa::KernelSaId;
///
/// let name = KernelSaId { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// assert_eq!(name.to_string(), "SA 0x1001 from 10.0.0.1 to 10.0.0.2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelSaId {
    /// Source of the SA's packets on the wire.
    pub source: IpAddr,
    /// Destination of the SA's packets on the wire.
    pub destination: IpAddr,
    /// Security parameters index.
    pub spi: u32,
}

impl fmt::Display for KernelSaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SA {:#x} from {} to {}", self.spi, self.source, self.destination)
    }
}

/// Use of an SA so far.
///
/// ```
/// use linux_mirror::sa::KernelSaUse;
///
/// let (before, since) = (KernelSaUse { bytes: 1400, packets: 1 }, KernelSaUse { bytes: 2800, packets: 2 });
/// assert_eq!(before + since, KernelSaUse { bytes: 4200, packets: 3 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelSaUse {
    /// Number of protected bytes.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
}

impl core::ops::Add for KernelSaUse {
    type Output = KernelSaUse;
    fn add(self, more: KernelSaUse) -> KernelSaUse {
        KernelSaUse { bytes: self.bytes.saturating_add(more.bytes), packets: self.packets.saturating_add(more.packets) }
    }
}

/// An SA of a kernel.
///
/// See [`SaChange`] for an example.
#[derive(Clone, Debug)]
pub struct MirroredSa {
    /// Parameters of the SA, without direction and last sequence number, which the other fields hold. Time limits are
    /// the remaining times; the other limits include the kernel's own use.
    pub params: SaParams,
    /// Direction, if the kernel reports it (`XFRMA_SA_DIR`, since Linux 6.10).
    pub direction: Option<Direction>,
    /// Last sequence number that the kernel sent.
    pub sent: u64,
    /// Highest sequence number that the kernel received.
    pub received: u64,
    /// Use of the SA in the kernel so far.
    pub used: KernelSaUse,
}

impl MirroredSa {
    /// Returns the SA's identifier.
    pub fn name(&self) -> KernelSaId {
        KernelSaId { source: self.params.source, destination: self.params.destination, spi: self.params.spi }
    }
}

/// A policy of a kernel.
///
/// See [`SaChange`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredPolicy {
    /// The kernel's index of the policy, which stays the same when the policy changes.
    pub index: u32,
    /// Direction of the packets.
    pub direction: Direction,
    /// Selected packets. If the policy is not supported, the selector may cover more packets than the policy.
    pub selector: Selector,
    /// Priority. Lower values come first.
    pub priority: u32,
    /// Action, or the reason for which it is not supported. An unsupported policy drops its packets.
    pub action: Result<Action, UnsupportedSa>,
}

impl MirroredPolicy {
    /// Returns the policy to install. An unsupported policy becomes one that discards its packets.
    pub fn policy(&self) -> Policy {
        let action = *self.action.as_ref().unwrap_or(&Action::Discard);
        Policy { direction: self.direction, selector: self.selector, priority: self.priority, action }
    }
}

/// Reason for which an SA or policy of a kernel cannot be mirrored.
///
/// ```
/// use linux_mirror::sa::UnsupportedSa;
///
/// let cbc = UnsupportedSa::Algorithm("cbc(aes)".into());
/// assert_eq!(cbc.to_string(), "the algorithm cbc(aes) is not one of rfc4106, rfc4543 and rfc7539esp with 16 bytes of ICV");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedSa {
    /// A protocol other than ESP.
    #[error("protocol {0} is not ESP")]
    Protocol(u8),
    /// An unsupported algorithm, a short ICV, or a key with a wrong length.
    #[error("the algorithm {0} is not one of rfc4106, rfc4543 and rfc7539esp with 16 bytes of ICV")]
    Algorithm(String),
    /// A mode other than transport and tunnel.
    #[error("mode {0} is neither transport nor tunnel")]
    Mode(u8),
    /// A mark or an interface as a selection criterion.
    #[error("it depends on a mark or an interface, which do not exist here")]
    Mark,
    /// A selector that cannot be expressed here.
    #[error("its selector has masks of ports, a type of ICMP, a key of GRE, an interface or two families")]
    Selector,
    /// A selector of the SA itself that no policy repeats.
    #[error("an SA without reqid has a selector of its own")]
    SaSelector,
    /// Unknown flags that change the packets or the stack.
    #[error("flags {0:#x} are not known here")]
    Flags(u32),
    /// An encapsulation other than ESP in UDP.
    #[error("encapsulation {0} is not ESP in UDP")]
    Encapsulation(u16),
    /// An unknown attribute that could change the SA.
    #[error("attribute {0} is not known here")]
    Attribute(u16),
    /// Several templates, an optional one, or one with an SPI and no reqid.
    #[error("its templates are not one ESP template that is required")]
    Templates,
    /// A tunnel with an unspecified end.
    #[error("a tunnel lacks one of its ends")]
    TunnelEnds,
    /// A policy of a type other than main.
    #[error("the policy is of type {0}, not main")]
    PolicyType(u8),
}

/// A change of a kernel's SAs and policies.
///
/// ```
/// use offload_api::{Action, Direction, EspKey, EspSuite, SaParams, Selector};
/// use linux_mirror::sa::{SaChange, MirroredPolicy, MirroredSa, KernelSaUse};
///
/// let (here, there) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = MirroredSa {
///     params: SaParams::new(Direction::Transmit, 0x1001, here, there, key),
///     direction: None, sent: 0, received: 0, used: KernelSaUse::default(),
/// };
/// let policy = MirroredPolicy {
///     index: 9, direction: Direction::Receive, selector: Selector::ANY, priority: 7, action: Ok(Action::Bypass),
/// };
/// let changes = [SaChange::SnapshotBegins, SaChange::Sa(Box::new(sa)), SaChange::Policy(policy), SaChange::SnapshotEnds];
/// assert!(format!("{changes:?}").contains("redacted"), "no key is printed");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SaChange {
    /// Start of a snapshot: all existing SAs and policies follow.
    SnapshotBegins,
    /// End of a snapshot. An SA or policy not named since its start does not exist.
    SnapshotEnds,
    /// An SA was added or changed.
    Sa(Box<MirroredSa>),
    /// An SA was added that cannot be mirrored.
    SaUnsupported(KernelSaId, UnsupportedSa),
    /// An SA was deleted.
    SaGone(KernelSaId),
    /// All SAs were deleted.
    AllSasGone,
    /// A policy was added or changed.
    Policy(MirroredPolicy),
    /// The policy with this index was deleted.
    PolicyGone(u32),
    /// All policies were deleted.
    AllPoliciesGone,
    /// Default actions for packets without a policy.
    Defaults {
        /// Whether received packets pass.
        receive: bool,
        /// Whether sent packets pass.
        transmit: bool,
    },
}

/// News of SAs from the mirror.
///
/// ```
/// use linux_mirror::sa::{SaReport, KernelSaId, KernelSaUse};
///
/// let name = KernelSaId { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// let reports = [SaReport::Used(name, KernelSaUse { bytes: 1400, packets: 1 }), SaReport::Expired(name, false)];
/// assert_ne!(reports[0], reports[1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaReport {
    /// Total use of an SA, in the kernel and at the mirror.
    Used(KernelSaId, KernelSaUse),
    /// A limit was reached, or the SA cannot be used, so that the daemon has to negotiate a successor. `true` marks a
    /// hard limit: the SA is dead.
    Expired(KernelSaId, bool),
}
