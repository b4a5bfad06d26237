//! What became of a kernel's SAs and policies, in the types of [`Keying`](ipsec::Keying).

use core::fmt;
use core::net::IpAddr;
use offload_api::{Action, Direction, Policy, SaParams, Selector};

/// Names an SA of a kernel.
///
/// ```
/// use linux_mirror::sa::SaName;
///
/// let name = SaName { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// assert_eq!(name.to_string(), "SA 0x1001 from 10.0.0.1 to 10.0.0.2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaName {
    /// Source of its packets on the wire.
    pub source: IpAddr,
    /// Their destination.
    pub destination: IpAddr,
    /// Security parameters index.
    pub spi: u32,
}

impl fmt::Display for SaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SA {:#x} from {} to {}", self.spi, self.source, self.destination)
    }
}

/// The use of an SA so far.
///
/// ```
/// use linux_mirror::sa::Used;
///
/// let (before, since) = (Used { bytes: 1400, packets: 1 }, Used { bytes: 2800, packets: 2 });
/// assert_eq!(before + since, Used { bytes: 4200, packets: 3 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes that it protected.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

impl core::ops::Add for Used {
    type Output = Used;
    fn add(self, more: Used) -> Used {
        Used { bytes: self.bytes.saturating_add(more.bytes), packets: self.packets.saturating_add(more.packets) }
    }
}

/// An SA that a kernel has.
///
/// See [`Change`] for an example.
#[derive(Clone, Debug)]
pub struct MirroredSa {
    /// Everything but its direction and the number to go on from, which the other fields tell. Time limits are what is left of them;
    /// the others count what the kernel did.
    pub params: SaParams,
    /// Which way it goes, if the kernel says (`XFRMA_SA_DIR`, since Linux 6.10).
    pub direction: Option<Direction>,
    /// The number that the kernel sent last.
    pub sent: u64,
    /// The highest number that it received.
    pub received: u64,
    /// What it did so far.
    pub used: Used,
}

impl MirroredSa {
    /// Its name.
    pub fn name(&self) -> SaName {
        SaName { source: self.params.source, destination: self.params.destination, spi: self.params.spi }
    }
}

/// A policy that a kernel has.
///
/// See [`Change`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredPolicy {
    /// The kernel's number for it, which it keeps when it changes.
    pub index: u32,
    /// About packets sent, or about packets received.
    pub direction: Direction,
    /// Which packets. Of a policy that is not supported, these and perhaps more.
    pub selector: Selector,
    /// Lower goes before higher.
    pub priority: u32,
    /// What is done; or why that cannot be done here. Its packets are dropped then.
    pub action: Result<Action, Unsupported>,
}

impl MirroredPolicy {
    /// As it is replayed: what is not supported is discarded.
    pub fn policy(&self) -> Policy {
        let action = *self.action.as_ref().unwrap_or(&Action::Discard);
        Policy { direction: self.direction, selector: self.selector, priority: self.priority, action }
    }
}

/// Why an SA or policy of a kernel has no counterpart here.
///
/// ```
/// use linux_mirror::sa::Unsupported;
///
/// let cbc = Unsupported::Algorithm("cbc(aes)".into());
/// assert_eq!(cbc.to_string(), "the algorithm cbc(aes) is not one of rfc4106, rfc4543 and rfc7539esp with 16 bytes of ICV");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// AH, IPComp, or another protocol than ESP.
    #[error("protocol {0} is not ESP")]
    Protocol(u8),
    /// Another algorithm, a shorter ICV, or a key that is not as long as its algorithm wants.
    #[error("the algorithm {0} is not one of rfc4106, rfc4543 and rfc7539esp with 16 bytes of ICV")]
    Algorithm(String),
    /// Neither transport nor tunnel mode.
    #[error("mode {0} is neither transport nor tunnel")]
    Mode(u8),
    /// Marks and interface numbers, by which Linux chooses.
    #[error("a mark or an interface chooses it, and there are none here")]
    Mark,
    /// A selector that cannot be kept.
    #[error("its selector has masks of ports, a type of ICMP, a key of GRE, an interface or two families")]
    Selector,
    /// An SA's own selector, which no policy repeats.
    #[error("an SA without reqid has a selector of its own")]
    SaSelector,
    /// Flags that change what is on the wire or in the stack.
    #[error("flags {0:#x} are not known here")]
    Flags(u32),
    /// Another encapsulation than ESP in UDP.
    #[error("encapsulation {0} is not ESP in UDP")]
    Encapsulation(u16),
    /// An attribute that would change what the SA does.
    #[error("attribute {0} is not known here")]
    Attribute(u16),
    /// Several templates, an optional one, or one with an SPI and no reqid.
    #[error("its templates are not one ESP template that is required")]
    Templates,
    /// A tunnel without both of its ends.
    #[error("a tunnel lacks one of its ends")]
    TunnelEnds,
    /// A policy about packets that it names by subtype.
    #[error("the policy is of type {0}, not main")]
    PolicyType(u8),
}

/// What became of a kernel's SAs and policies.
///
/// ```
/// use offload_api::{Action, Direction, EspKey, EspSuite, SaParams, Selector};
/// use linux_mirror::sa::{Change, MirroredPolicy, MirroredSa, Used};
///
/// let (here, there) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = MirroredSa {
///     params: SaParams::new(Direction::Transmit, 0x1001, here, there, key),
///     direction: None, sent: 0, received: 0, used: Used::default(),
/// };
/// let policy = MirroredPolicy {
///     index: 9, direction: Direction::Receive, selector: Selector::ANY, priority: 7, action: Ok(Action::Bypass),
/// };
/// let changes = [Change::SnapshotBegins, Change::Sa(Box::new(sa)), Change::Policy(policy), Change::SnapshotEnds];
/// assert!(format!("{changes:?}").contains("redacted"), "no key is printed");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// All SAs and policies that there are follow.
    SnapshotBegins,
    /// What was not said since it began is not there.
    SnapshotEnds,
    /// An SA came, or is another now.
    Sa(Box<MirroredSa>),
    /// An SA came that has no counterpart here.
    SaUnsupported(SaName, Unsupported),
    /// An SA is gone.
    SaGone(SaName),
    /// All SAs are gone.
    AllSasGone,
    /// A policy came, or is another now.
    Policy(MirroredPolicy),
    /// The policy of this index is gone.
    PolicyGone(u32),
    /// All policies are gone.
    AllPoliciesGone,
    /// What becomes of packets that no policy is about.
    Defaults {
        /// Received ones pass.
        receive: bool,
        /// Sent ones pass.
        transmit: bool,
    },
}

/// What became of SAs outside the kernel.
///
/// ```
/// use linux_mirror::sa::{Report, SaName, Used};
///
/// let name = SaName { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// let reports = [Report::Used(name, Used { bytes: 1400, packets: 1 }), Report::Expired(name, false)];
/// assert_ne!(reports[0], reports[1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// What an SA did so far, both here and in the kernel.
    Used(SaName, Used),
    /// A limit was reached, or the SA cannot be used: time for a successor. `true`: a hard one, the SA is dead.
    Expired(SaName, bool),
}
